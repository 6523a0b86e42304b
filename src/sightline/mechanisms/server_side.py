"""Central privacy of clients: a trusted server clips, sums, noises once, and publishes the mean."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Self

from sightline.events import Event, Gaussian
from sightline.ledger import Release
from sightline.mechanisms.clip import Clipper, clip_update, sum_sensitivity
from sightline.mechanisms.contract import BaseMechanism, NoisedBy, NoisedValue, ReleaseContext, ReleaseValues, only_sums
from sightline.mechanisms.noise import FLOATS, NoisySum
from sightline.mechanisms.samplers import Cohort
from sightline.mechanisms.submodels import Splitter
from sightline.mechanisms.updates import ClientOutput, Updates
from sightline.randomness import EVERYONE


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
        published = context.make_release(
            source=context.channel.name,
            event=context.sampler.hidden_event(self.noise_event(self.noise_multiplier * context.channel.noise_factor)),
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
        """Refused, as `claims_each` is."""
        only_sums()
        return ReleaseValues({})

    def count_senders(self, cohort: Cohort, context: ReleaseContext) -> float:
        """The expected cohort: the true one is a secret."""
        return context.sampler.expected
