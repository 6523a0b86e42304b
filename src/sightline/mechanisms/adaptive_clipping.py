"""Adaptive clipping: the clip norm follows a quantile of the updates' norms (Andrew et al. 2021, Algorithm 1).

With its update every client hands over whether the update lies inside the ball. The noised count of these moves the
clip norm of the next round, so the count is a release. Mean and count are one Gaussian release of a joint vector.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from sightline.config import AdaptiveClipping
from sightline.errors import refuse
from sightline.events import Adjacency, Event, Gaussian, Product
from sightline.ledger import Release
from sightline.mechanisms.clip_and_noise import RunningSum, sum_and_noise, sum_sensitivity
from sightline.mechanisms.contract import BaseMechanism, MechanismFacts, ReleaseContext, ReleaseValues
from sightline.mechanisms.gaussian_means import CentralMean, all_answer
from sightline.mechanisms.integer_noise import rounded_gaussian
from sightline.mechanisms.submodels import Splitter
from sightline.mechanisms.updates import ClientOutput, Updates
from sightline.randomness import EVERYONE

DEFAULT = AdaptiveClipping()
CLIP_NORM, INSIDE = "clip_norm", "inside_clip_norm"
"""The public numbers of a release: its clip norm, and the noised share of updates that lay inside it."""
COUNT_SHARE = 10.0
"""Noise multiplier of the count over that of the release, by default: the count takes 1 % of 1 / z^2."""
EDGE = 1 - 2e-6
"""An update of at least this share of the clip norm counts as clipped. A clipped update is 1 - 1e-6 of it long, so a
server that receives clipped updates counts as one that clips by itself.
"""
SMALLEST, LARGEST = 1e-20, 1e20
"""Limits of the clip norm: noise alone may drive it anywhere in a long run."""


def split_noise(noise_multiplier: float, count_noise: float | None) -> tuple[float, float]:
    """Return the noise multipliers of sum and count that make one release of `noise_multiplier`.

    Theorem 1: z_sum = (z^-2 - z_count^-2)^(-1/2). Raise `Refused` unless z_count > z.

    >>> [round(z, 4) for z in split_noise(1.0, None)]
    [1.005, 10.0]
    """
    count = COUNT_SHARE * noise_multiplier if count_noise is None else count_noise
    if not count > noise_multiplier:
        reason = f"the count needs more noise than mean and count together, which have {noise_multiplier:.4g}"
        refuse("privacy.adaptive_clipping.count_noise_multiplier", count, reason, "give a larger one, or omit it")
    # Rounded up: both together then never have less noise than one Gaussian of the multiplier that was calibrated.
    return noise_multiplier / math.sqrt(1 - (noise_multiplier / count) ** 2) * (1 + 1e-12), count


def joint_event(noise_multiplier: float, count_noise: float | None) -> Event:
    """Return the event of noisy sum and count. Inside the event of a sampler they share its draw."""
    return Product(tuple(Gaussian(z) for z in split_noise(noise_multiplier, count_noise)))


class CountingSum:
    """A running sum that also counts the updates inside and outside the clip norm.

    An update inside counts +1 and one outside -1: the indicator minus 1/2 in units of 1/2, as in the paper, so that one
    client moves the count by 1. An update that is not finite adds nothing to the sum and nothing to the count.
    """

    def __init__(self, total: RunningSum) -> None:
        self.total, self.count = total, 0

    def add(self, update: Tensor, *, clip_norm: float) -> bool:
        """Clip and add an update; return True if it was not finite and counts as zero."""
        rejected = self.total.add(update, clip_norm=clip_norm)
        if not rejected:
            norm = torch.linalg.vector_norm(update, dtype=torch.float64).item()
            self.count += 1 if norm < clip_norm * EDGE else -1
        return rejected

    def noisy_sum(
        self, *, clip_norm: float, noise_multiplier: float, adjacency: Adjacency, rng: np.random.Generator
    ) -> Tensor:
        """Return the sum plus N(0, (z S)^2)."""
        return self.total.noisy_sum(
            clip_norm=clip_norm, noise_multiplier=noise_multiplier, adjacency=adjacency, rng=rng
        )

    def noisy_count(self, *, noise_multiplier: float, adjacency: Adjacency, rng: np.random.Generator) -> int:
        """Return the count plus N(0, (z S)^2), rounded: a whole number plus exact noise has no rounding errors."""
        return self.count + int(rounded_gaussian(noise_multiplier * sum_sensitivity(1.0, adjacency), 1, rng)[0])


@dataclass(frozen=True)
class AdaptiveMean(CentralMean):
    """`CentralMean` with C_t+1 = C_t exp(-eta (b_t - gamma)), b_t the noised share of updates inside C_t.

    Guarantees: those of `CentralMean` at the same noise multiplier. In units of its noise a client adds to sum and
    count a vector of norm at most (z_sum^-2 + z_count^-2)^(1/2) = 1 / z, so every bound for one Gaussian holds for both
    together, under the same draw. The clip norm of a round is a function of earlier releases, and the noise scales with
    it.
    """

    rule: AdaptiveClipping = DEFAULT

    @property
    @override
    def facts(self) -> MechanismFacts:
        sentence = (
            f"The clip norm follows the {self.rule.quantile:g} quantile of the updates' norms. "
            "It is computed from noised counts, which are part of the releases."
        )
        return replace(super().facts, numbers=(CLIP_NORM, INSIDE), explain=lambda curvature: [sentence])

    def with_noise(self, multipliers: Mapping[int, float]) -> Self:
        """Return the same mechanism with its noise divided between sum and count."""
        # The uncalibrated mechanism claims the joint Gaussian: a given noise of the count may be too small for unit
        # noise and large enough for the calibrated one.
        return replace(
            super().with_noise(multipliers),
            noise_event=partial(joint_event, count_noise=self.rule.count_noise_multiplier),
        )

    @override
    def in_parts(self, splitter: Splitter) -> Self:
        return BaseMechanism.in_parts(self, splitter)

    def clip_norm_at(self, context: ReleaseContext) -> float:
        """Return the clip norm of a release: the first, or what the last release makes of it."""
        if not context.numbers:
            return self.clip_norm
        last, inside = context.numbers[CLIP_NORM], context.numbers[INSIDE]
        step = -self.rule.learning_rate * (inside - self.rule.quantile)
        return math.exp(min(max(math.log(last) + step, math.log(SMALLEST)), math.log(LARGEST)))

    def _with_clip_norm(self, context: ReleaseContext) -> ReleaseContext:
        """Return the context with the current clip norm as the channel's own; simulated nodes receive it as well."""
        factor = self.clip_norm_at(context) / self.clip_norm
        channel = replace(context.channel, clip_factor=context.channel.clip_factor * factor)
        return replace(context, channel=channel, numbers={})

    def claim_mean(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """Claim the hand-over to the server, and mean and count for everyone as one release."""
        # Two rows would claim two independent draws, and both rest on the same one.
        if not all_answer(updates):
            reason = "real nodes clip to the norm that their owners approved"
            refuse("privacy.adaptive_clipping", "given", reason, "remove it, or run in the simulator")
        handed, published = super().claim_mean(updates, context)
        return handed, replace(published, what=f"{published.what}, and noisy count of those inside the clip norm")

    @override
    def client_outputs(self, updates: Updates, context: ReleaseContext) -> Iterator[ClientOutput]:
        return super().client_outputs(updates, self._with_clip_norm(context))

    @override
    def largest_output(self, context: ReleaseContext, *, dimension: int, splitter: Splitter | None) -> float | None:
        return super().largest_output(self._with_clip_norm(context), dimension=dimension, splitter=splitter)

    @override
    def mean(self, updates: Updates, context: ReleaseContext) -> ReleaseValues:
        now, expected = self._with_clip_norm(context), context.sampler.expected
        noise, count_noise = split_noise(self._noise(now), self.rule.count_noise_multiplier)
        total, rng = CountingSum(self.new_sum(updates.worker.dimension)), now.noise(EVERYONE)
        noisy, rejected = sum_and_noise(
            updates.collect_updates(now),
            total,
            clip_norm=self.clip_norm * now.channel.clip_factor,
            noise_multiplier=noise,
            adjacency=now.adjacency,
            rng=rng,
        )
        # One stream: the count's noise comes after the sum's.
        count = total.noisy_count(noise_multiplier=count_noise, adjacency=now.adjacency, rng=rng)
        numbers = {CLIP_NORM: self.clip_norm_at(context), INSIDE: 0.5 + count / (2 * expected)}
        std = noise * self._sensitivity(now) / expected
        return ReleaseValues({EVERYONE: noisy / expected}, rejected, std, numbers)
