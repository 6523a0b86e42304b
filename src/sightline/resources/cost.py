"""What sending costs: energy adds up, delays add up in sequence and overlap side by side."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

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
