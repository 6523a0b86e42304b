r"""Exact samples of a Gaussian rounded to the integers, the noise of integer arithmetic.

A sample is round(sigma X) for X ~ N(0, 1), decided bit by bit: |X| is the quantile of a uniform number of which as
many bits are drawn as the rounding needs. The first 53 settle nearly every coordinate in one vectorised pass; where
they leave the rounding open, more are drawn and compared with the Gaussian tail at the border in long arithmetic. What
comes out has the distribution of the rounded real number, not of a rounded float.
"""

import mpmath
import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

BITS = 53
"""Bits of the first draw; with a factor 1/2 they are a number in [0, 1/2) that a float64 holds exactly."""
QUANTILE_ERROR = 2.0**-40
"""A bound on the relative error of the quantile function, hundreds of times what it was measured to be."""
CHUNK = 1 << 16
MORE = 64


def rounded_gaussian(sigma: float, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Independent samples of round(sigma X)."""
    noise = np.empty(size, dtype=np.int64)
    for start in range(0, size, CHUNK):
        chunk = noise[start : start + CHUNK]
        chunk[:] = _draw_samples(sigma, len(chunk), rng)
    return noise


def _draw_samples(sigma: float, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    words = rng.integers(0, 1 << 64, size=size, dtype=np.uint64)
    negative = (words & np.uint64(1)).astype(bool)
    first = words >> np.uint64(64 - BITS)
    least, most = _bracket_magnitude(first, sigma)
    magnitude = least.astype(np.int64)
    for i in np.flatnonzero(least != most):
        magnitude[i] = _settle_magnitude(int(first[i]), int(least[i]), sigma, rng)
    return np.where(negative, -magnitude, magnitude)


def _bracket_magnitude(first: NDArray[np.uint64], sigma: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The least and the most that round(sigma |X|) can be, when P(X > |X|) lies in [first, first + 1) / 2^54.

    Over one such interval |X| moves by at most its length over the density at its end, and 1.5 / tail bounds
    1 / density (the Mills ratio); the quantile's own error comes on top.
    """
    tail = np.ldexp(first.astype(np.float64), -BITS - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        quantile = -ndtri(tail)
        slack = sigma * (QUANTILE_ERROR * quantile + np.ldexp(1.5 / tail, -BITS - 1))
        least = np.floor(np.maximum(sigma * quantile - slack, 0.0) + 0.5)
        most = np.floor(sigma * quantile + slack + 0.5)
    return np.where(first == 0, 0.0, least), most


class _Tail:
    """P(X > |X|) as far as it has been drawn: an integer number of units 2^-length, and what follows unknown."""

    def __init__(self, first: int, rng: np.random.Generator) -> None:
        self.bits, self.length, self.rng = first, BITS + 1, rng

    def passes(self, magnitude: int, sigma: float) -> bool:
        """Whether sigma |X| lies beyond the border magnitude + 1/2; draws more bits while that is open."""
        while True:
            with mpmath.workprec(self.length + 2 * MORE):
                border = (mpmath.mpf(magnitude) + mpmath.mpf(1) / 2) / mpmath.mpf(sigma)
                tail = mpmath.ldexp(mpmath.erfc(border / mpmath.sqrt(2)) / 2, self.length)
                slack = mpmath.ldexp(tail, -self.length - MORE)
                if self.bits + 1 <= tail - slack:
                    return True
                if self.bits >= tail + slack:
                    return False
            self.bits = self.bits << MORE | int(self.rng.integers(0, 1 << MORE, dtype=np.uint64))
            self.length += MORE


def _settle_magnitude(first: int, least: int, sigma: float, rng: np.random.Generator) -> int:
    """The rounded magnitude, known to be at least `least`: strides that double, then halves."""
    tail, stride = _Tail(first, rng), 1
    while tail.passes(least + stride - 1, sigma):
        least, stride = least + stride, 2 * stride
    while stride > 1:
        stride //= 2
        if tail.passes(least + stride - 1, sigma):
            least += stride
    return least
