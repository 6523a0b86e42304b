"""Figures of a comparison, a metric against a swept setting, rounds, epsilon or costs: HTML charts, PNG, SVG, PDF."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from sightline.apps.report.chart import Axis, Chart, ChartLine, line_chart, places_to_keep
from sightline.apps.report.comparison import (
    Comparison,
    Group,
    Spread,
    comparison_notes,
    comparison_table,
    measure_round,
    readable_header,
    say_setting,
    setting_title,
    setting_words,
)
from sightline.apps.report.curves import ROUNDS, SPENT, metric_axis, worst_epsilons
from sightline.apps.report.page import render_page
from sightline.apps.report.run_view import Content, Frame, RunView
from sightline.errors import did_you_mean, invalid
from sightline.formatting import (
    METRICS,
    Metric,
    floats_as_bytes,
    format_duration,
    format_number,
    format_short,
    write_whole,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SWEPT = "swept"
"""The panel of a metric against a setting in which the runs differ."""


@dataclass(frozen=True)
class FigureChoice:
    """What a figure shows: its panels, the metric, the swept setting, and its size in inches; empty: by default."""

    panels: tuple[str, ...] = ()
    metric: str = ""
    x: str = ""
    size: tuple[float, float | None] | None = None


BY_DEFAULT = FigureChoice()

SIZES = {"column": 3.25, "text": 5.5, "page": 6.75}
"""Widths in inches: a column of two-column styles, the text of one-column styles, and both columns."""
LARGEST = 40.0


def read_size(text: str) -> tuple[float, float | None]:
    """Return width and height in inches; the height is None if it follows from the panels.

    >>> read_size("column"), read_size("3.5x2.4")
    ((3.25, None), (3.5, 2.4))
    """
    if text in SIZES:
        return SIZES[text], None
    try:
        width, height = map(float, text.lower().split("x"))
    except ValueError:
        width = height = 0.0
    if not (1.0 <= width <= LARGEST and 1.0 <= height <= LARGEST):
        invalid("--size", text, "not a size", f"use {', '.join(SIZES)}, or WIDTHxHEIGHT in inches, e.g. 3.5x2.4")
    return width, height


def read_panels(text: str) -> tuple[str, ...]:
    """Return the names of panels in a list with commas."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in PANELS:
            invalid("--panels", name, "no such panel", did_you_mean(name, list(PANELS)))
    return names


@dataclass(frozen=True)
class Quantity:
    """What a panel shows: a key of a round's row or of `compare --json`, and how it is written."""

    key: str
    metric: Metric
    task: str = ""
    """Show runs of this main metric only; empty: all runs that have the number."""

    @property
    def label(self) -> str:
        """Return the label of a picture's axis."""
        return f"{self.metric.title} (%)" if self.metric.percent else self.metric.title


def quantity_of(key: str) -> Quantity:
    """Return a quantity by its key.

    >>> quantity_of("client_accuracy_worst").label, quantity_of("purity").label, quantity_of("my_score").label
    ('worst client accuracy (%)', 'purity (%)', 'my score')
    """
    titles = {"purity": "purity", "cluster_count": "clusters", "epsilon": "epsilon"}
    for metric in METRICS.values():
        named = {metric.test_key: "test", f"minority_{metric.name}": "minority"}
        named |= {metric.client_key(which): f"{which} client" for which in ("mean", "decile", "worst")}
        if key in named:
            return Quantity(key, replace(metric, title=f"{named[key]} {metric.title}"))
    return Quantity(key, Metric(key, titles.get(key, key.replace("_", " ")), percent=key == "purity"))


def shown_quantities(comparison: Comparison, name: str = "") -> list[Quantity]:
    """Return what to show: the named quantity, or the main metric of every task. Raises if no run has it."""
    if not name:
        return [replace(quantity_of(metric.test_key), task=metric.name) for metric in comparison.metrics]
    if not any(group.measure(name) for group in comparison.groups):
        known = {
            key
            for run in comparison.runs
            for row in run.rounds[-1:]
            for key in row
            if measure_round(row, key) is not None
        }
        known |= {key for group in comparison.groups for key, some in group.measures.items() if some is not None}
        invalid("--metric", name, "no run has it", did_you_mean(name, sorted(known)))
    return [quantity_of(name)]


@dataclass(frozen=True)
class SweptAxis:
    """A setting in which runs differ as an axis: positions of its values, by their text."""

    key: str
    at: dict[str, float]
    linked: bool
    """Whether the values are numbers, so that a line may join them."""

    @property
    def title(self) -> str:
        """Return the setting without its section, in words."""
        return setting_title(self.key)

    @property
    def axis(self) -> Axis:
        """Return the axis, with a tick at every value."""
        texts = {index: text for text, index in self.at.items()}
        return Axis(self.title, format_short, lambda x: f"{self.title} {texts[x]}", ticks=tuple(texts.items()))


def swept_axis(comparison: Comparison, key: str = "") -> SweptAxis | None:
    """Return the axis of a setting; by default of the first with numbers, else of the first. None if none differs."""
    if key and key not in comparison.differs:
        among = f"the runs differ in {', '.join(comparison.differs) or 'nothing but the seed'}"
        invalid("--x", key, "the runs do not differ in it", among)
    # A table of single runs has nothing to group by.
    if not key and any(group.title for group in comparison.groups):
        return None
    keys = [key] if key else sorted(comparison.differs, key=lambda name: not _are_numbers(_values_of(comparison, name)))
    if not keys:
        return None
    values, key = _values_of(comparison, keys[0]), keys[0]
    if not _are_numbers(values):
        return SweptAxis(
            key, {text: float(index) for index, text in enumerate(dict.fromkeys(map(say_setting, values)))}, False
        )
    numbers = sorted(set(map(float, values)))
    gaps = [high - low for low, high in pairwise(numbers)]
    # Values that grow by factors, such as 1, 2, 4, 8, stand at equal distances.
    by_factor = numbers[0] > 0 and len(gaps) > 1 and max(gaps) >= 4 * min(gaps)
    texts = {float(value): say_setting(value) for value in values}
    return SweptAxis(key, {texts[one]: math.log10(one) if by_factor else one for one in numbers}, True)


def _values_of(comparison: Comparison, key: str) -> list[Any]:
    return [group.settings[key] for group in comparison.groups]


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


SweptLines = dict[str, dict[float, Spread]]
"""A line for every combination of the other settings: its label -> position on the axis -> the runs there."""


def swept_lines(comparison: Comparison, swept: SweptAxis, quantity: Quantity) -> SweptLines:
    """Return a quantity at the end of the runs against a setting; of several epsilons the largest."""
    lines: SweptLines = {}
    for group in comparison.groups:
        runs = tuple(run for run in group.runs if quantity.task in ("", run.metric.name))
        some = replace(group, runs=runs).measure(quantity.key)
        if some is None or not math.isfinite(some.mean):
            continue
        if quantity.key == "epsilon":
            some = Spread(some.greatest, None, some.least, some.greatest, some.runs)
        label = setting_words({name: value for name, value in group.settings.items() if name != swept.key})
        lines.setdefault(label, {})[swept.at[say_setting(group.settings[swept.key])]] = some
    return {label: dict(sorted(points.items())) for label, points in lines.items()}


def swept_chart(comparison: Comparison, swept: SweptAxis, quantity: Quantity) -> Chart | None:
    """Return the chart of a quantity against a setting: a point per group, with one standard deviation."""
    drawn = swept_lines(comparison, swept, quantity)
    xs = sorted(swept.at.values())
    lines = [
        ChartLine(
            label or quantity.metric.title,
            [points[x].mean if x in points else None for x in xs],
            margin=[points[x].deviation if x in points else None for x in xs],
            marks=True,
            linked=swept.linked,
        )
        for label, points in drawn.items()
    ]
    several = any(some.deviation is not None for points in drawn.values() for some in points.values())
    note = "Bars: one standard deviation over the runs of a point." if several else ""
    title = f"{quantity.metric.heading} by {swept.title}"
    axis = metric_axis(quantity.metric)
    return line_chart(SWEPT, title, xs, lines, x_axis=swept.axis, y_axis=axis, joined=True, note=note)


POINTS = 120
"""Limit of points per line."""


@dataclass(frozen=True)
class Against:
    """One way to draw a metric: the axis, a run's position on it after each round, and how a group is combined."""

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
"""For the runs of one group the largest epsilon is drawn, and the mean of everything else."""
PANELS = (SWEPT, *(against.name for against in AGAINST))
"""The panels of a figure by name."""


@dataclass(frozen=True)
class Course:
    """The course of a group: x, mean metric, and standard deviation (None for fewer than two runs)."""

    x: tuple[float, ...]
    mean: tuple[float, ...]
    deviation: tuple[float | None, ...]


def group_course(group: Group, against: Against, quantity: Quantity) -> Course:
    """Return a group at the rounds in which all of its runs were evaluated, thinned out with its extremes kept."""
    courses = [_by_round(run, against, quantity) for run in group.runs]
    # A mean over changing subsets of runs would jump where a run stopped early.
    common = sorted(set(courses[0]).intersection(*courses[1:]))
    means = [fmean(one[number][1] for one in courses) for number in common]
    # Thinned by the mean alone, so that x, mean and band keep the same rounds.
    places = places_to_keep([means], limit=POINTS)
    deviations = [stdev([one[number][1] for one in courses]) if len(courses) > 1 else None for number in common]
    return Course(
        tuple(against.together([one[common[index]][0] for one in courses]) for index in places),
        tuple(means[index] for index in places),
        tuple(deviations[index] for index in places),
    )


def _by_round(run: RunView, against: Against, quantity: Quantity) -> dict[int, tuple[float, float]]:
    if quantity.task not in ("", run.metric.name):
        return {}
    rows = zip(run.rounds, against.course(run), strict=True)
    pairs = [(row["round"], x, measure_round(row, quantity.key)) for row, x in rows]
    return {number: (x, reached) for number, x, reached in pairs if x is not None and reached is not None}


def comparison_charts(comparison: Comparison, choice: FigureChoice = BY_DEFAULT) -> list[Chart]:
    """Return every chart for which some group has numbers, or those of the chosen panels."""
    quantities, swept = shown_quantities(comparison, choice.metric), swept_axis(comparison, choice.x)
    charts: list[Chart | None] = []
    for quantity in quantities:
        if swept is not None and (not choice.panels or SWEPT in choice.panels):
            charts.append(swept_chart(comparison, swept, quantity))
        first = quantity == quantities[0]
        charts += [
            comparison_chart(comparison, against, quantity, "" if first else f"-{quantity.task}")
            for against in AGAINST
            if not choice.panels or against.name in choice.panels
        ]
    return [one for one in charts if one is not None]


def comparison_chart(comparison: Comparison, against: Against, quantity: Quantity, suffix: str = "") -> Chart | None:
    """Return one chart: a line per group, with a band of one standard deviation if it has several runs."""
    courses = [group_course(group, against, quantity) for group in comparison.groups]
    xs = sorted({x for one in courses for x in one.x})
    index_of = {x: number for number, x in enumerate(xs)}
    lines = [_group_line(group, one, index_of) for group, one in zip(comparison.groups, courses, strict=True) if one.x]
    title, axis = f"{quantity.metric.heading} {against.title}", metric_axis(quantity.metric)
    return line_chart(f"by-{against.name}{suffix}", title, xs, lines, x_axis=against.axis, y_axis=axis, joined=True)


def _group_line(group: Group, course: Course, index_of: dict[float, int]) -> ChartLine:
    values: list[Any] = [None] * len(index_of)
    margin: list[Any] = [None] * len(index_of)
    for x, mean, deviation in zip(course.x, course.mean, course.deviation, strict=True):
        values[index_of[x]], margin[index_of[x]] = mean, deviation
    return ChartLine(group.label, values, margin=margin)


PICTURES = ("png", "svg", "pdf")
COLOURS = ("#1f6fb2", "#c4570c", "#0b8068", "#8a4fa3", "#7a6a00", "#b03060")
MARKERS = "osD^vP"
LINES = ("-", "--", "-.", ":")
"""Colours, markers and strokes of lines in pictures, so that print without colour can be read."""


def comparison_content(comparison: Comparison, choice: FigureChoice = BY_DEFAULT) -> Content:
    """Return the content of `comparison.html`."""
    header, rows = comparison_table(comparison)
    several = any(len(group.runs) > 1 for group in comparison.groups)
    return {
        "header": readable_header(comparison, header),
        "rows": rows,
        "charts": comparison_charts(comparison, choice),
        "notes": comparison_notes(comparison),
        "spread": "± is one standard deviation over the runs of a row; bands likewise." if several else "",
    }


def draw_comparison(
    comparison: Comparison, path: Path, title: str = "Comparison", choice: FigureChoice = BY_DEFAULT
) -> None:
    """Write the figure: a page (.html) or a picture (.png, .svg, .pdf), by the file's ending."""
    kind = check_figure(path)
    try:
        if kind == "html":
            content = comparison_content(comparison, choice)
            write_whole(path, render_page(title, [(Frame("comparison", title), content)]))
        else:
            _draw_picture(comparison, path, kind, choice)
    except OSError as error:
        invalid("--figure", path, f"cannot be written ({error.strerror})", "give a file in a folder that exists")


def check_figure(path: Path) -> str:
    """Return the kind of figure that a path asks for; raise InvalidInput before any long work begins."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in (*PICTURES, "html"):
        invalid("--figure", path, "a figure has one of four formats", "use .html, .png, .svg or .pdf")
    # matplotlib is an extra: pages need no library for their charts.
    if kind != "html" and find_spec("matplotlib") is None:
        invalid("--figure", path, "pictures need matplotlib", 'use .html, or pip install "sightline[figures]"')
    if not path.parent.is_dir():
        invalid("--figure", path, "there is no such folder", "give a file in a folder that exists")
    return kind


Draw = Callable[["Axes"], None]


def list_panels(comparison: Comparison, choice: FigureChoice) -> list[tuple[str, Draw]]:
    """Return name and drawing of every panel with numbers, in the order in which they are chosen."""
    quantities, swept = shown_quantities(comparison, choice.metric), swept_axis(comparison, choice.x)
    by_name = {against.name: against for against in AGAINST}
    panels: list[tuple[str, Draw]] = []
    for quantity in quantities:
        for name in choice.panels or PANELS:
            against = by_name.get(name)
            if against is None:
                if swept is not None and (lines := swept_lines(comparison, swept, quantity)):
                    panels.append((name, partial(_draw_swept, swept=swept, lines=lines, quantity=quantity)))
            elif any(group_course(group, against, quantity).x for group in comparison.groups):
                panels.append((name, partial(_draw_panel, comparison=comparison, against=against, quantity=quantity)))
    missing = sorted(set(choice.panels) - {name for name, _ in panels})
    if missing:
        invalid("--panels", missing[0], "these runs have no numbers for it", f"choose among {', '.join(PANELS)}")
    return panels


def _draw_picture(comparison: Comparison, path: Path, kind: str, choice: FigureChoice) -> None:
    from matplotlib import rc_context

    panels = list_panels(comparison, choice)
    if not panels:
        invalid("--figure", path, "no run has an evaluated round yet", "wait for the first one")
    # Fonts that publishers accept; nothing in the file that changes from one drawing to the next.
    style: Any = {"pdf.fonttype": 42, "svg.hashsalt": "sightline"}
    if choice.size:
        style |= {"font.size": 8, "axes.linewidth": 0.6, "lines.linewidth": 1.2, "lines.markersize": 3.5}
    with rc_context(style):
        figure = _lay_out(panels, choice.size)
        dated = {"svg": "Date", "pdf": "CreationDate"}
        metadata = {dated[kind]: None} if kind in dated else None
        figure.savefig(path, dpi=300 if choice.size else 150, format=kind, metadata=metadata)


def _lay_out(panels: Sequence[tuple[str, Draw]], size: tuple[float, float | None] | None) -> "Figure":
    from matplotlib.figure import Figure

    count = len(panels)
    if size is None:
        across = min(count, 2 if count == 4 else 3)
        down = -(-count // across)
        inches = (4.8 * across, 3.4 * down + 0.5)
    else:
        across = min(count, max(1, int(size[0] // 2.2)))
        down = -(-count // across)
        inches = (size[0], size[1] or (0.7 * size[0] / across) * down + 0.1)
    figure = Figure(figsize=inches, layout="constrained")
    axes = figure.subplots(down, across, squeeze=False).flatten()
    for one, (_, draw) in zip(axes, panels, strict=False):
        draw(one)
        one.grid(alpha=0.3)
    for one in axes[count:]:
        one.set_axis_off()
    # A swept panel has a legend of its own: its lines are other ones than those of the other panels.
    others = [one for one, (name, _) in zip(axes, panels, strict=False) if name != SWEPT]
    handles, labels = others[0].get_legend_handles_labels() if others else ([], [])
    if labels:
        columns = max(1, min(4 if size is None else int(size[0] // 1.6), len(labels)))
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    return figure


def _draw_swept(axes: "Axes", *, swept: SweptAxis, lines: SweptLines, quantity: Quantity) -> None:
    scale, places = 100 if quantity.metric.percent else 1, list(swept.at.values())
    span = (max(places) - min(places)) or 1.0
    step = 0.012 * span if swept.linked else min(0.1, 0.7 / len(lines))
    for number, (label, points) in enumerate(lines.items()):
        # Lines stand a little apart, so that bars at one value do not hide each other.
        aside = (number - (len(lines) - 1) / 2) * step
        axes.errorbar(
            [x + aside for x in points],
            [scale * some.mean for some in points.values()],
            yerr=[scale * (some.deviation or 0.0) for some in points.values()],
            color=COLOURS[number % len(COLOURS)],
            marker=MARKERS[number % len(MARKERS)],
            linestyle=LINES[number % len(LINES)] if swept.linked else "none",
            capsize=2.5,
            label=label or None,
        )
    axes.set_xticks(places, list(swept.at))
    axes.margins(x=0.06 if swept.linked else 0.3)
    axes.set(xlabel=swept.title, ylabel=quantity.label)
    if quantity.metric.percent:
        axes.set_ylim(top=min(axes.get_ylim()[1], 102))
    if len(lines) > 1:
        axes.legend(frameon=False)


def line_looks(comparison: Comparison) -> list[tuple[int, int]]:
    """Return for each group the number of its colour and of its stroke and marker.

    A line of the swept panel and the groups on it share a colour; the stroke then tells the swept value.
    """
    swept, groups = swept_axis(comparison), comparison.groups
    if swept is None:
        return [(number, number) for number in range(len(groups))]
    others = [setting_words({k: v for k, v in one.settings.items() if k != swept.key}) for one in groups]
    labels, values = list(dict.fromkeys(others)), [say_setting(one.settings[swept.key]) for one in groups]
    shapes = list(map(list(swept.at).index, values))
    return [(labels.index(label) if labels[1:] else shape, shape) for label, shape in zip(others, shapes, strict=True)]


def _draw_panel(axes: "Axes", *, comparison: Comparison, against: Against, quantity: Quantity) -> None:
    scale = 100 if quantity.metric.percent else 1
    for group, (hue, shape) in zip(comparison.groups, line_looks(comparison), strict=True):
        one, colour = group_course(group, against, quantity), COLOURS[hue % len(COLOURS)]
        axes.plot(
            one.x,
            [scale * mean for mean in one.mean],
            color=colour,
            linestyle=LINES[shape % len(LINES)],
            marker=MARKERS[shape % len(MARKERS)],
            markersize=4,
            markevery=max(1, len(one.x) // 6),
            label=group.label,
        )
        edges = [(x, m, d) for x, m, d in zip(one.x, one.mean, one.deviation, strict=True) if d is not None]
        if edges:
            x, low, high = zip(*((x, scale * (m - d), scale * (m + d)) for x, m, d in edges), strict=True)
            axes.fill_between(x, low, high, color=colour, alpha=0.18, lw=0)
    axes.set(xlabel=against.axis.label, ylabel=quantity.label)
    axes.xaxis.set_major_formatter(lambda value, _: against.axis.tick(value))
    axes.locator_params(axis="x", nbins=5)
    axes.tick_params(axis="x", labelsize=8)
