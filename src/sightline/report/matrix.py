"""Who can learn how much of whom: classes of subjects against kinds of observers, from the ledger's flow."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from sightline.ledger import View, write_parties
from sightline.report.numbers import NONE, format_count, format_upper
from sightline.report.run import CLASSES, Composed, RunView

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
