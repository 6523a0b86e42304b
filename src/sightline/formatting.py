"""Values as text: bounds rounded up, metrics by name, tables and curves for notebooks; careful reading and writing."""

import math
import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any

from sightline.errors import InvalidInput

WIDTH, HEIGHT, MARGIN = 320, 80, 56


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


SMALLER_IS_BETTER = ("error", "loss", "deviance")


def metric_named(name: object) -> Metric:
    """Return the metric of that name; accuracy for runs of old versions that name none.

    A user's own metric is titled by its name, and smaller is better if that ends in error, loss or deviance.

    >>> metric_named("max_error")
    Metric(name='max_error', title='max error', higher=False, percent=False)
    """
    if name is None or str(name) in METRICS:
        return METRICS.get(str(name), ACCURACY)
    return Metric(str(name), str(name).replace("_", " "), higher=not str(name).endswith(SMALLER_IS_BETTER))


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


NONE = "–"
"""Text where there is no number."""

INFINITE = "∞"


def format_upper(value: float | None, digits: int = 3) -> str:
    """Return an upper bound, rounded up: never smaller than what was computed. None is infinite.

    >>> format_upper(7.9932), format_upper(8.0), format_upper(0.12341), format_upper(389.2), format_upper(None)
    ('8.00', '8.00', '0.124', '390', '∞')
    """
    if value is None or not math.isfinite(value):
        return INFINITE
    if value == 0:
        return "0"
    return _to_significant(value, digits, ROUND_CEILING)


def format_number(value: float | None, digits: int = 3) -> str:
    """Return a measured number to a few significant digits.

    >>> [format_number(value) for value in (0.53219, 12.0, None, 1.5e9, 0.00001234)]
    ['0.532', '12.0', '–', '1.5e9', '1.23e-5']
    """
    if value is None or not math.isfinite(value):
        return NONE
    if value != 0 and not 1e-3 <= abs(value) < 1e5:
        return format_short(float(f"{value:.{digits}g}"))
    return _to_significant(value, digits, ROUND_HALF_EVEN) if value else "0"


def _to_significant(value: float, digits: int, rounding: str) -> str:
    # Decimal arithmetic: rounding up in binary could round a number that is exact in decimal.
    exact = Decimal(repr(float(value)))
    # Beyond seven digits an exponent is easier to read than a row of zeros.
    if abs(exact.adjusted()) > 6:
        quantum = Decimal((0, (1,), exact.adjusted() - digits + 1))
        return format_short(float(exact.quantize(quantum, rounding=rounding)))
    decimals = max(0, digits - 1 - exact.adjusted())
    return f"{exact.quantize(Decimal((0, (1,), -decimals)), rounding=rounding):,}"


def format_short(value: float, digits: int = 6) -> str:
    """Return a setting as a person would type it: no trailing zeros, no padded exponent.

    >>> format_short(1e-05), format_short(0.5), format_short(1.0), format_short(1234567.0)
    ('1e-5', '0.5', '1', '1.23457e6')
    """
    text = f"{value:.{digits}g}"
    mantissa, mark, exponent = text.partition("e")
    return f"{mantissa}e{int(exponent)}" if mark else mantissa


def format_percent(share: float | None) -> str:
    """Return a share in percent.

    >>> format_percent(0.91234), format_percent(1.0), format_percent(None)
    ('91.2 %', '100.0 %', '–')
    """
    return NONE if share is None or not math.isfinite(share) else f"{100 * share:.1f} %"


def format_metric(metric: Metric, value: float | None) -> str:
    """Return a metric's value: a share in percent, anything else to a few digits.

    >>> format_metric(METRICS["accuracy"], 0.912), format_metric(METRICS["rmse"], 0.91234)
    ('91.2 %', '0.912')
    """
    return format_percent(value) if metric.percent else format_number(value)


def format_count(value: float | None) -> str:
    """Return a whole number with thousands separators."""
    return NONE if value is None or not math.isfinite(value) else f"{round(value):,}"


def floats_as_bytes(floats: float) -> str:
    """Return the volume of that many 32-bit floats.

    >>> floats_as_bytes(4810), floats_as_bytes(250_000_000)
    ('19.2 kB', '1.00 GB')
    """
    volume = 4.0 * floats
    for name in ("B", "kB", "MB", "GB", "TB"):
        if volume < 1000 or name == "TB":
            break
        volume /= 1000
    return f"{format_count(volume)} B" if name == "B" else f"{format_number(volume)} {name}"


def format_duration(seconds: float | None) -> str:
    """Return a time span in its two leading units.

    >>> format_duration(0.5), format_duration(12.34), format_duration(754), format_duration(7400), format_duration(None)
    ('500 ms', '12.3 s', '12 min 34 s', '2 h 3 min', '–')
    """
    if seconds is None or not math.isfinite(seconds):
        return NONE
    if seconds < 59.95:
        return f"{1000 * seconds:.0f} ms" if seconds < 0.95 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def format_plural(number_of: int, noun: str) -> str:
    """Return a counted noun.

    >>> format_plural(1, "release"), format_plural(3000, "release")
    ('1 release', '3,000 releases')
    """
    return f"{number_of:,} {noun}" + ("" if number_of == 1 else "s")


def merge_silent(spent: Mapping[str, float | None], most: int = 3) -> dict[str, float | None]:
    """Return epsilon by kind of observer; more than `most` kinds that learn nothing are one entry.

    >>> merge_silent({"neighbours": 2.0, **{f"nodes {n} hops away": 0.0 for n in range(2, 7)}})
    {'neighbours': 2.0, 'nodes 2 hops away and 4 more': 0.0}
    """
    silent = [kind for kind, epsilon in spent.items() if epsilon == 0]
    if len(silent) <= most:
        return dict(spent)
    merged = f"{silent[0]} and {len(silent) - 1} more"
    return {merged if kind == silent[0] else kind: spent[kind] for kind in spent if kind not in silent[1:]}


def make_frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return rows as a pandas DataFrame. Raises `InvalidInput` if pandas is not installed."""
    try:
        pandas = import_module("pandas")
    except ImportError:
        raise InvalidInput("to_frame() needs pandas: pip install pandas") from None
    return pandas.DataFrame(rows)


def text_table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return rows as aligned text under a title, for `print`.

    >>> print(text_table("two releases", ("from", "times"), [("server", 2)]))
    two releases
    from    times
    server  2
    """
    cells = [list(header), *([str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join([*([title] if title else []), *(line for line in lines if line)])


def html_table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return rows as an HTML table under a title; cells are escaped."""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><caption>{escape(title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def svg_curve(title: str, values: Sequence[float | None], show: Callable[[float], str] | None = None) -> str:
    """Return a line over 1, 2, ... as an SVG from zero to its largest value; missing and infinite values are gaps.

    With `show`, which writes a value, the axis has numbers and the caption the range and the last value.
    """
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return ""
    top, last = max(*known, 0.0) or 1.0, max(len(values) - 1, 1)
    strokes = [""]
    for index, value in enumerate(values):
        if value is None or not math.isfinite(value):
            strokes.append("")
        else:
            strokes[-1] += f"{WIDTH * index / last:.1f},{HEIGHT * (1 - value / top):.1f} "
    lines = "".join(f'<polyline points="{stroke.strip()}"/>' for stroke in strokes if stroke)
    axis = ""
    if show is not None:
        ends = f"{show(min(known))} to {show(max(known))}, last {show(known[-1])}"
        title = f"{title}: {ends}" + ("" if len(known) == len(values) else "; gaps have no finite value")
        words = ((8, show(top)), (HEIGHT, show(0.0)))
        axis = "".join(f'<text x="{WIDTH + 4}" y="{y}">{escape(text)}</text>' for y, text in words)
        axis = f'<g font-size="10" fill="currentColor" opacity="0.8">{axis}</g>'
        axis += f'<path d="M0 {HEIGHT}H{WIDTH}M0 0H{WIDTH}" stroke="currentColor" opacity="0.25"/>'
    wide = WIDTH + 4 + (MARGIN if axis else 0)
    drawing = axis + f'<g fill="none" stroke="currentColor" stroke-width="1.5">{lines}</g>'
    svg = f'<svg viewBox="-2 -2 {wide} {HEIGHT + 4}" width="{wide - 4}" role="img">{drawing}</svg>'
    return f"<figure>{svg}<figcaption>{escape(title)}</figcaption></figure>"


MOST_BYTES = 2**28


def read_text(path: Any, *, encoding: str = "utf-8") -> str:
    """Return the text of a regular file of at most 256 MiB.

    Raises FileNotFoundError if it does not exist, and OSError or ValueError, with one line, for anything else.
    """
    # A device never ends, a pipe blocks, and a path from a file may not be a string at all.
    if not isinstance(path, str | Path):
        raise ValueError("a file name is needed")
    file = Path(path)
    if not file.is_file():
        raise OSError("not a regular file") if file.exists() else FileNotFoundError(path)
    if file.stat().st_size > MOST_BYTES:
        raise OSError("larger than 256 MiB")
    return file.read_text(encoding=encoding)


def write_whole(path: Path, text: str) -> None:
    """Write UTF-8 text under a temporary name and rename it: a reader never sees half a file.

    Lone surrogates, which no file can hold, become question marks. Only the owner can write to the file.
    """
    # A random name with O_EXCL and O_NOFOLLOW: no other user can have put a link there beforehand.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace", newline="\n") as file:
            file.write(text)
            file.flush()
            # On disk before the rename, or a crash could leave an empty file under the final name.
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
