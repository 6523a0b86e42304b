"""Charts as SVG: round axis numbers, lines, bands and legends, and thinning that keeps the shape."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

Values = Sequence[float | None]

TINY = 1e-9

BESIDE = 14.0
"""Distance of bars at one value, in thousandths of the plot."""

NOTHING = 1e-200
"""Differences below this count as zero."""


def axis_ticks(low: float, high: float, *, about: int = 5, whole: bool = False) -> list[float]:
    """Return about `about` round numbers between low and high.

    >>> axis_ticks(0, 1), axis_ticks(1, 30, about=3, whole=True)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [10.0, 20.0, 30.0])
    """
    step = nice_step((high - low) / about, whole=whole)
    first, last = math.ceil(low / step - TINY), math.floor(high / step + TINY)
    # Rounding removes the error of the multiplication: 0.6000000000000001 would be printed.
    places = 3 - math.floor(math.log10(step))
    return [round(index * step, places) for index in range(first, last + 1)]


def nice_step(least: float, *, whole: bool = False) -> float:
    """Return the smallest of 1, 2, 2.5, 5 times a power of ten that is at least `least`; a whole number if asked."""
    # The floor keeps log10 finite for equal or denormal values.
    least = max(least, 1.0 if whole else 5e-300)
    power = 10.0 ** math.floor(math.log10(least))
    factors = (1, 2, 5, 10) if whole and power < 10 else (1, 2, 2.5, 5, 10)
    return next(factor * power for factor in factors if factor * power >= least * (1 - TINY))


def axis_domain(
    values: Values, *, floor: float | None = None, ceiling: float | None = None, whole: bool = False
) -> tuple[float, float]:
    """Return the range of an axis: all finite values, widened to round numbers, within floor and ceiling."""
    low, high = value_extent(values)
    size = max(abs(low), abs(high))
    # A constant line: give it room, or the scale divides by zero.
    if high - low <= max(1e-12 * size, NOTHING):
        room = 0.1 * size if size > NOTHING else 1.0
        low, high = low - room, high + room
    low = low if floor is None else max(floor, low)
    step = nice_step((high - low) / 5, whole=whole)
    low, high = math.floor(low / step + TINY) * step, math.ceil(high / step - TINY) * step
    low = low if floor is None else max(floor, low)
    return low, high if ceiling is None else max(min(ceiling, high), low + step / 10)


def value_extent(values: Values) -> tuple[float, float]:
    """Return the least and the greatest finite value; (0, 1) if there is none."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return (min(finite), max(finite)) if finite else (0.0, 1.0)


def places_to_keep(lines: Sequence[Values], *, limit: int = 600) -> list[int]:
    """Return the indices to keep so that a chart of at most `limit` points looks like the chart of all.

    Guarantees: the first and the last index are kept; in every bucket of neighbours each line keeps its lowest and its
    highest value, and one missing value if there is any, so that neither a peak nor a gap is smoothed away.
    """
    length = max((len(line) for line in lines), default=0)
    if length <= limit:
        return list(range(length))
    # Each line keeps up to three points per bucket.
    buckets = max(1, (limit - 2) // (3 * len(lines)))
    edges = [length * index // buckets for index in range(buckets + 1)]
    kept = {0, length - 1}
    for line in lines:
        for start, end in pairwise(edges):
            kept.update(_remarkable_places(line, range(start, end)))
    return sorted(kept)


def _remarkable_places(line: Values, places: range) -> set[int]:
    there = [(value, index) for index in places if (value := line[index]) is not None]
    gap = [index for index in places if line[index] is None][:1]
    return {min(there)[1], max(there)[1], *gap} if there else set(gap)


Show = Callable[[float], str]


@dataclass(frozen=True)
class Axis:
    """How one direction of a chart is read."""

    label: str
    tick: Show
    value: Show
    floor: float | None = None
    ceiling: float | None = None
    from_zero: bool = False
    whole: bool = False
    ticks: tuple[tuple[float, str], ...] = ()
    """Position and text of every tick, in place of round numbers."""


@dataclass(frozen=True)
class ChartLine:
    """One named line: a value or None for every x; `margin` is the half-width of its band.

    With `marks` every value has a dot and its margin is a bar; values that are not `linked` have no line between them.
    """

    name: str
    values: Values
    final: str = ""
    margin: Values = ()
    marks: bool = False
    linked: bool = True


@dataclass(frozen=True)
class Tick:
    """A round number on an axis and its position."""

    at: float
    text: str


@dataclass(frozen=True)
class Drawn:
    """A line ready to draw: strokes of an SVG path, isolated and end points, the outline of its band, or bars."""

    name: str
    colour: int
    path: str
    dots: tuple[tuple[float, float], ...]
    final: str
    band: str = ""
    bars: tuple[tuple[float, float, float], ...] = ()
    """(x, lower end, upper end) of every bar."""


@dataclass(frozen=True)
class Frame:
    """The title and the axes of a chart."""

    id: str
    title: str
    summary: str
    x_label: str
    y_label: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]


@dataclass(frozen=True)
class Chart(Frame):
    """A whole line chart."""

    lines: tuple[Drawn, ...]
    mark: Tick | None = None
    note: str = ""
    # All text is made here: the script never formats a number, so page and tooltip cannot disagree.
    reading: dict[str, Any] = field(default_factory=dict)
    """What the page's script shows under the pointer."""


@dataclass(frozen=True)
class AxisScale:
    """Map from values to thousandths of the plot."""

    low: float
    high: float
    downwards: bool = False

    def at(self, value: float) -> float:
        """Return the position of a value."""
        share = (value - self.low) / (self.high - self.low)
        return round(1000 * (1 - share if self.downwards else share), 1)


def line_chart(
    id: str,
    title: str,
    x: Sequence[float],
    lines: Sequence[ChartLine],
    *,
    x_axis: Axis,
    y_axis: Axis,
    mark: tuple[float, str] | None = None,
    note: str = "",
    joined: bool = False,
) -> Chart | None:
    """Return the chart of the lines that hold any value; None if none does.

    Lines with equal values are merged; an x at which no line has a value is left out (a round without evaluation). With
    `joined`, a line continues over an x at which only others have a value, and nothing is thinned out.
    """
    lines = merge_lines([replace(line, values=_finite_values(line.values)) for line in lines])
    if not lines:
        return None
    there = [index for index in range(len(x)) if any(line.values[index] is not None for line in lines)]
    places = [there[index] for index in places_to_keep([[line.values[index] for index in there] for line in lines])]
    # Joined lines have their own x values: thinning by one line would drop points of another.
    xs, thin = _take_places(x, lines, there if joined else places)
    # Positions are in thousandths of the plot: the SVG stretches to any width while text keeps its size.
    across, up = _horizontal_axis(xs, x_axis), _vertical_axis(thin, y_axis, mark)
    # Bars at one value stand beside each other.
    beside = BESIDE if sum(line.marks and bool(_margin_edges(line)) for line in thin) > 1 else 0.0
    return Chart(
        id=id,
        title=title,
        summary=f"{title}: "
        + "; ".join(f"{line.name}, last {line.final or _last_label(line, y_axis)}" for line in lines),
        x_label=x_axis.label,
        y_label=y_axis.label,
        x_ticks=tuple(ticks_on(across, x_axis)),
        y_ticks=tuple(ticks_on(up, y_axis)),
        lines=tuple(
            _draw_line(line, xs, across, up, y_axis, 1 + n, joined, beside * (n - (len(thin) - 1) / 2))
            for n, line in enumerate(thin)
        ),
        mark=Tick(up.at(mark[0]), mark[1]) if mark else None,
        note=note,
        reading=_reading_points(xs, thin, across, up, x_axis, y_axis),
    )


def _take_places(
    x: Sequence[float], lines: Sequence[ChartLine], places: Sequence[int]
) -> tuple[list[float], list[ChartLine]]:
    """Return the x and the lines at these indices only."""

    def at(values: Values) -> Values:
        return [values[index] for index in places] if values else ()

    return [x[index] for index in places], [
        replace(line, values=at(line.values), margin=at(line.margin)) for line in lines
    ]


def merge_lines(lines: Sequence[ChartLine]) -> list[ChartLine]:
    """Return the lines that hold a value, with equal lines merged: a hidden line would be lost."""
    distinct: dict[tuple[float | None, ...], ChartLine] = {}
    for line in lines:
        key = tuple(line.values)
        if any(value is not None for value in key):
            name = f"{distinct[key].name}, {line.name}" if key in distinct else line.name
            distinct[key] = replace(line, name=name, values=key)
    return list(distinct.values())


def _finite_values(values: Values) -> Values:
    return [value if value is not None and math.isfinite(value) else None for value in values]


def _horizontal_axis(xs: Sequence[float], axis: Axis) -> AxisScale:
    low, high = value_extent(xs)
    # Given ticks are values of a setting, whose marks need room on both sides.
    room = 0.08 * (high - low) if axis.ticks else 0.0
    return AxisScale(low - room, high + room) if high > low else AxisScale(low - 1, low + 1)


def _vertical_axis(lines: Sequence[ChartLine], axis: Axis, mark: tuple[float, str] | None) -> AxisScale:
    values = [value for line in lines for value in line.values]
    values += [edge for line in lines for _, low, high in _margin_edges(line) for edge in (low, high)]
    values += [0.0] if axis.from_zero else []
    values += [mark[0]] if mark else []
    return AxisScale(*axis_domain(values, floor=axis.floor, ceiling=axis.ceiling), downwards=True)


def ticks_on(scale: AxisScale, axis: Axis) -> list[Tick]:
    """Return the ticks of an axis and their positions."""
    if axis.ticks:
        return [Tick(scale.at(value), text) for value, text in axis.ticks]
    about = 5 if scale.downwards else 6
    values = axis_ticks(scale.low, scale.high, about=about, whole=axis.whole)
    return [Tick(scale.at(value), axis.tick(value)) for value in values]


def _draw_line(
    line: ChartLine,
    xs: Sequence[float],
    across: AxisScale,
    up: AxisScale,
    axis: Axis,
    colour: int,
    joined: bool = False,
    aside: float = 0.0,
) -> Drawn:
    strokes: list[list[tuple[float, float]]] = [[]]
    for x, value in zip(xs, line.values, strict=True):
        if value is not None:
            strokes[-1].append((across.at(x) + aside, up.at(value)))
        if (value is None and not joined) or not line.linked:
            strokes.append([])
    strokes = [stroke for stroke in strokes if stroke]
    path = "".join("M" + "L".join(f"{x:g},{y:g}" for x, y in stroke) for stroke in strokes if len(stroke) > 1)
    alone = [stroke[0] for stroke in strokes if len(stroke) == 1]
    # A single point between two gaps has no stroke and would be invisible without a dot.
    marked = [point for stroke in strokes for point in stroke] if line.marks else []
    dots = tuple(dict.fromkeys([*alone, *marked, strokes[-1][-1]]))
    edges = [(across.at(xs[index]) + aside, up.at(low), up.at(high)) for index, low, high in _margin_edges(line)]
    band, bars = ("", tuple(edges)) if line.marks else (_margin_outline(edges), ())
    return Drawn(line.name, 1 + (colour - 1) % 6, path, dots, line.final or _last_label(line, axis), band, bars)


def _margin_edges(line: ChartLine) -> list[tuple[int, float, float]]:
    """Return index, lower and upper edge wherever a line has a margin."""
    pairs = enumerate(zip(line.values, line.margin, strict=True)) if line.margin else ()
    return [(n, value - room, value + room) for n, (value, room) in pairs if value is not None and room is not None]


def _margin_outline(edges: Sequence[tuple[float, float, float]]) -> str:
    """Return the outline: forward along the upper edge, back along the lower one."""
    if len(edges) < 2:
        return ""
    points = [(x, high) for x, _, high in edges] + [(x, low) for x, low, _ in reversed(edges)]
    return "M" + "L".join(f"{x:g},{y:g}" for x, y in points) + "Z"


def _last_label(line: ChartLine, axis: Axis) -> str:
    return axis.value(next(value for value in reversed(line.values) if value is not None))


def _reading_points(
    xs: Sequence[float], lines: Sequence[ChartLine], across: AxisScale, up: AxisScale, x_axis: Axis, y_axis: Axis
) -> dict[str, Any]:
    return {
        "x": [across.at(x) for x in xs],
        "words": [x_axis.value(x) for x in xs],
        "lines": [
            {
                "name": line.name,
                "y": [None if value is None else up.at(value) for value in line.values],
                "words": ["" if value is None else y_axis.value(value) for value in line.values],
            }
            for line in lines
        ],
    }


@dataclass(frozen=True)
class Bars(Frame):
    """A bar chart: one (left, width, top, text) per bar, in thousandths."""

    bars: tuple[tuple[float, float, float, str], ...]


def bar_chart(
    id: str, title: str, heights: Sequence[float], words: Sequence[str], *, labels: Sequence[Tick], x: str, y: str
) -> Bars:
    """Return bars side by side from zero; `words` appear under the pointer, `labels` at bar numbers."""
    up = AxisScale(*axis_domain([0.0, *heights], floor=0.0, whole=True), downwards=True)
    axis = Axis(y, tick=lambda value: f"{value:,.6g}", value=str, whole=True)
    slot = 1000 / len(heights)
    gap = 0.18 * slot
    bars = [
        (round(index * slot + gap / 2, 2), round(slot - gap, 2), up.at(height), text)
        for index, (height, text) in enumerate(zip(heights, words, strict=True))
    ]
    x_ticks = tuple(Tick(round(label.at * slot, 1), label.text) for label in labels)
    summary = f"{title}: {len(heights)} bars, highest {max(heights):,.6g}"
    return Bars(id, title, summary, x, y, x_ticks, tuple(ticks_on(up, axis)), tuple(bars))
