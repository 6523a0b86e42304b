"""Comparison of several runs: runs that differ only in the seed form one group, with mean and spread."""

import json
import math
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from sightline.apps.report.chart import Axis, Chart, ChartLine, line_chart, places_to_keep
from sightline.apps.report.curves import ROUNDS, SPENT, better_title, metric_axis, worst_epsilons
from sightline.apps.report.elements import (
    NONE,
    Content,
    Frame,
    floats_as_bytes,
    format_count,
    format_duration,
    format_metric,
    format_number,
    format_plural,
    format_upper,
    write_whole,
)
from sightline.apps.report.page import render_page
from sightline.apps.report.run_view import RunView, runs_of
from sightline.apps.report.sections import setting_text
from sightline.engine.record import replace_nonfinite
from sightline.errors import invalid
from sightline.events import Unit
from sightline.formatting import ACCURACY, METRICS, Metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes


IGNORED = ("name", "seed")
"""Settings in which runs of one group may differ."""


MAIN_METRICS = tuple(METRICS[name] for name in ("accuracy", "macro_f1", "rmse", "perplexity", "loss"))
"""Metrics by which runs of some task are judged first."""


@dataclass(frozen=True)
class Spread:
    """Several numbers as one: mean, sample standard deviation (None for fewer than two), and range."""

    mean: float
    deviation: float | None
    least: float
    greatest: float
    runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        """Return the spread of some numbers, or None if there are none.

        >>> Spread.of([1.0, 3.0])
        Spread(mean=2.0, deviation=1.4142135623730951, least=1.0, greatest=3.0, runs=2)
        """
        if not values:
            return None
        # One infinite epsilon makes the mean infinite: leaving it out would claim a guarantee for the group.
        finite = all(math.isfinite(value) for value in values)
        mean = fmean(values) if finite else math.inf
        deviation = stdev(values) if finite and len(values) > 1 else None
        return cls(mean, deviation, min(values), max(values), len(values))


MEASURES = (
    *(metric.test_key for metric in METRICS.values() if metric.name != "loss"),
    *(metric.client_key(which) for metric in MAIN_METRICS for which in ("mean", "worst")),
    "test_loss",
    "epsilon",
    "seconds",
    "uplink_floats",
    "energy_joule",
    "delay_seconds",
)
"""The measures of a group, under the names of `sightline run --json`."""
ALWAYS = frozenset(
    ("test_accuracy", "client_accuracy_mean", "client_accuracy_worst", "test_loss", "epsilon", "seconds",
     "uplink_floats", "energy_joule", "delay_seconds")
)  # fmt: skip
"""Present in `--json` even if no run has them."""


def measure_run(run: RunView, name: str) -> float | None:
    """Return one measure of one run; epsilon is infinite without a guarantee, None is unknown."""
    if name == "epsilon":
        # A run without a guarantee is comparable only as infinite; a blank would look like unknown.
        return math.inf if run.unit is Unit.NONE else run.epsilon
    if name == "seconds":
        return run.fact("seconds") or run.total("seconds")
    if name in ("uplink_floats", "energy_joule", "delay_seconds"):
        return run.total(name) if any(value is not None for value in run.series(name)) else None
    return run.last(name)


@dataclass(frozen=True, eq=False)
class Group:
    """Runs with the same settings except for the seed."""

    settings: Mapping[str, Any]
    """The settings in which the groups of a comparison differ."""
    runs: tuple[RunView, ...]
    title: str = ""

    @property
    def label(self) -> str:
        """Return the group in a few words: its own settings, or its title."""
        words = [_setting_word(name.rpartition(".")[2], say_setting(value)) for name, value in self.settings.items()]
        return self.title or ", ".join(words) or (self.runs[0].name if len(self.runs) == 1 else "all runs")

    @cached_property
    def measures(self) -> dict[str, Spread | None]:
        """Return every measure over the runs that have it."""
        found = {name: [measure_run(run, name) for run in self.runs] for name in MEASURES}
        return {name: Spread.of([value for value in row if value is not None]) for name, row in found.items()}


@dataclass(frozen=True, eq=False)
class Comparison:
    """Groups, in the order in which their first run was named, and the settings in which they differ."""

    differs: tuple[str, ...]
    groups: tuple[Group, ...]

    @property
    def runs(self) -> Iterator[RunView]:
        """Return every run."""
        return (run for group in self.groups for run in group.runs)

    @property
    def metrics(self) -> list[Metric]:
        """Return the main metrics of the runs: one, unless their tasks differ."""
        return list({run.metric.name: run.metric for run in self.runs}.values())


def compare_runs(places: Sequence[Path]) -> Comparison:
    """Read the runs in these folders and group them by the settings that differ."""
    return group_runs([RunView.read(directory) for directory in runs_of(places)])


def group_runs(runs: Sequence[RunView]) -> Comparison:
    """Group runs by the settings in which they differ, seeds together."""
    settings = [flat_settings(run) for run in runs]
    names = dict.fromkeys(name for one in settings for name in one if name not in IGNORED)
    differs = tuple(name for name in names if len({_sort_key(one.get(name)) for one in settings}) > 1)
    found: dict[str, tuple[dict[str, Any], list[RunView]]] = {}
    for run, one in zip(runs, settings, strict=True):
        # Grouped by the settings that differ, in the order of the runs: seeds and names do not separate runs.
        own = {name: one.get(name) for name in differs}
        found.setdefault(_sort_key(own), (own, []))[1].append(run)
    return Comparison(differs, tuple(Group(own, tuple(some)) for own, some in found.values()))


def each_by_itself(runs: Sequence[RunView], titles: Sequence[str]) -> Comparison:
    """Return every run as its own group, under its own title."""
    differs = group_runs(runs).differs
    groups = [
        Group({name: flat_settings(run).get(name) for name in differs}, (run,), title)
        for run, title in zip(runs, titles, strict=True)
    ]
    return Comparison(differs, tuple(groups))


def flat_settings(run: RunView) -> dict[str, Any]:
    """Return the settings of a run under dotted names, or {} if its file is missing or broken."""
    try:
        return dict(_flatten_table(tomllib.loads(run.settings)))
    except (ValueError, RecursionError):
        # Not TOML, nested too deep, or too long a number.
        return {}


def _flatten_table(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flatten_table(value, f"{before}{name}.")
        else:
            # Through JSON, so that a date, which no run writes, becomes its text.
            yield f"{before}{name}", json.loads(_sort_key(value))


def _sort_key(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _setting_word(key: str, value: str) -> str:
    return value if key in ("name", "kind", "scheme", "source", "partition") else f"{key} {value}"


def say_setting(value: Any) -> str:
    """Return a setting for a table; a dash if a group's file does not have it."""
    return setting_text(value) if not isinstance(value, str) else value


TUNING = (
    "Choosing among these runs by how well they did looks at private data once more, and no epsilon here counts "
    "that choice. Each epsilon is for publishing that run alone."
)


def comparison_notes(comparison: Comparison) -> list[str]:
    """Return the sentences under the table."""
    runs = list(comparison.runs)
    private = [run for run in runs if run.unit is not Unit.NONE]
    found = [_unfinished_note(run) for run in runs if run.fact("status") != "finished"]
    found += [_unlike_note(private), TUNING if len(private) > 1 else "", _shared_noise(private)]
    return [sentence for sentence in found if sentence]


def _unfinished_note(run: RunView) -> str:
    status, planned = run.fact("status", "unknown"), run.fact("rounds_planned")
    how_far = (
        f"{format_count(run.rounds_done)} of {format_count(planned)} rounds"
        if planned
        else format_plural(run.rounds_done, "round")
    )
    return f"{run.directory.name} is not finished ({status}, {how_far}): its numbers are those of its last round."


def _unlike_note(private: list[RunView]) -> str:
    """Return a warning if epsilons are for different units, adjacencies or deltas."""
    promises = {(run.unit, run.fact("adjacency"), run.delta) for run in private}
    if len(promises) < 2:
        return ""
    return "The epsilons are not one scale: the runs differ in unit, adjacency or delta."


def _shared_noise(private: list[RunView]) -> str:
    """Return a warning if simulations share a seed: they add the same noise to different sums."""
    # Only noise from a seed is shared; runs with noise_source = "os" never share theirs.
    simulated = Counter(run.fact("seed") for run in private if run.fact("noise_source", "seed") == "seed")
    if max(simulated.values(), default=0) < 2:
        return ""
    return (
        "Simulated runs of one seed share their noise: published together, the noise of one cancels the other's. "
        "Publish at most one of them, and train on real people's data with noise_source = os."
    )


def plain_comparison(comparison: Comparison) -> dict[str, Any]:
    """Return what `--json` prints; None is infinite or unknown."""
    found: dict[str, Any] = replace_nonfinite(
        {
            "differs": list(comparison.differs),
            "groups": [_plain_group(group) for group in comparison.groups],
            "runs": [_plain_run(run) for run in comparison.runs],
            "notes": comparison_notes(comparison),
        }
    )
    return found


def _plain_group(group: Group) -> dict[str, Any]:
    named = {name: some for name, some in group.measures.items() if some is not None or name in ALWAYS}
    measures = {name: None if some is None else asdict(some) for name, some in named.items()}
    seeds = [run.fact("seed") for run in group.runs]
    runs = [str(run.directory) for run in group.runs]
    return {"settings": dict(group.settings), "runs": runs, "seeds": seeds} | measures


def _plain_run(run: RunView) -> dict[str, Any]:
    about = {"run_dir": str(run.directory), "name": run.name, "status": run.fact("status")}
    about |= {"seed": run.fact("seed"), "rounds_done": run.rounds_done, "delta": run.delta, "unit": str(run.unit)}
    found = {name: measure_run(run, name) for name in MEASURES}
    known = {name: value for name, value in found.items() if value is not None or name in ALWAYS}
    return about | {"metric": run.metric.name} | known | {"settings": flat_settings(run)}


def _metric_text(metric: Metric) -> Callable[[float], str]:
    return lambda value: format_metric(metric, value)


def _metric_column(metric: Metric) -> Callable[[Spread], str]:
    return lambda some: mean_and_spread(some, _metric_text(metric))


COLUMNS: dict[str, tuple[str, Callable[[Spread], str]]] = {
    **{m.test_key: (f"Test {m.title}", _metric_column(m)) for m in METRICS.values() if m.name != "loss"},
    "test_loss": ("Test loss", _metric_column(METRICS["loss"])),
    **{m.client_key("worst"): ("Worst client", _metric_column(m)) for m in MAIN_METRICS},
    "epsilon": ("Epsilon", lambda some: format_upper(some.greatest)),
    "seconds": ("Time", lambda some: mean_and_spread(some, format_duration)),
    "uplink_floats": ("Sent by clients", lambda some: mean_and_spread(some, floats_as_bytes)),
    "energy_joule": ("Energy", lambda some: mean_and_spread(some, lambda joule: f"{format_number(joule)} J")),
    "delay_seconds": ("Delay", lambda some: mean_and_spread(some, format_duration)),
}
"""Measures in a table. Of several epsilons the largest is shown: a mean of upper bounds is not a bound."""


def mean_and_spread(some: Spread, show: Callable[[float], str]) -> str:
    """Return mean and spread, with one unit if they share it.

    >>> mean_and_spread(Spread(0.9, 0.0123, 0.88, 0.92, 3), _metric_text(METRICS["accuracy"]))
    '90.0 ± 1.2 %'
    >>> mean_and_spread(Spread(2e6, 0.0, 2e6, 2e6, 3), floats_as_bytes)
    '8.00 MB ± 0'
    """
    mean = show(some.mean)
    if not some.deviation:
        return mean if some.deviation is None else f"{mean} ± 0"
    spread = show(some.deviation)
    value, _, unit = mean.partition(" ")
    room, _, same = spread.partition(" ")
    return f"{value} ± {room} {unit}" if unit and unit == same and " " not in unit else f"{mean} ± {spread}"


def comparison_table(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Return header and rows: the settings that differ, the number of runs, and every measure that some group has."""
    there = [name for name in _columns_of(comparison) if any(group.measures[name] for group in comparison.groups)]
    named = any(group.title for group in comparison.groups)
    settings = ["Run"] if named else [*comparison.differs, "Runs"]
    header = [*settings, *(COLUMNS[name][0] for name in there)]
    return header, [_table_row(group, () if named else comparison.differs, there) for group in comparison.groups]


def _columns_of(comparison: Comparison) -> list[str]:
    """Return the columns for the tasks of these runs."""
    metrics = {metric.name: metric for run in comparison.runs for metric in run.metrics}
    wanted = {metric.test_key for metric in metrics.values()} | {m.client_key("worst") for m in comparison.metrics}
    own = {metric.test_key for metric in METRICS.values()} | {metric.client_key("worst") for metric in MAIN_METRICS}
    return [name for name in COLUMNS if name in wanted or name not in own]


def _table_row(group: Group, differs: Sequence[str], there: list[str]) -> list[str]:
    settings = [say_setting(group.settings[name]) for name in differs]
    cells = [group.title] if group.title else [*settings, format_count(len(group.runs))]
    measures = [group.measures[name] for name in there]
    shown = [NONE if some is None else COLUMNS[name][1](some) for name, some in zip(there, measures, strict=True)]
    return [*cells, *shown]


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


@dataclass(frozen=True)
class Course:
    """The course of a group: x, mean metric, and standard deviation (None for fewer than two runs)."""

    x: tuple[float, ...]
    mean: tuple[float, ...]
    deviation: tuple[float | None, ...]


def group_course(group: Group, against: Against, metric: Metric = ACCURACY) -> Course:
    """Return a group at the rounds in which all of its runs were evaluated, thinned out with its extremes kept."""
    found = [_by_round(run, against, metric) for run in group.runs]
    # A mean over changing subsets of runs would jump where a run stopped early.
    common = sorted(set(found[0]).intersection(*found[1:]))
    means = [fmean(one[number][1] for one in found) for number in common]
    # Thinned by the mean alone, so that x, mean and band keep the same rounds.
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
    """Return every chart for which some group has numbers."""
    found = [comparison_chart(comparison, against, metric) for metric in comparison.metrics for against in AGAINST]
    return [one for one in found if one is not None]


def comparison_chart(comparison: Comparison, against: Against, metric: Metric = ACCURACY) -> Chart | None:
    """Return one chart: a line per group, with a band of one standard deviation if it has several runs."""
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
    """Return the content of `comparison.html`."""
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
    """Write the figure: a page (.html) or a picture (.png, .svg, .pdf), by the file's ending."""
    kind = check_figure(path)
    try:
        if kind == "html":
            write_whole(path, render_page(title, [(Frame("comparison", title), comparison_content(comparison))]))
        else:
            _draw_picture(comparison, path, kind)
    except OSError as error:
        invalid("--figure", path, f"cannot be written ({error.strerror})", "give a file in a folder that exists")


def check_figure(path: Path) -> str:
    """Return the kind of figure that a path asks for; raise InvalidInput before any long work begins."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in (*PICTURES, "html"):
        invalid("--figure", path, "the ending says which figure", "use .html, .png, .svg or .pdf")
    # matplotlib is an extra: pages need no library for their charts.
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
