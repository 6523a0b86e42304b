"""Several runs side by side: those that differ only in their seed are one group, with mean and spread."""

import json
import math
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from sightline.apps.report.numbers import (
    NONE,
    floats_as_bytes,
    format_count,
    format_duration,
    format_metric,
    format_number,
    format_plural,
    format_upper,
)
from sightline.apps.report.run_view import RunView, runs_of
from sightline.apps.report.settings import setting_text
from sightline.engine.record import replace_nonfinite
from sightline.events import Unit
from sightline.shown import METRICS, Metric

IGNORED = ("name", "seed")
"""Settings by which runs of one group may differ."""


MAIN_METRICS = tuple(METRICS[name] for name in ("accuracy", "macro_f1", "rmse", "perplexity", "loss"))
"""By which runs of some task are judged first."""


@dataclass(frozen=True)
class Spread:
    """Some numbers as one: their mean, sample standard deviation (None of fewer than two), and range."""

    mean: float
    deviation: float | None
    least: float
    greatest: float
    runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        """None when there is no number.

        >>> Spread.of([1.0, 3.0])
        Spread(mean=2.0, deviation=1.4142135623730951, least=1.0, greatest=3.0, runs=2)
        """
        if not values:
            return None
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
"""What a group is measured by, under the names of `sightline run --json`."""
ALWAYS = frozenset(
    ("test_accuracy", "client_accuracy_mean", "client_accuracy_worst", "test_loss", "epsilon", "seconds",
     "uplink_floats", "energy_joule", "delay_seconds")
)  # fmt: skip
"""Named in `--json` also where no run has them."""


def measure_run(run: RunView, name: str) -> float | None:
    """One measure of one run; epsilon is infinite where nothing is promised, None is unknown."""
    if name == "epsilon":
        return math.inf if run.unit is Unit.NONE else run.epsilon
    if name == "seconds":
        return run.fact("seconds") or run.total("seconds")
    if name in ("uplink_floats", "energy_joule", "delay_seconds"):
        return run.total(name) if any(value is not None for value in run.series(name)) else None
    return run.last(name)


@dataclass(frozen=True, eq=False)
class Group:
    """Runs with the same settings but for the seed."""

    settings: Mapping[str, Any]
    """The settings in which the groups of a comparison differ."""
    runs: tuple[RunView, ...]
    title: str = ""

    @property
    def label(self) -> str:
        """The group in a few words: its own settings, or what it was called."""
        words = [_setting_word(name.rpartition(".")[2], say_setting(value)) for name, value in self.settings.items()]
        return self.title or ", ".join(words) or (self.runs[0].name if len(self.runs) == 1 else "all runs")

    @cached_property
    def measures(self) -> dict[str, Spread | None]:
        """Every measure over the runs that have it."""
        found = {name: [measure_run(run, name) for run in self.runs] for name in MEASURES}
        return {name: Spread.of([value for value in row if value is not None]) for name, row in found.items()}


@dataclass(frozen=True, eq=False)
class Comparison:
    """Groups, in the order in which their first run was named, and the settings in which they differ."""

    differs: tuple[str, ...]
    groups: tuple[Group, ...]

    @property
    def runs(self) -> Iterator[RunView]:
        """Every run."""
        return (run for group in self.groups for run in group.runs)

    @property
    def metrics(self) -> list[Metric]:
        """What the runs are judged by first: one, unless their tasks differ."""
        return list({run.metric.name: run.metric for run in self.runs}.values())


def compare_runs(places: Sequence[Path]) -> Comparison:
    """The runs in these folders, grouped by the settings that differ."""
    return group_runs([RunView.read(directory) for directory in runs_of(places)])


def group_runs(runs: Sequence[RunView]) -> Comparison:
    """Runs by the settings in which they differ, seeds together."""
    settings = [flat_settings(run) for run in runs]
    names = dict.fromkeys(name for one in settings for name in one if name not in IGNORED)
    differs = tuple(name for name in names if len({_sort_key(one.get(name)) for one in settings}) > 1)
    found: dict[str, tuple[dict[str, Any], list[RunView]]] = {}
    for run, one in zip(runs, settings, strict=True):
        own = {name: one.get(name) for name in differs}
        found.setdefault(_sort_key(own), (own, []))[1].append(run)
    return Comparison(differs, tuple(Group(own, tuple(some)) for own, some in found.values()))


def each_by_itself(runs: Sequence[RunView], titles: Sequence[str]) -> Comparison:
    """Every run a group of its own, under a title of its own."""
    differs = group_runs(runs).differs
    groups = [
        Group({name: flat_settings(run).get(name) for name in differs}, (run,), title)
        for run, title in zip(runs, titles, strict=True)
    ]
    return Comparison(differs, tuple(groups))


def flat_settings(run: RunView) -> dict[str, Any]:
    """The settings of a run under dotted names; none where its file is missing or broken."""
    try:
        return dict(_flatten_table(tomllib.loads(run.settings)))
    except (ValueError, RecursionError):  # no TOML, nested too deep, or too long a number
        return {}


def _flatten_table(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flatten_table(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", json.loads(_sort_key(value))  # a date, which no run writes, becomes its text


def _sort_key(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _setting_word(key: str, value: str) -> str:
    return value if key in ("name", "kind", "scheme", "source", "partition") else f"{key} {value}"


def say_setting(value: Any) -> str:
    """A setting in a table; a dash where a group's file does not have it."""
    return setting_text(value) if not isinstance(value, str) else value


TUNING = (
    "Choosing among these runs by how well they did looks at private data once more, and no epsilon here counts "
    "that choice. Each epsilon is for publishing that run alone."
)


def comparison_notes(comparison: Comparison) -> list[str]:
    """Sentences that belong under the table."""
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
    """Epsilons for different changes, or at different deltas, are different promises."""
    promises = {(run.unit, run.fact("adjacency"), run.delta) for run in private}
    if len(promises) < 2:
        return ""
    return "The epsilons are not one scale: the runs differ in unit, adjacency or delta."


def _shared_noise(private: list[RunView]) -> str:
    """Streams depend on the seed alone, so two simulations of one seed add the same noise to different sums."""
    simulated = Counter(run.fact("seed") for run in private if run.fact("noise_source", "seed") == "seed")
    if max(simulated.values(), default=0) < 2:
        return ""
    return (
        "Simulated runs of one seed share their noise: published together, the noise of one cancels the other's. "
        "Publish at most one of them, and train on real people's data with noise_source = os."
    )


def plain_comparison(comparison: Comparison) -> dict[str, Any]:
    """What `--json` prints; null is infinite or unknown."""
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
"""Measures that a table shows. Of several epsilons the largest is shown: a mean of bounds bounds nothing."""


def mean_and_spread(some: Spread, show: Callable[[float], str]) -> str:
    """Mean and spread, in one unit where they have one.

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
    """Header and rows: the settings that differ, how many runs, and every measure that some group has."""
    there = [name for name in _columns_of(comparison) if any(group.measures[name] for group in comparison.groups)]
    named = any(group.title for group in comparison.groups)
    settings = ["Run"] if named else [*comparison.differs, "Runs"]
    header = [*settings, *(COLUMNS[name][0] for name in there)]
    return header, [_table_row(group, () if named else comparison.differs, there) for group in comparison.groups]


def _columns_of(comparison: Comparison) -> list[str]:
    """The columns for the tasks of these runs: their metrics, the loss alone where it is one."""
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
