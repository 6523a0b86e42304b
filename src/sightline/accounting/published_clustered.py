"""R-DPCFL's own split of the budget, computed as its authors do. It is not what Sightline guarantees.

The choices are converted to (epsilon_s, delta) by their zCDP, subtracted, and the noise is calibrated to what is left,
again at delta: two guarantees at delta each, and the classic conversion twice.
"""

import math

from sightline.accounting.accountant import check_delta
from sightline.accounting.published import AsPublished, calibrate_published, gaussian_moments, poisson_moments

CLUSTERED_NOTICE = (
    "as_published: the authors' split of one delta over two guarantees; it is not a guarantee of Sightline"
)


def clustered_noise(
    *,
    samples: int,
    batch_size: int,
    rounds: int,
    selections: int,
    selection_epsilon: float,
    epsilon: float,
    delta: float,
) -> AsPublished:
    """The noise multiplier of the authors' split for one full-batch round, later Poisson batches and choices.

    Infinite where the choices alone use up the budget.

    >>> numbers = {"samples": 8000, "batch_size": 32, "rounds": 200, "selections": 20}
    >>> round(clustered_noise(**numbers, selection_epsilon=0.3, epsilon=10.0, delta=1e-4).value, 3)
    1.089
    """
    check_delta(delta)
    rho = selections * (selection_epsilon * selection_epsilon / 8)
    left = epsilon - rho - 2 * math.sqrt(rho * math.log(1 / delta))
    if left <= 0:
        return AsPublished(math.inf, CLUSTERED_NOTICE)
    steps = (rounds - 1) * -(-samples // batch_size)
    rate = min(1.0, batch_size / samples)
    found = calibrate_published(
        lambda noise: gaussian_moments(noise) + poisson_moments(noise, rate, steps), epsilon=left, delta=delta
    )
    return AsPublished(found.value, CLUSTERED_NOTICE)
