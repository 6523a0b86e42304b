"""The matrix of subjects and observers: its heatmap, classes of subjects, and the table in the report."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from sightline.apps.report.guarantee import ALARMS, attack_words
from sightline.apps.report.ledger_rows import LedgerRow, tell_ledger
from sightline.apps.report.run_view import CLASSES, Composed, Content, RunView, Section
from sightline.formatting import NONE, format_count, format_plural, format_short, format_upper
from sightline.ledger import View, write_parties
from sightline.topology import Line

SHADES = 24
"""Shades between zero and the largest epsilon; a value takes the next stronger one."""
TICKS = 24
"""Limit of names along a side."""
LENGTH = 16
"""Longer names are cut at a side; the text of a cell has them in full."""

LINES = 40
"""Up to this many rows and columns are ruled."""
NUMBERED = 24
"""Up to this many rows and columns have a number in every cell."""
SMALLEST, LARGEST, WIDTH = 36, 48, 864
"""Least and greatest side of a cell with a number, and the width of a page that columns share, in pixels."""

Values = Sequence[Sequence[float | None]]

ITSELF = "{of}: nobody observes itself."
PHRASES = {
    0.0: "Of {of}, {by} learns nothing.",
    math.inf: "Of {of}, {by} may learn everything: it came without noise.",
}


def draw_heat(values: Values, rows: Sequence[str], columns: Sequence[str], silent: str = ITSELF) -> dict[str, Any]:
    """Return the heatmap: rows are subjects, columns observers; infinity is without noise, None is `silent`."""
    # Infinity has its own colour and must not set the scale.
    top = max((v for row in values for v in row if v is not None and math.isfinite(v)), default=0.0)
    different = sorted({v for row in values for v in row}, key=lambda v: -1.0 if v is None else v)
    # Cells hold indices into a short list of phrases: few values differ, and the page stays small.
    number = {value: index for index, value in enumerate(different)}
    return {
        "across": len(columns),
        "down": len(rows),
        "shades": shade_paths(values, top),
        "lines": grid_lines(len(rows), len(columns)) if max(len(rows), len(columns)) <= LINES else "",
        "size": min(LARGEST, max(SMALLEST, WIDTH // max(1, len(columns)))),
        "numbers": cell_numbers(values) if max(len(rows), len(columns)) <= NUMBERED else [],
        "itself": None in number,
        "row_ticks": name_ticks(rows),
        "column_ticks": name_ticks(columns),
        "most": format_upper(top),
        "bare": math.inf in number,
        "row": None,
        "column": None,
        "data": {
            "rows": list(rows),
            "columns": list(columns),
            "phrases": [cell_phrase(value, silent) for value in different],
            "cells": [number[value] for row in values for value in row],
        },
    }


def cell_phrase(value: float | None, silent: str = ITSELF) -> str:
    """Return the text of a cell, with {of} and {by} for the names."""
    if value is None:
        return silent
    if value in PHRASES:
        return PHRASES[value]
    return f"Of {{of}}, {{by}} can learn at most epsilon {format_upper(value)}."


def shade_paths(values: Values, top: float) -> list[dict[str, str]]:
    """Return class, opacity and path of every shade; zero is not drawn."""
    # One SVG path per shade, made of horizontal strokes: 200 x 200 cells stay small, sharp in print, and need no
    # script.
    strokes: dict[tuple[str, str], list[str]] = defaultdict(list)
    for y, row in enumerate(values):
        x = 0
        for kind, width in _equal_stretches(_cell_kind(value, top) for value in row):
            if kind is not None:
                strokes[kind].append(f"M{x} {y}h{width}v1h-{width}z")
            x += width
    return [{"kind": kind, "opacity": opacity, "path": "".join(d)} for (kind, opacity), d in sorted(strokes.items())]


def grid_lines(down: int, across: int) -> str:
    """Return the path of the lines between cells."""
    return "".join([f"M0 {y}h{across}" for y in range(1, down)] + [f"M{x} 0v{down}" for x in range(1, across)])


def cell_numbers(values: Values) -> list[dict[str, Any]]:
    """Return the text of each cell with a value and its middle; `bare` says that there is no bound."""
    return [
        {"x": x + 0.5, "y": y + 0.5, "text": format_upper(value), "bare": math.isinf(value)}
        for y, row in enumerate(values)
        for x, value in enumerate(row)
        if value is not None
    ]


def _cell_kind(value: float | None, top: float) -> tuple[str, str] | None:
    if value is None:
        return "self", "1"
    if math.isinf(value):
        return "clear", "1"
    # Rounded up to the stronger shade, so that no cell looks better than it is.
    return ("", f"{math.ceil(SHADES * value / top) / SHADES:.3f}") if value and top else None


def _equal_stretches(kinds: Iterable[tuple[str, str] | None]) -> list[tuple[tuple[str, str] | None, int]]:
    return [(kind, len(list(stretch))) for kind, stretch in groupby(kinds)]


def name_ticks(words: Sequence[str]) -> list[dict[str, str]]:
    """Return names along a side, and the middle of their cells in percent.

    >>> name_ticks(["client-0", "a very long name of a client"])
    [{'at': '25.00', 'text': 'client-0'}, {'at': '75.00', 'text': 'a very long nam…'}]
    """
    every = -(-len(words) // TICKS) if words else 1
    return [
        {"at": f"{100 * (index + 0.5) / len(words):.2f}", "text": _cut_word(words[index])}
        for index in range(0, len(words), every)
    ]


def _cut_word(word: str) -> str:
    return word if len(word) <= LENGTH else word[: LENGTH - 1] + "…"


WORK = 2_000_000
"""Limit of look-ups to find out which subjects are alike."""


@dataclass(frozen=True)
class Column:
    """One observer."""

    kind: str
    name: str
    trusted: bool
    standing_for: int = 1
    """Number of observers of which it is the worst."""

    @property
    def names(self) -> str:
        """Return all names, if the heading does not name them."""
        return self.name if self.standing_for > 1 else ""

    @property
    def heading(self) -> str:
        """Return the heading of the column, never a long list."""
        return self.name if self.trusted and self.standing_for == 1 else self.kind

    @property
    def note(self) -> str:
        """Return a few words below the heading."""
        if self.standing_for > 1:
            return (
                f"{format_count(self.standing_for)} of them"
                if self.trusted
                else f"the worst of {format_count(self.standing_for)} different views"
            )
        return "trusted" if self.trusted else "untrusted" if self.name == self.kind else f"for example {self.name}"


@dataclass(frozen=True)
class Cell:
    """What one observer can learn about one class of subjects."""

    epsilon: float
    there: bool = True
    """Whether there is such an observer of them at all."""
    hits: tuple[float, ...] = ()
    """Powers of the best test at `ALARMS` false alarms, if known."""

    @property
    def text(self) -> str:
        """Return the bound, rounded up."""
        if not self.there:
            return NONE
        return format_upper(self.epsilon) if self.epsilon else "nothing"

    @property
    def clear(self) -> bool:
        """Return whether there is no bound."""
        return math.isinf(self.epsilon)

    @property
    def attack(self) -> str:
        """Return what the best test finds, rounded up; "" if it finds nothing or everything."""
        if self.clear or not self.epsilon or not self.hits:
            return ""
        return attack_words(self.hits)


@dataclass(frozen=True)
class Matrix:
    """Columns, and rows of (subjects, a note about them, cells)."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, str, tuple[Cell, ...]], ...]


def epsilon_matrix(run: RunView) -> Matrix | None:
    """Return the matrix of a run; None if there is no observer or no release."""
    columns = [Column(kind, name, False) for kind, name in run.observers.items()]
    columns += [Column("trusted", name, True) for name in run.trusted]
    subjects = sorted(frozenset[str]().union(*{release.subjects for release in run.ledger}))
    if not columns or not subjects or run.delta is None or run.fact("lines"):
        # Where views differ within a kind, `matrix_by_lines` or the section on groups applies.
        return None
    views = [run.ledger.view(column.name) for column in columns]
    different = frozenset[Composed]().union(*(view.compositions() for view in views))
    # Too many classes to account again in seconds. The worst row bounds all of them; thinning out or averaging would
    # not.
    if len(different) > CLASSES or _work_out(views, subjects) > WORK:
        return _worst_only(run, columns, views, subjects)
    # The least protected subjects come first.
    rows = sorted(_subject_classes(run, views, subjects).items(), key=lambda row: [-cell.epsilon for cell in row[0]])
    return Matrix(
        tuple(columns), tuple((write_parties(frozenset(names)), alike_words(names), cells) for cells, names in rows)
    )


def _work_out(views: Sequence[View], subjects: Sequence[str]) -> int:
    return len(subjects) * sum(len(composed) for view in views for composed in view.compositions())


def _subject_classes(run: RunView, views: Sequence[View], subjects: Sequence[str]) -> dict[tuple[Cell, ...], list[str]]:
    """Return subjects with equal cells against every observer as one row."""
    alike: dict[tuple[Cell, ...], list[str]] = defaultdict(list)
    for subject in subjects:
        composed = [frozenset(view.composition(subject).items()) for view in views]
        alike[tuple(_cell_of(run, events) for events in composed)].append(subject)
    return alike


def _cell_of(run: RunView, composed: Composed) -> Cell:
    return Cell(run.epsilon_of(composed), True, tuple(run.power_of(composed, alarms) for alarms in ALARMS))


def alike_words(names: Sequence[str]) -> str:
    """Return how many subjects share a row, if more than one."""
    return f"{format_count(len(names))} alike" if len(names) > 1 else ""


def _worst_only(run: RunView, columns: Sequence[Column], views: Sequence[View], subjects: Sequence[str]) -> Matrix:
    """Return one row, the worst over all subjects: as the last round wrote it, or infinite without noise."""
    # A trusted party is not bound by the guarantee: its column is infinite.
    spent = [run.spent.get(column.kind, math.inf) if not column.trusted else math.inf for column in columns]
    cells = tuple(Cell(value if view.compositions() else 0.0) for value, view in zip(spent, views, strict=True))
    word = f"the worst of {format_count(len(subjects))}, who differ in noise or rate"
    return Matrix(tuple(columns), ((write_parties(frozenset(subjects)), word, cells),))


Sight = tuple[Line, View]


def matrix_by_lines(run: RunView) -> Matrix | None:
    """Return subjects by kinds of observers, trusted ones in one column; None if one line per kind says it all."""
    subjects = sorted(frozenset[str]().union(*{release.subjects for release in run.ledger}))
    if not subjects or run.delta is None or not run.fact("lines") or run.fact("topology") == "groups":
        return None
    kinds = {kind: [(line, run.ledger.view(line.observer)) for line in lines] for kind, lines in run.lines.items()}
    columns = [_make_column(kind, lines) for kind, lines in kinds.items()]
    if run.trusted:
        kinds["trusted"] = [(Line(name), run.ledger.view(name)) for name in run.trusted]
        columns.append(Column("trusted", write_parties(frozenset(run.trusted)), True, len(run.trusted)))
    if len(subjects) * sum(len(view.compositions()) for lines in kinds.values() for _, view in lines) > WORK:
        return None
    alike: dict[tuple[Cell, ...], list[str]] = defaultdict(list)
    for subject in subjects:
        alike[tuple(_worst_cell(run, lines, subject) for lines in kinds.values())].append(subject)
    rows = sorted(alike.items(), key=lambda row: [-cell.epsilon for cell in row[0]])
    return Matrix(
        tuple(columns), tuple((write_parties(frozenset(names)), alike_words(names), cells) for cells, names in rows)
    )


def _make_column(kind: str, lines: Iterable[Sight]) -> Column:
    names = frozenset(line.observer for line, _ in lines)
    return Column(kind, write_parties(names), False, len(names))


def _worst_cell(run: RunView, lines: Iterable[Sight], subject: str) -> Cell:
    cells = [
        _cell_of(run, frozenset(view.composition(subject).items()))
        for line, view in lines
        if subject not in line.exempt
    ]
    # Each number is the worst of its own: the largest epsilon and the best test may belong to different observers.
    hits = tuple(max(powers) for powers in zip(*(cell.hits for cell in cells), strict=True))
    return Cell(max(cell.epsilon for cell in cells), True, hits) if cells else Cell(0.0, False)


ROWS = 14
"""More rows than this are folded away."""


def sight_content(run: RunView) -> Content | None:
    """Return the matrix, the protected releases, and those sent without noise."""
    if not len(run.ledger):
        return None
    rows = tell_ledger(run.ledger, run.unit)
    tables = [
        _release_table("Published with protection", "", [row for row in rows if not row.clear]),
        _release_table(_without_noise(run), _trust_words(run), [row for row in rows if row.clear]),
    ]
    return {
        "matrix": epsilon_matrix(run) or matrix_by_lines(run),
        "delta": format_short(run.delta) if run.delta else "",
        "who": run.who,
        "tables": [table for table in tables if table["rows"]],
    }


SECTION = Section("sight", "Who saw what of whom", sight_content)


def _release_table(title: str, note: str, rows: list[LedgerRow]) -> Content:
    made = sum(row.count for row in rows)
    more = f"{format_count(len(rows) - ROWS)} more kinds of release" if len(rows) > ROWS else ""
    return {
        "title": title,
        "note": note,
        "made": format_plural(made, "release"),
        "rows": rows,
        "fold": ROWS,
        "more": more,
    }


def _without_noise(run: RunView) -> str:
    return "Sent without noise to a trusted party" if run.trusted else "Sent without noise"


def _trust_words(run: RunView) -> str:
    if not run.trusted:
        return "No party is trusted in this run: every party that received these may learn all that they hold."
    return f"Trusted in this run: {', '.join(run.trusted)}. What they received is not bound by the guarantee."
