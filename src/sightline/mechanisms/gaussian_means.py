"""Means of clipped updates, noised by a trusted server, by every client, or where trust ends in a tree."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import torch

from sightline.errors import refuse
from sightline.events import Allocation, Event, FixedCohort, Gaussian, Pooled, WithoutReplacement
from sightline.ledger import Release
from sightline.mechanisms.clip_and_noise import FLOATS, Clipper, NoisySum, clip_update, sum_sensitivity
from sightline.mechanisms.contract import (
    BaseMechanism,
    NoisedBy,
    NoisedValue,
    ReleaseContext,
    ReleaseValues,
    only_client,
    only_sums,
)
from sightline.mechanisms.samplers import Cohort
from sightline.mechanisms.submodels import Splitter
from sightline.mechanisms.updates import ClientOutput, Updates
from sightline.randomness import EVERYONE
from sightline.topology import client_name


@dataclass(frozen=True)
class CentralMean(BaseMechanism):
    r"""(sum of clipped updates + N(0, (z S)^2)) / expected cohort.

    Guarantees: for every client, the event that the sampler makes of `Gaussian(z)`, against everyone but the server.
    The denominator is public, so an empty or a large cohort reveals nothing beyond that event.
    """

    clip_norm: float
    noise_multiplier: float
    noisy_sum: NoisySum = FLOATS
    noise_event: Callable[[float], Event] = Gaussian
    """z -> what the noise makes of a release: `Gaussian(z)`, or what a splitter says."""
    clipper: Clipper = clip_update
    """What a member does before it lets go of its update."""

    noised_value = NoisedValue.UPDATE
    sends_parts = True
    uses_channel_factors = True

    def at(self, context: ReleaseContext) -> "CentralMean":
        """The same below every channel."""
        return self

    def noised_by(self, context: ReleaseContext) -> NoisedBy:
        """The trusted server, once."""
        return NoisedBy.SERVER

    def noise_multipliers(self, clients: Iterable[int]) -> dict[int, float]:
        """One for all."""
        return dict.fromkeys(clients, self.noise_multiplier)

    def with_noise(self, multipliers: Mapping[int, float]) -> "CentralMean":
        """The same mechanism with the largest noise that any client needs."""
        return replace(self, noise_multiplier=max(multipliers.values()))

    def in_parts(self, splitter: Splitter) -> Self:
        """The same mechanism over parts of the model."""
        noisy_sum = splitter.noisy_sum(self.noisy_sum)
        return replace(self, noisy_sum=noisy_sum, noise_event=splitter.event, clipper=splitter.clip)

    def claim_mean(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """The hand-over to the server, and the noisy mean that everybody sees."""
        event = context.sampler.hidden_event(self.noise_event(self.noise_multiplier * context.channel.noise_factor))
        refuse_remembered_draws(event, updates)
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

    def client_outputs(self, updates: Updates, context: ReleaseContext) -> Iterator[ClientOutput]:
        """Each member's clipped update, for the trusted server."""
        for member, update in updates.train_members():
            bounded = self.clipper(update, clip_norm=self.clip_norm * context.channel.clip_factor)
            yield ClientOutput(member, bounded.value, bounded.rejected)

    def largest_output(self, context: ReleaseContext, *, dimension: int, splitter: Splitter | None) -> float | None:
        """The clip norm, and what rounding adds."""
        return context.largest_clipped(self.clip_norm, splitter) * (1 + 1e-5)

    def mean(self, updates: Updates, context: ReleaseContext) -> ReleaseValues:
        """Clip, sum, noise once, divide by the expected cohort; what nodes have clipped is clipped once more."""
        noisy, rejected = self.noisy_sum(
            updates.collect_updates(context),
            dimension=updates.worker.dimension,
            clip_norm=self.clip_norm * context.channel.clip_factor,
            noise_multiplier=self.noise_multiplier * context.channel.noise_factor,
            adjacency=context.adjacency,
            rng=context.noise(EVERYONE),
        )
        std = self.noise_multiplier * context.channel.noise_factor
        std *= (
            sum_sensitivity(self.clip_norm * context.channel.clip_factor, context.adjacency) / context.sampler.expected
        )
        return ReleaseValues({EVERYONE: noisy / context.sampler.expected}, rejected, std)

    def claim_each(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """Refused: a trusted server protects sums, not single clients."""
        only_sums()
        return ()

    def compute_each(self, updates: Updates, context: ReleaseContext) -> ReleaseValues:
        """Refused, as `claim_each` is."""
        only_sums()
        return ReleaseValues({})

    def count_senders(self, cohort: Cohort, context: ReleaseContext) -> float:
        """The expected cohort: the true one is a secret."""
        return context.sampler.expected


def refuse_remembered_draws(event: Event, updates: Updates) -> None:
    """Refuse cohorts whose draws are tied together where members train by what they kept: it tells who was drawn."""
    recall = updates.recall
    tied = isinstance(event, FixedCohort | WithoutReplacement | Allocation)
    if tied and recall is not None and recall.memory.linear is not None:
        law = f"clients keep {recall.memory.name} and train by it later, which tells who was drawn, and so who was not"
        refuse("client_state", recall.memory.name, law, 'use sampling.clients.scheme = "poisson" or "full"')


@dataclass(frozen=True)
class LocalMean(BaseMechanism):
    """Each member sends clip(update) + N(0, (z S)^2); the server averages what it receives.

    Guarantees: `Gaussian(z)` for every client in every round that it took part in, against everyone, the server
    included. Participation is no secret of the client's data and is not claimed to hide anything: a member's own noise
    comes and goes with it, which is why Poisson's amplification does not hold here.
    """

    clip_norm: float
    noise_multiplier: float
    noisy_sum: NoisySum = FLOATS
    noise_event: Callable[[float], Event] = Gaussian
    """z -> what the noise makes of a release: `Gaussian(z)`, or what a splitter says."""

    noised_value = NoisedValue.UPDATE
    uses_channel_factors = True

    def at(self, context: ReleaseContext) -> "LocalMean":
        """The same below every channel."""
        return self

    def noised_by(self, context: ReleaseContext) -> NoisedBy:
        """Every member."""
        return NoisedBy.CLIENT

    def noise_multipliers(self, clients: Iterable[int]) -> dict[int, float]:
        """One for all."""
        return dict.fromkeys(clients, self.noise_multiplier)

    def with_noise(self, multipliers: Mapping[int, float]) -> "LocalMean":
        """The same mechanism with the largest noise that any client needs."""
        return replace(self, noise_multiplier=max(multipliers.values()))

    def in_parts(self, splitter: Splitter) -> Self:
        """The same mechanism over parts of the model."""
        noisy_sum = splitter.noisy_sum(self.noisy_sum)
        return replace(self, noisy_sum=noisy_sum, noise_event=splitter.event)

    def claim_mean(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """One release per member, to the server; the mean is post-processing of them."""
        sent = self._claim_sent(updates, context, frozenset({context.channel.name}))
        inputs = tuple(range(context.next_id, context.next_id + len(sent))) + updates.sources
        return *sent, context.published_mean(inputs, "mean of noisy updates")

    def mean(self, updates: Updates, context: ReleaseContext) -> ReleaseValues:
        """The average of the members' noisy updates; zero when nobody took part."""
        outcome = self.compute_each(updates, context)
        total = torch.zeros(updates.worker.dimension, dtype=torch.float64)
        for value in outcome.values.values():
            total += value
        count = len(outcome.values)
        std = self.noise_multiplier * context.channel.noise_factor / math.sqrt(max(1, count))
        std *= sum_sensitivity(self.clip_norm * context.channel.clip_factor, context.adjacency)
        return ReleaseValues({EVERYONE: (total / max(1, count)).float()}, outcome.rejected, std)

    def claim_each(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """One release per member, to everyone."""
        return self._claim_sent(updates, context, context.channel.audience)

    def compute_each(self, updates: Updates, context: ReleaseContext) -> ReleaseValues:
        """Every member's clipped and noised update."""
        left = list(updates.collect_outputs(self, context))
        return ReleaseValues({member: value for member, value, _ in left}, sum(rejected for *_, rejected in left))

    def client_outputs(self, updates: Updates, context: ReleaseContext) -> Iterator[ClientOutput]:
        """Each member clips and noises before it sends."""
        for member, update in updates.train_members():
            noisy, rejected = self.noisy_sum(
                [update],
                dimension=updates.worker.dimension,
                clip_norm=self.clip_norm * context.channel.clip_factor,
                noise_multiplier=self.noise_multiplier * context.channel.noise_factor,
                adjacency=context.adjacency,
                rng=context.noise(member),
            )
            yield ClientOutput(member, noisy, bool(rejected))

    def largest_output(self, context: ReleaseContext, *, dimension: int, splitter: Splitter | None) -> float | None:
        """The clip norm, and noise of this dimension."""
        clip_norm = context.largest_clipped(self.clip_norm, splitter)
        noise = self.noise_multiplier * context.channel.noise_factor * sum_sensitivity(clip_norm, context.adjacency)
        return clip_norm * (1 + 1e-5) + noise * (math.sqrt(dimension) + 9)

    def _claim_sent(self, updates: Updates, context: ReleaseContext, audience: frozenset[str]) -> tuple[Release, ...]:
        return tuple(
            context.make_release(
                source=client_name(member),
                event=self.noise_event(self.noise_multiplier * context.channel.noise_factor),
                audience=audience,
                what="own clipped and noised update",
                subjects=only_client(member),
                inputs=tuple(sorted(updates.starts[member].sources)),
            )
            for member in updates.cohort.members
        )


@dataclass(frozen=True)
class PooledMean(LocalMean):
    """`LocalMean` whose single messages only the gathering server sees: everybody else sees their sum.

    Guarantees: `Gaussian(z)` against the server that gathers; against any other single observer the noises of the
    other members add up, all but the one that the observer may have added itself: `Pooled(k - 1, Gaussian(z))` for k
    members. k is how many were drawn by the experiment's own sampler; where the algorithm chose the cohort or its rate
    (`ReleaseContext.chosen`) released values may have decided on k, and `Gaussian(z)` is claimed. So it is with integer
    arithmetic, where the sum of rounded noises is not a rounded Gaussian, and for real nodes, which may not answer and
    then add no noise. No later update depends on a noise that only its sender knows: an algorithm gets the mean, never
    a single message, and what clients keep is made before the noise.
    """

    def claim_mean(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """One release per member, to the server; the mean is post-processing of them."""
        *sent, mean = super().claim_mean(updates, context)
        others = len(sent) - 1
        alone = context.chosen or self.keeps_noised or self.noisy_sum is not FLOATS or not all_answer(updates)
        if others < 2 or alone:
            return *sent, mean
        gatherer = frozenset({context.channel.name})
        return *(replace(one, event=Pooled(others, one.event), coins_known_to=gatherer) for one in sent), mean

    def explain_guarantee(self, *, rounds: int, delta: float, curvature: float) -> list[str]:
        """Whom the noises of others protect from."""
        if self.noisy_sum is not FLOATS:
            return []
        return ["Who sees only the mean meets the noise of all clients who sent, but its own: it can learn less."]


def all_answer(updates: Updates) -> bool:
    """Whether every noise that is claimed will arrive: nodes may fail to answer."""
    nodes = updates.worker.nodes
    return nodes is None or nodes.steadfast


@dataclass(frozen=True)
class EveryoneNoisesMean(LocalMean):
    """(sum of the cohort's clipped updates + one noise N(0, (z S)^2) of every member) / expected cohort.

    Who is not drawn sends its noise alone, so neither the number of noises nor who sends tells of the draws.

    Guarantees: for every client, the event that the sampler makes of `Pooled(N - 1, Gaussian(z))`, against everyone but
    the server, who gathers what each of the N members sends and is charged `Gaussian(z)` in every round.
    """

    def claim_mean(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """One release about all members: a row for each who was drawn would tell who was."""
        self.check_noises(updates, context)
        alone = self.noise_event(self.noise_multiplier * context.channel.noise_factor)
        event = context.sampler.hidden_event(Pooled(len(context.channel.members) - 1, alone))
        refuse_remembered_draws(event, updates)
        gatherer = frozenset({context.channel.name})
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

    def explain_guarantee(self, *, rounds: int, delta: float, curvature: float) -> list[str]:
        """What everybody's noise is for."""
        return ["Every client sends noise in every round, drawn or not: who sees only the mean cannot tell who was."]

    def check_noises(self, updates: Updates, context: ReleaseContext) -> None:
        """Refuse where the noises of all members would not be there, or not add up."""
        name, way_out = "privacy.everyone_sends_noise", "leave it out"
        if not all_answer(updates):
            refuse(name, True, "real nodes may not answer, and then add no noise", way_out)
        if self.keeps_noised:
            refuse(name, True, "members keep values in which noise is that only they know", way_out)
        if len(context.channel.members) < 2:
            refuse(name, True, "one member's noise alone would be known to it", "add clients")

    def mean(self, updates: Updates, context: ReleaseContext) -> ReleaseValues:
        """What all members send, over the expected cohort."""
        drawn = self.compute_each(updates, context)
        clip_norm = self.clip_norm * context.channel.clip_factor
        noise = self.noise_multiplier * context.channel.noise_factor
        total = torch.zeros(updates.worker.dimension, dtype=torch.float64)
        for member in context.channel.members:
            total += drawn.values[member] if member in drawn.values else self._noise_alone(member, updates, context)
        std = noise * sum_sensitivity(clip_norm, context.adjacency) * math.sqrt(len(context.channel.members))
        expected = context.sampler.expected
        return ReleaseValues({EVERYONE: (total / expected).float()}, drawn.rejected, std / expected)

    def _noise_alone(self, member: int, updates: Updates, context: ReleaseContext) -> torch.Tensor:
        """What a member sends that was not drawn."""
        noisy, _ = self.noisy_sum(
            [],
            dimension=updates.worker.dimension,
            clip_norm=self.clip_norm * context.channel.clip_factor,
            noise_multiplier=self.noise_multiplier * context.channel.noise_factor,
            adjacency=context.adjacency,
            rng=context.noise(member),
        )
        return noisy

    def claim_each(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """Refused: who publishes an update of its own was drawn."""
        law = "personal models are published one by one, which tells who was drawn"
        refuse("privacy.everyone_sends_noise", True, law, "leave it out")

    def count_senders(self, cohort: Cohort, context: ReleaseContext) -> float:
        """All members."""
        return float(len(context.channel.members))


@dataclass(frozen=True)
class NoiseByTrust(BaseMechanism):
    """Every channel by its own trust, with the noise that its own members need.

    Guarantees: those of `CentralMean` below a trusted server, those of `PooledMean` elsewhere.
    """

    clip_norm: float
    noise_multiplier: float
    noisy_sum: NoisySum = FLOATS
    multipliers: Mapping[int, float] = field(default_factory=dict)
    """Client -> the noise multiplier that keeps it within its target."""
    splitter: Splitter | None = None

    noised_value = NoisedValue.UPDATE
    uses_channel_factors = True

    def with_noise(self, multipliers: Mapping[int, float]) -> "NoiseByTrust":
        """The same mechanism; every channel takes the largest noise that one of its members needs."""
        return replace(self, multipliers=dict(multipliers))

    def at(self, context: ReleaseContext) -> CentralMean | PooledMean:
        """The mechanism of a channel."""
        members = context.channel.members
        noise = max((self.multipliers.get(n, self.noise_multiplier) for n in members), default=self.noise_multiplier)
        kind = CentralMean if context.channel.trusted else PooledMean
        whole = kind(self.clip_norm, noise, self.noisy_sum)
        return whole if self.splitter is None else whole.in_parts(self.splitter)

    def noised_by(self, context: ReleaseContext) -> NoisedBy:
        """As the channel's own mechanism does."""
        return self.at(context).noised_by(context)

    def noise_multipliers(self, clients: Iterable[int]) -> dict[int, float]:
        """What each needs; a channel takes the largest of its members."""
        return {n: self.multipliers.get(n, self.noise_multiplier) for n in clients}

    def in_parts(self, splitter: Splitter) -> "NoiseByTrust":
        """The same mechanism over parts of the model."""
        return replace(self, splitter=splitter)

    def claim_mean(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """As the channel's own mechanism claims."""
        return self.at(context).claim_mean(updates, context)

    def mean(self, updates: Updates, context: ReleaseContext) -> ReleaseValues:
        """As the channel's own mechanism computes."""
        return self.at(context).mean(updates, context)

    def claim_each(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """As the channel's own mechanism claims."""
        return self.at(context).claim_each(updates, context)

    def compute_each(self, updates: Updates, context: ReleaseContext) -> ReleaseValues:
        """As the channel's own mechanism computes."""
        return self.at(context).compute_each(updates, context)

    def client_outputs(self, updates: Updates, context: ReleaseContext) -> Iterator[ClientOutput]:
        """As the channel's own mechanism lets go."""
        return self.at(context).client_outputs(updates, context)

    def largest_output(self, context: ReleaseContext, *, dimension: int, splitter: Splitter | None) -> float | None:
        """As the channel's own mechanism bounds it."""
        return self.at(context).largest_output(context, dimension=dimension, splitter=splitter)

    def count_senders(self, cohort: Cohort, context: ReleaseContext) -> float:
        """As the channel's own mechanism counts."""
        return self.at(context).count_senders(cohort, context)
