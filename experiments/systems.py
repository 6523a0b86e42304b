"""The systems: their titles, and the claims that their kept results can judge."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.claims import Claim
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


def claims_of(system: str) -> list[Claim]:
    """All claims of a system, from the results that are kept here."""
    return FOUND[system]()


def _groups() -> list[Claim]:
    from experiments.groups.cells import PARTS
    from experiments.groups.claims import claims
    from experiments.groups.page import counted

    return claims(in_order(read(HERE / "groups" / "results" / LINES), PARTS), counted())


def _upcycled() -> list[Claim]:
    from experiments.upcycled.claims import cells, claims
    from experiments.upcycled.numbers import by_part
    from experiments.upcycled.parts import PARTS

    parts = by_part(in_order(read(HERE / "upcycled" / LINES), PARTS))
    return [*claims(parts), *cells(parts)]


def _clustered() -> list[Finding]:
    from experiments.clustered.claims import list_findings
    from experiments.clustered.parts import PARTS

    return list_findings(in_order(read(HERE / "clustered" / LINES), PARTS))


def _hierarchy() -> list[Claim]:
    from experiments.hierarchy.claims import claims
    from experiments.hierarchy.figures import PARTS

    return claims(in_order(read(HERE / "hierarchy" / LINES), PARTS))


def _partitioning() -> list[Finding]:
    from experiments.partitioning.claims import list_findings
    from experiments.partitioning.training.__main__ import PARTS

    return list_findings(in_order(read(HERE / "partitioning" / "training" / LINES), PARTS))


FOUND: dict[str, Callable[[], list[Any]]] = {
    "groups": _groups,
    "upcycled": _upcycled,
    "clustered": _clustered,
    "hierarchy": _hierarchy,
    "partitioning": _partitioning,
}
