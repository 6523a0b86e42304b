"""Updates as points that a mixture is fitted to.

m centres span m - 1 dimensions, so `spanning` gives a mixture of m components that many principal components: fewer let
clusters fall on top of each other, more are directions of pure noise. `principal` is the paper's plane, `raw` the
updates as they are.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

PointsOf = Callable[[int], NDArray[np.float64]]
"""The points that a mixture of so many components is fitted to."""
COLUMNS = 1 << 20
"""How many parameters are read at once, so that large models need no second copy of all updates."""
ROUNDING = 1e-6
"""Differences below this share of what they are differences of are float32 rounding, not news of a client."""


def spanning_points(updates: NDArray[np.floating]) -> PointsOf:
    """For m components the first m - 1 principal components, at least one, all in the unit of the updates."""
    scores = principal_scores(updates, components=max(1, len(updates) - 1))
    return lambda count: scores[:, : max(1, count - 1)]


def in_the_plane(updates: NDArray[np.floating]) -> PointsOf:
    """The same two scaled principal components for every number of components, as in the paper."""
    points = plane_points(updates)
    return lambda count: points


def as_they_are(updates: NDArray[np.floating]) -> PointsOf:
    """The raw updates for every number of components."""
    points = raw_points(updates)
    return lambda count: points


KINDS: dict[str, Callable[[NDArray[Any]], PointsOf]] = {
    "spanning": spanning_points,
    "principal": in_the_plane,
    "raw": as_they_are,
}
"""By their names in `algorithm.points`."""


def plane_points(updates: NDArray[np.floating], *, components: int = 2) -> NDArray[np.float64]:
    """The first principal components of the updates, each scaled to [0, 1] over the clients.

    Guarantees: the clients' inner products decide everything, so a rotation of the parameter space changes nothing;
    a component in which all clients agree is zero for all.
    """
    return scale_columns(principal_scores(updates, components=components))


def raw_points(updates: NDArray[np.floating]) -> NDArray[np.float64]:
    """The updates themselves. With far more parameters than clients any split looks well apart: compare, do not trust.

    A component's radius is the noise of one coordinate, while the centre of n updates is off by sqrt(p / n) of it.
    """
    return np.asarray(updates, dtype=np.float64)


def principal_scores(updates: NDArray[np.floating], *, components: int = 2) -> NDArray[np.float64]:
    """Scores on the first principal components, from the clients' Gram matrix; signs make the largest score positive.

    Guarantees: updates that differ by float32 rounding have score zero.

    >>> principal_scores(np.array([[0.0, 0.0], [3.0, 4.0]]), components=1).ravel().tolist()
    [-2.5, 2.5]
    """
    gram, size = _gram_matrix(updates)
    values, vectors = np.linalg.eigh(gram)
    first = np.argsort(values)[::-1][:components]
    scores = vectors[:, first] * np.sqrt(np.where(values[first] > ROUNDING**2 * size, values[first], 0))
    largest = np.argmax(np.abs(scores) * (1 + 1e-9 * np.arange(len(scores)))[:, None], axis=0)
    signed: NDArray[np.float64] = scores * np.where(scores[largest, np.arange(scores.shape[1])] < 0, -1.0, 1.0)
    return signed


def scale_columns(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each column from its least to its largest value onto [0, 1]; a constant column becomes zero.

    A column whose spread is rounding error of the largest column's is constant.
    """
    low, span = points.min(axis=0), np.ptp(points, axis=0)
    flat = span <= ROUNDING * span.max(initial=0.0)
    found: NDArray[np.float64] = np.where(flat, 0.0, (points - low) / np.where(flat, 1.0, span))
    return found


def _gram_matrix(updates: NDArray[np.floating]) -> tuple[NDArray[np.float64], float]:
    """Inner products of the centred updates, summed over blocks of parameters, and the squares of the uncentred."""
    total, size = np.zeros((len(updates), len(updates))), 0.0
    for begin in range(0, updates.shape[1], COLUMNS):
        block = np.asarray(updates[:, begin : begin + COLUMNS], dtype=np.float64)
        centred = block - block.mean(axis=0)
        total += centred @ centred.T
        size += float((block**2).sum())
    return total, size
