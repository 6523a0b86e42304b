"""Losses of one direction, sums of them, and the order by which a sum is tilted to where the answer lies.

One direction of a law is a distribution of losses y under the measure that the adversary compares (P forward, Q
backward), with some mass at infinite loss; delta(eps) = mass at infinity + E[(1 - e^(eps - y))_+]. Before the
transform every mass is multiplied by e^(order * y) and normalised, so that the composed law is centred at the answer:
rounding errors are then relative to the answer, not to one.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sightline.accounting.law import Array, Law

UNIT = 2.0**-53


@dataclass(frozen=True, eq=False)
class Losses:
    """Mass at the losses start + step * j, and at infinite loss."""

    start: float
    step: float
    mass: Array
    infinite: float

    @property
    def loss(self) -> Array:
        """The lattice of losses, increasing."""
        return np.asarray(self.start + self.step * np.arange(len(self.mass)))

    @cached_property
    def index(self) -> Array:
        """0, 1, 2, ..."""
        return np.arange(len(self.mass), dtype=np.float64)

    @cached_property
    def log_mass(self) -> Array:
        """Logarithms of the masses."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.mass))

    def tilted_exponents(self, order: float) -> Array:
        """log mass + order * (y - start)."""
        return np.asarray(self.log_mass + (order * self.step) * self.index)


def forward_losses_of(law: Law) -> Losses:
    """log L under P: what the mechanism with the subject shows."""
    return Losses(law.start, law.step, law.mass * np.exp(law.loss), law.infinite)


def backward_losses_of(law: Law) -> Losses:
    """-log L under Q: what the mechanism without the subject shows."""
    return Losses(-float(law.loss[-1]), law.step, np.ascontiguousarray(law.mass[::-1]), law.zero)


@dataclass(frozen=True)
class Cumulants:
    """log E[e^(order * y)] of a sum of losses and its first two derivatives in the order."""

    value: float
    mean: float
    variance: float


class Sum:
    """The sum of independent losses, each kind repeated a number of times."""

    def __init__(self, kinds: Sequence[tuple[Losses, int]]) -> None:
        self.kinds = [(losses, times) for losses, times in kinds if times > 0]
        self.step = self.kinds[0][0].step
        self.times = sum(times for _, times in self.kinds)
        stay = sum(times * math.log1p(-min(losses.infinite, 1 - UNIT)) for losses, times in self.kinds)
        self.infinite = -math.expm1(stay)
        self.start = sum(times * losses.start for losses, times in self.kinds)

    @property
    def top(self) -> float:
        """The largest finite loss."""
        return sum(times * float(losses.loss[np.flatnonzero(losses.mass)[-1]]) for losses, times in self.kinds)

    def cumulants(self, order: float) -> Cumulants:
        """The cumulant generating function at `order`, with mean and variance of the tilted sum."""
        value = mean = variance = 0.0
        for losses, times in self.kinds:
            k, m, v = tilted_moments(losses, order)
            value, mean, variance = value + times * k, mean + times * m, variance + times * v
        return Cumulants(value, mean, variance)

    def log_moment(self, order: float) -> float:
        """Only the value of `cumulants`."""
        return sum(times * log_moment(losses, order) for losses, times in self.kinds)


def tilted_moments(losses: Losses, order: float) -> tuple[float, float, float]:
    """log sum(mass e^(order y)), and mean and variance of y under the tilted mass."""
    exponent = losses.tilted_exponents(order)
    top = float(exponent.max())
    weight = np.exp(exponent - top)
    total = float(weight.sum())
    mean = float((weight * losses.index).sum()) / total
    variance = float((weight * (losses.index - mean) ** 2).sum()) / total
    value = top + math.log(total) + order * losses.start
    return value, losses.start + losses.step * mean, losses.step**2 * variance


def log_moment(losses: Losses, order: float) -> float:
    """log sum(mass e^(order y))."""
    exponent = losses.tilted_exponents(order)
    top = float(exponent.max())
    return top + math.log(float(np.exp(exponent - top).sum())) + order * losses.start


def order_for_delta(total: Sum, delta: float) -> float:
    """The order at which a Chernoff bound reaches delta: order * K'(order) - K(order) = log(1/delta)."""
    goal = math.log(1 / delta)

    def excess(order: float, k: Cumulants) -> tuple[float, float]:
        return order * k.mean - k.value - goal, order * order * k.variance

    return solved_order(total, excess, math.sqrt(2 * goal))


def order_for_epsilon(total: Sum, epsilon: float) -> float:
    """The order whose tilted sum is centred at epsilon; almost none when the sum lies above it by itself."""

    def excess(order: float, k: Cumulants) -> tuple[float, float]:
        return k.mean - epsilon, order * k.variance

    return solved_order(total, excess, 3.0)


def solved_order(total: Sum, excess: Callable[[float, Cumulants], tuple[float, float]], deviations: float) -> float:
    """Zero of an increasing function of the order, within some percent, by Newton's rule in its logarithm."""
    plain = total.cumulants(0.0)
    spread = math.sqrt(max(plain.variance, total.step**2 * 1e-6))
    nearly = total.top - 0.02 * (total.top - plain.mean)
    least, most = 1e-9 / spread, 60.0 / total.step
    order = min(deviations / spread, most)
    low, high = least, most
    for _ in range(60):
        here = total.cumulants(order)
        value, slope = excess(order, here)
        low, high = (low, order) if value > 0 else (order, high)
        saturated = value < 0 and here.mean > nearly
        if high / low < 1.05 or abs(value) < 0.02 * abs(slope) or high <= least * 1.05 or saturated:
            break
        trial = order * math.exp(max(-3.0, min(3.0, -value / slope))) if slope > 0 else math.sqrt(low * high)
        order = trial if low < trial < high else math.sqrt(low * high)
    return order
