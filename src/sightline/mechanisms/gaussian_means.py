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
    """(sum of clipped updates + N(0, (z S)^2)) / expected cohort.

    Guarantees: for every client, the event that the sampler makes of `Gaussian(z)`, against everyone but the server.
    The denominator is public, so an empty or a large cohort reveals nothing beyond that event.
    """

    clip_norm: float
    noise_multiplier: float
    noisy_sum: NoisySum = FLOATS
    noise_event: Callable[[float], Event] = Gaussian
    """z -> the event of a release: `Gaussian(z)`, or that of a splitter."""
    clipper: Clipper = clip_update
    """How a member clips its update before sending it."""

    noised_value = NoisedValue.UPDATE
    sends_parts = True
    uses_channel_factors = True

    def at(self, context: ReleaseContext) -> "CentralMean":
        """Return itself for every channel."""
        return self

    def noised_by(self, context: ReleaseContext) -> NoisedBy:
        """Return `SERVER`: the trusted server adds one noise."""
        return NoisedBy.SERVER

    def noise_multipliers(self, clients: Iterable[int]) -> dict[int, float]:
        """Return the same noise multiplier for all clients."""
        return dict.fromkeys(clients, self.noise_multiplier)

    def with_noise(self, multipliers: Mapping[int, float]) -> "CentralMean":
        """Return the same mechanism with the largest noise that any client needs."""
        return replace(self, noise_multiplier=max(multipliers.values()))

    def in_parts(self, splitter: Splitter) -> Self:
        """Return the same mechanism over parts of the model."""
        noisy_sum = splitter.noisy_sum(self.noisy_sum)
        return replace(self, noisy_sum=noisy_sum, noise_event=splitter.event, clipper=splitter.clip)

    def claim_mean(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """Claim the hand-over to the server and the noisy mean for everyone."""
        event = context.sampler.hidden_event(self.noise_event(self.noise_multiplier * context.channel.noise_factor))
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

    def client_outputs(self, updates: Updates, context: ReleaseContext) -> Iterator[ClientOutput]:
        """Yield each member's clipped update, for the trusted server."""
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
        """Raise `Refused`: a trusted server protects sums, not single clients."""
        only_sums()
        return ()

    def compute_each(self, updates: Updates, context: ReleaseContext) -> ReleaseValues:
        """Raise `Refused`, as `claim_each` does."""
        only_sums()
        return ReleaseValues({})

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
        law = f"clients keep {recall.memory.name} and train by it later, which tells who was drawn, and so who was not"
        refuse("client_state", recall.memory.name, law, 'use sampling.clients.scheme = "poisson" or "full"')


@dataclass(frozen=True)
class LocalMean(BaseMechanism):
    """Each member sends clip(update) + N(0, (z S)^2); the server averages what it receives.

    Guarantees: `Gaussian(z)` for every client in every round in which it took part, against everyone, the server
    included. Participation does not depend on data and is not claimed to hide anything: a member's own noise comes and
    goes with it, which is why Poisson amplification does not hold here.
    """

    clip_norm: float
    noise_multiplier: float
    noisy_sum: NoisySum = FLOATS
    noise_event: Callable[[float], Event] = Gaussian
    """z -> the event of a release: `Gaussian(z)`, or that of a splitter."""

    noised_value = NoisedValue.UPDATE
    uses_channel_factors = True

    def at(self, context: ReleaseContext) -> "LocalMean":
        """Return itself for every channel."""
        return self

    def noised_by(self, context: ReleaseContext) -> NoisedBy:
        """Return `CLIENT`: every member adds noise."""
        return NoisedBy.CLIENT

    def noise_multipliers(self, clients: Iterable[int]) -> dict[int, float]:
        """Return the same noise multiplier for all clients."""
        return dict.fromkeys(clients, self.noise_multiplier)

    def with_noise(self, multipliers: Mapping[int, float]) -> "LocalMean":
        """Return the same mechanism with the largest noise that any client needs."""
        return replace(self, noise_multiplier=max(multipliers.values()))

    def in_parts(self, splitter: Splitter) -> Self:
        """Return the same mechanism over parts of the model."""
        noisy_sum = splitter.noisy_sum(self.noisy_sum)
        return replace(self, noisy_sum=noisy_sum, noise_event=splitter.event)

    def claim_mean(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """Claim one release per member to the server; the mean is post-processing of them."""
        sent = self._claim_sent(updates, context, frozenset({context.channel.name}))
        inputs = tuple(range(context.next_id, context.next_id + len(sent))) + updates.sources
        return *sent, context.published_mean(inputs, "mean of noisy updates")

    def mean(self, updates: Updates, context: ReleaseContext) -> ReleaseValues:
        """Average the members' noisy updates; return zero for an empty cohort."""
        outcome = self.compute_each(updates, context)
        total = torch.zeros(updates.worker.dimension, dtype=torch.float64)
        for value in outcome.values.values():
            total += value
        # The realised count may be the divisor: participation is public here and does not depend on data.
        count = len(outcome.values)
        std = self.noise_multiplier * context.channel.noise_factor / math.sqrt(max(1, count))
        std *= sum_sensitivity(self.clip_norm * context.channel.clip_factor, context.adjacency)
        return ReleaseValues({EVERYONE: (total / max(1, count)).float()}, outcome.rejected, std)

    def claim_each(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """Claim one release per member, to the channel's audience."""
        return self._claim_sent(updates, context, context.channel.audience)

    def compute_each(self, updates: Updates, context: ReleaseContext) -> ReleaseValues:
        """Return every member's clipped and noised update."""
        left = list(updates.collect_outputs(self, context))
        return ReleaseValues({member: value for member, value, _ in left}, sum(rejected for *_, rejected in left))

    def client_outputs(self, updates: Updates, context: ReleaseContext) -> Iterator[ClientOutput]:
        """Yield each member's clipped and noised update."""
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
        """Return the clip norm plus the largest plausible noise in this dimension."""
        clip_norm = context.largest_clipped(self.clip_norm, splitter)
        noise = self.noise_multiplier * context.channel.noise_factor * sum_sensitivity(clip_norm, context.adjacency)
        # |N(0, I_d)| exceeds sqrt(d) + 9 with probability below e^-40 (Gaussian concentration of the norm).
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
        alone = context.chosen or self.keeps_noised or self.noisy_sum is not FLOATS or not all_answer(updates)
        if others < 2 or alone:
            return *sent, mean
        gatherer = frozenset({context.channel.name})
        return *(replace(one, event=Pooled(others, one.event), coins_known_to=gatherer) for one in sent), mean

    def explain_guarantee(self, *, rounds: int, delta: float, curvature: float) -> list[str]:
        """Return a sentence on who is protected by the other members' noise."""
        if self.noisy_sum is not FLOATS:
            return []
        return ["Who sees only the mean meets the noise of all clients who sent, but its own: it can learn less."]


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

    def claim_mean(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """Claim one release about all members."""
        self.check_noises(updates, context)
        alone = self.noise_event(self.noise_multiplier * context.channel.noise_factor)
        event = context.sampler.hidden_event(Pooled(len(context.channel.members) - 1, alone))
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

    def explain_guarantee(self, *, rounds: int, delta: float, curvature: float) -> list[str]:
        """Return a sentence on the purpose of everyone's noise."""
        return ["Every client sends noise in every round, drawn or not: who sees only the mean cannot tell who was."]

    def check_noises(self, updates: Updates, context: ReleaseContext) -> None:
        """Raise `Refused` if some member's noise could be missing or known."""
        name, way_out = "privacy.everyone_sends_noise", "leave it out"
        if not all_answer(updates):
            refuse(name, True, "real nodes may not answer, and then add no noise", way_out)
        if self.keeps_noised:
            refuse(name, True, "members keep values in which noise is that only they know", way_out)
        if len(context.channel.members) < 2:
            refuse(name, True, "one member's noise alone would be known to it", "add clients")

    def mean(self, updates: Updates, context: ReleaseContext) -> ReleaseValues:
        """Sum what all members send and divide by the expected cohort."""
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
        """Return the noise of a member that was not drawn."""
        # Same function, same stream, empty sum: the noise must have the very law of a drawn member's noise.
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
        """Raise `Refused`: publishing a member's own update reveals that it was drawn."""
        law = "personal models are published one by one, which tells who was drawn"
        refuse("privacy.everyone_sends_noise", True, law, "leave it out")

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
    noisy_sum: NoisySum = FLOATS
    multipliers: Mapping[int, float] = field(default_factory=dict)
    """Client -> the noise multiplier that keeps it within its target."""
    splitter: Splitter | None = None

    noised_value = NoisedValue.UPDATE
    uses_channel_factors = True

    def with_noise(self, multipliers: Mapping[int, float]) -> "NoiseByTrust":
        """Return the same mechanism; every channel takes the largest noise that one of its members needs."""
        return replace(self, multipliers=dict(multipliers))

    def at(self, context: ReleaseContext) -> CentralMean | PooledMean:
        """Return the mechanism of a channel."""
        members = context.channel.members
        # One noise covers the whole sum, so the member that needs most decides.
        noise = max((self.multipliers.get(n, self.noise_multiplier) for n in members), default=self.noise_multiplier)
        kind = CentralMean if context.channel.trusted else PooledMean
        whole = kind(self.clip_norm, noise, self.noisy_sum)
        return whole if self.splitter is None else whole.in_parts(self.splitter)

    def noised_by(self, context: ReleaseContext) -> NoisedBy:
        """Return the party of the channel's own mechanism."""
        return self.at(context).noised_by(context)

    def noise_multipliers(self, clients: Iterable[int]) -> dict[int, float]:
        """Return what each client needs; a channel takes the largest of its members."""
        return {n: self.multipliers.get(n, self.noise_multiplier) for n in clients}

    def in_parts(self, splitter: Splitter) -> "NoiseByTrust":
        """Return the same mechanism over parts of the model."""
        return replace(self, splitter=splitter)

    def claim_mean(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """Return the claims of the channel's own mechanism."""
        return self.at(context).claim_mean(updates, context)

    def mean(self, updates: Updates, context: ReleaseContext) -> ReleaseValues:
        """Return the mean of the channel's own mechanism."""
        return self.at(context).mean(updates, context)

    def claim_each(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """Return the claims of the channel's own mechanism."""
        return self.at(context).claim_each(updates, context)

    def compute_each(self, updates: Updates, context: ReleaseContext) -> ReleaseValues:
        """Return the values of the channel's own mechanism."""
        return self.at(context).compute_each(updates, context)

    def client_outputs(self, updates: Updates, context: ReleaseContext) -> Iterator[ClientOutput]:
        """Yield the outputs of the channel's own mechanism."""
        return self.at(context).client_outputs(updates, context)

    def largest_output(self, context: ReleaseContext, *, dimension: int, splitter: Splitter | None) -> float | None:
        """Return the bound of the channel's own mechanism."""
        return self.at(context).largest_output(context, dimension=dimension, splitter=splitter)

    def count_senders(self, cohort: Cohort, context: ReleaseContext) -> float:
        """Return the count of the channel's own mechanism."""
        return self.at(context).count_senders(cohort, context)
