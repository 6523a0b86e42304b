"""A comparison as plain values (`--json`) and as rows of words (tables on screen and on pages)."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from sightline.engine.record import replace_nonfinite
from sightline.report.comparison import MEASURES, Comparison, Group, Spread, flat_settings, measure_run, say_setting
from sightline.report.comparison_notes import comparison_notes
from sightline.report.numbers import (
    NONE,
    floats_as_bytes,
    format_count,
    format_duration,
    format_number,
    format_percent,
    format_upper,
)
from sightline.report.run import RunView


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
    measures = {name: None if some is None else asdict(some) for name, some in group.measures.items()}
    seeds = [run.fact("seed") for run in group.runs]
    runs = [str(run.directory) for run in group.runs]
    return {"settings": dict(group.settings), "runs": runs, "seeds": seeds} | measures


def _plain_run(run: RunView) -> dict[str, Any]:
    about = {"run_dir": str(run.directory), "name": run.name, "status": run.fact("status")}
    about |= {"seed": run.fact("seed"), "rounds_done": run.rounds_done, "delta": run.delta, "unit": str(run.unit)}
    return about | {name: measure_run(run, name) for name in MEASURES} | {"settings": flat_settings(run)}


COLUMNS: dict[str, tuple[str, Callable[[Spread], str]]] = {
    "test_accuracy": ("Test accuracy", lambda some: mean_and_spread(some, format_percent)),
    "client_accuracy_worst": ("Worst client", lambda some: mean_and_spread(some, format_percent)),
    "epsilon": ("Epsilon", lambda some: format_upper(some.greatest)),
    "seconds": ("Time", lambda some: mean_and_spread(some, format_duration)),
    "uplink_floats": ("Sent by clients", lambda some: mean_and_spread(some, floats_as_bytes)),
    "energy_joule": ("Energy", lambda some: mean_and_spread(some, lambda joule: f"{format_number(joule)} J")),
    "delay_seconds": ("Delay", lambda some: mean_and_spread(some, format_duration)),
}
"""Measures that a table shows. Of several epsilons the largest is shown: a mean of bounds bounds nothing."""


def mean_and_spread(some: Spread, show: Callable[[float], str]) -> str:
    """Mean and spread, in one unit where they have one.

    >>> mean_and_spread(Spread(0.9, 0.0123, 0.88, 0.92, 3), percent)
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
    there = [name for name in COLUMNS if any(group.measures[name] for group in comparison.groups)]
    named = any(group.title for group in comparison.groups)
    settings = ["Run"] if named else [*comparison.differs, "Runs"]
    header = [*settings, *(COLUMNS[name][0] for name in there)]
    return header, [_table_row(group, () if named else comparison.differs, there) for group in comparison.groups]


def _table_row(group: Group, differs: Sequence[str], there: list[str]) -> list[str]:
    settings = [say_setting(group.settings[name]) for name in differs]
    cells = [group.title] if group.title else [*settings, format_count(len(group.runs))]
    measures = [group.measures[name] for name in there]
    shown = [NONE if some is None else COLUMNS[name][1](some) for name, some in zip(there, measures, strict=True)]
    return [*cells, *shown]
