"""The worst input there is: contributions as large as they may be, and workers who relay them between groups."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sightline.data import Client, Federation, Kind, Shard
from sightline.engine.build import BuiltExperiment
from sightline.events import Adjacency
from sightline.mechanisms import Block, CallId, Splitter, StateAccess
from sightline.mechanisms.updates import RemoteNodes
from sightline.randomness import Purpose, Streams
from sightline.topology import Channel, Groups
from sightline.training import LocalTask


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


LOUD = 1000.0
"""How far beyond the clip norm a canary goes: whoever forgets to clip it will be heard."""


def round_sign(round: int) -> float:
    """+1, -1, +1, ...: a canary turns round every time, so that noise that was used before cancels and it does not."""
    return 1.0 if round % 2 else -1.0


@dataclass(frozen=True)
class CanaryInclusion:
    """Which canaries are in; who is out sends nothing, or the opposite where the adjacency is replace-one."""

    inside: Mapping[int, bool]
    adjacency: Adjacency

    def factor(self, slot: int) -> float:
        """What the canary's contribution is multiplied with."""
        if self.inside[slot]:
            return 1.0
        return -1.0 if self.adjacency is Adjacency.REPLACE else 0.0


Where = Callable[[Splitter, Any, int], list[int]]
"""(splitter, assignment, canary) -> the coordinates that the canary moves."""


@dataclass(eq=False)
class CanaryClients:
    """Clients as a mechanism of the client unit meets them: their training may have ended anywhere, and did.

    Client n of `slots` sends `LOUD` clip norms along its own coordinate; all others send exactly nothing, or carry on
    what they are told.
    """

    dimension: int
    sizes: Sequence[int]
    slots: Mapping[int, int]
    """Client -> the number of its canary, which is its coordinate where the model is not split."""
    inclusion: CanaryInclusion
    clip_norm: float
    secret: Streams = field(repr=False)
    where: Where | None = None
    """Of split models."""
    relays: Relays | None = None
    """To observers who see nothing of the subject's groups; canaries do not turn then, for models add up."""
    nodes: RemoteNodes | None = None
    turning: bool = True
    """Whether canaries turn round every round: not where they take turns, or are relayed, and all uses add up."""

    def close(self) -> None:
        """Nothing to let go."""

    def train(
        self, cohort: Sequence[int], starts: Tensor, *, at: CallId, task: LocalTask,
        recall: StateAccess | None = None, splitter: Splitter | None = None,
    ) -> Iterator[Block]:  # fmt: skip
        """Where the members' training ended."""
        if not cohort:
            return
        ends = starts.expand(len(cohort), -1).clone()
        for place, member in enumerate(cohort):
            start = starts if starts.dim() == 1 else starts[place]
            self._move(ends[place], start, member, at, splitter)
            if recall is not None:
                recall.keep_state(member, start, ends[place], 1.0, noised=False)
        yield list(cohort), ends

    def _move(self, end: Tensor, start: Tensor, member: int, at: CallId, splitter: Splitter | None) -> None:
        loud = self.clip_norm * LOUD
        if member in self.slots:
            slot = self.slots[member]
            turned = round_sign(at.round) if self.relays is None and self.turning else 1.0
            end[self._coordinates(slot, member, at, splitter)] += loud * turned * self.inclusion.factor(slot)
        elif self.relays is not None:
            coordinate, way = self.relays.says(member, start, at)
            end[coordinate] += loud * way

    def right_answers(self, cohort: Sequence[int], models: Tensor) -> Iterator[tuple[int, list[int]]]:
        """A canary finds the first model right on all its examples and the others on none."""
        for member in cohort:
            inside = member in self.slots and self.inclusion.inside[self.slots[member]]
            yield member, [self.sizes[member] if inside and not place else 0 for place in range(len(models))]

    def _coordinates(self, slot: int, member: int, at: CallId, splitter: Splitter | None) -> list[int]:
        """Its own; of a split model, those in the part that the member drew in secret."""
        if splitter is None or self.where is None:
            return [slot]
        rng = self.secret.rng(Purpose.ASSIGNMENT, round=at.round, participant=member, use=at.use)
        return self.where(splitter, splitter.splitting.draw(1, rng=rng)[0], slot)


def canary_examples(
    like: Federation, features: int, holders: Mapping[int, Sequence[int]], inclusion: CanaryInclusion, far: float = 0.0
) -> Federation:
    """As many examples as each client has, of two classes and all zero, but for the canaries: each has a feature.

    `holders` says which canaries a client has. With softmax regression near zero a canary's gradient is
    (-1, +1) / 2 times its one feature, `LOUD`, and a replaced canary has the other label. Before the audit's own
    network, where the feature is `far`, canaries have the label that it finds impossible and are replaced by their
    opposites.
    """
    clients = []
    for client, real in enumerate(like.clients):
        x = np.zeros((len(real.train), features), dtype=np.float32)
        y = np.zeros(len(real.train), dtype=np.int64)
        for example, slot in enumerate(holders.get(client, ())):
            factor = inclusion.factor(slot)
            x[example, slot] = far * factor if far else LOUD * abs(factor)
            y[example] = int(factor != 0 if far else factor < 0)
        clients.append(Client(Shard(x, y), _zero_shard(features), real.cluster))
    return Federation("canaries", tuple(clients), _zero_shard(features), 2, Kind.VECTOR)


def silent_clients(clients: int) -> Federation:
    """So many clients with one example each, which is zero."""
    some = Client(_zero_shard(1), _zero_shard(1))
    return Federation("canaries", (some,) * clients, _zero_shard(1), 2, Kind.VECTOR)


def _zero_shard(features: int) -> Shard:
    x: NDArray[np.float32] = np.zeros((1, features), dtype=np.float32)
    return Shard(x, np.zeros(1, dtype=np.int64))
