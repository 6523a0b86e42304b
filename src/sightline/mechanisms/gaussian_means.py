"""Means of clipped updates, noised by a trusted server, by every client, or where trust ends in a tree."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor
from typing_extensions import override

from sightline.errors import refuse
from sightline.events import Allocation, Event, FixedCohort, Gaussian, Pooled, WithoutReplacement
from sightline.ledger import Release
from sightline.mechanisms.clip_and_noise import (
    Clipper,
    FiniteOnly,
    FloatSum,
    NewSum,
    clip_update,
    sum_and_noise,
    sum_sensitivity,
)
from sightline.mechanisms.contract import (
    BaseMechanism,
    MechanismFacts,
    NoisedBy,
    NoisedByClients,
    NoisedValue,
    ReleaseContext,
    ReleaseValues,
    UniformMechanism,
)
from sightline.mechanisms.samplers import Cohort
from sightline.mechanisms.submodels import Splitter
from sightline.mechanisms.updates import ClientOutput, Updates
from sightline.randomness import EVERYONE
from sightline.topology import Channel


@dataclass(frozen=True)
class GaussianMean(UniformMechanism):
    """Common base: clipped updates and one noise multiplier for all clients."""

    clip_norm: float
    noise_multiplier: float
    new_sum: NewSum = FloatSum
    noise_event: Callable[[float], Event] = Gaussian
    """z -> the event of a release: `Gaussian(z)`, or that of a splitter."""

    @property
    def facts(self) -> MechanismFacts:
        """Clipped updates are noised."""
        return MechanismFacts(NoisedValue.UPDATE, uses_channel_factors=True)

    def noise_multipliers(self, clients: Iterable[int]) -> dict[int, float]:
        """Return the same noise multiplier for all clients."""
        return dict.fromkeys(clients, self.noise_multiplier)

    def with_noise(self, multipliers: Mapping[int, float]) -> Self:
        """Return the same mechanism with the largest noise that any client needs."""
        return replace(self, noise_multiplier=max(multipliers.values()))

    @override
    def in_parts(self, splitter: Splitter) -> Self:
        return replace(self, new_sum=splitter.new_sum(self.new_sum), noise_event=splitter.event)

    def _noise(self, context: ReleaseContext) -> float:
        """Return the noise multiplier below a channel."""
        return self.noise_multiplier * context.channel.noise_factor

    def _sensitivity(self, context: ReleaseContext) -> float:
        """Return how far one client can move the sum below a channel."""
        return sum_sensitivity(self.clip_norm * context.channel.clip_factor, context.adjacency)


@dataclass(frozen=True)
class CentralMean(GaussianMean):
    """(sum of clipped updates + N(0, (z S)^2)) / expected cohort.

    Guarantees: for every client, the event that the sampler makes of `Gaussian(z)`, against everyone but the server.
    The denominator is public, so an empty or a large cohort reveals nothing beyond that event.
    """

    clipper: Clipper = clip_update
    """How a member clips its update before sending it."""

    noised_by = NoisedBy.SERVER

    @property
    @override
    def facts(self) -> MechanismFacts:
        return replace(super().facts, sends_parts=True)

    @override
    def in_parts(self, splitter: Splitter) -> Self:
        return replace(super().in_parts(splitter), clipper=splitter.clip)

    def claim_mean(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """Claim the hand-over to the server and the noisy mean for everyone."""
        event = context.sampler.hidden_event(self.noise_event(self._noise(context)))
        refuse_remembered_draws(event, updates)
        # All members are subjects, drawn or not. The server knows the draws, so it is charged the inner event.
        published = context.make_release(
            source=context.channel.name,
            event=event,
            audience=context.channel.audience,
            what="noisy mean of clipped updates",
            inputs=updates.sources,
            coins_known_to=frozenset({context.channel.name}),
            joint=context.joint,
        )
        return context.handed_over(updates), published

    @override
    def client_outputs(self, updates: Updates, context: ReleaseContext) -> Iterator[ClientOutput]:
        for member, update in updates.train_members():
            bounded = self.clipper(update, clip_norm=self.clip_norm * context.channel.clip_factor)
            yield ClientOutput(member, bounded.value, bounded.rejected)

    def largest_output(self, context: ReleaseContext, *, dimension: int, splitter: Splitter | None) -> float | None:
        """Return the clip norm plus rounding."""
        return context.largest_clipped(self.clip_norm, splitter) * (1 + 1e-5)

    def mean(self, updates: Updates, context: ReleaseContext) -> ReleaseValues:
        """Clip, sum, add noise once, divide by the expected cohort."""
        # What remote nodes have clipped is clipped again: the bound must not rest on a node's honesty. Clipping twice
        # changes nothing for an honest one.
        noisy, rejected = sum_and_noise(
            updates.collect_updates(context),
            self.new_sum(updates.worker.dimension),
            clip_norm=self.clip_norm * context.channel.clip_factor,
            noise_multiplier=self._noise(context),
            adjacency=context.adjacency,
            rng=context.noise(EVERYONE),
        )
        expected = context.sampler.expected
        std = self._noise(context) * (self._sensitivity(context) / expected)
        return ReleaseValues({EVERYONE: noisy / expected}, rejected, std)

    def count_senders(self, cohort: Cohort, context: ReleaseContext) -> float:
        """Return the expected cohort: the true one is a secret."""
        return context.sampler.expected


def refuse_remembered_draws(event: Event, updates: Updates) -> None:
    """Raise `Refused` for dependent draws if members train by kept state, because that reveals who was drawn."""
    recall = updates.recall
    # Fixed cohorts and schedules tie clients' draws together: the others' states would show in later rounds who was
    # drawn, hence whether the subject was. Poisson draws are independent: given the others' draws, every round is a
    # mixture over the subject's own past draws, and divergences are jointly convex.
    tied = isinstance(event, FixedCohort | WithoutReplacement | Allocation)
    if tied and recall is not None and recall.memory.linear is not None:
        reason = f"clients keep {recall.memory.name} and use it later, which reveals who was drawn"
        refuse("client_state", recall.memory.name, reason, 'use sampling.clients.scheme = "poisson" or "full"')


@dataclass(frozen=True)
class LocalMean(GaussianMean, NoisedByClients):
    """Each member sends clip(update) + N(0, (z S)^2); the server averages what it receives.

    Guarantees: `Gaussian(z)` for every client in every round in which it took part, against everyone, the server
    included. Participation does not depend on data and is not claimed to hide anything: a member's own noise comes and
    goes with it, which is why Poisson amplification does not hold here.
    """

    mean_of = "noisy updates"

    def mean(self, updates: Updates, context: ReleaseContext) -> ReleaseValues:
        """Average the members' noisy updates; return zero for an empty cohort."""
        finite, count = FiniteOnly(), 0
        total = torch.zeros(updates.worker.dimension, dtype=torch.float64)
        for _, value in self._sent_values(updates, context, finite):
            total += value
            count += 1
        # The realised count may be the divisor: participation is public here and does not depend on data.
        count = max(1, count)
        std = self._noise(context) / math.sqrt(count) * self._sensitivity(context)
        return ReleaseValues({EVERYONE: (total / count).float()}, finite.rejected, std)

    @override
    def client_outputs(self, updates: Updates, context: ReleaseContext) -> Iterator[ClientOutput]:
        for member, update in updates.train_members():
            noisy, rejected = self._noised_alone([(member, update)], updates, context, member)
            yield ClientOutput(member, noisy, bool(rejected))

    def _noised_alone(
        self, own: list[tuple[int, Tensor]], updates: Updates, context: ReleaseContext, member: int
    ) -> tuple[Tensor, int]:
        """Return a member's clipped update, or zero, with its own noise, and how many updates were not finite."""
        return sum_and_noise(
            own,
            self.new_sum(updates.worker.dimension),
            clip_norm=self.clip_norm * context.channel.clip_factor,
            noise_multiplier=self._noise(context),
            adjacency=context.adjacency,
            rng=context.noise(member),
        )

    def largest_output(self, context: ReleaseContext, *, dimension: int, splitter: Splitter | None) -> float | None:
        """Return the clip norm plus the largest plausible noise in this dimension."""
        clip_norm = context.largest_clipped(self.clip_norm, splitter)
        noise = self._noise(context) * sum_sensitivity(clip_norm, context.adjacency)
        # |N(0, I_d)| exceeds sqrt(d) + 9 with probability below e^-40 (Gaussian concentration of the norm).
        return clip_norm * (1 + 1e-5) + noise * (math.sqrt(dimension) + 9)

    def _claim_sent(self, updates: Updates, context: ReleaseContext, audience: frozenset[str]) -> tuple[Release, ...]:
        event, what = self.noise_event(self._noise(context)), "own clipped and noised update"
        return tuple(
            context.sent_by(member, updates, event=event, audience=audience, what=what)
            for member in updates.cohort.members
        )


@dataclass(frozen=True)
class PooledMean(LocalMean):
    """`LocalMean` in which only the gathering server sees single messages; all others see their sum.

    Guarantees: `Gaussian(z)` against the gathering server. Against any other single observer the noises of the other
    members add up, except the one that the observer may have added itself: `Pooled(k - 1, Gaussian(z))` for k members.
    k is the cohort drawn by the experiment's own sampler. `Gaussian(z)` alone is claimed if the algorithm chose the
    cohort or its rate (`ReleaseContext.chosen`), because released values may then have influenced k; with integer
    arithmetic, because the sum of rounded noises is not a rounded Gaussian; and for real nodes, which may not answer
    and then add no noise. No later update depends on a noise that only its sender knows: an algorithm gets the mean,
    never a single message, and the state of clients is computed before the noise.
    """

    def claim_mean(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """Claim one release per member to the server, with pooled noise for others; the mean is post-processing."""
        *sent, mean = super().claim_mean(updates, context)
        others = len(sent) - 1
        alone = context.chosen or self.facts.keeps_noised or self.new_sum is not FloatSum or not all_answer(updates)
        if others < 2 or alone:
            return *sent, mean
        gatherer = frozenset({context.channel.name})
        return *(replace(one, event=Pooled(others, one.event), coins_known_to=gatherer) for one in sent), mean

    @property
    @override
    def facts(self) -> MechanismFacts:
        pooled = "Who sees only the mean meets the noise of all clients who sent, but its own: it can learn less."
        return replace(super().facts, explain=lambda curvature: [pooled] if self.new_sum is FloatSum else [])


def all_answer(updates: Updates) -> bool:
    """Return whether every claimed noise will arrive: real nodes may fail to answer."""
    nodes = updates.worker.nodes
    return nodes is None or nodes.steadfast


@dataclass(frozen=True)
class EveryoneNoisesMean(LocalMean):
    """(sum of the cohort's clipped updates + one noise N(0, (z S)^2) of every member) / expected cohort.

    A member that is not drawn sends its noise alone, so neither the number of noises nor the senders reveal the draws.

    Guarantees: for every client, the event that the sampler makes of `Pooled(N - 1, Gaussian(z))`, against everyone but
    the server, which gathers what each of the N members sends and is charged `Gaussian(z)` in every round.
    """

    @override
    def claim_mean(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        self.check_noises(updates, context)
        event = context.sampler.hidden_event(
            Pooled(len(context.channel.members) - 1, self.noise_event(self._noise(context)))
        )
        refuse_remembered_draws(event, updates)
        gatherer = frozenset({context.channel.name})
        # One row for all: a row for each drawn member would reveal the draw that the event claims to hide.
        return (
            context.make_release(
                source=context.channel.name,
                event=event,
                audience=context.channel.audience | gatherer,
                what="mean of clipped updates with everybody's noise",
                inputs=updates.sources,
                coins_known_to=gatherer,
                joint=context.joint,
            ),
        )

    @property
    @override
    def facts(self) -> MechanismFacts:
        hidden = "Every client sends noise in every round, drawn or not: who sees only the mean cannot tell who was."
        return replace(super().facts, explain=lambda curvature: [hidden])

    def check_noises(self, updates: Updates, context: ReleaseContext) -> None:
        """Raise `Refused` if some member's noise could be missing or known."""
        name, way_out = "privacy.everyone_sends_noise", "omit it"
        if not all_answer(updates):
            refuse(name, True, "real nodes that do not answer add no noise", way_out)
        if self.facts.keeps_noised:
            refuse(name, True, "members keep values with noise that only they know", way_out)
        if len(context.channel.members) < 2:
            refuse(name, True, "a single member would know all the noise", "add clients")

    def mean(self, updates: Updates, context: ReleaseContext) -> ReleaseValues:
        """Sum what all members send and divide by the expected cohort."""
        drawn = self.compute_each(updates, context)
        total = torch.zeros(updates.worker.dimension, dtype=torch.float64)
        for member in context.channel.members:
            # A member that was not drawn: same function, same stream, empty sum. Its noise must have the very law of a
            # drawn member's noise.
            alone = member not in drawn.values
            total += self._noised_alone([], updates, context, member)[0] if alone else drawn.values[member]
        expected = context.sampler.expected
        std = self._noise(context) * self._sensitivity(context) * math.sqrt(len(context.channel.members))
        return ReleaseValues({EVERYONE: (total / expected).float()}, drawn.rejected, std / expected)

    def claim_each(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """Raise `Refused`: publishing a member's own update reveals that it was drawn."""
        reason = "personal models are published one by one, which reveals who was drawn"
        refuse("privacy.everyone_sends_noise", True, reason, "omit it")

    def count_senders(self, cohort: Cohort, context: ReleaseContext) -> float:
        """Return the number of members: all of them send."""
        return float(len(context.channel.members))


@dataclass(frozen=True)
class NoiseByTrust(BaseMechanism):
    """Noise where trust ends: every channel by its own trust, with the noise that its own members need.

    Guarantees: those of `CentralMean` below a trusted server, those of `PooledMean` elsewhere.
    """

    clip_norm: float
    noise_multiplier: float
    new_sum: NewSum = FloatSum
    multipliers: Mapping[int, float] = field(default_factory=dict)
    """Client -> the noise multiplier that keeps it within its target."""
    splitter: Splitter | None = None

    @property
    def facts(self) -> MechanismFacts:
        """Clipped updates are noised."""
        return MechanismFacts(NoisedValue.UPDATE, uses_channel_factors=True)

    def with_noise(self, multipliers: Mapping[int, float]) -> "NoiseByTrust":
        """Return the same mechanism; every channel takes the largest noise that one of its members needs."""
        return replace(self, multipliers=dict(multipliers))

    def at(self, channel: Channel) -> CentralMean | PooledMean:
        """Return `CentralMean` below a trusted server, `PooledMean` elsewhere."""
        # One noise covers the whole sum, so the member that needs most decides.
        noise = max(self.noise_multipliers(channel.members).values(), default=self.noise_multiplier)
        kind = CentralMean if channel.trusted else PooledMean
        whole = kind(self.clip_norm, noise, self.new_sum)
        return whole if self.splitter is None else whole.in_parts(self.splitter)

    def noise_multipliers(self, clients: Iterable[int]) -> dict[int, float]:
        """Return what each client needs; a channel takes the largest of its members."""
        return {n: self.multipliers.get(n, self.noise_multiplier) for n in clients}

    @override
    def in_parts(self, splitter: Splitter) -> "NoiseByTrust":
        return replace(self, splitter=splitter)
