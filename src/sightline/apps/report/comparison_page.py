"""The page of several runs side by side: their metric against rounds, epsilon, time, traffic and energy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from sightline.apps.report.chart import Axis, Chart, ChartLine, line_chart, places_to_keep
from sightline.apps.report.comparison import Comparison, Group, comparison_notes, comparison_table
from sightline.apps.report.curves import ROUNDS, SPENT, better_title, metric_axis, worst_epsilons
from sightline.apps.report.numbers import floats_as_bytes, format_duration, format_number
from sightline.apps.report.page import render_page
from sightline.apps.report.run_view import RunView
from sightline.apps.report.section import Content, Frame, write_whole
from sightline.errors import invalid
from sightline.shown import ACCURACY, Metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes


POINTS = 120
"""At most so many points a line."""


@dataclass(frozen=True)
class Against:
    """One way to draw a metric: the axis, where a run stands on it after each round, and how a group does."""

    name: str
    title: str
    axis: Axis
    course: Callable[[RunView], Sequence[float | None]]
    together: Callable[[Sequence[float]], float] = fmean


def _sum_metric(name: str) -> Callable[[RunView], list[float | None]]:
    def course(run: RunView) -> list[float | None]:
        values = run.series(name)
        if all(value is None for value in values):
            return list(values)
        return list(accumulate(value or 0.0 for value in values))

    return course


TIME = Axis("time", tick=format_duration, value=format_duration)
TRAFFIC = Axis("sent by clients", tick=floats_as_bytes, value=floats_as_bytes)
ENERGY = Axis("energy", tick=lambda joule: f"{format_number(joule)} J", value=lambda joule: f"{format_number(joule)} J")

AGAINST = (
    Against("rounds", "by round", ROUNDS, lambda run: [float(row["round"]) for row in run.rounds]),
    Against("epsilon", "for the epsilon spent", SPENT, worst_epsilons, max),
    Against("time", "by time", TIME, _sum_metric("seconds")),
    Against("traffic", "by traffic", TRAFFIC, _sum_metric("uplink_floats")),
    Against("energy", "by energy", ENERGY, _sum_metric("energy_joule")),
)
"""Of the runs of one group the largest epsilon is drawn, and the mean of everything else."""


@dataclass(frozen=True)
class Course:
    """Where a group stood: x, its mean metric, and the standard deviation (None of fewer than two runs)."""

    x: tuple[float, ...]
    mean: tuple[float, ...]
    deviation: tuple[float | None, ...]


def group_course(group: Group, against: Against, metric: Metric = ACCURACY) -> Course:
    """A group at the rounds in which all of its runs were evaluated, thinned out with its extremes kept."""
    found = [_by_round(run, against, metric) for run in group.runs]
    common = sorted(set(found[0]).intersection(*found[1:]))
    means = [fmean(one[number][1] for one in found) for number in common]
    places = places_to_keep([means], limit=POINTS)
    deviations = [stdev([one[number][1] for one in found]) if len(found) > 1 else None for number in common]
    return Course(
        tuple(against.together([one[common[place]][0] for one in found]) for place in places),
        tuple(means[place] for place in places),
        tuple(deviations[place] for place in places),
    )


def _by_round(run: RunView, against: Against, metric: Metric) -> dict[int, tuple[float, float]]:
    rows = zip(run.rounds, against.course(run), strict=True)
    pairs = [(row["round"], x, row.get(metric.test_key)) for row, x in rows if run.metric == metric]
    return {number: (x, reached) for number, x, reached in pairs if x is not None and reached is not None}


def comparison_charts(comparison: Comparison) -> list[Chart]:
    """Every chart that some group has numbers for."""
    found = [comparison_chart(comparison, against, metric) for metric in comparison.metrics for against in AGAINST]
    return [one for one in found if one is not None]


def comparison_chart(comparison: Comparison, against: Against, metric: Metric = ACCURACY) -> Chart | None:
    """One chart: a line for each group, a band of one standard deviation where it has several runs."""
    courses = [group_course(group, against, metric) for group in comparison.groups]
    xs = sorted({x for one in courses for x in one.x})
    place = {x: number for number, x in enumerate(xs)}
    lines = [_group_line(group, one, place) for group, one in zip(comparison.groups, courses, strict=True) if one.x]
    name = f"by-{against.name}" if metric == comparison.metrics[0] else f"by-{against.name}-{metric.name}"
    title, axis = f"{metric.heading} {against.title}", metric_axis(metric)
    return line_chart(name, title, xs, lines, x_axis=against.axis, y_axis=axis, joined=True)


def _group_line(group: Group, one: Course, place: dict[float, int]) -> ChartLine:
    values: list[Any] = [None] * len(place)
    margin: list[Any] = [None] * len(place)
    for x, mean, deviation in zip(one.x, one.mean, one.deviation, strict=True):
        values[place[x]], margin[place[x]] = mean, deviation
    return ChartLine(group.label, values, margin=margin)


PICTURES = ("png", "svg", "pdf")
COLOURS = ("#1f6fb2", "#c4570c", "#0b8068", "#8a4fa3", "#7a6a00", "#b03060")


def comparison_content(comparison: Comparison) -> Content:
    """What `comparison.html` shows."""
    header, rows = comparison_table(comparison)
    several = any(len(group.runs) > 1 for group in comparison.groups)
    return {
        "header": header,
        "rows": rows,
        "charts": comparison_charts(comparison),
        "notes": comparison_notes(comparison),
        "spread": "± is one standard deviation over the runs of a row; bands likewise." if several else "",
    }


def draw_comparison(comparison: Comparison, path: Path, title: str = "Comparison") -> None:
    """Write the figure: by the file's ending a page (.html) or a picture (.png, .svg, .pdf)."""
    kind = check_figure(path)
    try:
        if kind == "html":
            write_whole(path, render_page(title, [(Frame("comparison", title), comparison_content(comparison))]))
        else:
            _draw_picture(comparison, path, kind)
    except OSError as error:
        invalid("--figure", path, f"cannot be written ({error.strerror})", "give a file in a folder that exists")


def check_figure(path: Path) -> str:
    """The kind of figure that a path asks for, before anything long is begun for it."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in (*PICTURES, "html"):
        invalid("--figure", path, "the ending says which figure", "use .html, .png, .svg or .pdf")
    if kind != "html" and find_spec("matplotlib") is None:
        invalid("--figure", path, "pictures need matplotlib", 'use .html, or pip install "sightline[figures]"')
    if not path.parent.is_dir():
        invalid("--figure", path, "there is no such folder", "give a file in a folder that exists")
    return kind


def _draw_picture(comparison: Comparison, path: Path, kind: str) -> None:
    from matplotlib.figure import Figure

    shown = [
        (against, metric)
        for metric in comparison.metrics
        for against in AGAINST
        if any(group_course(group, against, metric).x for group in comparison.groups)
    ]
    if not shown:
        invalid("--figure", path, "no run has an evaluated round yet", "wait for the first")
    across = min(len(shown), 2 if len(shown) == 4 else 3)
    down = -(-len(shown) // across)
    figure = Figure(figsize=(4.8 * across, 3.4 * down + 0.5), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).flatten()
    for axes, (against, metric) in zip(panels, shown, strict=False):
        _draw_panel(axes, comparison, against, metric)
    for axes in panels[len(shown) :]:
        axes.set_axis_off()
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)), frameon=False)
    figure.savefig(path, dpi=150, format=kind)


def _draw_panel(axes: "Axes", comparison: Comparison, against: Against, metric: Metric) -> None:
    scale = 100 if metric.percent else 1
    for number, group in enumerate(comparison.groups):
        one, colour = group_course(group, against, metric), COLOURS[number % len(COLOURS)]
        axes.plot(one.x, [scale * mean for mean in one.mean], color=colour, label=group.label)
        edges = [(x, m, d) for x, m, d in zip(one.x, one.mean, one.deviation, strict=True) if d is not None]
        if edges:
            x, low, high = zip(*((x, scale * (m - d), scale * (m + d)) for x, m, d in edges), strict=True)
            axes.fill_between(x, low, high, color=colour, alpha=0.18, lw=0)
    axes.set(xlabel=against.axis.label, ylabel=f"{metric.title}, %" if metric.percent else better_title(metric))
    axes.xaxis.set_major_formatter(lambda value, _: against.axis.tick(value))
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(alpha=0.3)
