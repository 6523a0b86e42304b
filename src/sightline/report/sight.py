"""Who saw what of whom: the ledger, told in words."""

from sightline.report.matrix import matrix
from sightline.report.matrix_by_lines import matrix_by_lines
from sightline.report.numbers import count, plural, short
from sightline.report.run import Run
from sightline.report.section import Content, Section
from sightline.report.told import Told, tell

ROWS = 14
"""More rows than these are folded away."""


def content(run: Run) -> Content | None:
    """The matrix, the releases that were hidden, and those that went in the clear, openly."""
    if not len(run.ledger):
        return None
    rows = tell(run.ledger, run.unit)
    tables = [
        _table("Published with protection", "", [row for row in rows if not row.clear]),
        _table(_without_noise(run), _trust(run), [row for row in rows if row.clear]),
    ]
    return {
        "matrix": matrix(run) or matrix_by_lines(run),
        "delta": short(run.delta) if run.delta else "",
        "who": run.who,
        "tables": [table for table in tables if table["rows"]],
    }


SECTION = Section("sight", "Who saw what of whom", content)


def _table(title: str, note: str, rows: list[Told]) -> Content:
    made = sum(row.count for row in rows)
    more = f"{count(len(rows) - ROWS)} more kinds of release" if len(rows) > ROWS else ""
    return {"title": title, "note": note, "made": plural(made, "release"), "rows": rows, "fold": ROWS, "more": more}


def _without_noise(run: Run) -> str:
    return "Sent without noise to a trusted party" if run.trusted else "Sent without noise"


def _trust(run: Run) -> str:
    if not run.trusted:
        return "Nobody is trusted in this run: whoever received these may learn all that they hold."
    return f"Trusted in this run: {', '.join(run.trusted)}. What they received is not bound by the guarantee."
