"""Settings of DP-SGD per client: batches, views of an example, clip norm and noise."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import repeat
from math import pi

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.accounting.strategies import Strategy
from sightline.data.federation import Shard
from sightline.errors import invalid
from sightline.training.compiled.library import normals_of
from sightline.training.gradients import GradientWorker, equal_chunks
from sightline.training.local_work import Index, poisson_batches

Inputs = NDArray[np.float32] | NDArray[np.int64]
VIEW_BYTES = 1 << 25
"""Memory limit for the views of one chunk of examples."""


class ViewKind(StrEnum):
    """Augmentations of an image."""

    SHIFT = "shift"
    FLIP = "flip"
    SHIFT_FLIP = "shift_flip"


@dataclass(frozen=True)
class Views:
    """The image and `count` - 1 variants: shifted by up to `pixels` each way, mirrored left to right, or both."""

    count: int
    kind: ViewKind
    pixels: int = 2

    def __post_init__(self) -> None:
        if self.count < 1 or self.pixels < 0 or (self.kind is ViewKind.FLIP and self.count != 2):
            invalid(
                "views", self, "count must be at least 1, pixels must not be negative, and mirroring needs two views"
            )

    def of(self, x: Inputs, *, rng: np.random.Generator) -> Inputs:
        """Return (n, channels, height, width) -> (n * count, ...): each example's views together, the original first.

        Guarantees: every example's views are drawn independently of each other and of the data.
        """
        if x.ndim != 4:
            invalid("local.augment.kind", self.kind, "this kind of view needs images", "remove local.augment")
        n, (height, width) = len(x), x.shape[2:]
        down, right, mirrored = self._draw_shifts(n, rng)
        margin = self.pixels
        padded = np.pad(x, ((0, 0), (0, 0), (margin, margin), (margin, margin)))
        rows = margin + np.arange(height) - down[..., None]
        columns = np.where(mirrored[..., None], np.arange(width)[::-1], np.arange(width)) + margin - right[..., None]
        which = np.arange(n)[:, None, None, None]
        views = padded.transpose(0, 2, 3, 1)[which, rows[..., None], columns[:, :, None]]
        return np.ascontiguousarray(views.reshape(n * self.count, height, width, -1).transpose(0, 3, 1, 2))

    def _draw_shifts(
        self, n: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool]]:
        """Return (down, right, mirrored), one row per example; the first column is the unchanged image."""
        size = (n, self.count)
        down, right, mirrored = np.zeros(size, np.int64), np.zeros(size, np.int64), np.zeros(size, np.bool)
        if self.kind is not ViewKind.FLIP:
            moves = rng.integers(-self.pixels, self.pixels + 1, size=(n, self.count - 1, 2))
            down[:, 1:], right[:, 1:] = moves[..., 0], moves[..., 1]
        if self.kind is ViewKind.FLIP:
            mirrored[:, 1:] = True
        if self.kind is ViewKind.SHIFT_FLIP:
            mirrored[:, 1:] = rng.random((n, self.count - 1)) < 0.5
        return down, right, mirrored


def clipped_sum_of_views(
    worker: GradientWorker, x: Inputs, y: Tensor, clip_norm: float, views: Views, rng: np.random.Generator
) -> None:
    r"""Write sum_j clip((1/K) sum_k g_jk, C) to the worker's gradient, g_jk being the gradient of view k of example j.

    Guarantees: one example moves the sum by at most C. An example with a non-finite view contributes zero. Memory is
    bounded for any batch size.
    """
    # Views are averaged before clipping: one example still moves the sum by C, so the event and the noise stay the
    # same. Clipping each view separately has the same bound but shortens the gradient more (De et al. 2022).
    total = worker.gradient.new_zeros(worker.gradient.shape)
    for chunk in equal_chunks(len(y), max(1, VIEW_BYTES // (views.count * max(1, x[:1].nbytes)))):
        seen = worker.inputs(views.of(x[chunk], rng=rng))
        worker.clipped_sum(seen, y[chunk], clip_norm, views=views.count)
        total += worker.gradient
    worker.gradient.copy_(total)


AHEAD = 1 << 14
"""Normal numbers drawn at once if one step needs fewer."""


def draw_gaussian(size: int, *, rng: np.random.Generator, path: str = "torch") -> Tensor:
    """Return `size` independent standard normal float32 numbers.

    z = sqrt(-2 ln u) (cos t, sin t). u is the magnitude of a random 64-bit word, t the lower half of another pair's
    word. (float32 keeps 24 bits of u, so the halves overlap only where u < 2^-7, and there in u's last bits.)

    Guarantees: all randomness comes from the generator. Tails reach 9.3 standard deviations (torch's own float32
    normals end at 5.8, because their u has 24 bits). About three times as fast as numpy. With `path` "compiled" it is
    the same function of the same words up to float32 rounding, in compiled code if available.
    """
    pairs = max(1, -(-size // 2))
    bits = random_words(pairs, rng)
    if path == "compiled" and (result := normals_of(bits)) is not None:
        return result[:size]
    # The clamp avoids ln 0: a word of 0 has probability 2^-64 and becomes the longest radius.
    radius = bits.float().abs_().mul_(2.0**-63).clamp_min_(2.0**-64).log_().mul_(-2.0).sqrt_()
    halves = bits.view(torch.int32)[::2]
    angle = torch.cat([halves[pairs // 2 :], halves[: pairs // 2]]).float().mul_(pi / 2**31)
    both = torch.empty(2, pairs)
    torch.cos(angle, out=both[0])
    torch.sin(angle, out=both[1])
    return both.mul_(radius).view(-1)[:size]


def random_words(count: int, rng: np.random.Generator) -> Tensor:
    """Return `count` words of 64 random bits, as int64."""
    # Raw words of the Mersenne Twister have 32 bits only.
    if isinstance(rng.bit_generator, np.random.MT19937):
        return torch.from_numpy(np.frombuffer(bytearray(rng.bytes(8 * count)), np.int64))
    return torch.from_numpy(rng.bit_generator.random_raw(count).view(np.int64))


def gaussian_steps(size: int, *, rng: np.random.Generator, path: str = "torch") -> Iterator[Tensor]:
    """Yield a fresh vector of `size` standard normal numbers for every step, without end.

    Guarantees: every number is used once. Small vectors are cut from one larger draw to save time.
    """
    ahead = max(1, AHEAD // max(size, 1))
    while True:
        block = draw_gaussian(ahead * size, rng=rng, path=path).view(ahead, size)
        # One view at a time: most clients take few steps.
        yield from (block[row] for row in range(ahead))


CHUNK = 1 << 14
"""Coordinates processed at once, so that they stay in the cache."""

Row = NDArray[np.float64]


class NoiseWalk:
    """One stream of correlated noise, as far as it is drawn: the last rows of n, or all buffers. Secret."""

    def __init__(self, strategy: Strategy, dimension: int) -> None:
        self.strategy, self.releases = strategy, list[int]()
        """For every drawn step, the number of the release that it noised."""
        self._last = np.zeros(dimension)
        self._kept = np.zeros((len(strategy.decays) or len(strategy.coefficients) - 1, dimension))

    @property
    def last(self) -> Row:
        """The noise of the last step."""
        return self._last

    def advance(self, fresh: Row, release: int) -> Row:
        """Return n_t = z_t - (terms of earlier steps); `fresh` is z_t and is overwritten with n_t."""
        walk = self._advance_buffers if self.strategy.decays else self._advance_bands
        work = np.empty(min(CHUNK, len(fresh)))
        for start in range(0, len(fresh), CHUNK):
            part = slice(start, start + CHUNK)
            walk(fresh[part], part, work[: len(fresh[part])])
        self._last = fresh
        self.releases.append(release)
        return fresh

    def _advance_bands(self, row: Row, part: slice, work: Row) -> None:
        """Compute n_t = z_t - sum_(0 < i < p) c_i n_(t-i); n_t replaces the oldest row."""
        step, kept = len(self.releases), self._kept
        for back in range(1, min(step, len(kept)) + 1):
            np.multiply(kept[(step - back) % len(kept), part], self.strategy.coefficients[back], out=work)
            row -= work
        kept[step % len(kept), part] = row

    def _advance_buffers(self, row: Row, part: slice, work: Row) -> None:
        """Compute n_t = z_t - sum_j w_j s_j; s_j <- th_j s_j + n_t."""
        for weight, buffer in zip(self.strategy.weights, self._kept, strict=True):
            np.multiply(buffer[part], weight, out=work)
            row -= work
        for decay, buffer in zip(self.strategy.decays, self._kept, strict=True):
            buffer[part] *= decay
            buffer[part] += row


def correlate_steps(strategy: Strategy, fresh: Iterator[Tensor], size: int) -> Iterator[Tensor]:
    """Yield the noise of every step of a stream, n = C^-1 z, from rows of z; end with the stream.

    >>> strategy = Strategy("band", steps=3, coefficients=(1.0, 0.5), bands=2)
    >>> [step.tolist() for step in correlate_steps(strategy, iter(torch.eye(3)), 3)][2]
    [0.25, -0.5, 1.0]
    """
    # In double precision: the recursion runs over all steps, and float32 rounding would accumulate.
    walk = NoiseWalk(strategy, size)
    for step in range(strategy.steps):
        yield torch.from_numpy(walk.advance(next(fresh).double().numpy(), step)).float()


SMALLEST_CLIP_NORM = 1e-12
"""Squares of float32 numbers below 1e-22 underflow to zero: a gradient that small has norm zero and would pass a
smaller ball."""


def check_clip_norm(clip_norm: float) -> None:
    """Raise for a clip norm that float32 norms cannot be compared with."""
    if not SMALLEST_CLIP_NORM <= clip_norm < np.inf:
        reason = f"must be a number >= {SMALLEST_CLIP_NORM:g}: float32 cannot hold norms of much smaller gradients"
        invalid("clip_norm", clip_norm, reason)


@dataclass(frozen=True, eq=False)
class DPSGDSettings:
    """How each client takes private steps; every sequence has one entry per client."""

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
    """How the noise of a client's steps is correlated, if it is."""

    def __post_init__(self) -> None:
        check_clip_norm(self.clip_norm)
        for std in self.noise_std:
            if not (np.isfinite(std) and std >= 0):
                invalid("noise_std", std, "must be a number >= 0")
        for rate in self.sample_rates:
            if not 0 < rate <= 1:
                invalid("sample_rate", rate, "must be in (0, 1]")
        for divisor in self.divisors:
            if not (np.isfinite(divisor) and divisor > 0):
                invalid("divisor", divisor, "the expected batch size must be a positive number")
        if (self.views is None) != (self.view_rngs is None):
            invalid("views", self.views, "every client needs its own generator for views", "give view_rngs too")
        for laid, steps in zip(self.batches or (), self.steps, strict=False):
            if len(laid) != steps:
                invalid("batches", len(laid), f"there must be one batch for each of the {steps} steps")
        for strategy, steps in zip(self.strategies or (), self.steps, strict=False):
            # The cost of correlated noise depends on when an example takes part, so its batches are scheduled, never
            # drawn.
            if strategy is not None and (self.batches is None or steps != strategy.steps):
                invalid("steps", steps, f"the noise stream has {strategy.steps} steps with fixed batches")

    def batches_of(self, client: int, examples: int) -> Iterator[Index | None]:
        """Return the batches of one client, drawn by its own generator or as scheduled."""
        if self.batches is not None:
            return iter(self.batches[client])
        return poisson_batches(examples, self.sample_rates[client], self.steps[client], self.sampling_rngs[client])

    def write_sum(
        self, worker: GradientWorker, shard: Shard, x: Tensor, y: Tensor, batch: Index | None, client: int
    ) -> None:
        """Write the clipped sum of a batch to the worker's gradient; `x` and `y` are the shard's tensors."""
        index = None if batch is None else worker.place_tensor(torch.from_numpy(batch))
        labels = y if index is None else y[index]
        if self.views is None or self.view_rngs is None:
            worker.clipped_sum(x if index is None else x[index], labels, self.clip_norm)
        else:
            seen = shard.x if batch is None else shard.x[batch]
            clipped_sum_of_views(worker, seen, labels, self.clip_norm, self.views, self.view_rngs[client])

    def noise_of(self, client: int, size: int, path: str = "torch") -> Iterator[Tensor | None]:
        """Return an iterator over the unscaled noise of each step: standard normal vectors, or None for no noise.

        `path` is that of `Paths.noise`.
        """
        if self.noise_std[client] == 0:
            return repeat(None)
        fresh = gaussian_steps(size, rng=self.noise_rngs[client], path=path)
        strategy = None if self.strategies is None else self.strategies[client]
        return fresh if strategy is None else correlate_steps(strategy, fresh, size)
