"""Gaussian noise. It accepts only values that carry their sensitivity."""

import math

import numpy as np
import torch
from torch import Tensor

from sightline.errors import invalid
from sightline.events import Adjacency
from sightline.mechanisms.clip import Aggregate, ClippedSum, sum_sensitivity


def with_gaussian_noise(aggregate: Aggregate, *, noise_multiplier: float, rng: np.random.Generator) -> Tensor:
    r"""value + N(0, (z S)^2 I), in float32.

    Guarantees: the release is `Gaussian(noise_multiplier)` for every subject whose presence moves the value by at most
    `aggregate.sensitivity`, up to the floating-point limits stated in the docs.
    """
    if not (noise_multiplier > 0 and math.isfinite(noise_multiplier)):
        invalid("noise_multiplier", noise_multiplier, "noise is positive and finite")
    noise = torch.from_numpy(rng.standard_normal(aggregate.value.numel()))
    noise *= noise_multiplier * aggregate.sensitivity
    return (noise.view_as(aggregate.value) + aggregate.value).to(torch.float32)


class FloatSum(ClippedSum):
    """A sum of clipped updates in floating point."""

    def noisy_sum(
        self, *, clip_norm: float, noise_multiplier: float, adjacency: Adjacency, rng: np.random.Generator
    ) -> Tensor:
        """The sum plus N(0, (z S)^2)."""
        aggregate = Aggregate(self.total, sum_sensitivity(clip_norm, adjacency))
        return with_gaussian_noise(aggregate, noise_multiplier=noise_multiplier, rng=rng)
