"""The contract of a mechanism: first the facts for the ledger, then the values, never the other way round."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from sightline.errors import refuse
from sightline.events import Adjacency, Clear, Event, Unit
from sightline.ledger import NOBODY, POST_PROCESSING, Parties, Release
from sightline.mechanisms.samplers import Cohort, CohortSampler
from sightline.mechanisms.updates import Updates
from sightline.topology import Channel, client_name


@dataclass(frozen=True)
class ReleaseContext:
    """Public facts of the round, and the streams of whoever adds the noise."""

    time: int
    unit: Unit
    adjacency: Adjacency
    channel: Channel
    sampler: CohortSampler
    next_id: int
    """The ledger number that the next release will get."""
    noise: Callable[[int], np.random.Generator]
    """participant -> the stream of its noise in this release call, used once."""
    line: int = 0
    """The channel's number: schedules are kept apart by it."""
    use: int = 0
    """The number of the call in the round that the noise belongs to."""

    @property
    def joint(self) -> str:
        """The name of the releases that are charged together with this one; none where it is charged alone."""
        name = self.sampler.joint_name(self.time)
        return f"{self.channel.name}, {name}" if name else ""

    def make_release(self, *, source: str, event: Event, audience: Parties, what: str, **more: Any) -> Release:
        """A release of this round; about all members of the channel unless `subjects` says otherwise."""
        subjects = more.pop("subjects", self.channel.subjects)
        return Release(self.time, source, subjects, self.unit, self.adjacency, event, audience, what=what, **more)

    def handed_over(self, updates: Updates) -> Release:
        """The un-noised updates that the channel's trusted owner receives: in the ledger, not hidden."""
        what = f"updates handed to the trusted {self.channel.name}"
        audience = frozenset({self.channel.name}) | self.channel.through
        return self.make_release(source="clients", event=Clear(), audience=audience, what=what, inputs=updates.sources)

    def published_mean(self, inputs: tuple[int, ...], what: str) -> Release:
        """A mean of values that are already private: the audience sees it, nobody is charged for it again."""
        return self.make_release(
            source=self.channel.name,
            event=POST_PROCESSING,
            audience=self.channel.audience,
            what=what,
            subjects=NOBODY,
            inputs=inputs,
        )


@dataclass(frozen=True, eq=False)
class ReleaseValues:
    """Values that become public once their releases are safe in the ledger."""

    values: Mapping[int, Tensor]
    """By client, or one value under `EVERYONE`."""
    rejected: int = 0
    """Updates that were not finite and counted as zero."""
    noise_std: float = 0.0
    """Of the noise in every coordinate of a released mean (public); zero where it is not one Gaussian."""


class Mechanism(Protocol):
    """How updates become public."""

    own_noise: bool
    """Whether every client has a noise multiplier of its own."""

    def with_noise(self, multipliers: Mapping[int, float]) -> "Mechanism":
        """The same mechanism with the noise multipliers that the clients need."""

    def claim_mean(self, updates: Updates, scene: ReleaseContext) -> tuple[Release, ...]:
        """The releases that `mean` is about to make, computed without touching any data; the last is the mean."""

    def mean(self, updates: Updates, scene: ReleaseContext) -> ReleaseValues:
        """The public mean of the updates."""

    def claim_each(self, updates: Updates, scene: ReleaseContext) -> tuple[Release, ...]:
        """The releases that `each` is about to make: one per member, in order."""

    def compute_each(self, updates: Updates, scene: ReleaseContext) -> ReleaseValues:
        """Every member's own public update."""

    def count_senders(self, cohort: Cohort, scene: ReleaseContext) -> float:
        """How many clients send a vector; the expected number where the true one is a secret."""


def only_sums(algorithm: str = "an algorithm of personal models") -> None:
    """Refuse personal models where only a noisy sum over clients is ever published."""
    law = f'{algorithm} publishes one model per client, where = "server" protects sums only'
    refuse("privacy.where", "server", law, 'use where = "client"')


def only_client(client: int) -> Parties:
    """The set of one client."""
    return frozenset({client_name(client)})
