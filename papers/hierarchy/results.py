"""Results as the findings read them: the seeds of a cell, their accuracy and what they spent until a target."""

from collections.abc import Callable
from itertools import pairwise
from statistics import fmean
from typing import Any

from papers.paired import Estimate, measure_mean, pair_by_seed

Row = dict[str, Any]
COSTS = {"energy": 2, "delay": 3}
"""Where a point of a curve keeps what was spent until then."""


def find_seeds(rows: list[Row], figure: str, name: str, data: str) -> dict[int, Row]:
    """The runs of one cell by seed."""
    return {row["seed"]: row for row in rows if (row["figure"], row["name"], row["data"]) == (figure, name, data)}


def last_accuracy(row: Row) -> float:
    """In %, the mean of the last three evaluations: single ones jump with the noise."""
    return 100 * fmean(point[1] for point in row["curve"][-3:])


def jump_size(row: Row) -> float:
    """In points: the mean change from one evaluation to the next over the second half of a run."""
    later = [100 * point[1] for point in row["curve"]][len(row["curve"]) // 2 :]
    return fmean(abs(after - before) for before, after in pairwise(later))


def cost_to(row: Row, target: float, kind: str) -> float | None:
    """What was spent when the accuracy (a share) first reached the target; None when it never did."""
    return next((point[COSTS[kind]] for point in row["curve"] if point[1] >= target), None)


def by_seed(runs: dict[int, Row], read: Callable[[Row], float] = last_accuracy) -> dict[int, float]:
    """One number of every run."""
    return {seed: read(row) for seed, row in runs.items()}


def mean_accuracy(runs: dict[int, Row]) -> Estimate:
    """Over the seeds, in %."""
    return measure_mean(list(by_seed(runs).values()))


def accuracy_gain(before: dict[int, Row], after: dict[int, Row]) -> Estimate:
    """`after - before` in points, paired by seed."""
    return pair_by_seed(by_seed(before), by_seed(after))


def show_table(header: str, lines: list[str]) -> str:
    """A Markdown table."""
    return "\n".join([header, "|" + "---|" * (header.count("|") - 1), *lines])
