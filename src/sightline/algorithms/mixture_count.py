"""How many clusters there are, when nobody says: the count whose mixture is the surest (eq. 11)."""

from collections.abc import Sequence

import numpy as np

from sightline.algorithms.mixture import Mixture, fit_mixture
from sightline.algorithms.mixture_points import PointsOf

MOST = 10


def candidate_counts(clients: int) -> range:
    """2, 3, ... up to ten, but two clients a cluster on average: fewer would call every client a cluster.

    >>> list(candidate_counts(21)), list(candidate_counts(6)), list(candidate_counts(3))
    ([2, 3, 4, 5, 6, 7, 8, 9, 10], [2, 3], [2])
    """
    return range(2, max(2, min(MOST, clients // 2)) + 1)


def surest_mixture(points_of: PointsOf, *, clients: int, seed: int, counts: Sequence[int] | None = None) -> Mixture:
    """The mixture with the largest MSS over the candidate counts; of equals the one with fewest components.

    Guarantees: equal points give one component. One component is never preferred to two, because its MSS has no
    meaning: a low MSS of the result says that there may be no clusters at all.
    """
    fits = [fit_mixture(points_of(count), count, seed=seed) for count in (counts or candidate_counts(clients))]
    return max(fits, key=lambda mixture: (np.nan_to_num(mixture.mss, posinf=0.0), -mixture.count))


def confidence_by_count(
    points_of: PointsOf, *, clients: int, seed: int, counts: Sequence[int] | None = None
) -> dict[int, float]:
    """Count -> MSS of its mixture: the curve whose peak is the answer (Fig. 10)."""
    return {
        count: fit_mixture(points_of(count), count, seed=seed).mss for count in (counts or candidate_counts(clients))
    }
