"""The contract of a mechanism: claims for the ledger first, then values; with its simplest case, no privacy."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.accounting.strategies import Strategy
from sightline.errors import refuse
from sightline.events import Adjacency, Clear, Event, Unit, scale_noise
from sightline.ledger import NOBODY, POST_PROCESSING, Parties, Release
from sightline.mechanisms.clip_and_noise import FiniteOnly
from sightline.mechanisms.samplers import Cohort, CohortSampler, active_places
from sightline.mechanisms.submodels import Splitter
from sightline.mechanisms.updates import ClientOutput, PrivateSteps, Updates
from sightline.randomness import EVERYONE
from sightline.topology import Channel, client_name


@dataclass(frozen=True)
class NoiseRow:
    """The public address of one row of correlated noise: which stream and step. Every release has its own row."""

    name: str
    """The joint name under which the release is charged."""
    stream: str
    """The name of the stream, which is a prefix of the joint names of its releases."""
    step: int
    """The position of the release in the stream, from 0."""
    time: int
    release: int
    """The number of the release in the ledger."""
    line: int = 0
    """The number of the channel."""


DrawCorrelated = Callable[[NoiseRow, Strategy, int], NDArray[np.float64]]
"""(row, strategy, dimension) -> the noise, in units of its standard deviation before correlation."""


@dataclass(frozen=True)
class ReleaseContext:
    """Public facts of the round, and the noise streams of the parties that add noise."""

    time: int
    unit: Unit
    adjacency: Adjacency
    channel: Channel
    sampler: CohortSampler
    next_id: int
    """The ledger number of the next release."""
    noise: Callable[[int], np.random.Generator]
    """participant -> its noise stream in this release call; to be used once."""
    line: int = 0
    """The number of the channel; every channel has its own schedule."""
    use: int = 0
    """The number of the call in the round; it selects the noise stream."""
    again: int = 0
    """If the round is repeated after nodes have seen it: the ledger number of the first release of the new attempt."""
    correlated: DrawCorrelated | None = None
    """Draws correlated noise; None in a plan."""
    chosen: bool = False
    """Whether the algorithm chose the cohort or its rate, so that released values may have influenced it."""

    @property
    def subjects(self) -> Parties:
        """The possible subjects of a release in this round: the channel's members, or the group whose turn it is."""
        # Never the drawn cohort: where sampling amplifies, the cohort is a secret, and the ledger must be the same for
        # every draw.
        places = active_places(self.sampler, self.time)
        return self.channel.subjects if places is None else self.channel.name_places(places)

    @property
    def joint(self) -> str:
        """The name shared by all releases that are charged together with this one; empty if it is charged alone."""
        name = self.sampler.joint_name(self.time)
        return f"{self.channel.name}, {name}" if name else ""

    def make_release(self, *, source: str, event: Event, audience: Parties, what: str, **more: Any) -> Release:
        """Return a release of this round, about all possible subjects unless `subjects` is given."""
        subjects = more.pop("subjects") if "subjects" in more else self.subjects
        return Release(self.time, source, subjects, self.unit, self.adjacency, event, audience, what=what, **more)

    def handed_over(self, updates: Updates) -> Release:
        """Return the release of un-noised updates to the channel's trusted owner: trust is recorded, not hidden."""
        what = f"updates handed to the trusted {self.channel.name}"
        audience = frozenset({self.channel.name}) | self.channel.through
        return self.make_release(source="clients", event=Clear(), audience=audience, what=what, inputs=updates.sources)

    def largest_clipped(self, clip_norm: float, splitter: Splitter | None) -> float:
        """Return the largest norm of a member's clipped update; for split models that of both balls together."""
        return clip_norm * self.channel.clip_factor * (1.0 if splitter is None else splitter.widest)

    def published_mean(self, inputs: tuple[int, ...], what: str) -> Release:
        """Return the release of a mean of private values: the audience sees it, and it charges nobody again."""
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
    """Values that become public once their releases are stored in the ledger."""

    values: Mapping[int, Tensor]
    """Client -> value, or one value under `EVERYONE`."""
    rejected: int = 0
    """Number of updates that were not finite and counted as zero."""
    noise_std: float = 0.0
    """Public standard deviation of the noise in every coordinate of a released mean; 0 if it is not one Gaussian."""


class NoisedBy(StrEnum):
    """The party that adds the noise below a channel."""

    SERVER = "server"
    """The gathering server, which receives the members' values without noise."""
    CLIENT = "client"
    """Every member, before anything leaves it."""
    NOBODY = "nobody"


class NoisedValue(StrEnum):
    """The bounded value that is noised; the sensitivity is how far one subject can move it."""

    UPDATE = "a client's clipped update"
    GRADIENT = "a batch's gradients, clipped one by one"
    STEPS = "the sum of a device's steps: one example may bend them all"
    PATH = "the end of a device's steps, which only its own draws of an example move"
    MODEL = "a trained model: how it was trained is not bounded step by step"
    NOTHING = "nothing"


class Mechanism(Protocol):
    """How updates become public. Code outside this package uses these members and never asks for the class."""

    # Claims come before values: `claim_*` must work without data, because a plan, the budget and the ledger need the
    # events before any value exists. A value without a stored claim is never released.
    @property
    def noised_value(self) -> NoisedValue:
        """The value to which the noise is added."""

    @property
    def sends_parts(self) -> bool:
        """Whether a member of a split model sends its part only, so that the receiver may know which part it is."""

    @property
    def uses_channel_factors(self) -> bool:
        """Whether claims and values use the channel's own noise and clip factors."""

    @property
    def keeps_noised(self) -> bool:
        """Whether the state that clients keep is computed from noised values only."""

    def at(self, context: ReleaseContext) -> "Mechanism":
        """Return the mechanism that applies below a channel."""

    def noised_by(self, context: ReleaseContext) -> NoisedBy:
        """Return the party that adds the noise to what the channel's members send."""

    def noise_multipliers(self, clients: Iterable[int]) -> dict[int, float]:
        """Return client -> noise multiplier; empty if the noise is an absolute amount or there is none."""

    def with_noise(self, multipliers: Mapping[int, float]) -> "Mechanism":
        """Return the same mechanism with the noise multipliers that the clients need."""

    def scaled(self, event: Event, noise: float) -> Event:
        """Return an event of the unit-noise mechanism at another noise multiplier; calibration searches over it."""

    def in_parts(self, splitter: Splitter) -> "Mechanism":
        """Return the same mechanism over parts of the model. Raise `Refused` if it has no such form."""

    def steps_of(self, client: int) -> PrivateSteps | None:
        """Return a client's clipped steps; None if training is not clipped step by step."""

    def explain_guarantee(self, *, rounds: int, delta: float, curvature: float) -> list[str]:
        """Return sentences on what the guarantee rests on besides clipping and noise."""

    def describe_stream(self) -> dict[str, Any] | None:
        """Return the strategy of correlated noise and its errors for the report; None for independent noise."""

    def list_caveats(self) -> list[str]:
        """Return sentences on what the guarantee does not cover."""

    def largest_output(self, context: ReleaseContext, *, dimension: int, splitter: Splitter | None) -> float | None:
        """Return a norm that an honest member's output exceeds with probability below e^-40; None without a bound."""

    def client_outputs(self, updates: Updates, context: ReleaseContext) -> Iterator[ClientOutput]:
        """Yield what each member sends after its own part of the mechanism. Raise `Refused` if members have no part."""

    def claim_mean(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """Return the releases that `mean` will make, without touching data; the last one is the mean."""

    def mean(self, updates: Updates, context: ReleaseContext) -> ReleaseValues:
        """Return the public mean of the updates."""

    def claim_each(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """Return the releases that `compute_each` will make: one per member, in order."""

    def compute_each(self, updates: Updates, context: ReleaseContext) -> ReleaseValues:
        """Return every member's own public update."""

    def count_senders(self, cohort: Cohort, context: ReleaseContext) -> float:
        """Return how many clients send a vector; the expected number if the true one is a secret."""


class BaseMechanism:
    """Common defaults. Every mechanism must itself say who adds the noise, and to what."""

    sends_parts = False
    uses_channel_factors = False

    @property
    def keeps_noised(self) -> bool:
        """False: clients keep values from before the noise."""
        return False

    def scaled(self, event: Event, noise: float) -> Event:
        """Multiply the noise of every Gaussian in the event."""
        return scale_noise(event, noise)

    def in_parts(self, splitter: Splitter) -> Mechanism:
        """Raise `Refused`: whole models are released."""
        # No silent fallback to whole models: the user would believe in an amplification by splitting that is not there.
        law = f"{type(self).__name__} releases whole models"
        refuse("algorithm.split", "given", law, "remove split, or use a star with gaussian noise")

    def steps_of(self, client: int) -> PrivateSteps | None:
        """Return None: training is not clipped step by step."""
        return None

    def explain_guarantee(self, *, rounds: int, delta: float, curvature: float) -> list[str]:
        """Return nothing: the guarantee rests on clipping and noise alone."""
        return []

    def describe_stream(self) -> dict[str, Any] | None:
        """Return None: the noises of releases are independent."""
        return None

    def list_caveats(self) -> list[str]:
        """Return no caveats."""
        return []

    def largest_output(self, context: ReleaseContext, *, dimension: int, splitter: Splitter | None) -> float | None:
        """Return None: nothing bounds an output."""
        return None

    def client_outputs(self, updates: Updates, context: ReleaseContext) -> Iterator[ClientOutput]:
        """Raise `Refused`: the members have no part of the mechanism."""
        law = "its members have no part of their own, and let nothing go by themselves"
        refuse("mechanism", type(self).__name__, law, "ask them for their training")

    def count_senders(self, cohort: Cohort, context: ReleaseContext) -> float:
        """Return the size of the cohort."""
        return float(len(cohort.members))


def only_sums(algorithm: str = "an algorithm of personal models") -> None:
    """Raise `Refused` for personal models: a trusted server publishes noisy sums over clients only."""
    law = f'{algorithm} publishes one model per client, where = "server" protects sums only'
    refuse("privacy.where", "server", law, 'use where = "client"')


def only_client(client: int) -> Parties:
    """Return the set of one client's name."""
    return frozenset({client_name(client)})


def weighted_mean(values: Iterable[tuple[int, Tensor]], weights: Mapping[int, int], dimension: int) -> Tensor:
    """Return the mean of the clients' values by their weights; zero if there are none."""
    # Sum in double precision: rounding then stays below that of one float32, however many clients there are.
    total = torch.zeros(dimension, dtype=torch.float64)
    mass = 0.0
    for client, value in values:
        total.add_(value, alpha=float(weights[client]))
        mass += weights[client]
    return (total / mass if mass else total).float()


@dataclass(frozen=True)
class NoPrivacy(BaseMechanism):
    """Ordinary federated averaging: every release is `Clear()`, so every epsilon is infinite."""

    noised_value = NoisedValue.NOTHING
    sends_parts = True

    def at(self, context: ReleaseContext) -> "NoPrivacy":
        """Return itself for every channel."""
        return self

    def noised_by(self, context: ReleaseContext) -> NoisedBy:
        """Return `NOBODY`."""
        return NoisedBy.NOBODY

    def noise_multipliers(self, clients: Iterable[int]) -> dict[int, float]:
        """Return an empty dict: there is no noise."""
        return {}

    def in_parts(self, splitter: Splitter) -> "NoPrivacy":
        """Return itself."""
        return self

    def with_noise(self, multipliers: Mapping[int, float]) -> "NoPrivacy":
        """Return itself: there is no noise to set."""
        return self

    def claim_mean(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """Claim one release without noise, about the members, to the channel's audience."""
        members = frozenset(client_name(member) for member in updates.cohort.members)
        return (
            context.make_release(
                source=context.channel.name,
                event=Clear(),
                audience=context.channel.audience,
                what="mean of updates, in the clear",
                subjects=members,
                inputs=updates.sources,
            ),
        )

    def mean(self, updates: Updates, context: ReleaseContext) -> ReleaseValues:
        """Average the finite updates by data size."""
        finite = FiniteOnly()
        value = weighted_mean(finite(updates.train_members()), updates.sizes(), updates.worker.dimension)
        return ReleaseValues({EVERYONE: value}, finite.rejected)

    def claim_each(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """Claim one release without noise per member."""
        return tuple(
            context.make_release(
                source=client_name(member),
                event=Clear(),
                audience=context.channel.audience,
                what="own update, in the clear",
                subjects=only_client(member),
                inputs=tuple(sorted(updates.starts[member].sources)),
            )
            for member in updates.cohort.members
        )

    def compute_each(self, updates: Updates, context: ReleaseContext) -> ReleaseValues:
        """Return every member's update; one that is not finite counts as zero."""
        finite = FiniteOnly()
        values = dict(finite(updates.train_members()))
        return ReleaseValues(values, finite.rejected)
