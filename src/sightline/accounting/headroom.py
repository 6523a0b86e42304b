"""Whether a growing composition is still within a budget, without accounting for every step of its way."""

from collections.abc import Mapping

from sightline.accounting.accountant import Accountant, epsilon
from sightline.events import Event

MARGIN = 1e-3
"""Ceilings stay below the limit by so much of it: far more than the arithmetic of an epsilon can be off."""

AHEAD = 0.25
"""The first ceiling lies so much of the counts above them."""

CEILINGS = 8
FAMILIES = 1024
"""Ceilings kept for one set of events, and sets of events kept at all: forgetting costs time, nothing else."""


class Headroom:
    """What is known to be within epsilon at delta: ceilings, compositions below which everything fits.

    Whoever sees more learns no less, so an upper bound for a ceiling is one for every composition with the same events
    and no larger counts. Above the last ceiling each composition is accounted for itself.

    Guarantees: nothing fits whose epsilon is above the limit; by the margin, the same compositions fit whatever was
    asked before. A run of T rounds asks the accountant in the order of log T times, and in every round within the
    margin.
    """

    def __init__(self, limit: float, delta: float, *, accountant: Accountant = Accountant.PLD) -> None:
        self.limit, self.delta, self.accountant = limit, delta, accountant
        self._ceilings: dict[frozenset[Event], list[Mapping[Event, int]]] = {}
        self._ahead: dict[frozenset[Event], float] = {}

    def fits(self, events: Mapping[Event, int]) -> bool:
        """Whether the composition is within the limit.

        >>> from sightline.events import Gaussian
        >>> room = Headroom(1.0, 1e-5)
        >>> [room.fits({Gaussian(10.0): times}) for times in (1, 7, 8, 7)]
        [True, True, False, True]
        """
        family = frozenset(events)
        if any(_epsilon_below(events, ceiling) for ceiling in self._ceilings.get(family, ())):
            return True
        if not self._epsilon(events) <= self.limit:
            return False
        self._look_ahead(family, events)
        return True

    def _epsilon(self, events: Mapping[Event, int]) -> float:
        return epsilon(events, self.delta, accountant=self.accountant)

    def _look_ahead(self, family: frozenset[Event], events: Mapping[Event, int]) -> None:
        """Find the next ceiling, half as far ahead after every one that did not fit."""
        if len(self._ahead) > FAMILIES:
            self._ahead.clear()
            self._ceilings.clear()
        ahead = self._ahead.get(family, AHEAD)
        while ahead * max(events.values(), default=0) >= 1:
            ceiling = {event: times + int(ahead * times) for event, times in events.items()}
            if self._epsilon(ceiling) <= self.limit * (1 - MARGIN):
                self._ceilings[family] = [ceiling, *self._ceilings.get(family, [])[: CEILINGS - 1]]
                break
            ahead /= 2
        self._ahead[family] = ahead


def _epsilon_below(events: Mapping[Event, int], ceiling: Mapping[Event, int]) -> bool:
    return all(times <= ceiling[event] for event, times in events.items())
