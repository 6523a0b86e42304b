"""Gaussian noise for whole gradients, fast: Box-Muller on the raw bits of the client's own generator."""

from collections.abc import Iterator
from math import pi

import numpy as np
import torch
from torch import Tensor

AHEAD = 1 << 14
"""How many normal numbers are drawn at once, when one step needs fewer."""


def draw_gaussian(size: int, *, rng: np.random.Generator) -> Tensor:
    """`size` independent standard normal float32 numbers.

    z = sqrt(-2 ln u) (cos t, sin t); u is the magnitude of a random 64-bit word, t the lower half of another pair's
    word (float32 keeps 24 bits of u, so the halves meet only where u < 2^-7, and there in u's last bits).

    Guarantees: all randomness is the generator's; tails reach 9.3 standard deviations (torch's own float32 normals end
    at 5.8, because their u has 24 bits); about three times as fast as numpy's.
    """
    pairs = max(1, -(-size // 2))
    words = random_words(pairs, rng)
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


def gaussian_steps(size: int, *, rng: np.random.Generator) -> Iterator[Tensor]:
    """A fresh vector of `size` standard normal numbers for every step, without end.

    Guarantees: every number is used once; small vectors are cut from one larger draw, which only saves time.
    """
    ahead = max(1, AHEAD // max(size, 1))
    while True:
        block = draw_gaussian(ahead * size, rng=rng).view(ahead, size)
        yield from (block[row] for row in range(ahead))  # one view at a time: most clients take few steps
