"""Bar charts as plain values, as `chart.py` does it for lines."""

from collections.abc import Sequence
from dataclasses import dataclass

from sightline.report.chart import Axis, AxisScale, Tick, ticks_on
from sightline.report.scale import axis_domain


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
    up = AxisScale(*axis_domain([0.0, *heights], floor=0.0, whole=True), downwards=True)
    axis = Axis(y, tick=lambda value: f"{value:,.6g}", value=str, whole=True)
    slot = 1000 / len(heights)
    gap = 0.18 * slot
    bars = [
        (round(place * slot + gap / 2, 2), round(slot - gap, 2), up.at(height), text)
        for place, (height, text) in enumerate(zip(heights, words, strict=True))
    ]
    x_ticks = tuple(Tick(round(label.at * slot, 1), label.text) for label in labels)
    summary = f"{title}: {len(heights)} bars, highest {max(heights):,.6g}"
    return Bars(id, title, summary, x, y, x_ticks, tuple(ticks_on(up, axis)), tuple(bars))
