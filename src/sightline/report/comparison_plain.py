"""A comparison as plain values (`--json`) and as rows of words (tables on screen and on pages)."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from sightline.engine.record import finite
from sightline.report.comparison import MEASURES, Comparison, Group, Spread, flat, measured, said
from sightline.report.comparison_notes import notes
from sightline.report.numbers import NONE, count, duration, floats_as_bytes, number, percent, upper
from sightline.report.run import Run


def plain(comparison: Comparison) -> dict[str, Any]:
    """What `--json` prints; null is infinite or unknown."""
    found: dict[str, Any] = finite(
        {
            "differs": list(comparison.differs),
            "groups": [_group(group) for group in comparison.groups],
            "runs": [_run(run) for run in comparison.runs],
            "notes": notes(comparison),
        }
    )
    return found


def _group(group: Group) -> dict[str, Any]:
    measures = {name: None if some is None else asdict(some) for name, some in group.measures.items()}
    seeds = [run.fact("seed") for run in group.runs]
    runs = [str(run.directory) for run in group.runs]
    return {"settings": dict(group.settings), "runs": runs, "seeds": seeds} | measures


def _run(run: Run) -> dict[str, Any]:
    about = {"run_dir": str(run.directory), "name": run.name, "status": run.fact("status")}
    about |= {"seed": run.fact("seed"), "rounds_done": run.rounds_done, "delta": run.delta, "unit": str(run.unit)}
    return about | {name: measured(run, name) for name in MEASURES} | {"settings": flat(run)}


COLUMNS: dict[str, tuple[str, Callable[[Spread], str]]] = {
    "test_accuracy": ("Test accuracy", lambda some: around(some, percent)),
    "client_accuracy_worst": ("Worst client", lambda some: around(some, percent)),
    "epsilon": ("Epsilon", lambda some: upper(some.greatest)),
    "seconds": ("Time", lambda some: around(some, duration)),
    "uplink_floats": ("Sent by clients", lambda some: around(some, floats_as_bytes)),
    "energy_joule": ("Energy", lambda some: around(some, lambda joule: f"{number(joule)} J")),
    "delay_seconds": ("Delay", lambda some: around(some, duration)),
}
"""Measures that a table shows. Of several epsilons the largest is shown: a mean of bounds bounds nothing."""


def around(some: Spread, show: Callable[[float], str]) -> str:
    """Mean and spread, in one unit where they have one.

    >>> around(Spread(0.9, 0.0123, 0.88, 0.92, 3), percent)
    '90.0 ± 1.2 %'
    >>> around(Spread(2e6, 0.0, 2e6, 2e6, 3), floats_as_bytes)
    '8.00 MB ± 0'
    """
    mean = show(some.mean)
    if not some.deviation:
        return mean if some.deviation is None else f"{mean} ± 0"
    spread = show(some.deviation)
    value, _, unit = mean.partition(" ")
    room, _, same = spread.partition(" ")
    return f"{value} ± {room} {unit}" if unit and unit == same and " " not in unit else f"{mean} ± {spread}"


def table(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Header and rows: the settings that differ, how many runs, and every measure that some group has."""
    there = [name for name in COLUMNS if any(group.measures[name] for group in comparison.groups)]
    named = any(group.title for group in comparison.groups)
    settings = ["Run"] if named else [*comparison.differs, "Runs"]
    header = [*settings, *(COLUMNS[name][0] for name in there)]
    return header, [_row(group, () if named else comparison.differs, there) for group in comparison.groups]


def _row(group: Group, differs: Sequence[str], there: list[str]) -> list[str]:
    settings = [said(group.settings[name]) for name in differs]
    cells = [group.title] if group.title else [*settings, count(len(group.runs))]
    measures = [group.measures[name] for name in there]
    shown = [NONE if some is None else COLUMNS[name][1](some) for name, some in zip(there, measures, strict=True)]
    return [*cells, *shown]
