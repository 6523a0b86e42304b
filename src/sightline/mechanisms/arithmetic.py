"""Clip, sum and noise in one step, in the arithmetic that the experiment asks for."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from sightline.events import Adjacency
from sightline.mechanisms.gaussian import FloatSum
from sightline.mechanisms.grid import GridSum


class RunningSum(Protocol):
    """A sum of clipped updates that grows one update at a time, and is noised at the end."""

    def add(self, update: Tensor, *, clip_norm: float) -> bool:
        """Clip and add; True when the update was not finite and counts as zero."""

    def noisy_sum(
        self, *, clip_norm: float, noise_multiplier: float, adjacency: Adjacency, rng: np.random.Generator
    ) -> Tensor:
        """The sum plus N(0, (z S)^2)."""


@dataclass(frozen=True)
class NoisySum:
    """The sum of clipped updates plus N(0, (z S)^2), and how many updates were not finite."""

    begin: Callable[[int], RunningSum]
    """dimension -> the empty sum."""

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
        total, rejected = self.begin(dimension), 0
        for update in updates:
            rejected += total.add(update, clip_norm=clip_norm)
        value = total.noisy_sum(clip_norm=clip_norm, noise_multiplier=noise_multiplier, adjacency=adjacency, rng=rng)
        return value, rejected


FLOATS = NoisySum(FloatSum)
"""Fast, and exact up to the floating-point limits stated in the docs."""
INTEGERS = NoisySum(GridSum)
"""Exact: see `grid.py`."""

ARITHMETIC: dict[str, NoisySum] = {"float": FLOATS, "integer": INTEGERS}
