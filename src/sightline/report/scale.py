"""Where things stand on a chart: round numbers for axes, and fewer points that look like all of them."""

import math
from collections.abc import Sequence
from itertools import pairwise

Values = Sequence[float | None]

TINY = 1e-9

NOTHING = 1e-200
"""Differences below this are none."""


def axis_ticks(low: float, high: float, *, about: int = 5, whole: bool = False) -> list[float]:
    """Round numbers between low and high, about so many.

    >>> axis_ticks(0, 1), axis_ticks(1, 30, about=3, whole=True)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [10.0, 20.0, 30.0])
    """
    step = nice_step((high - low) / about, whole=whole)
    first, last = math.ceil(low / step - TINY), math.floor(high / step + TINY)
    places = 3 - math.floor(math.log10(step))
    return [round(place * step, places) for place in range(first, last + 1)]


def nice_step(least: float, *, whole: bool = False) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that is not below `least`; a whole number when asked."""
    least = max(least, 1.0 if whole else 5e-300)
    power = 10.0 ** math.floor(math.log10(least))
    factors = (1, 2, 5, 10) if whole and power < 10 else (1, 2, 2.5, 5, 10)
    return next(factor * power for factor in factors if factor * power >= least * (1 - TINY))


def axis_domain(
    values: Values, *, floor: float | None = None, ceiling: float | None = None, whole: bool = False
) -> tuple[float, float]:
    """The range of an axis: all finite values, widened to round numbers, kept within floor and ceiling."""
    low, high = value_extent(values)
    size = max(abs(low), abs(high))
    if high - low <= max(1e-12 * size, NOTHING):
        room = 0.1 * size if size > NOTHING else 1.0
        low, high = low - room, high + room
    low = low if floor is None else max(floor, low)
    step = nice_step((high - low) / 5, whole=whole)
    low, high = math.floor(low / step + TINY) * step, math.ceil(high / step - TINY) * step
    low = low if floor is None else max(floor, low)
    return low, high if ceiling is None else max(min(ceiling, high), low + step / 10)


def value_extent(values: Values) -> tuple[float, float]:
    """The least and the greatest finite value; 0 to 1 when there is none."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return (min(finite), max(finite)) if finite else (0.0, 1.0)


def places_to_keep(lines: Sequence[Values], *, limit: int = 600) -> list[int]:
    """Places to keep so that a chart of at most `limit` points looks like the chart of all.

    Guarantees: the first and the last place are kept; in every bucket of neighbours each line keeps its lowest and its
    highest value, and one missing value where there is any, so that neither a peak nor a gap is smoothed away.
    """
    length = max((len(line) for line in lines), default=0)
    if length <= limit:
        return list(range(length))
    buckets = max(1, (limit - 2) // (3 * len(lines)))
    edges = [length * place // buckets for place in range(buckets + 1)]
    found = {0, length - 1}
    for line in lines:
        for start, end in pairwise(edges):
            found.update(_remarkable_places(line, range(start, end)))
    return sorted(found)


def _remarkable_places(line: Values, places: range) -> set[int]:
    there = [(value, place) for place in places if (value := line[place]) is not None]
    gap = [place for place in places if line[place] is None][:1]
    return {min(there)[1], max(there)[1], *gap} if there else set(gap)
