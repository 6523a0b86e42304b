r"""Integer arithmetic: updates on a grid, summed exactly, noised by an exactly sampled rounded Gaussian.

With floats, a sum can move by more than the clip norm (rounding) and float noise has holes that tell values apart. Here
a clipped update becomes a vector of integers, truncated towards zero, whose norm is checked in integers; the sum is
exact; and value + round(sigma X) = round(value + sigma X) for an integer value, which is post-processing of the ideal
Gaussian mechanism. So `Gaussian(z)` holds to the letter, and with it every accountant and every amplification.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.events import Adjacency
from sightline.mechanisms.clip import clip_update, sum_sensitivity
from sightline.mechanisms.rounded_gaussian import rounded_gaussian

UNITS = 1 << 24
"""Grid steps in one clip norm: far below the noise, and sums of 10^9 clients still fit."""
SHRINK = 1 - 2.0**-20


def on_grid(update: Tensor, *, clip_norm: float) -> tuple[NDArray[np.int64], bool]:
    """An update of norm <= C in units of C / 2^24, and whether it was rejected as not finite.

    Guarantees: the integers' squares sum to at most 4^24, checked in integers.
    """
    bounded = clip_update(update, clip_norm=clip_norm)
    scaled = bounded.value.double().numpy() * (UNITS / clip_norm)
    steps = np.trunc(scaled).astype(np.int64)
    while int(steps @ steps) > UNITS * UNITS:
        scaled *= SHRINK
        steps = np.trunc(scaled).astype(np.int64)
    return steps, bounded.rejected


class GridSum:
    """A sum of clipped updates on the grid: exact, whatever their order."""

    def __init__(self, dimension: int) -> None:
        self.total = np.zeros(dimension, dtype=np.int64)

    def add(self, update: Tensor, *, clip_norm: float) -> bool:
        """Clip, put on the grid and add; True when the update was not finite and counts as zero."""
        steps, rejected = on_grid(update, clip_norm=clip_norm)
        self.total += steps
        return rejected

    def noisy_sum(
        self, *, clip_norm: float, noise_multiplier: float, adjacency: Adjacency, rng: np.random.Generator
    ) -> Tensor:
        """The sum plus N(0, (z S)^2), rounded to the grid."""
        std = noise_multiplier * sum_sensitivity(float(UNITS), adjacency)
        noisy = self.total + rounded_gaussian(std, len(self.total), rng)
        return torch.from_numpy(noisy * (clip_norm / UNITS)).to(torch.float32)
