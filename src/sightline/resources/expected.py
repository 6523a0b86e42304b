"""The mean cost of gathering from random cohorts. Only public facts go in, so who took part does not come out."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from sightline.mechanisms import CohortSampler
from sightline.mechanisms.samplers import FixedCohorts
from sightline.resources.cost import Cost, Floats, Overlap, Sending


def expected_gathering(many: Sequence[tuple[Sending, CohortSampler]], overlap: Overlap) -> Cost:
    """Mean energy, and mean delay, of one upload by everybody who is drawn; each channel draws for itself.

    Guarantees: it is a function of the samplers' laws and of the public prices; the realised cohorts are not looked
    at. With everybody drawn it is the plain sum of the energies and the plain maximum (or sum) of the delays.
    """
    energy = math.fsum(member_rate(sampler) * math.fsum(sending.energy_joule) for sending, sampler in many)
    if overlap is Overlap.SUM:
        return Cost(
            energy, math.fsum(member_rate(sampler) * math.fsum(sending.delay_seconds) for sending, sampler in many)
        )
    return Cost(energy, expected_slowest([(sending.delay_seconds, sampler) for sending, sampler in many]))


def member_rate(sampler: CohortSampler) -> float:
    """How likely a member is to be drawn."""
    return sampler.expected / sampler.population


def expected_slowest(many: Sequence[tuple[Floats, CohortSampler]]) -> float:
    """E[max] of the delays of all cohorts together, zero where nobody is drawn.

    P(max <= x) is the product over channels of the chance that none of the slower ones is drawn; the mean is the sum
    of its steps.
    """
    times = np.unique(np.concatenate([delays for delays, _ in many])) if many else np.zeros(0)
    within = np.ones(len(times))
    nobody = 1.0
    for delays, sampler in many:
        slower = len(delays) - np.searchsorted(np.sort(delays), times, side="right")
        within = within * none_of(sampler, slower)
        nobody *= float(none_of(sampler, np.array([len(delays)]))[0])
    return math.fsum(times * np.diff(within, prepend=nobody))


def none_of(sampler: CohortSampler, some: NDArray[np.int64]) -> Floats:
    """The chance that none of so many members is drawn: (1 - q)^some by coins, C(n - some, m) / C(n, m) without."""
    if isinstance(sampler, FixedCohorts):
        return _without_replacement(sampler.population, sampler.size, some)
    return np.asarray((1 - member_rate(sampler)) ** some.astype(np.float64))


def _without_replacement(population: int, size: int, some: NDArray[np.int64]) -> Floats:
    left = population - some.astype(np.float64)
    possible = left >= size
    left = np.where(possible, left, size)
    chance = gammaln(left + 1) - gammaln(left - size + 1) + gammaln(population - size + 1) - gammaln(population + 1)
    return np.where(possible, np.exp(chance), 0.0)
