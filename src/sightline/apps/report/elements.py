"""Page elements: sections, atomic writing of files, and numbers as text."""

import math
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_HALF_EVEN, Decimal
from pathlib import Path
from typing import Any

from sightline.apps.report.run_view import RunView
from sightline.formatting import Metric


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


Content = dict[str, Any]


@dataclass(frozen=True)
class Frame:
    """A titled part of a page, drawn by the template of its name."""

    name: str
    title: str

    @property
    def template(self) -> str:
        """Return the name of the template."""
        return f"{self.name}.html"


@dataclass(frozen=True)
class Section(Frame):
    """A section of a page; it is left out if `content` returns None."""

    content: Callable[[RunView], Content | None]


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
    return _to_digits(value, digits, ROUND_CEILING)


def format_number(value: float | None, digits: int = 3) -> str:
    """Return a measured number to a few significant digits.

    >>> [format_number(value) for value in (0.53219, 12.0, None, 1.5e9, 0.00001234)]
    ['0.532', '12.0', '–', '1.5e9', '1.23e-5']
    """
    if value is None or not math.isfinite(value):
        return NONE
    if value != 0 and not 1e-3 <= abs(value) < 1e5:
        return format_short(float(f"{value:.{digits}g}"))
    return _to_digits(value, digits, ROUND_HALF_EVEN) if value else "0"


def _to_digits(value: float, digits: int, rounding: str) -> str:
    # Decimal arithmetic: rounding up in binary could round a number that is exact in decimal.
    exact = Decimal(repr(float(value)))
    # Beyond seven digits an exponent is easier to read than a row of zeros.
    if abs(exact.adjusted()) > 6:
        quantum = Decimal((0, (1,), exact.adjusted() - digits + 1))
        return format_short(float(exact.quantize(quantum, rounding=rounding)))
    places = max(0, digits - 1 - exact.adjusted())
    return f"{exact.quantize(Decimal((0, (1,), -places)), rounding=rounding):,}"


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

    >>> from sightline.formatting import METRICS
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
