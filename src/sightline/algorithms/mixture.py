"""A mixture of spherical Gaussians over clients' updates, and how well its components are apart (R-DPCFL).

Everything here reads updates that are released already: it is post-processing and costs no privacy.
"""

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfc

from sightline.errors import invalid

TOLERANCE = 1e-6
"""At which gain of the likelihood EM stops (appendix C.8)."""
LEAST_VARIANCE = 1e-6
"""What keeps a component of one point from becoming a point: a radius of 1e-3 of the points' widest spread."""
MOST_ITERATIONS = 1000


@dataclass(frozen=True)
class Mixture:
    """Fitted components and the points that they were fitted to.

    Guarantees: `posteriors` rows sum to one; with one component `mss` is infinite and `mpo` zero.
    """

    points: NDArray[np.float64]
    """One row per client, as `mixture_points.prepared` made them."""
    centres: NDArray[np.float64]
    radii: NDArray[np.float64]
    """Square roots of the spherical variances."""
    posteriors: NDArray[np.float64]
    """Of each client, with uniform mixture weights: a small cluster is not drawn into a large one."""

    @property
    def count(self) -> int:
        """How many components."""
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
        found: NDArray[np.float64] = distances / (2 * np.maximum(self.radii[:, None], self.radii[None]))
        np.fill_diagonal(found, np.inf)
        return found

    @property
    def mss(self) -> float:
        """The least separation of any pair: the confidence."""
        return float(self.separations.min())

    @property
    def mpo(self) -> float:
        """The largest overlap of any pair, 2 Q(MSS)."""
        return component_overlap_at(self.mss)


def component_overlap_at(separation: float) -> float:
    """The common mass of two equal spherical Gaussians whose centres are 2 `separation` radii apart: 2 Q(separation).

    >>> [round(component_overlap_at(separation), 4) for separation in (0, 1, 2, 3)]
    [1.0, 0.3173, 0.0455, 0.0027]
    """
    return float(erfc(separation / np.sqrt(2)))


def switch_round(mixture: Mixture, rounds: int) -> int:
    """The last round of soft assignment, E_c = int((1 - MPO) E / 2): the surer the mixture, the longer it is used."""
    return int((1 - mixture.mpo) * rounds / 2)


def fit_mixture(points: NDArray[np.float64], count: int, *, seed: int) -> Mixture:
    """EM for `count` spherical Gaussians from a k-means++ start.

    Guarantees: equal arguments give equal mixtures; there are never more components than distinct points, so equal
    updates give one component however many were asked for.
    """
    _check_points(points, count)
    count = min(count, len(np.unique(points, axis=0)))
    if count == 1:
        return _one_component(points)
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    span = np.ptp(points, axis=0).max()
    model = GaussianMixture(
        count, covariance_type="spherical", init_params="k-means++", tol=TOLERANCE, reg_covar=LEAST_VARIANCE,
        max_iter=MOST_ITERATIONS, random_state=seed,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(points / span)
    centres, radii = span * model.means_, span * np.sqrt(model.covariances_)
    return Mixture(points, centres, radii, posterior_chances(points, centres, radii))


def posterior_chances(
    points: NDArray[np.float64], centres: NDArray[np.float64], radii: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Which component each point came from, when all are as likely beforehand."""
    squares = ((points[:, None] - centres[None]) ** 2).sum(axis=2)
    logs = -squares / (2 * radii**2) - points.shape[1] * np.log(radii)
    likelihoods = np.exp(logs - logs.max(axis=1, keepdims=True))
    shares: NDArray[np.float64] = likelihoods / likelihoods.sum(axis=1, keepdims=True)
    return shares


def _one_component(points: NDArray[np.float64]) -> Mixture:
    """One component around everything."""
    radius = max(np.sqrt(points.var(axis=0).mean()), np.finfo(np.float64).tiny)
    return Mixture(points, points.mean(axis=0)[None], np.array([radius]), np.ones((len(points), 1)))


def _check_points(points: NDArray[np.float64], count: int) -> None:
    """Refuse what has no mixture."""
    if points.ndim != 2 or not points.size:
        invalid("updates", points.shape, "a mixture is fitted to one vector per client, and to at least one client")
    if not np.isfinite(points).all():
        invalid("updates", "non-finite", "a mixture is fitted to finite updates", "lower local.learning_rate")
    if count < 1:
        invalid("topology.count", count, "there is at least one cluster", "e.g. 4")
