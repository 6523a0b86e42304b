"""The systems: their titles, and the claims that their kept results can judge."""

from collections.abc import Callable
from pathlib import Path

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


def claims_of(system: str) -> list[Claim] | list[Finding]:
    """All claims of a system, from the results that are kept here."""
    return FOUND[system]()


def _groups() -> list[Claim]:
    from experiments.groups.cells import PARTS
    from experiments.groups.claims import claims
    from experiments.groups.page import counted

    return claims(in_order(read(HERE / "groups" / "results" / LINES), PARTS), counted())


def _upcycled() -> list[Finding]:
    from experiments.upcycled.claims import find_results
    from experiments.upcycled.parts import PARTS

    return find_results(in_order(read(HERE / "upcycled" / LINES), PARTS))


def _clustered() -> list[Claim]:
    from experiments.clustered.claims import claims
    from experiments.clustered.parts import PARTS

    return claims(in_order(read(HERE / "clustered" / LINES), PARTS))


def _hierarchy() -> list[Claim]:
    from experiments.hierarchy.claims import claims
    from experiments.hierarchy.figures import PARTS

    return claims(in_order(read(HERE / "hierarchy" / LINES), PARTS))


def _partitioning() -> list[Claim]:
    from experiments.partitioning.claims import claims

    return claims(read(HERE / "partitioning" / "training" / LINES))


FOUND: dict[str, Callable[[], list[Claim] | list[Finding]]] = {
    "groups": _groups,
    "upcycled": _upcycled,
    "clustered": _clustered,
    "hierarchy": _hierarchy,
    "partitioning": _partitioning,
}
