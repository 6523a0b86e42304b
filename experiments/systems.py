"""The systems: their titles, what their kept results say of the papers' figures and tables, and to their authors."""

from collections.abc import Callable
from pathlib import Path

from experiments.findings import Finding
from experiments.jobs import LINES, in_order, read

HERE = Path(__file__).parent
SYSTEMS = {
    "groups": "Overlapping groups (DP-OGL, DP-OGL+)",
    "upcycled": "Upcycled-FL",
    "clustered": "Clustered (R-DPCFL)",
    "hierarchy": "Hierarchy (H2FDP)",
    "partitioning": "Partitioning (splitting, dropout, balanced iterations)",
}


def findings_of(system: str) -> list[Finding]:
    """All findings of a system, from the results that are kept here."""
    return FOUND[system]()


def _groups() -> list[Finding]:
    from experiments.groups.cells import PARTS
    from experiments.groups.claims import claims
    from experiments.groups.page import counted

    return claims(in_order(read(HERE / "groups" / "results" / LINES), PARTS), counted())


def _upcycled() -> list[Finding]:
    from experiments.upcycled.claims import cells, claims
    from experiments.upcycled.numbers import by_part
    from experiments.upcycled.parts import PARTS

    parts = by_part(in_order(read(HERE / "upcycled" / LINES), PARTS))
    return [*claims(parts), *cells(parts)]


def _clustered() -> list[Finding]:
    from experiments.clustered.claims import claims
    from experiments.clustered.parts import PARTS

    return claims(in_order(read(HERE / "clustered" / LINES), PARTS))


def _hierarchy() -> list[Finding]:
    from experiments.hierarchy.claims import claims
    from experiments.hierarchy.figures import PARTS

    return claims(in_order(read(HERE / "hierarchy" / LINES), PARTS))


def _partitioning() -> list[Finding]:
    from experiments.partitioning.claims import claims

    return claims(read(HERE / "partitioning" / "training" / LINES))


FOUND: dict[str, Callable[[], list[Finding]]] = {
    "groups": _groups,
    "upcycled": _upcycled,
    "clustered": _clustered,
    "hierarchy": _hierarchy,
    "partitioning": _partitioning,
}
