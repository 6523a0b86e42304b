"""Results as the page reads them: the seeds of a cell, their mean accuracy, tables of words."""

from statistics import fmean
from typing import Any

Row = dict[str, Any]


def found(rows: list[Row], figure: str, name: str, data: str) -> list[Row]:
    """The seeds of one cell."""
    return [row for row in rows if (row["figure"], row["name"], row["data"]) == (figure, name, data)]


def accuracy(some: list[Row]) -> float:
    """Mean over the seeds of the last three evaluations: single ones jump with the noise."""
    return 100 * fmean(fmean(point[1] for point in row["curve"][-3:]) for row in some)


def shown(some: list[Row]) -> str:
    """The mean, and the seeds behind it where there are several."""
    if not some:
        return "not run"
    each = " / ".join(f"{accuracy([row]):.1f}" for row in some)
    return f"{accuracy(some):.1f}" + (f" ({each})" if len(some) > 1 else "")


def table(header: str, lines: list[str]) -> str:
    return "\n".join([header, "|" + "---|" * (header.count("|") - 1), *lines])
