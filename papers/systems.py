"""The systems: titles, findings on the papers' figures and tables from the kept results, and notes to the authors."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from papers.findings import Finding
from papers.jobs import LINES, in_order, read

HERE = Path(__file__).parent
SYSTEMS = {
    "groups": "Overlapping groups (DP-OGL, DP-OGL+)",
    "upcycled": "Upcycled-FL",
    "clustered": "Clustered (R-DPCFL)",
    "hierarchy": "Hierarchy (H2FDP)",
    "partitioning": "Partitioning (splitting, dropout, balanced iterations)",
}

Said = tuple[list[Finding], tuple[str, ...]]
"""The findings of a system, and three sentences to the authors of its paper."""


def findings_of(system: str) -> list[Finding]:
    """Return all findings of a system, from its kept results."""
    return read_found(system)[0]


def find_sentences(system: str) -> tuple[str, ...]:
    """Return the sentences for the authors of the paper."""
    return read_found(system)[1]


@cache
def read_found(system: str) -> Said:
    """Return findings and sentences, computed once per process."""
    return FOUND[system]()


def _read_rows(place: str, parts: Any) -> list[dict[str, Any]]:
    return in_order(read(HERE / place / LINES), parts)


def _groups() -> Said:
    from papers.groups.cells import PARTS
    from papers.groups.claims import find_findings, say_to_authors
    from papers.groups.counts import read_counted

    rows = _read_rows("groups/results", PARTS)
    return find_findings(rows, read_counted()), say_to_authors(rows)


def _upcycled() -> Said:
    from papers.upcycled.claims import find_results, say_to_authors
    from papers.upcycled.parts import PARTS

    rows = _read_rows("upcycled", PARTS)
    return find_results(rows), say_to_authors(rows)


def _clustered() -> Said:
    from papers.clustered.claims import list_findings, say_to_authors
    from papers.clustered.parts import PARTS

    rows = _read_rows("clustered", PARTS)
    return list_findings(rows), say_to_authors(rows)


def _hierarchy() -> Said:
    from papers.hierarchy.claims import list_findings, say_to_authors
    from papers.hierarchy.figures import PARTS

    rows = _read_rows("hierarchy", PARTS)
    return list_findings(rows), say_to_authors(rows)


def _partitioning() -> Said:
    from papers.partitioning.claims import list_findings
    from papers.partitioning.training.__main__ import PARTS
    from papers.partitioning.training.claims import say_to_authors

    rows = _read_rows("partitioning/training", PARTS)
    return list_findings(rows), say_to_authors(rows)


FOUND: dict[str, Callable[[], Said]] = {
    "groups": _groups,
    "upcycled": _upcycled,
    "clustered": _clustered,
    "hierarchy": _hierarchy,
    "partitioning": _partitioning,
}
