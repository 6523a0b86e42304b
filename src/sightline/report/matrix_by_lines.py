"""The matrix where observers of one kind do not all see the same: the worst over each kind's lines of sight."""

from collections import defaultdict
from collections.abc import Iterable

from sightline.ledger import View, write_parties
from sightline.report.matrix import WORK, Cell, Column, Matrix, alike_words
from sightline.report.run import RunView
from sightline.topology import Line

Sight = tuple[Line, View]


def matrix_by_lines(run: RunView) -> Matrix | None:
    """Subjects by kinds of observers, those who are trusted in one column; None where one line a kind says it all."""
    subjects = sorted(frozenset[str]().union(*{release.subjects for release in run.ledger}))
    if not subjects or run.delta is None or not run.fact("lines") or run.fact("topology") == "groups":
        return None
    kinds = {kind: [(line, run.ledger.view(line.observer)) for line in lines] for kind, lines in run.lines.items()}
    columns = [_column(kind, lines) for kind, lines in kinds.items()]
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


def _column(kind: str, lines: Iterable[Sight]) -> Column:
    names = frozenset(line.observer for line, _ in lines)
    return Column(kind, write_parties(names), False, len(names))


def _worst_cell(run: RunView, lines: Iterable[Sight], subject: str) -> Cell:
    epsilons = [
        run.epsilon_of(frozenset(view.composition(subject).items()))
        for line, view in lines
        if subject not in line.exempt
    ]
    return Cell(max(epsilons), True) if epsilons else Cell(0.0, False)
