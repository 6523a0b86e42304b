"""The partitioning paper's own numbers, computed as it computes them. They are not what Sightline guarantees.

Integer orders, the classic conversion D_a + log(1/delta) / (a - 1), and bound (3) of Theorem 3.1 in the forward
direction only.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sightline.accounting.law import Array
from sightline.accounting.moments import ORDERS, overlap_moments, sampled_moments

NOTICE = "as_published: the paper's own accounting, reproduced for comparison; it is not a guarantee of Sightline"


@dataclass(frozen=True)
class AsPublished:
    """A number of the paper with the notice that travels with it."""

    value: float
    notice: str = NOTICE


def classic_epsilon(moments: Array, delta: float) -> float:
    """Proposition 2.3, over the integer orders."""
    return float(np.min((moments[2:] + math.log(1 / delta)) / (ORDERS[2:] - 1)))


def gaussian_moments(noise: float) -> Array:
    """(a - 1) D_a of the Gaussian mechanism."""
    return np.asarray(ORDERS * (ORDERS - 1) / (2 * noise**2))


def poisson_moments(noise: float, rate: float, steps: int) -> Array:
    """Theorem 3.11."""
    return steps * sampled_moments(gaussian_moments(noise), rate)


def balanced_moments(noise: float, steps: int, uses: int, epochs: int = 1) -> Array:
    """Theorem 3.8 with bound (3)."""
    return epochs * overlap_moments(steps, uses, noise)


def split_moments(noise: float, parts: int, rate: float, steps: int, unsplit_noise: float | None = None) -> Array:
    """Theorem 3.4 with bound (3), sampled; the unsplit part under the same coin."""
    inner = overlap_moments(parts, 1, noise)
    if unsplit_noise is not None:
        inner = inner + gaussian_moments(unsplit_noise)
    return steps * sampled_moments(inner, rate)


def calibrate_published(moments_at: Callable[[float], Array], *, epsilon: float, delta: float) -> AsPublished:
    """The noise at which the paper's accounting spends exactly (epsilon, delta)."""
    low, high = 1e-2, 1e3
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if classic_epsilon(moments_at(middle), delta) > epsilon else (low, middle)
    return AsPublished(high)


def reverse_bound(parts: int, strength: float, order: int, *, dimensions: int | None = None) -> float:
    """The second term of Theorem 3.1 for k = 1 (Lemma 3.18), with d or another number of inflated dimensions.

    a s^2/(2 d) + log(e^(a s^2 (d-1)/d^2 n) / (a e^(s^2 (d-1)/d^2) + 1 - a)^n) / (2 (a - 1)); below the truth for n = d.
    """
    n = parts if dimensions is None else dimensions
    inflation = strength**2 * (parts - 1) / (parts * n)
    tail = order * inflation * n - n * math.log(order * math.exp(inflation) + 1 - order)
    return order * strength**2 / (2 * parts) + tail / (2 * (order - 1))
