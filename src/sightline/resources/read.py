"""Settings of a resource model, one checked value at a time."""

import math
from typing import Any

from sightline.errors import invalid


def read_number(name: str, value: Any) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        invalid(name, value, "is a finite number")
    return float(value)


def read_positive(name: str, value: Any) -> float:
    """A finite number above zero."""
    if read_number(name, value) <= 0:
        invalid(name, value, "is a positive number")
    return float(value)


def read_span(name: str, value: Any) -> tuple[float, float]:
    """One distance for everybody, or the nearest and the farthest."""
    if not isinstance(value, list | tuple):
        return read_positive(name, value), read_positive(name, value)
    if len(value) != 2 or read_positive(name, value[0]) > read_positive(name, value[1]):
        invalid(name, value, "is one distance, or [nearest, farthest]", "e.g. [10.0, 100.0]")
    return float(value[0]), float(value[1])


def read_boolean(name: str, value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        invalid(name, value, "is true or false")
    return value
