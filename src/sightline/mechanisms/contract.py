"""The contract of a mechanism: claims for the ledger first, then values; with its simplest case, no privacy."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from sightline.accounting.strategies import Strategy
from sightline.errors import refuse
from sightline.events import Adjacency, Clear, Event, Unit, scale_noise
from sightline.ledger import NOBODY, POST_PROCESSING, Parties, Release
from sightline.mechanisms.clip_and_noise import FiniteOnly
from sightline.mechanisms.samplers import Cohort, CohortSampler, active_places
from sightline.mechanisms.submodels import Splitter
from sightline.mechanisms.updates import ClientOutput, Updates
from sightline.randomness import EVERYONE
from sightline.topology import Channel, client_name
from sightline.training.call import PrivateSteps


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
    numbers: Mapping[str, float] = field(default_factory=dict)
    """The numbers of the channel's last released mean, see `ReleaseValues.numbers`. Claims must not depend on them."""

    @property
    def subjects(self) -> Parties:
        """The possible subjects of a release in this round: the channel's members, or the group whose turn it is."""
        # Never the drawn cohort: where sampling amplifies, the cohort is a secret, and the ledger must be the same for
        # every draw.
        indices = active_places(self.sampler, self.time)
        return self.channel.subjects if indices is None else self.channel.name_places(indices)

    @property
    def joint(self) -> str:
        """The name shared by all releases that are charged together with this one; empty if it is charged alone."""
        name = self.sampler.joint_name(self.time)
        return f"{self.channel.name}, {name}" if name else ""

    def make_release(self, *, source: str, event: Event, audience: Parties, what: str, **more: Any) -> Release:
        """Return a release of this round, about all possible subjects unless `subjects` is given."""
        subjects = more.pop("subjects") if "subjects" in more else self.subjects
        return Release(self.time, source, subjects, self.unit, self.adjacency, event, audience, what=what, **more)

    def sent_by(
        self, member: int, updates: Updates, *, event: Event, audience: Parties, what: str, **more: Any
    ) -> Release:
        """Return the release of what one member sends, about that member alone."""
        own, inputs = only_client(member), tuple(sorted(updates.starts[member].sources))
        return self.make_release(
            source=client_name(member), event=event, audience=audience, what=what, subjects=own, inputs=inputs, **more
        )

    def handed_over(self, updates: Updates) -> Release:
        """Return the release of un-noised updates to the channel's trusted owner: trust is recorded, not hidden."""
        what = f"updates handed to the trusted {self.channel.name}"
        audience = frozenset({self.channel.name}) | self.channel.through
        return self.make_release(source="clients", event=Clear(), audience=audience, what=what, inputs=updates.sources)

    def largest_clipped(self, clip_norm: float, splitter: Splitter | None) -> float:
        """Return the largest norm of a member's clipped update; for split models that of both balls together."""
        return clip_norm * self.channel.clip_factor * (1.0 if splitter is None else splitter.widest)

    def published_mean(self, inputs: tuple[int, ...], what: str) -> Release:
        """Return the release of a mean of private values: the audience sees it, and it charges no subject again."""
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
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Noised counts released with the mean, by the names in `MechanismFacts.numbers`, and functions of earlier ones.

    The last claim must cover mean and counts together: they rest on one draw. The next release of the channel gets
    them in `ReleaseContext.numbers`, rounded to float32, and every later value that they enter names this release.
    """


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


def _rests_on_noise_alone(curvature: float) -> list[str]:
    return []


def _noise_is_independent() -> None:
    return None


@dataclass(frozen=True)
class MechanismFacts:
    """What a mechanism says about itself: the engine, the audit and the report read it and never ask for the class."""

    noised_value: NoisedValue
    """The value to which the noise is added."""
    sends_parts: bool = False
    """Whether a member of a split model sends its part only, so that the receiver may know which part it is."""
    uses_channel_factors: bool = False
    """Whether claims and values use the channel's own noise and clip factors."""
    keeps_noised: bool = False
    """Whether the state that clients keep is computed from noised values only."""
    private_steps: Mapping[int, PrivateSteps] = field(default_factory=dict)
    """Client -> its clipped steps; empty if training is not clipped step by step."""
    numbers: tuple[str, ...] = ()
    """Names of the noised counts that every released mean comes with; they are metrics of the round."""
    caveats: tuple[str, ...] = ()
    """Sentences on what the guarantee does not cover."""
    explain: Callable[[float], list[str]] = _rests_on_noise_alone
    """Curvature of the public L2 and proximal terms -> sentences on what the guarantee rests on besides noise."""
    describe_stream: Callable[[], dict[str, Any] | None] = _noise_is_independent
    """() -> the strategy of correlated noise and its errors for the report; None for independent noise."""


class ChannelMechanism(Protocol):
    """How the updates of one channel's members become public."""

    # Claims come before values: `claim_*` must work without data, because a plan, the budget and the ledger need the
    # events before any value exists. A value without a stored claim is never released.
    @property
    def noised_by(self) -> NoisedBy:
        """The party that adds the noise to what the members send."""

    def noise_multipliers(self, clients: Iterable[int]) -> dict[int, float]:
        """Return client -> noise multiplier used here; empty if the noise is an absolute amount or there is none."""

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


class Mechanism(Protocol):
    """How updates become public, for all channels of an experiment."""

    @property
    def facts(self) -> MechanismFacts:
        """What the mechanism says about itself."""

    def at(self, channel: Channel) -> ChannelMechanism:
        """Return the mechanism that applies below a channel."""

    def noise_multipliers(self, clients: Iterable[int]) -> dict[int, float]:
        """Return client -> needed noise multiplier; empty if the noise is an absolute amount or there is none."""

    def with_noise(self, multipliers: Mapping[int, float]) -> "Mechanism":
        """Return the same mechanism with the noise multipliers that the clients need."""

    def scaled(self, event: Event, noise: float) -> Event:
        """Return an event of the unit-noise mechanism at another noise multiplier; calibration searches over it."""

    def in_parts(self, splitter: Splitter) -> "Mechanism":
        """Return the same mechanism over parts of the model. Raise `Refused` if it has no such form."""


class BaseMechanism:
    """Defaults for a mechanism: Gaussian noise, whole models."""

    def scaled(self, event: Event, noise: float) -> Event:
        """Multiply the noise of every Gaussian in the event."""
        return scale_noise(event, noise)

    def in_parts(self, splitter: Splitter) -> Self:
        """Raise `Refused`: whole models are released."""
        # No silent fallback to whole models: the user would believe in an amplification by splitting that is not there.
        reason = f"{type(self).__name__} releases whole models"
        refuse("algorithm.split", "given", reason, "remove split, or use a star with gaussian noise")


class UniformMechanism(BaseMechanism):
    """Defaults for a mechanism that is the same below every channel: a `Mechanism` and a `ChannelMechanism` in one."""

    def at(self, channel: Channel) -> Self:
        """Return itself."""
        return self

    def largest_output(self, context: ReleaseContext, *, dimension: int, splitter: Splitter | None) -> float | None:
        """Return None: nothing bounds an output."""
        return None

    def client_outputs(self, updates: Updates, context: ReleaseContext) -> Iterator[ClientOutput]:
        """Raise `Refused`: the members have no part of the mechanism."""
        reason = "this mechanism has no client-side step"
        refuse("mechanism", type(self).__name__, reason, "use updates.train_members")

    def claim_each(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """Raise `Refused`: a trusted server protects sums, not single clients."""
        only_sums()
        return ()

    def compute_each(self, updates: Updates, context: ReleaseContext) -> ReleaseValues:
        """Raise `Refused`, as `claim_each` does."""
        only_sums()
        return ReleaseValues({})

    def count_senders(self, cohort: Cohort, context: ReleaseContext) -> float:
        """Return the size of the cohort."""
        return float(len(cohort.members))


class NoisedByClients(UniformMechanism):
    """Defaults for a mechanism in which every member noises what it sends; a mean of that is post-processing."""

    noised_by = NoisedBy.CLIENT
    mean_of: ClassVar[str]
    """What the mean is taken of, in the words of the ledger."""

    def _claim_sent(self, updates: Updates, context: ReleaseContext, audience: Parties) -> tuple[Release, ...]:
        """Return one release per member, in order."""
        raise NotImplementedError

    def claim_mean(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """Claim one release per member to the server; the mean is post-processing of them."""
        sent = self._claim_sent(updates, context, frozenset({context.channel.name}))
        inputs = tuple(range(context.next_id, context.next_id + len(sent))) + updates.sources
        return *sent, context.published_mean(inputs, f"mean of {self.mean_of}")

    def mean(self, updates: Updates, context: ReleaseContext) -> ReleaseValues:
        """Average what the members send by their data sizes."""
        finite = FiniteOnly()
        value = weighted_mean(self._sent_values(updates, context, finite), updates.sizes(), updates.worker.dimension)
        return ReleaseValues({EVERYONE: value}, finite.rejected)

    def claim_each(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """Claim one release per member, to the channel's audience."""
        return self._claim_sent(updates, context, context.channel.audience)

    def compute_each(self, updates: Updates, context: ReleaseContext) -> ReleaseValues:
        """Return what every member sends; a value that is not finite counts as zero (post-processing)."""
        finite = FiniteOnly()
        return ReleaseValues(dict(self._sent_values(updates, context, finite)), finite.rejected)

    def _sent_values(
        self, updates: Updates, context: ReleaseContext, finite: FiniteOnly
    ) -> Iterator[tuple[int, Tensor]]:
        """Yield (member, what it sends) one at a time, and count in `finite` what the members or we reject."""
        for member, value, rejected in updates.collect_outputs(self, context):
            finite.rejected += rejected
            yield from finite([(member, value)])


def only_sums(algorithm: str = "an algorithm of personal models") -> None:
    """Raise `Refused` for personal models: a trusted server publishes noisy sums over clients only."""
    reason = f'{algorithm} publishes one model per client, but where = "server" protects sums only'
    refuse("privacy.where", "server", reason, 'use where = "client"')


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
class NoPrivacy(UniformMechanism):
    """Ordinary federated averaging: every release is `Clear()`, so every epsilon is infinite."""

    facts = MechanismFacts(NoisedValue.NOTHING, sends_parts=True)
    noised_by = NoisedBy.NOBODY

    def noise_multipliers(self, clients: Iterable[int]) -> dict[int, float]:
        """Return an empty dict: there is no noise."""
        return {}

    @override
    def in_parts(self, splitter: Splitter) -> "NoPrivacy":
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

    @override
    def claim_each(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        what, audience = "own update, in the clear", context.channel.audience
        return tuple(
            context.sent_by(member, updates, event=Clear(), audience=audience, what=what)
            for member in updates.cohort.members
        )

    def compute_each(self, updates: Updates, context: ReleaseContext) -> ReleaseValues:
        """Return every member's update; one that is not finite counts as zero."""
        finite = FiniteOnly()
        return ReleaseValues(dict(finite(updates.train_members())), finite.rejected)
