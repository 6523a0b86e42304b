"""Label skew by a Dirichlet draw per class."""

import heapq

import numpy as np
from numpy.typing import NDArray

from sightline.data.table import Index
from sightline.errors import invalid

FEW = 10
"""No client has fewer examples than this, or than half the mean when the data are scarce."""


def deal_dirichlet(
    labels: NDArray[np.int64], *, clients: int, concentration: float, rng: np.random.Generator
) -> list[Index]:
    r"""Class c is cut among the clients in proportions p_c ~ Dirichlet(concentration, ..., concentration).

    Then every client below the minimum is topped up, one random example at a time, from whoever has most.

    Guarantees: every example is dealt exactly once; every client has at least min(10, n // (2 clients)) examples and
    at least one. (Redrawing until all are large enough, as is often done, need not end for small concentrations.)

    Reference: Hsu, Qi, Brown 2019; Yurochkin et al. 2019.
    """
    pieces: list[list[Index]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        for client, piece in enumerate(np.split(members, _class_cuts(len(members), clients, concentration, rng))):
            pieces[client].append(piece)
    parts = [rng.permutation(np.concatenate(piece)) for piece in pieces]
    return _top_up(parts, least=max(1, min(FEW, len(labels) // (2 * clients))))


def _class_cuts(examples: int, clients: int, concentration: float, rng: np.random.Generator) -> Index:
    shares = rng.dirichlet(np.full(clients, concentration))
    if not np.isfinite(shares).all():
        invalid("data.concentration", concentration, "the Dirichlet draw is not a number", "use 0.01 .. 1000")
    return np.minimum(np.floor(np.cumsum(shares[:-1]) * examples), examples).astype(np.int64)


def _top_up(parts: list[Index], *, least: int) -> list[Index]:
    sizes = [len(part) for part in parts]
    given: list[list[int]] = [[] for _ in parts]
    richest = [(-size, client) for client, size in enumerate(sizes)]
    heapq.heapify(richest)
    for client, size in enumerate(list(sizes)):
        for _ in range(least - size):
            negative, giver = heapq.heappop(richest)
            sizes[giver] = -negative - 1
            given[client].append(int(parts[giver][sizes[giver]]))
            heapq.heappush(richest, (negative + 1, giver))
    kept = [part[: sizes[client]] for client, part in enumerate(parts)]
    return [np.concatenate([part, np.array(new, dtype=np.int64)]) for part, new in zip(kept, given, strict=True)]
