"""Settings of DP-SGD per client: batches, clipping and noise; Gaussian numbers from a client's own generator."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from math import pi

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.accounting.strategies import Strategy
from sightline.data.federation import Shard
from sightline.errors import invalid
from sightline.training.augmentation import Views, clipped_sum_of_views
from sightline.training.compiled.noise import normals_of
from sightline.training.gradients import GradientWorker
from sightline.training.local_work import Index, poisson_batches

AHEAD = 1 << 14
"""How many normal numbers are drawn at once, when one step needs fewer."""


def draw_gaussian(size: int, *, rng: np.random.Generator, path: str = "torch") -> Tensor:
    """`size` independent standard normal float32 numbers.

    z = sqrt(-2 ln u) (cos t, sin t); u is the magnitude of a random 64-bit word, t the lower half of another pair's
    word (float32 keeps 24 bits of u, so the halves meet only where u < 2^-7, and there in u's last bits).

    Guarantees: all randomness is the generator's; tails reach 9.3 standard deviations (torch's own float32 normals end
    at 5.8, because their u has 24 bits); about three times as fast as numpy's. With `path` "compiled" the same function
    of the same words up to float32 rounding, in compiled code where there is some.
    """
    pairs = max(1, -(-size // 2))
    words = random_words(pairs, rng)
    if path == "compiled" and (found := normals_of(words)) is not None:
        return found[:size]
    radius = words.float().abs_().mul_(2.0**-63).clamp_min_(2.0**-64).log_().mul_(-2.0).sqrt_()
    halves = words.view(torch.int32)[::2]
    angle = torch.cat([halves[pairs // 2 :], halves[: pairs // 2]]).float().mul_(pi / 2**31)
    both = torch.empty(2, pairs)
    torch.cos(angle, out=both[0])
    torch.sin(angle, out=both[1])
    return both.mul_(radius).view(-1)[:size]


def random_words(count: int, rng: np.random.Generator) -> Tensor:
    """`count` words of 64 random bits, as int64."""
    if isinstance(rng.bit_generator, np.random.MT19937):  # its raw words have 32 bits
        return torch.from_numpy(np.frombuffer(bytearray(rng.bytes(8 * count)), np.int64))
    return torch.from_numpy(rng.bit_generator.random_raw(count).view(np.int64))


def gaussian_steps(size: int, *, rng: np.random.Generator, path: str = "torch") -> Iterator[Tensor]:
    """A fresh vector of `size` standard normal numbers for every step, without end.

    Guarantees: every number is used once; small vectors are cut from one larger draw, which only saves time.
    """
    ahead = max(1, AHEAD // max(size, 1))
    while True:
        block = draw_gaussian(ahead * size, rng=rng, path=path).view(ahead, size)
        yield from (block[row] for row in range(ahead))  # one view at a time: most clients take few steps


CHUNK = 1 << 14
"""Coordinates that are worked on at once: they stay in the processor's cache."""

Row = NDArray[np.float64]


class NoiseWalk:
    """One stream as far as it has been drawn: the last rows of n, or buffers of all. A secret."""

    def __init__(self, strategy: Strategy, dimension: int) -> None:
        self.strategy, self.releases = strategy, list[int]()
        """Of every step that was drawn, the number of the release that it noised."""
        self._last = np.zeros(dimension)
        self._kept = np.zeros((len(strategy.decays) or len(strategy.coefficients) - 1, dimension))

    @property
    def last(self) -> Row:
        """The noise of the last step that was drawn."""
        return self._last

    def advance(self, fresh: Row, release: int) -> Row:
        """n_t = z_t - what is owed to earlier steps; `fresh` is z_t, and becomes n_t."""
        walk = self._advance_buffers if self.strategy.decays else self._advance_bands
        work = np.empty(min(CHUNK, len(fresh)))
        for start in range(0, len(fresh), CHUNK):
            part = slice(start, start + CHUNK)
            walk(fresh[part], part, work[: len(fresh[part])])
        self._last = fresh
        self.releases.append(release)
        return fresh

    def _advance_bands(self, row: Row, part: slice, work: Row) -> None:
        """n_t = z_t - sum_(0 < i < p) c_i n_(t-i); n_t takes the place of the oldest."""
        step, kept = len(self.releases), self._kept
        for back in range(1, min(step, len(kept)) + 1):
            np.multiply(kept[(step - back) % len(kept), part], self.strategy.coefficients[back], out=work)
            row -= work
        kept[step % len(kept), part] = row

    def _advance_buffers(self, row: Row, part: slice, work: Row) -> None:
        """n_t = z_t - sum_j w_j s_j; s_j <- th_j s_j + n_t."""
        for weight, buffer in zip(self.strategy.weights, self._kept, strict=True):
            np.multiply(buffer[part], weight, out=work)
            row -= work
        for decay, buffer in zip(self.strategy.decays, self._kept, strict=True):
            buffer[part] *= decay
            buffer[part] += row


def correlate_steps(strategy: Strategy, fresh: Iterator[Tensor], size: int) -> Iterator[Tensor]:
    """The noise of every step of a stream, n = C^-1 z, of its rows of z; it ends with the stream.

    >>> strategy = Strategy("band", steps=3, coefficients=(1.0, 0.5), bands=2)
    >>> [step.tolist() for step in correlate_steps(strategy, iter(torch.eye(3)), 3)][2]
    [0.25, -0.5, 1.0]
    """
    walk = NoiseWalk(strategy, size)
    for step in range(strategy.steps):
        yield torch.from_numpy(walk.advance(next(fresh).double().numpy(), step)).float()


SMALLEST_CLIP_NORM = 1e-12
"""The square of a float32 below 1e-22 is zero: a gradient that small has norm zero, and would pass a smaller ball."""


def check_clip_norm(clip_norm: float) -> None:
    """Refuse a radius that norms in float32 cannot be compared with."""
    if not SMALLEST_CLIP_NORM <= clip_norm < np.inf:
        law = f"a clip norm is a number from {SMALLEST_CLIP_NORM:g} on: float32 has no norms of much smaller gradients"
        invalid("clip_norm", clip_norm, law)


@dataclass(frozen=True, eq=False)
class DPSGDSettings:
    """How each client steps in private; every sequence has one entry per client."""

    clip_norm: float
    noise_std: Sequence[float]
    sample_rates: Sequence[float]
    steps: Sequence[int]
    divisors: Sequence[float]
    sampling_rngs: Sequence[np.random.Generator]
    noise_rngs: Sequence[np.random.Generator]
    batches: Sequence[Sequence[Index]] | None = None
    views: Views | None = None
    view_rngs: Sequence[np.random.Generator] | None = None
    strategies: Sequence[Strategy | None] | None = None
    """How the noises of a client's steps belong together, where they are correlated."""

    def __post_init__(self) -> None:
        check_clip_norm(self.clip_norm)
        for std in self.noise_std:
            if not (np.isfinite(std) and std >= 0):
                invalid("noise_std", std, "is a number >= 0")
        for rate in self.sample_rates:
            if not 0 < rate <= 1:
                invalid("sample_rate", rate, "a probability lies in (0, 1]")
        for divisor in self.divisors:
            if not (np.isfinite(divisor) and divisor > 0):
                invalid("divisor", divisor, "the expected batch is a positive number")
        if (self.views is None) != (self.view_rngs is None):
            invalid("views", self.views, "every client draws its views from its own generator", "give view_rngs too")
        for laid, steps in zip(self.batches or (), self.steps, strict=False):
            if len(laid) != steps:
                invalid("batches", len(laid), f"one batch is laid down for each of the {steps} steps")
        for strategy, steps in zip(self.strategies or (), self.steps, strict=False):
            if strategy is not None and (self.batches is None or steps != strategy.steps):
                invalid("steps", steps, f"a stream has {strategy.steps}, whose batches are laid down")

    def batches_of(self, client: int, examples: int) -> Iterator[Index | None]:
        """The batches of one client, drawn by its own generator or as they were scheduled."""
        if self.batches is not None:
            return iter(self.batches[client])
        return poisson_batches(examples, self.sample_rates[client], self.steps[client], self.sampling_rngs[client])

    def write_sum(
        self, worker: GradientWorker, shard: Shard, x: Tensor, y: Tensor, batch: Index | None, client: int
    ) -> None:
        """Write the clipped sum of a batch to the worker's gradient; `x` and `y` are the shard's where it is."""
        index = None if batch is None else worker.place_tensor(torch.from_numpy(batch))
        some = y if index is None else y[index]
        if self.views is None or self.view_rngs is None:
            worker.clipped_sum(x if index is None else x[index], some, self.clip_norm)
        else:
            seen = shard.x if batch is None else shard.x[batch]
            clipped_sum_of_views(worker, seen, some, self.clip_norm, self.views, self.view_rngs[client])

    def noise_of(self, client: int, size: int, path: str = "torch") -> Iterator[Tensor | None]:
        """The noise of each step before it is scaled by `noise_std`: standard normal vectors, or none.

        `path` is that of `Paths.noise`.
        """
        if self.noise_std[client] == 0:
            return repeat(None)
        fresh = gaussian_steps(size, rng=self.noise_rngs[client], path=path)
        strategy = None if self.strategies is None else self.strategies[client]
        return fresh if strategy is None else correlate_steps(strategy, fresh, size)
