"""Charts as plain values: where every tick, line and bar stands. `chart.html` draws them, `page.js` reads them out.

Positions are thousandths of the plot (x to the right, y downwards), so that a chart fits a phone and a sheet of paper
alike while its text keeps its size.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sightline.report.scale import Values, domain, extent, kept, ticks

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


@dataclass(frozen=True)
class Line:
    """One named line: a value for every x, None where there is none."""

    name: str
    values: Values
    final: str = ""


@dataclass(frozen=True)
class Tick:
    """A round number on an axis and where it stands."""

    at: float
    text: str


@dataclass(frozen=True)
class Drawn:
    """A line, ready to draw: strokes of an SVG path, and points that stand alone or end it."""

    name: str
    colour: int
    path: str
    dots: tuple[tuple[float, float], ...]
    final: str


@dataclass(frozen=True)
class Chart:
    """A whole line chart."""

    id: str
    title: str
    summary: str
    x_label: str
    y_label: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    lines: tuple[Drawn, ...]
    mark: Tick | None = None
    note: str = ""
    reading: dict[str, Any] = field(default_factory=dict)
    """What the page's script shows under the pointer: all text is made here."""


@dataclass(frozen=True)
class Scale:
    """From values to thousandths of the plot."""

    low: float
    high: float
    downwards: bool = False

    def at(self, value: float) -> float:
        """The place of a value."""
        share = (value - self.low) / (self.high - self.low)
        return round(1000 * (1 - share if self.downwards else share), 1)


def line_chart(
    id: str,
    title: str,
    x: Sequence[float],
    lines: Sequence[Line],
    *,
    x_axis: Axis,
    y_axis: Axis,
    mark: tuple[float, str] | None = None,
    note: str = "",
) -> Chart | None:
    """The chart of the lines that hold any value; None when none does.

    Lines with equal values become one; an x at which no line has a value is left out (a round without evaluation).
    """
    lines = merged([Line(line.name, _finite(line.values), line.final) for line in lines])
    if not lines:
        return None
    there = [place for place in range(len(x)) if any(line.values[place] is not None for line in lines)]
    places = [there[place] for place in kept([[line.values[place] for place in there] for line in lines])]
    thin = [Line(line.name, [line.values[place] for place in places], line.final) for line in lines]
    xs = [x[place] for place in places]
    across, up = _across(xs), _upwards(thin, y_axis, mark)
    return Chart(
        id=id,
        title=title,
        summary=f"{title}: " + "; ".join(f"{line.name}, last {line.final or _last(line, y_axis)}" for line in lines),
        x_label=x_axis.label,
        y_label=y_axis.label,
        x_ticks=tuple(_ticks(across, x_axis)),
        y_ticks=tuple(_ticks(up, y_axis)),
        lines=tuple(_draw(line, xs, across, up, y_axis, place) for place, line in enumerate(thin, 1)),
        mark=Tick(up.at(mark[0]), mark[1]) if mark else None,
        note=note,
        reading=_reading(xs, thin, across, up, x_axis, y_axis),
    )


def merged(lines: Sequence[Line]) -> list[Line]:
    """Lines that hold a value, those with the same values told as one: a hidden line is a line not told."""
    found: dict[tuple[float | None, ...], Line] = {}
    for line in lines:
        key = tuple(line.values)
        if any(value is not None for value in key):
            name = f"{found[key].name}, {line.name}" if key in found else line.name
            found[key] = Line(name, key, line.final)
    return list(found.values())


def _finite(values: Values) -> Values:
    return [value if value is not None and math.isfinite(value) else None for value in values]


def _across(xs: Sequence[float]) -> Scale:
    low, high = extent(xs)
    return Scale(low, high) if high > low else Scale(low - 1, low + 1)


def _upwards(lines: Sequence[Line], axis: Axis, mark: tuple[float, str] | None) -> Scale:
    values = [value for line in lines for value in line.values]
    values += [0.0] if axis.from_zero else []
    values += [mark[0]] if mark else []
    return Scale(*domain(values, floor=axis.floor, ceiling=axis.ceiling), downwards=True)


def _ticks(scale: Scale, axis: Axis) -> list[Tick]:
    about = 5 if scale.downwards else 6
    values = ticks(scale.low, scale.high, about=about, whole=axis.whole)
    return [Tick(scale.at(value), axis.tick(value)) for value in values]


def _draw(line: Line, xs: Sequence[float], across: Scale, up: Scale, axis: Axis, colour: int) -> Drawn:
    strokes: list[list[tuple[float, float]]] = [[]]
    for x, value in zip(xs, line.values, strict=True):
        if value is None:
            strokes.append([])
        else:
            strokes[-1].append((across.at(x), up.at(value)))
    strokes = [stroke for stroke in strokes if stroke]
    path = "".join("M" + "L".join(f"{x:g},{y:g}" for x, y in stroke) for stroke in strokes if len(stroke) > 1)
    alone = [stroke[0] for stroke in strokes if len(stroke) == 1]
    dots = tuple(dict.fromkeys([*alone, strokes[-1][-1]]))
    return Drawn(line.name, 1 + (colour - 1) % 6, path, dots, line.final or _last(line, axis))


def _last(line: Line, axis: Axis) -> str:
    return axis.value(next(value for value in reversed(line.values) if value is not None))


def _reading(
    xs: Sequence[float], lines: Sequence[Line], across: Scale, up: Scale, x_axis: Axis, y_axis: Axis
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
class Bars:
    """A bar chart: one (left, width, top, words) per bar, in thousandths."""

    id: str
    title: str
    summary: str
    x_label: str
    y_label: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    bars: tuple[tuple[float, float, float, str], ...]


def bar_chart(
    id: str, title: str, heights: Sequence[float], words: Sequence[str], *, labels: Sequence[Tick], x: str, y: str
) -> Bars:
    """Bars side by side from a zero line; `words` are told under the pointer, `labels` stand at bar numbers."""
    up = Scale(*domain([0.0, *heights], floor=0.0, whole=True), downwards=True)
    axis = Axis(y, tick=lambda value: f"{value:,.6g}", value=str, whole=True)
    slot = 1000 / len(heights)
    gap = 0.18 * slot
    bars = [
        (round(place * slot + gap / 2, 2), round(slot - gap, 2), up.at(height), text)
        for place, (height, text) in enumerate(zip(heights, words, strict=True))
    ]
    x_ticks = tuple(Tick(round(label.at * slot, 1), label.text) for label in labels)
    summary = f"{title}: {len(heights)} bars, highest {max(heights):,.6g}"
    return Bars(id, title, summary, x, y, x_ticks, tuple(_ticks(up, axis)), tuple(bars))
