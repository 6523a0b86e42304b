r"""Releases that see a subject only through others: the ingredients of the bottleneck bound (docs/groups.md).

A noisy sum of clipped updates, of which k come from workers whose hidden starting points the subject may have changed:
each of them moves the sum by at most 2 C, the subject itself by C. With the coins of everybody known to both worlds,

    (a - 1) D_a <= log E[exp(a (a - 1) (b + 2 j)^2 / (2 z^2))],   j ~ Binomial(k, q),  b ~ Bernoulli(q) or 0.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import gammaln, logsumexp

from sightline.accounting.accountant import Accountant, epsilon
from sightline.accounting.law import Array
from sightline.accounting.moments import ORDERS, pin_moments
from sightline.accounting.renyi import composed_backward, composed_forward, convert_moments
from sightline.errors import invalid
from sightline.events import Event, Gaussian


@dataclass(frozen=True)
class Bridged:
    """One release in which the subject is felt through `bridges` others, and by itself when `own` is 1."""

    noise_multiplier: float
    rate: float
    bridges: int
    own: int = 0

    def __post_init__(self) -> None:
        if not (self.noise_multiplier > 0 and math.isfinite(self.noise_multiplier)):
            invalid("noise_multiplier", self.noise_multiplier, "noise is positive and finite")
        if not 0 < self.rate <= 1:
            invalid("rate", self.rate, "a participation probability lies in (0, 1]")
        if self.bridges < 0 or self.own not in (0, 1):
            invalid("bridges", self.bridges, "is a count, and the subject is in the release once or not at all")

    @property
    def worst(self) -> Gaussian:
        """The same release when everybody takes part: one Gaussian whose mean moves by (own + 2 bridges) C."""
        return Gaussian(self.noise_multiplier / (self.own + 2 * self.bridges))


@lru_cache(maxsize=1024)
def bridged_moments(release: Bridged) -> Array:
    """log E[exp(a (a - 1) (b + 2 j)^2 / (2 z^2))] for a = 0 .. the largest order; both directions are the same.

    >>> round(float(bridged_moments(Bridged(2.0, 1.0, 1))[2]), 9)  # 2 * 1 * 2^2 / (2 * 2.0^2)
    1.0
    """
    chances: dict[int, float] = {}
    for shift, chance in shift_probabilities(release.own, release.rate, 1).items():
        for bridged, other in shift_probabilities(release.bridges, release.rate, 2).items():
            chances[shift + bridged] = float(np.logaddexp(chances.get(shift + bridged, -math.inf), chance + other))
    shifts = np.array(sorted(chances), dtype=np.float64)
    weights = np.array([chances[int(shift)] for shift in shifts])
    growth = (ORDERS * (ORDERS - 1))[:, None] * shifts[None, :] ** 2 / (2 * release.noise_multiplier**2)
    return pin_moments(np.asarray(logsumexp(weights[None, :] + growth, axis=1)))


def shift_probabilities(count: int, rate: float, reach: int) -> dict[int, float]:
    """Shift -> log of its chance: each of `count` coins that falls heads moves the sum by `reach`."""
    if rate == 1 or count == 0:
        return {reach * count: 0.0}
    heads = np.arange(count + 1, dtype=np.float64)
    log_chance = gammaln(count + 1) - gammaln(heads + 1) - gammaln(count - heads + 1)
    log_chance = log_chance + heads * math.log(rate) + (count - heads) * math.log1p(-rate)
    return {reach * int(head): float(chance) for head, chance in zip(heads, log_chance, strict=True)}


def bridged_epsilon(
    direct: Mapping[Event, int], bridged: Mapping[Bridged, int], delta: float, *, accountant: Accountant
) -> float:
    """Epsilon of direct releases composed with bridged ones.

    Guarantees: an upper bound; by Renyi moments with the coins, and with the PLD accountant also by the law of the
    Gaussians without them, whichever is less.
    """
    extra = np.asarray(sum((times * bridged_moments(one) for one, times in bridged.items()), np.zeros(len(ORDERS))))
    back = composed_backward(direct)
    if back.missing >= delta:
        return math.inf
    ahead = convert_moments(composed_forward(direct) + extra, delta)
    found = max(ahead, convert_moments(back.moments + extra, delta - back.missing))
    if accountant is Accountant.RDP:
        return found
    without_coins: dict[Event, int] = dict(direct)
    for one, times in bridged.items():
        without_coins[one.worst] = without_coins.get(one.worst, 0) + times
    return min(found, epsilon(without_coins, delta))
