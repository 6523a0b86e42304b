"""What sending costs: energy adds up, delays add up in sequence and overlap side by side."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from sightline.mechanisms import CohortSampler

Floats = NDArray[np.float64]


class Overlap(StrEnum):
    """How long several senders take together."""

    MAX = "max"
    """As long as the slowest: they send side by side."""
    SUM = "sum"
    """One after the other: they share the medium (the paper's objective reads like that)."""


@dataclass(frozen=True)
class Cost:
    """Energy and delay of some sending.

    >>> Cost(1.0, 2.0) + Cost(0.5, 1.0)
    Cost(energy_joule=1.5, delay_seconds=3.0)
    """

    energy_joule: float = 0.0
    delay_seconds: float = 0.0

    def __add__(self, later: "Cost") -> "Cost":
        """The one, and then the other."""
        return Cost(self.energy_joule + later.energy_joule, self.delay_seconds + later.delay_seconds)

    def times(self, count: float) -> "Cost":
        """The same so many times."""
        return Cost(count * self.energy_joule, count * self.delay_seconds)


def combine_costs(costs: Iterable[Cost], overlap: Overlap) -> Cost:
    """Several senders of one moment; nobody costs nothing.

    >>> combine_costs([Cost(1.0, 2.0), Cost(1.0, 3.0)], Overlap.MAX)
    Cost(energy_joule=2.0, delay_seconds=3.0)
    """
    found = list(costs)
    delays = [cost.delay_seconds for cost in found]
    delay = sum(delays) if overlap is Overlap.SUM else max(delays, default=0.0)
    return Cost(sum(cost.energy_joule for cost in found), delay)


@dataclass(frozen=True, eq=False)
class Sending:
    """What one upload of the model costs every client: two arrays, by the clients' numbers."""

    energy_joule: Floats
    delay_seconds: Floats

    def of(self, members: tuple[int, ...]) -> "Sending":
        """Of some clients only."""
        places = np.asarray(members, dtype=np.int64)
        return Sending(self.energy_joule[places], self.delay_seconds[places])


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
        within = within * sampler.chance_of_none(slower)
        nobody *= float(sampler.chance_of_none(np.array([len(delays)]))[0])
    return math.fsum(times * np.diff(within, prepend=nobody))
