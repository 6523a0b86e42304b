"""Relays: workers in two groups who carry what one group's model tells into the other, as loudly as they may.

A worker's update is any function of the model it starts from. So the worst that can flow is this: in a group at
distance k from the subject's, every worker that is also in a group at distance k - 1 looks at coordinate k - 1 of its
start, decides whether the subject seems to be in, and sends all it may, up or down, along coordinate k.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from sightline.engine.setting import BuiltExperiment
from sightline.mechanisms import CallId
from sightline.topology import Channel, Groups


@dataclass(frozen=True, eq=False)
class Relays:
    """Who carries what about a subject, between groups that do not change."""

    place: Groups
    subject: int
    clip_norm: float
    noise_multiplier: float
    rate: float
    whole_intervals: bool
    """Whether groups release once an interval (DP-OGL+), or every epoch (DP-OGL)."""
    doubt: float
    """How much likelier than not it must seem that the subject is in, as a logarithm, before it is said."""

    @cached_property
    def level(self) -> dict[str, int]:
        """Group -> its distance from the subject's groups, for groups that can be reached."""
        found = {c.name: 0 for c in self.place.channels if self.subject in c.members}
        while True:
            edge = max(found.values())
            carriers = {n for c in self.place.channels if c.name in found for n in c.members}
            new = {c.name: edge + 1 for c in self.place.channels if c.name not in found and carriers & set(c.members)}
            if not new:
                return found
            found |= new

    def coordinate(self, group: str) -> int:
        """Along which coordinate a group's model tells of the subject."""
        return self.level.get(group, 0)

    @property
    def dimension(self) -> int:
        """Coordinates in all."""
        return 1 + max(self.level.values())

    def says(self, member: int, start: Tensor, at: CallId) -> tuple[int, float]:
        """(coordinate, which way) that a member sends along; nothing where it does not carry."""
        channels = self.place.channels_at(at.round)
        own = self.level.get(channels[at.use % len(channels)].name, 0)
        mine = [c for c in channels if member in c.members]
        if not own or not self._merging(at.round) or all(self.level[c.name] != own - 1 for c in mine):
            return own, 0.0
        level = self._level_of_doubt(mine, at.round) if own == 1 else 0.0
        return own, math.copysign(1.0, float(start[own - 1]) - level)

    def _merging(self, round: int) -> bool:
        return self.whole_intervals or (round - 1) % self.place.period == 0

    def _level_of_doubt(self, mine: Sequence[Channel], round: int) -> float:
        """Where the log-likelihood ratio is `doubt`, in the model that a worker of these groups starts from.

        The subject has moved it by m, under noise of variance v: m / 2 + doubt v / m.
        """
        period = self.place.period if self.whole_intervals else 1
        made, far = (round - 1) // period, self.clip_norm * math.sqrt(period) / len(mine)
        told = [c for c in mine if self.level[c.name] == 0]
        moved = sum(made * far * c.clip_factor / len(c.members) for c in told)
        noise = [
            far * c.clip_factor * self.noise_multiplier * c.noise_factor / len(c.members) / self.rate for c in told
        ]
        return moved / 2 + self.doubt * made * sum(std**2 for std in noise) / moved if moved else 0.0


def relays_for(setting: BuiltExperiment, subject: int, observer: str, upper: float) -> Relays | None:
    """The relays from a subject to an observer outside its groups; none where it is seen directly."""
    place = setting.topology
    if not isinstance(place, Groups) or not place.steady:
        return None
    seen = [channel for channel in place.channels if observer in channel.audience]
    if any(subject in channel.members for channel in seen):
        return None
    sampler = setting.sampler_of(place.top)
    relays = Relays(
        place, subject, setting.experiment.privacy.clip_norm, max(setting.multipliers.values(), default=1.0),
        sampler.expected / sampler.population, setting.experiment.algorithm.name == "dp_ogl_plus", min(upper, 10.0) / 2,
    )  # fmt: skip
    return relays if any(channel.name in relays.level for channel in seen) else None
