"""The contract of a mechanism (claims for the ledger first, values after), and its simplest case, no privacy."""

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
    """Which row of which stream of correlated noise a release gets: public, and no other release gets it."""

    name: str
    """The joint name under which the release is charged."""
    stream: str
    """The name of the stream: of all releases of a stream what their joint names begin with."""
    step: int
    """The release's place in the stream, from 0."""
    time: int
    release: int
    """Its number in the ledger."""
    line: int = 0
    """The channel's number."""


DrawCorrelated = Callable[[NoiseRow, Strategy, int], NDArray[np.float64]]
"""(which row, the strategy, how many numbers) -> the noise, in units of its standard deviation before correlation."""


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
    again: int = 0
    """Of a round that nodes have seen and that is made again: the number of the release that it begins with."""
    correlated: DrawCorrelated | None = None
    """The streams of correlated noise; none in a plan."""
    chosen: bool = False
    """Whether the algorithm chose who takes part, or how likely: released values may have decided on it."""

    @property
    def subjects(self) -> Parties:
        """Who may be in a release of this round: the channel's members, or those of them whose turn it is."""
        places = active_places(self.sampler, self.time)
        return self.channel.subjects if places is None else self.channel.name_places(places)

    @property
    def joint(self) -> str:
        """The name of the releases that are charged together with this one; none where it is charged alone."""
        name = self.sampler.joint_name(self.time)
        return f"{self.channel.name}, {name}" if name else ""

    def make_release(self, *, source: str, event: Event, audience: Parties, what: str, **more: Any) -> Release:
        """A release of this round; about all who may be in it unless `subjects` says otherwise."""
        subjects = more.pop("subjects") if "subjects" in more else self.subjects
        return Release(self.time, source, subjects, self.unit, self.adjacency, event, audience, what=what, **more)

    def handed_over(self, updates: Updates) -> Release:
        """The un-noised updates that the channel's trusted owner receives: in the ledger, not hidden."""
        what = f"updates handed to the trusted {self.channel.name}"
        audience = frozenset({self.channel.name}) | self.channel.through
        return self.make_release(source="clients", event=Clear(), audience=audience, what=what, inputs=updates.sources)

    def largest_clipped(self, clip_norm: float, splitter: Splitter | None) -> float:
        """How large a clipped update of one of the channel's members can be: of split models both balls together."""
        return clip_norm * self.channel.clip_factor * (1.0 if splitter is None else splitter.widest)

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


class NoisedBy(StrEnum):
    """Who adds the noise below a channel."""

    SERVER = "server"
    """Whoever gathers: it is handed what the members have, un-noised."""
    CLIENT = "client"
    """Every member, before anything leaves it."""
    NOBODY = "nobody"


class NoisedValue(StrEnum):
    """What is bounded, and then noised: how far one subject can move it is the sensitivity."""

    UPDATE = "a client's clipped update"
    GRADIENT = "a batch's gradients, clipped one by one"
    STEPS = "the sum of a device's steps: one example may bend them all"
    PATH = "the end of a device's steps, which only its own draws of an example move"
    MODEL = "a trained model: how it was trained is not bounded step by step"
    NOTHING = "nothing"


class Mechanism(Protocol):
    """How updates become public, and all that others may ask of it: nobody outside this package asks for its class."""

    @property
    def noised_value(self) -> NoisedValue:
        """What the noise is added to."""

    @property
    def sends_parts(self) -> bool:
        """Whether a member of a split model sends its part only: whoever receives it may know which one it is."""

    @property
    def uses_channel_factors(self) -> bool:
        """Whether a channel's own noise and clip factor are used in its claims and in its values."""

    @property
    def keeps_noised(self) -> bool:
        """Whether what clients keep of their training is made from values that are noised already."""

    def at(self, context: ReleaseContext) -> "Mechanism":
        """The mechanism as it is below a channel."""

    def noised_by(self, context: ReleaseContext) -> NoisedBy:
        """Who adds the noise to what a channel's members send."""

    def noise_multipliers(self, clients: Iterable[int]) -> dict[int, float]:
        """Client -> z of the noise that covers it; none where the noise is an absolute amount, or there is none."""

    def with_noise(self, multipliers: Mapping[int, float]) -> "Mechanism":
        """The same mechanism with the noise multipliers that the clients need."""

    def scaled(self, event: Event, noise: float) -> Event:
        """An event of the mechanism with unit noise, at another noise multiplier: what calibration searches over."""

    def in_parts(self, splitter: Splitter) -> "Mechanism":
        """The same mechanism over parts of the model; refused where it has no such form."""

    def steps_of(self, client: int) -> PrivateSteps | None:
        """A client's clipped steps; none where training is free."""

    def explain_guarantee(self, *, rounds: int, delta: float, curvature: float) -> list[str]:
        """What the guarantee rests on besides clipping and noise, in sentences."""

    def describe_stream(self) -> dict[str, Any] | None:
        """The strategy of correlated noise and the error of sums over its steps, for a report; None of other noise."""

    def list_caveats(self) -> list[str]:
        """What the guarantee does not cover, in sentences."""

    def largest_output(self, context: ReleaseContext, *, dimension: int, splitter: Splitter | None) -> float | None:
        """The norm that an honest member's output exceeds with odds below e^-40; None where nothing bounds it."""

    def client_outputs(self, updates: Updates, context: ReleaseContext) -> Iterator[ClientOutput]:
        """What each member lets go of by its own part of the mechanism; refused where it has none."""

    def claim_mean(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """The releases that `mean` is about to make, computed without touching any data; the last is the mean."""

    def mean(self, updates: Updates, context: ReleaseContext) -> ReleaseValues:
        """The public mean of the updates."""

    def claim_each(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """The releases that `compute_each` is about to make: one per member, in order."""

    def compute_each(self, updates: Updates, context: ReleaseContext) -> ReleaseValues:
        """Every member's own public update."""

    def count_senders(self, cohort: Cohort, context: ReleaseContext) -> float:
        """How many clients send a vector; the expected number where the true one is a secret."""


class BaseMechanism:
    """What most mechanisms answer alike. Who adds the noise, and to what, everyone must say for itself."""

    sends_parts = False
    uses_channel_factors = False

    @property
    def keeps_noised(self) -> bool:
        """Clients keep what they see before the noise."""
        return False

    def scaled(self, event: Event, noise: float) -> Event:
        """Every Gaussian's noise multiplied."""
        return scale_noise(event, noise)

    def in_parts(self, splitter: Splitter) -> Mechanism:
        """Refused: whole models are released."""
        law = f"{type(self).__name__} releases whole models"
        refuse("algorithm.split", "given", law, "remove split, or use a star with gaussian noise")

    def steps_of(self, client: int) -> PrivateSteps | None:
        """None: training is free."""
        return None

    def explain_guarantee(self, *, rounds: int, delta: float, curvature: float) -> list[str]:
        """Nothing but clipping and noise."""
        return []

    def describe_stream(self) -> dict[str, Any] | None:
        """None: noises of releases are independent."""
        return None

    def list_caveats(self) -> list[str]:
        """None of its own."""
        return []

    def largest_output(self, context: ReleaseContext, *, dimension: int, splitter: Splitter | None) -> float | None:
        """Nothing bounds it."""
        return None

    def client_outputs(self, updates: Updates, context: ReleaseContext) -> Iterator[ClientOutput]:
        """Refused: the members have no part in it."""
        law = "its members have no part of their own, and let nothing go by themselves"
        refuse("mechanism", type(self).__name__, law, "ask them for their training")

    def count_senders(self, cohort: Cohort, context: ReleaseContext) -> float:
        """The members."""
        return float(len(cohort.members))


def only_sums(algorithm: str = "an algorithm of personal models") -> None:
    """Refuse personal models where only a noisy sum over clients is ever published."""
    law = f'{algorithm} publishes one model per client, where = "server" protects sums only'
    refuse("privacy.where", "server", law, 'use where = "client"')


def only_client(client: int) -> Parties:
    """The set of one client."""
    return frozenset({client_name(client)})


def weighted_mean(values: Iterable[tuple[int, Tensor]], weights: Mapping[int, int], dimension: int) -> Tensor:
    """Mean of the clients' values by their weights; zero when there are none."""
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
        """The same below every channel."""
        return self

    def noised_by(self, context: ReleaseContext) -> NoisedBy:
        """Nobody."""
        return NoisedBy.NOBODY

    def noise_multipliers(self, clients: Iterable[int]) -> dict[int, float]:
        """There is no noise."""
        return {}

    def in_parts(self, splitter: Splitter) -> "NoPrivacy":
        """The same."""
        return self

    def with_noise(self, multipliers: Mapping[int, float]) -> "NoPrivacy":
        """Nothing to set."""
        return self

    def claim_mean(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """One release without noise, of the members, to everyone."""
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
        """The mean by data size of the finite updates."""
        finite = FiniteOnly()
        value = weighted_mean(finite(updates.train_members()), updates.sizes(), updates.worker.dimension)
        return ReleaseValues({EVERYONE: value}, finite.rejected)

    def claim_each(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """One release without noise per member."""
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
        """Every member's update; one that is not finite counts as zero."""
        finite = FiniteOnly()
        values = dict(finite(updates.train_members()))
        return ReleaseValues(values, finite.rejected)
