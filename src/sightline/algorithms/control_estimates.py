"""What a controller may know of the loss: smoothness, diversity and gradient noise, from released values only.

The published estimators read raw gradients of the devices, which no observer has and which would be one more release.
Every number here is worked out of values that were released already and whose noise is known, so it costs nothing; the
known noise is taken off, and what is left counts only where it stands out of the noise.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from sightline.algorithms.contract import ChannelMean

CLEAR = 3.0
"""A squared length counts when it is so many standard deviations of its noise above it."""


@dataclass(frozen=True, eq=False)
class Slope:
    """A gradient that was read off a release: minus the mean update by (learning rate x steps), and its noise."""

    value: Tensor
    variance: float
    """Of the privacy noise in one coordinate."""

    def minus(self, other: "Slope") -> "Slope":
        """The difference of two whose noises are independent."""
        return Slope(self.value - other.value, self.variance + other.variance)

    @property
    def square(self) -> float:
        """The squared length without the noise's part; zero where it does not stand out."""
        dimension = self.value.numel()
        seen = float(self.value.double().square().sum())
        left = seen - dimension * self.variance
        spread = math.sqrt(2 * dimension) * self.variance + 2 * math.sqrt(self.variance * max(left, 0.0))
        return left if left > CLEAR * spread else 0.0


def slope_of(heard: ChannelMean) -> Slope:
    """The gradient behind one release."""
    reach = max(heard.reach, 1e-30)
    return Slope(heard.value.value / -reach, (heard.noise_std / reach) ** 2)


def mean_slope(slopes: Sequence[Slope], shares: Sequence[float]) -> Slope:
    """The weighted mean of independent slopes."""
    value = torch.zeros_like(slopes[0].value)
    for one, share in zip(slopes, shares, strict=True):
        value = value.add(one.value, alpha=share)
    return Slope(value, math.fsum(share**2 * one.variance for one, share in zip(slopes, shares, strict=True)))


def of_round(heard: Sequence[Sequence[ChannelMean]], shares: Sequence[Sequence[float]]) -> Slope:
    """The global gradient of a round: the mean over its gatherings, each by the shares of its channels."""
    found = [mean_slope(list(map(slope_of, one)), weights) for one, weights in zip(heard, shares, strict=True)]
    return mean_slope(found, [1 / len(found)] * len(found))


def estimate_smoothness(now: Slope, before: Slope, move: Tensor) -> float:
    """|g - g'| / |w - w'|: the secant, a lower estimate of beta; zero where noise covers it."""
    distance = float(move.double().square().sum())
    return math.sqrt(now.minus(before).square / distance) if distance > 0 else 0.0


def estimate_diversity(gathering: Sequence[ChannelMean], shares: Sequence[float]) -> float:
    """zeta: the root of the mean squared distance of the channels' gradients from the global one."""
    channels = list(map(slope_of, gathering))
    found = []
    for place in range(len(channels)):
        against_mean = [float(other == place) - share for other, share in enumerate(shares)]
        found.append(shares[place] * mean_slope(channels, against_mean).square)
    return math.sqrt(math.fsum(found))


def sgd_noise(heard: Sequence[Sequence[ChannelMean]]) -> float:
    """sigma: how much a subnet's gradient changes from one gathering of a round to the next; needs two gatherings.

    An upper estimate of the noise of a subnet's mean: drift between gatherings is counted as noise.
    """
    found = [
        slope_of(after).minus(slope_of(before)).square / 2
        for earlier, later in pairwise(heard)
        for before, after in zip(earlier, later, strict=False)
        if before.channel.name == after.channel.name
    ]
    return math.sqrt(math.fsum(found) / len(found)) if found else 0.0
