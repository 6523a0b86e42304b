"""Privacy of clients where trust ends: a trusted server noises the sum, else every device noises what it sends."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from sightline.events import Pooled
from sightline.ledger import Release
from sightline.mechanisms.client_side import LocalMean
from sightline.mechanisms.contract import BaseMechanism, NoisedBy, NoisedValue, ReleaseContext, ReleaseValues
from sightline.mechanisms.noise import FLOATS, NoisySum
from sightline.mechanisms.samplers import Cohort
from sightline.mechanisms.server_side import CentralMean
from sightline.mechanisms.submodels import Splitter
from sightline.mechanisms.updates import ClientOutput, Updates


@dataclass(frozen=True)
class PooledMean(LocalMean):
    """`LocalMean` whose single messages only the gathering server sees: everybody else sees their sum.

    Guarantees: `Gaussian(z)` against the server that gathers; against any other single observer the noises of the
    other members add up, all but the one that the observer may have added itself: `Pooled(k - 1, Gaussian(z))` for k
    members. k is who was drawn, at a rate that must not depend on what was released. Not claimed with integer
    arithmetic, where the sum of rounded noises is not a rounded Gaussian, nor for real nodes, which may not answer and
    then add no noise.
    """

    def claim_mean(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """One release per member, to the server; the mean is post-processing of them."""
        *sent, mean = super().claim_mean(updates, context)
        others = len(sent) - 1
        nodes = updates.worker.nodes
        if others < 2 or self.noisy_sum is not FLOATS or not (nodes is None or nodes.steadfast):
            return *sent, mean
        gatherer = frozenset({context.channel.name})
        return *(replace(one, event=Pooled(others, one.event), coins_known_to=gatherer) for one in sent), mean


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
