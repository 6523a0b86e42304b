"""Clusters found against clusters known: for simulations, where the truth is at hand."""

from collections import Counter
from collections.abc import Sequence


def cluster_purity(found: Sequence[int], truth: Sequence[int]) -> float:
    """The share of clients who are in the majority of the cluster that they were put into.

    >>> cluster_purity([0, 0, 1, 1], [5, 5, 5, 7])
    0.75
    """
    pairs = Counter(zip(found, truth, strict=True))
    best: dict[int, int] = {}
    for (cluster, _), size in pairs.items():
        best[cluster] = max(best.get(cluster, 0), size)
    return sum(best.values()) / len(truth)


def same_clusters(found: Sequence[int], truth: Sequence[int]) -> bool:
    """Whether both put the same clients together, whatever they call the clusters.

    >>> same_clusters([2, 2, 0], [1, 1, 3]), same_clusters([2, 2, 2], [1, 1, 3])
    (True, False)
    """
    pairs = set(zip(found, truth, strict=True))
    return len(pairs) == len(set(found)) == len(set(truth))
