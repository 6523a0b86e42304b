"""Clip updates, sum them with a known sensitivity and add Gaussian noise, in floating point or in exact integers."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.errors import invalid
from sightline.events import Adjacency
from sightline.mechanisms.integer_noise import rounded_gaussian


@dataclass(frozen=True, eq=False)
class Bounded:
    """A vector whose Euclidean norm is at most `norm`."""

    value: Tensor
    norm: float
    rejected: bool = False
    """Whether the update was not finite and was replaced by zero."""


@dataclass(frozen=True, eq=False)
class Aggregate:
    """A sum, and how far one subject can move it."""

    value: Tensor
    sensitivity: float | Tensor
    """One bound; or the noise scale of every coordinate, if pieces of the vector are clipped and noised separately."""
    rejected: int = 0


SMALLEST_RADIUS = 1e-30
"""Smallest clip norm. Below 1e-38 float32 rounds up by more than the ball is shrunk; at 1e-30 even a model of 10^12
numbers stays inside the ball.
"""


def clip_update(update: Tensor, *, clip_norm: float) -> Bounded:
    """Scale an update onto the ball of radius C: u * C / max(|u|, C).

    Guarantees: norm <= C (1 + d 2^-53) for d numbers, 1e-9 at ten million: the norm is summed in double precision, and
    float32 rounding of a scaled update is covered by shrinking its ball by one part in a million; an update inside the
    ball is returned bit-identical; a non-finite update becomes zero, so that one broken client can neither pass nor
    stop a round.

    >>> clip_update(torch.tensor([3.0, 4.0]), clip_norm=1.0).value
    tensor([0.6000, 0.8000])
    """
    if not SMALLEST_RADIUS <= clip_norm < math.inf:
        invalid("clip_norm", clip_norm, f"a clip norm must be finite and at least {SMALLEST_RADIUS:g}")
    # The privacy proof needs norm <= C for the vector that is summed, after all rounding. A float32 sum of millions of
    # squares can come out too small, and the update would then be longer than claimed.
    norm = torch.linalg.vector_norm(update, dtype=torch.float64).item()
    if not math.isfinite(norm):
        return Bounded(torch.zeros_like(update), clip_norm, rejected=True)
    if norm <= clip_norm:
        return Bounded(update, clip_norm)
    return Bounded(update * (clip_norm / norm * (1 - 1e-6)), clip_norm)


class Clipper(Protocol):
    """A function that clips one update."""

    def __call__(self, update: Tensor, *, clip_norm: float) -> Bounded:
        """Return the update inside its ball, or balls."""


class ClippedSum:
    """A running sum of clipped updates in float64, in the order given."""

    def __init__(self, dimension: int) -> None:
        self.total = torch.zeros(dimension, dtype=torch.float64)

    def add(self, update: Tensor, *, clip_norm: float) -> bool:
        """Clip and add an update; return True if it was not finite and counts as zero."""
        bounded = clip_update(update, clip_norm=clip_norm)
        self.total += bounded.value
        return bounded.rejected


def clipped_sum(
    updates: Iterable[tuple[int, Tensor]], *, dimension: int, clip_norm: float, adjacency: Adjacency
) -> Aggregate:
    """Return the sum of clipped (client, update) pairs, added one at a time in the order given.

    Guarantees: adding, removing or zeroing one update moves the sum by at most C, replacing one by at most 2C; the
    result does not depend on how the updates were batched.
    """
    total = ClippedSum(dimension)
    rejected = sum(total.add(update, clip_norm=clip_norm) for _, update in updates)
    return Aggregate(total.total, sum_sensitivity(clip_norm, adjacency), rejected)


def sum_sensitivity(clip_norm: float, adjacency: Adjacency) -> float:
    """Return how far one subject moves a sum of vectors of norm <= C: C if zeroed out, 2C if replaced."""
    return 2 * clip_norm if adjacency is Adjacency.REPLACE else clip_norm


class FiniteOnly:
    """Replaces updates that are not finite by zero, and counts them."""

    def __init__(self) -> None:
        self.rejected = 0

    def __call__(self, updates: Iterable[tuple[int, Tensor]]) -> Iterator[tuple[int, Tensor]]:
        """Yield the same (client, update) pairs with zeros for updates that are not finite."""
        for client, update in updates:
            finite = bool(torch.isfinite(update).all())
            self.rejected += not finite
            yield client, update if finite else torch.zeros_like(update)


def with_gaussian_noise(aggregate: Aggregate, *, noise_multiplier: float, rng: np.random.Generator) -> Tensor:
    """Return value + N(0, (z S)^2 I), in float32.

    Guarantees: the release is `Gaussian(noise_multiplier)` for every subject whose presence moves the value by at most
    `aggregate.sensitivity`, up to the floating-point limits stated in the docs.
    """
    if not (noise_multiplier > 0 and math.isfinite(noise_multiplier)):
        invalid("noise_multiplier", noise_multiplier, "must be positive and finite")
    # Noise and sum are added in float64 and rounded once: rounding the noisy value is post-processing.
    noise = torch.from_numpy(rng.standard_normal(aggregate.value.numel()))
    noise *= noise_multiplier * aggregate.sensitivity
    return (noise.view_as(aggregate.value) + aggregate.value).to(torch.float32)


class FloatSum(ClippedSum):
    """A running sum of clipped updates in floating point."""

    def noisy_sum(
        self, *, clip_norm: float, noise_multiplier: float, adjacency: Adjacency, rng: np.random.Generator
    ) -> Tensor:
        """Return the sum plus N(0, (z S)^2)."""
        aggregate = Aggregate(self.total, sum_sensitivity(clip_norm, adjacency))
        return with_gaussian_noise(aggregate, noise_multiplier=noise_multiplier, rng=rng)


UNITS = 1 << 24
"""Grid steps per clip norm: far finer than the noise, and int64 still holds sums of 10^9 clients."""
SHRINK = 1 - 2.0**-20


def on_grid(update: Tensor, *, clip_norm: float) -> tuple[NDArray[np.int64], bool]:
    """Return an update of norm <= C in units of C / 2^24, and whether it was rejected as not finite.

    Guarantees: the integers' squares sum to at most 4^24, checked in integers.
    """
    bounded = clip_update(update, clip_norm=clip_norm)
    scaled = bounded.value.double().numpy() * (UNITS / clip_norm)
    # Truncation towards zero never lengthens a vector. The check in integers makes the sensitivity exact, whatever
    # floating point did before it.
    steps = np.trunc(scaled).astype(np.int64)
    while int(steps @ steps) > UNITS * UNITS:
        scaled *= SHRINK
        steps = np.trunc(scaled).astype(np.int64)
    return steps, bounded.rejected


class GridSum:
    """A running sum of clipped updates on the integer grid: exact in any order."""

    def __init__(self, dimension: int) -> None:
        self.total = np.zeros(dimension, dtype=np.int64)

    def add(self, update: Tensor, *, clip_norm: float) -> bool:
        """Clip, round to the grid and add; return True if the update was not finite and counts as zero."""
        steps, rejected = on_grid(update, clip_norm=clip_norm)
        self.total += steps
        return rejected

    def noisy_sum(
        self, *, clip_norm: float, noise_multiplier: float, adjacency: Adjacency, rng: np.random.Generator
    ) -> Tensor:
        """Return the sum plus N(0, (z S)^2), rounded to the grid."""
        std = noise_multiplier * sum_sensitivity(float(UNITS), adjacency)
        noisy = self.total + rounded_gaussian(std, len(self.total), rng)
        return torch.from_numpy(noisy * (clip_norm / UNITS)).to(torch.float32)


class RunningSum(Protocol):
    """A sum of clipped updates that grows one update at a time and is noised at the end."""

    def add(self, update: Tensor, *, clip_norm: float) -> bool:
        """Clip and add an update; return True if it was not finite and counts as zero."""

    def noisy_sum(
        self, *, clip_norm: float, noise_multiplier: float, adjacency: Adjacency, rng: np.random.Generator
    ) -> Tensor:
        """Return the sum plus N(0, (z S)^2)."""


NewSum = Callable[[int], RunningSum]
"""Returns an empty sum of the given dimension."""


def sum_and_noise(
    updates: Iterable[tuple[int, Tensor]],
    total: RunningSum,
    *,
    clip_norm: float,
    noise_multiplier: float,
    adjacency: Adjacency,
    rng: np.random.Generator,
) -> tuple[Tensor, int]:
    """Train, clip, sum and noise: return the noisy sum of (client, update) and how many updates were not finite.

    Guarantees: the sum is `Gaussian(noise_multiplier)` for each sender.
    """
    rejected = 0
    # Clients train inside this loop: `updates` yields an update when it is asked for, so only one is in memory.
    for _, update in updates:
        rejected += total.add(update, clip_norm=clip_norm)
    # The noise is drawn after the last update.
    noisy = total.noisy_sum(clip_norm=clip_norm, noise_multiplier=noise_multiplier, adjacency=adjacency, rng=rng)
    return noisy, rejected


ARITHMETIC: dict[str, NewSum] = {"float": FloatSum, "integer": GridSum}
"""Floating point is fast, and exact up to the limits stated in the docs; integers are exact."""
