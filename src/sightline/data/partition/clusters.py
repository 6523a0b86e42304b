"""Clusters of clients that see the world differently: turned images or shifted labels."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sightline.data.partition.iid import deal_iid
from sightline.data.table import Index


def cluster_of(clusters: Sequence[int]) -> NDArray[np.int64]:
    """The cluster of each client, when cluster k has `clusters[k]` clients.

    >>> cluster_of([1, 3]).tolist()
    [0, 1, 1, 1]
    """
    return np.repeat(np.arange(len(clusters)), clusters)


def deal_clusters(examples: int, *, clusters: Sequence[int], reuse: bool, rng: np.random.Generator) -> list[Index]:
    """Deal the examples evenly over the clients of all clusters.

    With `reuse` every cluster is dealt the whole data set anew, and all clients get examples // max(clusters) of it,
    so that the largest cluster decides (R-DPCFL, appendix C.1-C.2: {3, 6, 6, 6} and 60,000 examples give 10,000 each).

    Guarantees: inside one cluster no example is dealt twice; without `reuse` every example is dealt exactly once.
    """
    if not reuse:
        return deal_iid(examples, clients=sum(clusters), rng=rng)
    each = examples // max(clusters)
    shuffles = [rng.permutation(examples) for _ in clusters]
    return [
        shuffle[client * each : (client + 1) * each]
        for shuffle, members in zip(shuffles, clusters, strict=True)
        for client in range(members)
    ]


def share_by_cluster(examples: int, *, clusters: Sequence[int], rng: np.random.Generator) -> list[Index]:
    """Cut a common test set into one share per cluster, as large as the cluster's part of the clients.

    >>> [len(share) for share in share_by_cluster(70, clusters=[3, 6, 6, 6], rng=np.random.default_rng(0))]
    [10, 20, 20, 20]
    """
    cuts = np.cumsum(clusters)[:-1] * examples // sum(clusters)
    return np.split(rng.permutation(examples), cuts)
