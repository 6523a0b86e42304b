"""Balanced iterations and random check-ins: who is used in which step, drawn ahead for many steps and kept hidden.

A schedule is never written down. It is walked: a member with u uses left and s steps to go is used in the next step
with probability u / s. That gives every k-subset of the T steps the same probability (selection sampling), in one
integer a member, and the walk is repeated from its own stream after a crash.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sightline.config import Sampler
from sightline.errors import invalid
from sightline.events import Allocation, Event, Poisson
from sightline.randomness import EVERYONE, Purpose, Streams


@dataclass(frozen=True)
class Allotment:
    """Each member is used in exactly `uses` of `steps` steps; with `chance` < 1 it first decides whether at all."""

    steps: int
    uses: int
    chance: float = 1.0

    @classmethod
    def read(cls, section: str, settings: Sampler, steps: int) -> "Allotment":
        """The allotment of one epoch, of the `steps` that a whole run has."""
        length, uses = steps // (settings.epochs or 1), settings.uses or 1
        if uses > length:
            law = f"nobody can be used more often than there are steps in an epoch of the schedule, {length}"
            invalid(f"{section}.uses", uses, law, "use fewer uses or epochs, or more rounds")
        return cls(length, uses, settings.rate or 1.0)

    @property
    def share(self) -> float:
        """The probability that a member is used in a given step."""
        return self.chance * self.uses / self.steps

    def load(self, epochs: int) -> dict[str, float]:
        """How often a member is used over so many schedules: steps, uses of each, the chance to be in at all."""
        return {"steps": self.steps * epochs, "uses": self.uses, "chance": self.chance, "epochs": epochs}

    def event(self, event: Event) -> Event:
        """What all steps of an epoch together reveal, each step being `event`, to whoever does not see the schedule.

        It is claimed with the first release of an epoch: what has been seen of an epoch so far is a function of the
        whole, so it never reveals more.

        >>> from sightline.events import Gaussian
        >>> Allotment(10, 3).event(Gaussian(2.0))
        Allocation(steps=10, uses=3, event=Gaussian(noise_multiplier=2.0))
        """
        whole = Allocation(self.steps, self.uses, event)
        return whole if self.chance == 1 else Poisson(self.chance, whole)


@dataclass
class ScheduleWalk:
    """One epoch of one schedule, as far as it has been walked: a secret."""

    epoch: int
    allotment: Allotment
    rng: np.random.Generator = field(repr=False)
    left: NDArray[np.int64] = field(repr=False)
    step: int = 0

    @classmethod
    def begin(cls, epoch: int, allotment: Allotment, members: int, rng: np.random.Generator) -> "ScheduleWalk":
        """Before the first step: everybody has all uses left, or none when it decided to stay away."""
        in_at_all = rng.random(members) < allotment.chance if allotment.chance < 1 else np.ones(members, dtype=bool)
        return cls(epoch, allotment, rng, in_at_all * np.int64(allotment.uses))

    def next_step(self) -> NDArray[np.intp]:
        """Who is used in the next step, in increasing order. Whole numbers only: the probabilities are exact."""
        used = self.rng.integers(self.allotment.steps - self.step, size=len(self.left)) < self.left
        self.left -= used
        self.step += 1
        return np.flatnonzero(used)


class Schedules:
    """Every schedule of a run at the step where it stands: in memory only, never logged, stored or handed on.

    Guarantees: in every epoch each member is used in exactly its number of steps, all subsets are equally likely, and
    members, epochs and schedules are independent; one integer a member; asked again for an earlier step, it answers
    the same.
    """

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._walks: dict[tuple[int, int], ScheduleWalk] = {}

    def members_used(
        self, step: int, allotment: Allotment, *, members: int, participant: int = EVERYONE, line: int = 0
    ) -> NDArray[np.intp]:
        """Which of `members` members are used in a step (counted from 0 over all epochs).

        `participant` and `line` name the schedule: whose members they are, and in which channel.
        """
        epoch, place = divmod(step, allotment.steps)
        walk = self._walks.get((participant, line))
        if walk is None or walk.epoch != epoch or walk.step > place or walk.allotment != allotment:
            rng = self._streams.rng(Purpose.SCHEDULE, round=epoch, participant=participant, use=line)
            walk = self._walks[participant, line] = ScheduleWalk.begin(epoch, allotment, members, rng)
        while walk.step < place:
            walk.next_step()
        return walk.next_step()
