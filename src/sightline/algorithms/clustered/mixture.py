"""Mixture of spherical Gaussians over clients' updates: points, EM fit, number of components, confidence."""

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfc

from sightline.errors import invalid

TOLERANCE = 1e-6
"""Gain of the likelihood at which EM stops (appendix C.8)."""
LEAST_VARIANCE = 1e-6
"""Variance floor, relative to the points' widest spread: a component of one point keeps a radius of 1e-3 of it."""
MOST_ITERATIONS = 1000


@dataclass(frozen=True)
class Mixture:
    """Fitted components and the points to which they were fitted.

    Guarantees: `posteriors` rows sum to one; with one component `mss` is infinite and `mpo` zero.
    """

    points: NDArray[np.float64]
    """One row per client."""
    centres: NDArray[np.float64]
    radii: NDArray[np.float64]
    """Square roots of the spherical variances."""
    posteriors: NDArray[np.float64]
    """Posterior of each client under uniform mixture weights: a small cluster is not drawn into a large one."""

    @property
    def count(self) -> int:
        """The number of components."""
        return len(self.centres)

    @property
    def assigned(self) -> NDArray[np.int64]:
        """The likeliest component of each client."""
        likeliest: NDArray[np.int64] = np.argmax(self.posteriors, axis=1)
        return likeliest

    @property
    def separations(self) -> NDArray[np.float64]:
        """SS(m, m') = |mu_m - mu_m'| / (2 max(r_m, r_m')); infinite on the diagonal."""
        distances = np.linalg.norm(self.centres[:, None] - self.centres[None], axis=2)
        result: NDArray[np.float64] = distances / (2 * np.maximum(self.radii[:, None], self.radii[None]))
        np.fill_diagonal(result, np.inf)
        return result

    @property
    def mss(self) -> float:
        """The smallest separation of any pair: the confidence."""
        return float(self.separations.min())

    @property
    def mpo(self) -> float:
        """The largest overlap of any pair, 2 Q(MSS)."""
        return component_overlap_at(self.mss)


def component_overlap_at(separation: float) -> float:
    """Return the common mass of two spherical Gaussians with centres 2 `separation` radii apart: 2 Q(separation).

    >>> [round(component_overlap_at(separation), 4) for separation in (0, 1, 2, 3)]
    [1.0, 0.3173, 0.0455, 0.0027]
    """
    return float(erfc(separation / np.sqrt(2)))


def switch_round(mixture: Mixture, rounds: int) -> int:
    """Return the last round of soft assignment, E_c = int((1 - MPO) E / 2): a surer mixture is used longer."""
    return int((1 - mixture.mpo) * rounds / 2)


def fit_mixture(points: NDArray[np.float64], count: int, *, seed: int) -> Mixture:
    """Fit `count` spherical Gaussians by EM from a k-means++ start.

    Guarantees: equal arguments give equal mixtures; there are never more components than distinct points, so equal
    updates give one component for any `count`.
    """
    _check_points(points, count)
    count = min(count, len(np.unique(points, axis=0)))
    if count == 1:
        return _one_component(points)
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    # Fit in units of the widest spread: scikit-learn's variance floor is absolute, and the unit of the updates must not
    # matter. For points in [0, 1] this is the paper's floor.
    span = np.ptp(points, axis=0).max()
    model = GaussianMixture(
        count, covariance_type="spherical", init_params="k-means++", tol=TOLERANCE, reg_covar=LEAST_VARIANCE,
        max_iter=MOST_ITERATIONS, random_state=seed,
    )  # fmt: skip
    # A fit that stops at the iteration limit is still a valid mixture of released values; no guarantee rests on it.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(points / span)
    centres, radii = span * model.means_, span * np.sqrt(model.covariances_)
    return Mixture(points, centres, radii, posterior_chances(points, centres, radii))


def posterior_chances(
    points: NDArray[np.float64], centres: NDArray[np.float64], radii: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the probability of each component for each point, with equal priors."""
    squares = ((points[:, None] - centres[None]) ** 2).sum(axis=2)
    # Subtract the largest log first: with many dimensions all likelihoods would underflow to zero.
    logs = -squares / (2 * radii**2) - points.shape[1] * np.log(radii)
    likelihoods = np.exp(logs - logs.max(axis=1, keepdims=True))
    shares: NDArray[np.float64] = likelihoods / likelihoods.sum(axis=1, keepdims=True)
    return shares


def _one_component(points: NDArray[np.float64]) -> Mixture:
    """Return one component around all points."""
    radius = max(np.sqrt(points.var(axis=0).mean()), np.finfo(np.float64).tiny)
    return Mixture(points, points.mean(axis=0)[None], np.array([radius]), np.ones((len(points), 1)))


def _check_points(points: NDArray[np.float64], count: int) -> None:
    """Raise for points that no mixture can be fitted to."""
    if points.ndim != 2 or not points.size:
        invalid("updates", points.shape, "expected one vector per client, for at least one client")
    if not np.isfinite(points).all():
        invalid("updates", "non-finite", "updates must be finite", "lower local.learning_rate")
    if count < 1:
        invalid("topology.count", count, "must be at least 1", "e.g. 4")


PointsOf = Callable[[int], NDArray[np.float64]]
"""count -> the points to which a mixture of `count` components is fitted."""
COLUMNS = 1 << 20
"""Number of parameters read at once, so that large models need no second copy of all updates."""
ROUNDING = 1e-6
"""Differences below this share of their operands are float32 rounding, not information about a client."""


def spanning_points(updates: NDArray[np.floating]) -> PointsOf:
    """Return, for m components, the first m - 1 principal components (at least one), in the unit of the updates."""
    # The centres of m clusters span m - 1 dimensions. In the paper's plane distant clusters can fall together; further
    # components are the clients' own noise, many times wider than the noise along the centres.
    scores = principal_scores(updates, components=max(1, len(updates) - 1))
    return lambda count: scores[:, : max(1, count - 1)]


def in_the_plane(updates: NDArray[np.floating]) -> PointsOf:
    """Return the same two scaled principal components for every count, as in the paper."""
    points = plane_points(updates)
    return lambda count: points


def as_they_are(updates: NDArray[np.floating]) -> PointsOf:
    """Return the raw updates for every count."""
    points = raw_points(updates)
    return lambda count: points


KINDS: dict[str, Callable[[NDArray[Any]], PointsOf]] = {
    "spanning": spanning_points,
    "principal": in_the_plane,
    "raw": as_they_are,
}
"""By their names in `algorithm.points`."""


def plane_points(updates: NDArray[np.floating], *, components: int = 2) -> NDArray[np.float64]:
    """Return the first principal components of the updates, each scaled to [0, 1] over the clients.

    Guarantees: the result depends on the clients' inner products only, so a rotation of the parameter space changes
    nothing; a component in which all clients agree is zero for all.
    """
    return scale_columns(principal_scores(updates, components=components))


def raw_points(updates: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the updates themselves. With far more parameters than clients any split looks well separated.

    A component's radius is the noise of one coordinate, while the centre of n updates is off by sqrt(p / n) of it. Use
    it for comparison only.
    """
    return np.asarray(updates, dtype=np.float64)


def principal_scores(updates: NDArray[np.floating], *, components: int = 2) -> NDArray[np.float64]:
    """Return scores on the first principal components; signs make the largest score positive.

    Guarantees: updates that differ by float32 rounding have score zero.

    >>> principal_scores(np.array([[0.0, 0.0], [3.0, 4.0]]), components=1).ravel().tolist()
    [-2.5, 2.5]
    """
    # The Gram matrix is clients x clients: with few clients and millions of parameters that is far cheaper than an SVD.
    gram, size = _gram_matrix(updates)
    values, vectors = np.linalg.eigh(gram)
    first = np.argsort(values)[::-1][:components]
    scores = vectors[:, first] * np.sqrt(np.where(values[first] > ROUNDING**2 * size, values[first], 0))
    # The tiny factor breaks ties by index, so that the sign does not depend on rounding.
    largest = np.argmax(np.abs(scores) * (1 + 1e-9 * np.arange(len(scores)))[:, None], axis=0)
    signed: NDArray[np.float64] = scores * np.where(scores[largest, np.arange(scores.shape[1])] < 0, -1.0, 1.0)
    return signed


def scale_columns(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scale each column from its smallest and largest value onto [0, 1]; a constant column becomes zero.

    A column whose spread is rounding error of the largest column's spread is constant.
    """
    low, span = points.min(axis=0), np.ptp(points, axis=0)
    flat = span <= ROUNDING * span.max(initial=0.0)
    result: NDArray[np.float64] = np.where(flat, 0.0, (points - low) / np.where(flat, 1.0, span))
    return result


def _gram_matrix(updates: NDArray[np.floating]) -> tuple[NDArray[np.float64], float]:
    """Return inner products of the centred updates, summed over blocks of parameters, and the uncentred squares."""
    total, size = np.zeros((len(updates), len(updates))), 0.0
    for begin in range(0, updates.shape[1], COLUMNS):
        block = np.asarray(updates[:, begin : begin + COLUMNS], dtype=np.float64)
        centred = block - block.mean(axis=0)
        total += centred @ centred.T
        size += float((block**2).sum())
    return total, size


MOST = 10


def candidate_counts(clients: int) -> range:
    """Return 2, 3, ... up to ten, with at least two clients per cluster on average.

    >>> list(candidate_counts(21)), list(candidate_counts(6)), list(candidate_counts(3))
    ([2, 3, 4, 5, 6, 7, 8, 9, 10], [2, 3], [2])
    """
    # Fewer clients per cluster would make every client a cluster.
    return range(2, max(2, min(MOST, clients // 2)) + 1)


def surest_mixture(points_of: PointsOf, *, clients: int, seed: int, counts: Sequence[int] | None = None) -> Mixture:
    """Return the mixture with the largest MSS over the candidate counts; among equals, the fewest components.

    Guarantees: a fit of one component has no MSS and wins only if every candidate has one component, as for equal
    points. A low MSS means that there may be no clusters.
    """
    fits = [fit_mixture(points_of(count), count, seed=seed) for count in (counts or candidate_counts(clients))]
    return max(fits, key=lambda mixture: (np.nan_to_num(mixture.mss, posinf=0.0), -mixture.count))


def confidence_by_count(
    points_of: PointsOf, *, clients: int, seed: int, counts: Sequence[int] | None = None
) -> dict[int, float]:
    """Return count -> MSS of its mixture: the curve whose peak is the answer (Fig. 10)."""
    return {
        count: fit_mixture(points_of(count), count, seed=seed).mss for count in (counts or candidate_counts(clients))
    }


def cluster_purity(assigned: Sequence[int], truth: Sequence[int]) -> float:
    """Return the share of clients that belong to the majority of their cluster.

    >>> cluster_purity([0, 0, 1, 1], [5, 5, 5, 7])
    0.75
    """
    pairs = Counter(zip(assigned, truth, strict=True))
    best: dict[int, int] = {}
    for (cluster, _), size in pairs.items():
        best[cluster] = max(best.get(cluster, 0), size)
    return sum(best.values()) / len(truth)
