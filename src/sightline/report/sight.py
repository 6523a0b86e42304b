"""Who saw what of whom: the ledger, told in words."""

from sightline.report.matrix import epsilon_matrix
from sightline.report.matrix_by_lines import matrix_by_lines
from sightline.report.numbers import format_count, format_plural, format_short
from sightline.report.run import RunView
from sightline.report.section import Content, Section
from sightline.report.told import LedgerRow, tell_ledger

ROWS = 14
"""More rows than these are folded away."""


def sight_content(run: RunView) -> Content | None:
    """The matrix, the releases that were hidden, and those that went in the clear, openly."""
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
