"""Noise and epsilon as three papers compute them, for comparison only: they are not Sightline's guarantees."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sightline.accounting.accountant import check_delta
from sightline.accounting.likelihood_ratio import Array
from sightline.accounting.moments import ORDERS, overlap_moments, sampled_moments
from sightline.errors import invalid

NOTICE = "as_published: the paper's own accounting, reproduced for comparison; it is not a guarantee of Sightline"


@dataclass(frozen=True)
class AsPublished:
    """A number of a paper with the notice that travels with it."""

    value: float
    notice: str = NOTICE


def classic_epsilon(moments: Array, delta: float) -> float:
    """Return epsilon by Proposition 2.3, over the integer orders."""
    return float(np.min((moments[2:] + math.log(1 / delta)) / (ORDERS[2:] - 1)))


def gaussian_moments(noise: float) -> Array:
    """Return (a - 1) D_a of the Gaussian mechanism."""
    return np.asarray(ORDERS * (ORDERS - 1) / (2 * noise**2))


def poisson_moments(noise: float, rate: float, steps: int) -> Array:
    """Return the moments of Theorem 3.11."""
    return steps * sampled_moments(gaussian_moments(noise), rate)


def balanced_moments(noise: float, steps: int, uses: int, epochs: int = 1) -> Array:
    """Return the moments of Theorem 3.8 with bound (3)."""
    return epochs * overlap_moments(steps, uses, noise)


def split_moments(noise: float, parts: int, rate: float, steps: int, unsplit_noise: float | None = None) -> Array:
    """Return the moments of Theorem 3.4 with bound (3), sampled; the unsplit part is under the same draw."""
    inner = overlap_moments(parts, 1, noise)
    if unsplit_noise is not None:
        inner = inner + gaussian_moments(unsplit_noise)
    return steps * sampled_moments(inner, rate)


def calibrate_published(moments_at: Callable[[float], Array], *, epsilon: float, delta: float) -> AsPublished:
    """Return the noise at which the paper's accounting spends exactly (epsilon, delta)."""
    low, high = 1e-2, 1e3
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if classic_epsilon(moments_at(middle), delta) > epsilon else (low, middle)
    return AsPublished(high)


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
    """Return the noise multiplier of the authors' split for one full-batch round, later Poisson batches and choices.

    Infinite if the choices alone use up the budget.

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


H2FDP_NOTICE = (
    "as_published: H2FDP's Proposition 3.1, an asymptotic form with an unnamed constant; it is not a guarantee"
)

# c2 of the proposition, which the paper does not name; 2 is the usual value in moments-accountant papers.
CONSTANT = 2.0


def as_published_noise(
    *, rate: float, steps: int, epsilon: float, delta: float, constant: float = CONSTANT
) -> AsPublished:
    r"""Return sigma_DP / Delta = c2 q sqrt(L log(1/delta)) / epsilon, eq. (15): L aggregations, q of a single step.

    >>> round(as_published_noise(rate=0.05, steps=800, epsilon=1.0, delta=1e-5).value, 3)
    9.597
    """
    for name, value in (("rate", rate), ("steps", steps), ("epsilon", epsilon), ("constant", constant)):
        if not (math.isfinite(value) and value > 0):
            invalid(name, value, "is a positive number")
    if not 0 < delta < 1:
        invalid("delta", delta, "delta lies in (0, 1)")
    return AsPublished(constant * rate * math.sqrt(steps * math.log(1 / delta)) / epsilon, H2FDP_NOTICE)
