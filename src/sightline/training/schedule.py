"""Hidden schedules (balanced iterations, random check-ins): who is used in which step, drawn ahead for many steps.

A schedule is never stored. It is walked: a member with u uses left and s steps to go is used in the next step with
probability u / s. That gives every k-subset of the T steps the same probability (selection sampling), with one integer
per member, and after a crash the walk is repeated from its own stream.
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
    """Each member is used in exactly `uses` of `steps` steps; with `chance` < 1 it may stay away altogether."""

    steps: int
    uses: int
    chance: float = 1.0

    @classmethod
    def read(cls, section: str, settings: Sampler, steps: int) -> "Allotment":
        """Return the allotment of one epoch; `steps` is the length of the whole run."""
        length, uses = steps // (settings.epochs or 1), settings.uses or 1
        if uses > length:
            reason = f"an example cannot be used more often than an epoch of the schedule has steps, {length}"
            invalid(f"{section}.uses", uses, reason, "use fewer uses or epochs, or more rounds")
        return cls(length, uses, settings.rate or 1.0)

    @property
    def share(self) -> float:
        """The probability that a member is used in a given step."""
        return self.chance * self.uses / self.steps

    def load(self, epochs: int) -> dict[str, float]:
        """Return how often a member is used over `epochs` schedules: steps, uses of each, the chance to take part."""
        return {"steps": self.steps * epochs, "uses": self.uses, "chance": self.chance, "epochs": epochs}

    def event(self, event: Event) -> Event:
        """Return what all steps of an epoch reveal together to an observer that does not see the schedule.

        Each step is `event`. It is claimed with the first release of an epoch: what has been seen of an epoch so far is
        a function of the whole, so it never reveals more.

        >>> from sightline.events import Gaussian
        >>> Allotment(10, 3).event(Gaussian(2.0))
        Allocation(steps=10, uses=3, event=Gaussian(noise_multiplier=2.0))
        """
        whole = Allocation(self.steps, self.uses, event)
        return whole if self.chance == 1 else Poisson(self.chance, whole)


@dataclass
class ScheduleWalk:
    """One epoch of one schedule, as far as it has been walked (secret)."""

    epoch: int
    allotment: Allotment
    rng: np.random.Generator = field(repr=False)
    left: NDArray[np.int64] = field(repr=False)
    step: int = 0

    @classmethod
    def begin(cls, epoch: int, allotment: Allotment, members: int, rng: np.random.Generator) -> "ScheduleWalk":
        """Return the walk before the first step: every member has all uses left, or none if it stays away."""
        in_at_all = rng.random(members) < allotment.chance if allotment.chance < 1 else np.ones(members, dtype=bool)
        return cls(epoch, allotment, rng, in_at_all * np.int64(allotment.uses))

    def next_step(self) -> NDArray[np.intp]:
        """Return the members used in the next step, in increasing order."""
        # Compare whole numbers, integers(s) < u: the probability u / s is exact, which the uniform law over subsets
        # needs.
        used = self.rng.integers(self.allotment.steps - self.step, size=len(self.left)) < self.left
        self.left -= used
        self.step += 1
        return np.flatnonzero(used)


class Schedules:
    """All schedules of a run at their current step: in memory only, never logged or stored.

    Guarantees: in every epoch each member is used in exactly its number of steps, all subsets are equally likely, and
    members, epochs and schedules are independent; one integer per member; asked again for an earlier step, it gives the
    same answer.
    """

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._walks: dict[tuple[int, int], ScheduleWalk] = {}

    def members_used(
        self, step: int, allotment: Allotment, *, members: int, participant: int = EVERYONE, line: int = 0
    ) -> NDArray[np.intp]:
        """Return which of `members` members are used in a step (counted from 0 over all epochs).

        `participant` and `line` name the schedule: the owner of the members, and the channel.
        """
        epoch, index = divmod(step, allotment.steps)
        walk = self._walks.get((participant, line))
        # A walk only goes forward. An earlier step, another epoch or a restart begins it again from its own stream.
        if walk is None or walk.epoch != epoch or walk.step > index or walk.allotment != allotment:
            rng = self._streams.rng(Purpose.SCHEDULE, round=epoch, participant=participant, use=line)
            walk = self._walks[participant, line] = ScheduleWalk.begin(epoch, allotment, members, rng)
        while walk.step < index:
            walk.next_step()
        return walk.next_step()
