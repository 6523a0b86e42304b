"""Clip, sum and noise in one step, in the arithmetic that the experiment asks for."""

from collections.abc import Iterable
from typing import Protocol

import numpy as np
from torch import Tensor

from sightline.events import Adjacency
from sightline.mechanisms.clip import clipped_sum
from sightline.mechanisms.gaussian import with_gaussian_noise
from sightline.mechanisms.grid import noisy_sum_on_grid


class NoisySum(Protocol):
    """The sum of clipped updates plus N(0, (z S)^2), and how many updates were not finite."""

    def __call__(
        self,
        updates: Iterable[Tensor],
        *,
        dimension: int,
        clip_norm: float,
        noise_multiplier: float,
        adjacency: Adjacency,
        rng: np.random.Generator,
    ) -> tuple[Tensor, int]:
        """`Gaussian(noise_multiplier)` for whoever sends one of the updates."""


def noisy_sum_of_floats(
    updates: Iterable[Tensor],
    *,
    dimension: int,
    clip_norm: float,
    noise_multiplier: float,
    adjacency: Adjacency,
    rng: np.random.Generator,
) -> tuple[Tensor, int]:
    """Fast, and exact up to the floating-point limits stated in the docs."""
    aggregate = clipped_sum(updates, dimension=dimension, clip_norm=clip_norm, adjacency=adjacency)
    return with_gaussian_noise(aggregate, noise_multiplier=noise_multiplier, rng=rng), aggregate.rejected


ARITHMETIC: dict[str, NoisySum] = {"float": noisy_sum_of_floats, "integer": noisy_sum_on_grid}
