"""Several runs side by side: those that differ only in their seed are one group, with mean and spread."""

import json
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from sightline.events import Unit
from sightline.report.folder import runs_of
from sightline.report.run import RunView
from sightline.report.settings import setting_text

IGNORED = ("name", "seed")
"""Settings by which runs of one group may differ."""


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
    "test_accuracy",
    "client_accuracy_mean",
    "client_accuracy_worst",
    "test_loss",
    "epsilon",
    "seconds",
    "uplink_floats",
    "energy_joule",
    "delay_seconds",
)
"""What a group is measured by, under the names of `sightline run --json`."""


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
