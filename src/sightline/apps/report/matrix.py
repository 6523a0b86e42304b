"""Who can learn how much of whom: classes of subjects against kinds of observers, from the ledger's flow."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sightline.apps.report.ledger_words import LedgerRow, tell_ledger
from sightline.apps.report.numbers import NONE, format_count, format_plural, format_short, format_upper
from sightline.apps.report.run_view import CLASSES, Composed, RunView
from sightline.apps.report.section import Content, Section
from sightline.ledger import View, write_parties
from sightline.topology import Line

WORK = 2_000_000
"""At most so many look-ups to find out which subjects are alike."""


@dataclass(frozen=True)
class Column:
    """One observer."""

    kind: str
    name: str
    trusted: bool
    standing_for: int = 1
    """How many observers it is the worst of."""

    @property
    def names(self) -> str:
        """All of them, where the heading does not name them."""
        return self.name if self.standing_for > 1 else ""

    @property
    def heading(self) -> str:
        """What stands above the column: never a list that goes on."""
        return self.name if self.trusted and self.standing_for == 1 else self.kind

    @property
    def note(self) -> str:
        """A few words below it."""
        if self.standing_for > 1:
            return (
                f"{format_count(self.standing_for)} of them"
                if self.trusted
                else f"the worst of {format_count(self.standing_for)}"
            )
        return "trusted" if self.trusted else "untrusted" if self.name == self.kind else f"for example {self.name}"


@dataclass(frozen=True)
class Cell:
    """What one observer can learn of one class of subjects."""

    epsilon: float
    there: bool = True
    """Whether there is such an observer of them at all."""

    @property
    def text(self) -> str:
        """The bound, rounded up."""
        if not self.there:
            return NONE
        return format_upper(self.epsilon) if self.epsilon else "nothing"

    @property
    def clear(self) -> bool:
        """Whether nothing bounds it."""
        return math.isinf(self.epsilon)


@dataclass(frozen=True)
class Matrix:
    """Columns, and rows of (subjects, a word about them, cells)."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, str, tuple[Cell, ...]], ...]


def epsilon_matrix(run: RunView) -> Matrix | None:
    """The matrix of a run; None when nobody is named or nothing was released."""
    columns = [Column(kind, name, False) for kind, name in run.observers.items()]
    columns += [Column("trusted", name, True) for name in run.trusted]
    subjects = sorted(frozenset[str]().union(*{release.subjects for release in run.ledger}))
    if not columns or not subjects or run.delta is None or run.fact("lines"):
        return None  # where views differ within a kind: `matrix_by_lines`, or the section on groups
    views = [run.ledger.view(column.name) for column in columns]
    different = frozenset[Composed]().union(*(view.compositions() for view in views))
    if len(different) > CLASSES or _work_out(views, subjects) > WORK:
        return _worst_only(run, columns, views, subjects)
    rows = sorted(_subject_classes(run, views, subjects).items(), key=lambda row: [-cell.epsilon for cell in row[0]])
    return Matrix(
        tuple(columns), tuple((write_parties(frozenset(names)), alike_words(names), cells) for cells, names in rows)
    )


def _work_out(views: Sequence[View], subjects: Sequence[str]) -> int:
    return len(subjects) * sum(len(composed) for view in views for composed in view.compositions())


def _subject_classes(run: RunView, views: Sequence[View], subjects: Sequence[str]) -> dict[tuple[Cell, ...], list[str]]:
    """Subjects that stand alike against every observer are one row."""
    found: dict[tuple[Cell, ...], list[str]] = defaultdict(list)
    for subject in subjects:
        composed = [frozenset(view.composition(subject).items()) for view in views]
        found[tuple(Cell(run.epsilon_of(events)) for events in composed)].append(subject)
    return found


def alike_words(names: Sequence[str]) -> str:
    """How many subjects share a row, when it is more than one."""
    return f"{format_count(len(names))} alike" if len(names) > 1 else ""


def _worst_only(run: RunView, columns: Sequence[Column], views: Sequence[View], subjects: Sequence[str]) -> Matrix:
    """One row, the worst over all subjects: as the last round wrote it, or infinite where something went in clear."""
    spent = [run.spent.get(column.kind, math.inf) if not column.trusted else math.inf for column in columns]
    cells = tuple(Cell(value if view.compositions() else 0.0) for value, view in zip(spent, views, strict=True))
    word = f"the worst of {format_count(len(subjects))}, who differ in noise or rate"
    return Matrix(tuple(columns), ((write_parties(frozenset(subjects)), word, cells),))


Sight = tuple[Line, View]


def matrix_by_lines(run: RunView) -> Matrix | None:
    """Subjects by kinds of observers, those who are trusted in one column; None where one line a kind says it all."""
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
    found: dict[tuple[Cell, ...], list[str]] = defaultdict(list)
    for subject in subjects:
        found[tuple(_worst_cell(run, lines, subject) for lines in kinds.values())].append(subject)
    rows = sorted(found.items(), key=lambda row: [-cell.epsilon for cell in row[0]])
    return Matrix(
        tuple(columns), tuple((write_parties(frozenset(names)), alike_words(names), cells) for cells, names in rows)
    )


def _make_column(kind: str, lines: Iterable[Sight]) -> Column:
    names = frozenset(line.observer for line, _ in lines)
    return Column(kind, write_parties(names), False, len(names))


def _worst_cell(run: RunView, lines: Iterable[Sight], subject: str) -> Cell:
    epsilons = [
        run.epsilon_of(frozenset(view.composition(subject).items()))
        for line, view in lines
        if subject not in line.exempt
    ]
    return Cell(max(epsilons), True) if epsilons else Cell(0.0, False)


ROWS = 14
"""More rows than these are folded away."""


def sight_content(run: RunView) -> Content | None:
    """The matrix, the releases that were hidden, and those that were sent without noise."""
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
        return "Nobody is trusted in this run: whoever received these may learn all that they hold."
    return f"Trusted in this run: {', '.join(run.trusted)}. What they received is not bound by the guarantee."
