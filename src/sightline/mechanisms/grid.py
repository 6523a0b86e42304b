r"""Integer arithmetic: updates on a grid, summed exactly, noised by an exactly sampled rounded Gaussian.

With floats, a sum can move by more than the clip norm (rounding) and float noise has holes that tell values apart. Here
a clipped update becomes a vector of integers, truncated towards zero, whose norm is checked in integers; the sum is
exact; and value + round(sigma X) = round(value + sigma X) for an integer value, which is post-processing of the ideal
Gaussian mechanism. So `Gaussian(z)` holds to the letter, and with it every accountant and every amplification.
"""

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.events import Adjacency
from sightline.mechanisms.clip import clip, sensitivity
from sightline.mechanisms.rounded_gaussian import rounded_gaussian

UNITS = 1 << 24
"""Grid steps in one clip norm: far below the noise, and sums of 10^9 clients still fit."""
SHRINK = 1 - 2.0**-20


def on_grid(update: Tensor, *, clip_norm: float) -> tuple[NDArray[np.int64], bool]:
    """An update of norm <= C in units of C / 2^24, and whether it was rejected as not finite.

    Guarantees: the integers' squares sum to at most 4^24, checked in integers.
    """
    bounded = clip(update, clip_norm=clip_norm)
    scaled = bounded.value.double().numpy() * (UNITS / clip_norm)
    steps = np.trunc(scaled).astype(np.int64)
    while int(steps @ steps) > UNITS * UNITS:
        scaled *= SHRINK
        steps = np.trunc(scaled).astype(np.int64)
    return steps, bounded.rejected


def noisy_sum_on_grid(
    updates: Iterable[Tensor],
    *,
    dimension: int,
    clip_norm: float,
    noise_multiplier: float,
    adjacency: Adjacency,
    rng: np.random.Generator,
) -> tuple[Tensor, int]:
    """The sum of clipped updates plus N(0, (z S)^2), rounded to the grid; and how many updates were rejected."""
    total = np.zeros(dimension, dtype=np.int64)
    rejected = 0
    for update in updates:
        steps, refused = on_grid(update, clip_norm=clip_norm)
        total += steps
        rejected += refused
    total += rounded_gaussian(noise_multiplier * sensitivity(float(UNITS), adjacency), dimension, rng)
    return torch.from_numpy(total * (clip_norm / UNITS)).to(torch.float32), rejected
