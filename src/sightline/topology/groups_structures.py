"""The shapes that groups come in: one for all, disjoint clusters, rings, strings, and groups by label."""

from collections.abc import Sequence
from itertools import pairwise

from sightline.errors import invalid

Group = tuple[int, ...]


def one_for_all(workers: int) -> tuple[Group, ...]:
    """A single group of everybody: ordinary federated averaging."""
    return (tuple(range(workers)),)


def cluster_groups(workers: int, groups: int) -> tuple[Group, ...]:
    """Disjoint groups of consecutive workers, equal up to one.

    >>> cluster_groups(6, 3)
    ((0, 1), (2, 3), (4, 5))
    """
    edges = _shared_edges(workers, groups, "clusters")
    return tuple(tuple(range(low, high)) for low, high in pairwise(edges))


def ring_groups(workers: int, groups: int) -> tuple[Group, ...]:
    """Group m = workers {m N/M .. (m+1) N/M} mod N: neighbours share exactly one worker (two for a ring of two).

    >>> ring_groups(6, 3)
    ((0, 1, 2), (2, 3, 4), (0, 4, 5))
    """
    edges = _shared_edges(workers, groups, "ring")
    wrapped = (sorted({n % workers for n in range(low, high + 1)}) for low, high in pairwise(edges))
    return tuple(tuple(group) for group in wrapped)


def string_groups(workers: int, groups: int) -> tuple[Group, ...]:
    """The ring without the wrap-around.

    >>> string_groups(3, 2)
    ((0, 1), (1, 2))
    """
    edges = _shared_edges(workers, groups, "string")
    return tuple(tuple(range(low, min(high + 1, workers))) for low, high in pairwise(edges))


def by_labels(held: Sequence[frozenset[int]], groups: int) -> tuple[Group, ...]:
    """Whoever holds label y is in group y mod M. Membership then depends on private labels.

    >>> by_labels([frozenset({0, 1}), frozenset({2})], 2)
    ((0, 1), (0,))
    """
    if groups < 1:
        invalid("topology.groups", groups, "there is at least one group")
    return tuple(
        tuple(n for n, labels in enumerate(held) if any(label % groups == group for label in labels))
        for group in range(groups)
    )


def _shared_edges(workers: int, groups: int, structure: str) -> list[int]:
    if not 1 <= groups <= workers:
        invalid("groups", groups, f"{structure} of {workers} workers has 1 to {workers} groups")
    return [group * workers // groups for group in range(groups + 1)]


STRUCTURES = {
    "global": lambda workers, groups: one_for_all(workers),
    "clusters": cluster_groups,
    "ring": ring_groups,
    "string": string_groups,
}
"""Structures that follow from two numbers alone."""
