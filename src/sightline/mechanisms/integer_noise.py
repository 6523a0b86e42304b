"""Exact samples of a Gaussian rounded to whole numbers: integer noise without floating-point errors."""

import mpmath
import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from sightline.training.dp_sgd_settings import random_words

BITS = 53
"""Bits of the first draw; halved, they are a number in [0, 1/2) that float64 represents exactly."""
QUANTILE_ERROR = 2.0**-40
"""Bound on the relative error of `ndtri`, about 2,000 times the largest error measured against long arithmetic."""
# Coordinates per vectorised draw, and bits per refinement of a single coordinate.
CHUNK = 1 << 16
MORE = 64


def rounded_gaussian(sigma: float, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return `size` independent exact samples of round(sigma X), X standard normal."""
    # For an integer v, v + round(s X) = round(v + s X): rounding the ideal Gaussian mechanism is post-processing of it.
    # So every event and accountant for the Gaussian holds here with the same numbers, which a discrete Gaussian would
    # not give.
    noise = np.empty(size, dtype=np.int64)
    for start in range(0, size, CHUNK):
        chunk = noise[start : start + CHUNK]
        chunk[:] = _draw_samples(sigma, len(chunk), rng)
    return noise


def _draw_samples(sigma: float, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    words = random_words(size, rng).numpy().view(np.uint64)
    # One word gives sign and magnitude: bit 0 is not among the top 53 bits, so they are independent.
    negative = (words & np.uint64(1)).astype(bool)
    first = words >> np.uint64(64 - BITS)
    least, most = _bracket_magnitude(first, sigma)
    magnitude = least.astype(np.int64)
    for i in np.flatnonzero(least != most):
        magnitude[i] = _settle_magnitude(int(first[i]), int(least[i]), sigma, rng)
    return np.where(negative, -magnitude, magnitude)


def _bracket_magnitude(first: NDArray[np.uint64], sigma: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the least and the largest possible round(sigma |X|), given the first bits of P(X > |X|).

    The probability lies in [first, first + 1) / 2^54. Over that interval |X| moves by at most its length over the
    density at its end, and 1.5 / tail bounds 1 / density (the Mills ratio); the error of the quantile is added.
    """
    tail = np.ldexp(first.astype(np.float64), -BITS - 1)
    # first = 0 has no lower tail bound: its quantile is infinite, and the long arithmetic decides from zero upwards.
    with np.errstate(divide="ignore", invalid="ignore"):
        quantile = -ndtri(tail)
        slack = sigma * (QUANTILE_ERROR * quantile + np.ldexp(1.5 / tail, -BITS - 1))
        least = np.floor(np.maximum(sigma * quantile - slack, 0.0) + 0.5)
        most = np.floor(sigma * quantile + slack + 0.5)
    return np.where(first == 0, 0.0, least), most


class _Tail:
    """P(X > |X|) as far as it has been drawn: an integer number of units 2^-length, the rest still unknown."""

    def __init__(self, first: int, rng: np.random.Generator) -> None:
        self.bits, self.length, self.rng = first, BITS + 1, rng

    def passes(self, magnitude: int, sigma: float) -> bool:
        """Return whether sigma |X| lies beyond magnitude + 1/2; draw more bits until that is decided."""
        while True:
            # Bits are only ever appended, so every comparison sees the same uniform number, and the sample is exact.
            # How long this takes depends on the noise; only an observer that can time single coordinates learns
            # anything from that.
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
    """Return the rounded magnitude, known to be at least `least`: double the stride, then bisect."""
    tail, stride = _Tail(first, rng), 1
    while tail.passes(least + stride - 1, sigma):
        least, stride = least + stride, 2 * stride
    while stride > 1:
        stride //= 2
        if tail.passes(least + stride - 1, sigma):
            least += stride
    return least
