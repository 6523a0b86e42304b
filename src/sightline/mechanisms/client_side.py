"""Local privacy of clients: every client clips and noises its own update; nobody is trusted."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch

from sightline.events import Event, Gaussian
from sightline.ledger import Release
from sightline.mechanisms.clip import sum_sensitivity
from sightline.mechanisms.contract import (
    BaseMechanism,
    NoisedBy,
    NoisedValue,
    ReleaseContext,
    ReleaseValues,
    only_client,
)
from sightline.mechanisms.noise import FLOATS, NoisySum
from sightline.mechanisms.submodels import Splitter
from sightline.mechanisms.updates import ClientOutput, Updates
from sightline.randomness import EVERYONE
from sightline.topology import client_name


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
