"""True k-of-T by Monte Carlo: how much the block bound gives away. A statistical estimate, not a guarantee.

Under Q the steps are independent, and L = e_k(X_1, ..., X_T) / C(T, k), the elementary symmetric mean of lognormals.
Samples come from P and from P with two stronger shifts, a third each, so that rare large losses are seen often and
weights stay bounded.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from sightline.accounting.likelihood_ratio import Array
from sightline.errors import invalid

BATCH = 2048
"""Draws at a time, so that the recursion stays in the processor's cache."""


@dataclass(frozen=True)
class Estimate:
    """A Monte Carlo value with a two-sided confidence interval (normal approximation); not an upper bound."""

    value: float
    low: float
    high: float
    confidence: float


@dataclass(frozen=True, eq=False)
class Sample:
    """Draws of log L with weights such that P-expectations are weighted means."""

    log_ratio: Array
    weight: Array

    def delta(self, epsilon: float, confidence: float = 0.999) -> Estimate:
        """E_P[(1 - e^eps / L)_+] with its confidence interval."""
        gain = self.weight * -np.expm1(np.minimum(epsilon - self.log_ratio, 0.0))
        mean = float(gain.mean())
        margin = float(-ndtri((1 - confidence) / 2)) * float(gain.std(ddof=1)) / math.sqrt(len(gain))
        return Estimate(mean, max(mean - margin, 0.0), mean + margin, confidence)

    def epsilon(self, delta: float, confidence: float = 0.999) -> Estimate:
        """Epsilon at delta; the ends are those at which the interval of delta crosses it."""
        value, low, high = (self._crossing(delta, confidence, end) for end in ("value", "low", "high"))
        return Estimate(value, low, high, confidence)

    def _crossing(self, delta: float, confidence: float, end: str) -> float:
        low, high = 0.0, float(self.log_ratio.max())
        for _ in range(50):
            middle = (low + high) / 2
            above = getattr(self.delta(middle, confidence), end) > delta
            low, high = (middle, high) if above else (low, middle)
        return high


def sample_schedule(
    *, steps: int, uses: int, noise: float, draws: int, rng: np.random.Generator, around: float
) -> Sample:
    """Draws of the true k-of-T likelihood ratio, concentrated where log L is near `around` (say, the block bound's
    epsilon).

    Forward direction (with the subject against without), which is the larger one.
    """
    if not 1 <= uses <= steps:
        invalid("uses", uses, "a subject is used in 1 to `steps` steps")
    s = 1 / noise
    strengths = [s, *(s * factor for factor in stretches(steps, uses, s, around))]
    batches = [min(BATCH, draws - begun) for begun in range(0, draws, BATCH)]
    drawn = [draw(steps, uses, strengths, size, rng) for size in batches]
    return Sample(*(np.concatenate(columns) for columns in zip(*drawn, strict=True)))


def draw(steps: int, uses: int, strengths: list[float], size: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """log L and weights of some draws from the equal mixture of all strengths; the first is the true one."""
    observed = rng.standard_normal((steps, size))
    observed[:uses] += np.resize(strengths, size)
    plain, *stronger = (log_symmetric_mean(observed, uses, strength) for strength in strengths)
    mixture = np.logaddexp.reduce([np.zeros(size), *(other - plain for other in stronger)]) - math.log(len(strengths))
    return plain, np.exp(-mixture)


def stretches(steps: int, uses: int, s: float, around: float) -> tuple[float, float]:
    """By how much to strengthen the shift so that log L is typically about `around`: undiluted, and diluted by T/k."""
    undiluted = around / (uses * s * s) + 0.5
    diluted = undiluted + math.log(steps / uses) / (s * s)
    return min(4.0, max(1.2, undiluted)), min(5.0, max(1.5, diluted))


def log_symmetric_mean(observed: Array, uses: int, s: float) -> Array:
    """log of e_k(x_1..x_T) / C(T, k) with x = exp(s y - s^2/2), by the recursion on normalised symmetric means.

    a_j(t) = ((t - j) a_j(t - 1) + j x_t a_(j-1)(t - 1)) / t: all terms positive, nothing cancels.
    """
    steps, draws = observed.shape
    scale = np.zeros(draws)
    means = np.zeros((uses + 1, draws))
    means[0] = 1.0
    j = np.arange(1, uses + 1, dtype=np.float64)[:, None]
    for t in range(1, steps + 1):
        ratio = np.exp(s * observed[t - 1] - s * s / 2)
        means[1:] = (np.maximum(t - j, 0.0) * means[1:] + j * ratio * means[:-1]) / t
        if t % 32 == 0:
            top = means.max(axis=0)
            means /= top
            scale += np.log(top)
    return np.asarray(np.log(means[uses]) + scale)
