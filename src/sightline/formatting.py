"""Values as text: bounds rounded up, metrics by name, tables and curves for notebooks; strict reading of text files."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from html import escape
from pathlib import Path
from typing import Any

WIDTH, HEIGHT = 320, 80


@dataclass(frozen=True)
class Metric:
    """One way to judge a model: its name in files, its title, which direction is better, and how it is written."""

    name: str
    title: str
    higher: bool = True
    percent: bool = False

    @property
    def heading(self) -> str:
        """Return the title for the beginning of a line."""
        return self.title[:1].upper() + self.title[1:]

    @property
    def test_key(self) -> str:
        """Return its name in a round's row, on the common test set."""
        return f"test_{self.name}"

    def client_key(self, which: str) -> str:
        """Return its name over clients: their `mean`, the `decile` at the worse end, the `worst`."""
        return f"client_{self.name}_{which}"

    @property
    def decile_title(self) -> str:
        """Return the title of the decile at the worse end."""
        return "10th percentile" if self.higher else "90th percentile"

    def format_value(self, value: float | None) -> str:
        """Return a value as text.

        >>> METRICS["accuracy"].format_value(0.912), METRICS["rmse"].format_value(0.91234)
        ('91.2%', '0.9123')
        """
        if value is None or math.isnan(value):
            return "-"
        return f"{100 * value:.1f}%" if self.percent else f"{value:.4g}"


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("accuracy", "accuracy", percent=True),
        Metric("f1", "F1"),
        Metric("macro_f1", "macro F1"),
        Metric("exact_match", "exact match", percent=True),
        Metric("label_accuracy", "label accuracy", percent=True),
        Metric("rmse", "RMSE", higher=False),
        Metric("mae", "MAE", higher=False),
        Metric("r2", "R²"),
        Metric("perplexity", "perplexity", higher=False),
        Metric("token_accuracy", "token accuracy", percent=True),
        Metric("loss", "loss", higher=False),
    )
}
"""Every metric that a run may be judged by, under its name in rows, facts and `--json`."""

ACCURACY = METRICS["accuracy"]


def metric_named(name: object) -> Metric:
    """Return the metric of that name; accuracy for runs of old versions that name none."""
    return METRICS.get(str(name), ACCURACY)


def metric_words(row: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return the title of a round's main metric and its value as text; None if the round was not evaluated."""
    metric = metric_named(row.get("metric"))
    value = row.get(metric.test_key)
    return metric.title, None if value is None else metric.format_value(value)


def rounded_up(bound: float) -> str:
    """Return an upper bound with three decimals, never less than the bound itself.

    >>> rounded_up(7.99321), rounded_up(8.0), rounded_up(math.inf)
    ('7.994', '8.000', 'infinite')
    """
    if not math.isfinite(bound):
        return "infinite"
    return str(Decimal(bound).quantize(Decimal("0.001"), rounding=ROUND_CEILING))


def digits_up(bound: float, digits: int = 6) -> str:
    """Return a bound, or a required noise, to some significant digits, never less than it is.

    >>> digits_up(8.00000049), digits_up(2.0), digits_up(1e-9)
    ('8.00001', '2', '1e-09')
    """
    return _to_digits(bound, digits, ROUND_CEILING)


def digits_down(bound: float, digits: int = 6) -> str:
    """Return a lower bound to some significant digits, never more than it is.

    >>> digits_down(7.9999996)
    '7.99999'
    """
    return _to_digits(bound, digits, ROUND_FLOOR)


def _to_digits(bound: float, digits: int, rounding: str) -> str:
    rounded = Context(prec=digits, rounding=rounding).create_decimal(repr(float(bound)))
    return f"{float(rounded):.{digits}g}"


def html_table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return rows as an HTML table under a title; cells are escaped."""
    head = "".join(f"<th>{escape(word)}</th>" for word in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><caption>{escape(title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def svg_curve(title: str, values: Sequence[float | None]) -> str:
    """Return a line over 1, 2, ... as an SVG from zero to its largest value; missing and infinite values are gaps."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return ""
    top, last = max(*known, 0.0) or 1.0, max(len(values) - 1, 1)
    strokes = [""]
    for place, value in enumerate(values):
        if value is None or not math.isfinite(value):
            strokes.append("")
        else:
            strokes[-1] += f"{WIDTH * place / last:.1f},{HEIGHT * (1 - value / top):.1f} "
    lines = "".join(f'<polyline points="{stroke.strip()}"/>' for stroke in strokes if stroke)
    drawing = f'<g fill="none" stroke="currentColor" stroke-width="1.5">{lines}</g>'
    svg = f'<svg viewBox="-2 -2 {WIDTH + 4} {HEIGHT + 4}" width="{WIDTH}" role="img">{drawing}</svg>'
    return f"<figure>{svg}<figcaption>{escape(title)}</figcaption></figure>"


MOST_BYTES = 2**28


def read_text(path: Any, *, encoding: str = "utf-8") -> str:
    """Return the text of a regular file of at most 256 MiB.

    Raises FileNotFoundError if it does not exist, and OSError or ValueError, with one line, for anything else.
    """
    # A device never ends, a pipe blocks, and a path from a file may not be a string at all.
    if not isinstance(path, str | Path):
        raise ValueError("a file has a name")
    place = Path(path)
    if not place.is_file():
        raise OSError("not a regular file") if place.exists() else FileNotFoundError(path)
    if place.stat().st_size > MOST_BYTES:
        raise OSError("larger than 256 MiB")
    return place.read_text(encoding=encoding)
