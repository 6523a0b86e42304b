"""Composition of privacy losses: the law of their sum by one Fourier transform of the tilted masses.

A transform has absolute rounding errors of about 1e-16, while delta may be 1e-12 over 10^7 steps. So the masses are
first multiplied by e^(order y), with the order at which a Chernoff bound reaches delta. The composed law is then
centred at the answer, a short window suffices, and errors are relative to delta.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from sightline.accounting.likelihood_ratio import Array, Law

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
        """Return the lattice of losses, increasing."""
        return np.asarray(self.start + self.step * np.arange(len(self.mass)))

    @cached_property
    def index(self) -> Array:
        """Return 0, 1, 2, ..."""
        return np.arange(len(self.mass), dtype=np.float64)

    @cached_property
    def log_mass(self) -> Array:
        """Return the logarithms of the masses."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.mass))

    def tilted_exponents(self, order: float) -> Array:
        """Return log mass + order * (y - start)."""
        return np.asarray(self.log_mass + (order * self.step) * self.index)


def forward_losses_of(law: Law) -> Losses:
    """Return the law of log L under P, the output distribution with the subject."""
    return Losses(law.start, law.step, law.mass * np.exp(law.loss), law.infinite)


def backward_losses_of(law: Law) -> Losses:
    """Return the law of -log L under Q, the output distribution without the subject."""
    return Losses(-float(law.loss[-1]), law.step, np.ascontiguousarray(law.mass[::-1]), law.zero)


@dataclass(frozen=True)
class Cumulants:
    """log E[e^(order * y)] of a sum of losses and its first two derivatives in the order."""

    value: float
    mean: float
    variance: float


class Sum:
    """A sum of independent losses, each kind repeated a number of times."""

    def __init__(self, kinds: Sequence[tuple[Losses, int]]) -> None:
        self.kinds = [(losses, times) for losses, times in kinds if times > 0]
        self.step = self.kinds[0][0].step
        self.times = sum(times for _, times in self.kinds)
        stay = sum(times * math.log1p(-min(losses.infinite, 1 - UNIT)) for losses, times in self.kinds)
        self.infinite = -math.expm1(stay)
        self.start = sum(times * losses.start for losses, times in self.kinds)

    @property
    def top(self) -> float:
        """Return the largest finite loss."""
        return sum(times * float(losses.loss[np.flatnonzero(losses.mass)[-1]]) for losses, times in self.kinds)

    def cumulants(self, order: float) -> Cumulants:
        """Return the cumulant generating function at `order`, with mean and variance of the tilted sum."""
        value = mean = variance = 0.0
        for losses, times in self.kinds:
            k, m, v = tilted_moments(losses, order)
            value, mean, variance = value + times * k, mean + times * m, variance + times * v
        return Cumulants(value, mean, variance)

    def log_moment(self, order: float) -> float:
        """Return only the value of `cumulants`."""
        return sum(times * log_moment(losses, order) for losses, times in self.kinds)


def tilted_moments(losses: Losses, order: float) -> tuple[float, float, float]:
    """Return log sum(mass e^(order y)), and mean and variance of y under the tilted mass."""
    exponent = losses.tilted_exponents(order)
    top = float(exponent.max())
    weight = np.exp(exponent - top)
    total = float(weight.sum())
    mean = float((weight * losses.index).sum()) / total
    variance = float((weight * (losses.index - mean) ** 2).sum()) / total
    value = top + math.log(total) + order * losses.start
    return value, losses.start + losses.step * mean, losses.step**2 * variance


def log_moment(losses: Losses, order: float) -> float:
    """Return log sum(mass e^(order y))."""
    exponent = losses.tilted_exponents(order)
    top = float(exponent.max())
    return top + math.log(float(np.exp(exponent - top).sum())) + order * losses.start


def order_for_delta(total: Sum, delta: float) -> float:
    """Return the order at which a Chernoff bound reaches delta: order * K'(order) - K(order) = log(1/delta)."""
    goal = math.log(1 / delta)

    def excess(order: float, k: Cumulants) -> tuple[float, float]:
        return order * k.mean - k.value - goal, order * order * k.variance

    return solved_order(total, excess, math.sqrt(2 * goal))


def order_for_epsilon(total: Sum, epsilon: float) -> float:
    """Return the order whose tilted sum is centred at epsilon; nearly zero if the sum lies above it untilted."""

    def excess(order: float, k: Cumulants) -> tuple[float, float]:
        return k.mean - epsilon, order * k.variance

    return solved_order(total, excess, 3.0)


def solved_order(total: Sum, excess: Callable[[float, Cumulants], tuple[float, float]], deviations: float) -> float:
    """Return the zero of an increasing function of the order, within a few percent."""
    plain = total.cumulants(0.0)
    spread = math.sqrt(max(plain.variance, total.step**2 * 1e-6))
    nearly = total.top - 0.02 * (total.top - plain.mean)
    least, most = 1e-9 / spread, 60.0 / total.step
    order = min(deviations / spread, most)
    low, high = least, most
    # A rough order suffices: every order gives a valid bound, a good one only a tighter window.
    # Newton's rule in the logarithm of the order, inside a shrinking bracket.
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


# Tilted mass that may lie outside the window on either side; it is charged in full.
OUTSIDE = 1e-10
# Longest transform (64 MB of doubles).
LARGEST = 2**23


class TooFine(Exception):
    """The composed law does not fit into the longest transform on this lattice."""


# Up to this length a loop is faster than loading SciPy's filters.
SHORT = 1 << 14


def decay_and_add(gains: Array, ratio: float) -> Array:
    """Return y_n = x_n + ratio y_(n-1).

    >>> decay_and_add(np.array([1.0, 0.0, 1.0]), 0.5).tolist()
    [1.0, 0.5, 1.25]
    """
    # Both ways give the same bits.
    if len(gains) <= SHORT:
        return np.array(list(accumulate(gains.tolist(), lambda total, gain: gain + ratio * total)))
    from scipy.signal import lfilter

    return np.asarray(lfilter([1.0], [1.0, -ratio], gains))


@dataclass(frozen=True, eq=False)
class Composed:
    """The composed law in a window: e^(log_scale - order * y) times `tilted` is its mass at loss y.

    `rounding` bounds the error of each entry of `tilted`; `above` bounds the true mass above the window.
    """

    start: float
    step: float
    tilted: Array
    order: float
    log_scale: float
    rounding: float
    above: float
    infinite: float
    slack: float

    @property
    def loss(self) -> Array:
        """Return the lattice of composed losses in the window."""
        return np.asarray(self.start + self.step * np.arange(len(self.tilted)))

    def tail_curve(self, *, lower: bool = False) -> tuple[Array, Array]:
        """Return at every point y the mass at y and above, and E[(1 - e^(y - Y))_+], rounded up (or down).

        Going down by a step h, the latter becomes e^-h times itself plus (1 - e^-h) times the former: nothing cancels.
        """
        index = np.arange(len(self.tilted))
        sign = -1.0 if lower else 1.0
        tilted = np.maximum(np.maximum(self.tilted, 0.0) + sign * self.rounding, 0.0)
        exponent = self.log_scale - self.order * self.start - (self.order * self.step) * index
        # Masses are at most one: a larger exponent is rounding.
        mass = tilted * np.exp(np.minimum(exponent, 700.0))
        above = np.cumsum(mass[::-1] * (1 + sign * self.slack))
        gains = -math.expm1(-self.step) * np.append(0.0, above[:-1])
        delta = decay_and_add(gains, math.exp(-self.step))
        return np.ascontiguousarray(above[::-1]), np.ascontiguousarray(delta[::-1])

    def outside_mass(self, loss: Array) -> Array:
        """Return the mass that can be missing below the window, or wrapped into it, and matters above `loss`."""
        return np.asarray(OUTSIDE * np.exp(np.minimum(self.log_scale - self.order * loss, 700.0)))

    def delta(self, epsilon: float) -> float:
        """Return an upper bound on delta at epsilon."""
        return float(self.delta_curve(np.array([epsilon]))[0])

    def delta_curve(self, epsilons: Array) -> Array:
        """Return upper bounds on delta at many epsilons."""
        mass, delta = self.tail_curve()
        point = np.maximum(0, np.ceil((epsilons - self.start) / self.step)).astype(np.int64)
        held = np.minimum(point, len(mass) - 1)
        rest = np.maximum(self.start + self.step * point - epsilons, 0.0)
        inside = np.where(point < len(mass), -np.expm1(-rest) * mass[held] + np.exp(-rest) * delta[held], 0.0)
        below = np.where(epsilons < self.start, self.outside_mass(epsilons), 0.0)
        return np.minimum(1.0, inside + self.above + self.infinite + below)

    def epsilon(self, delta: float) -> float:
        """Return the least epsilon of the window at which delta is reached; the window's start if it lies below."""
        goal = delta - self.above - self.infinite
        if goal <= 0:
            return math.inf
        mass, at_points = self.tail_curve()
        reached = np.flatnonzero(at_points <= goal)
        if len(reached) == 0:
            return self.start + self.step * len(mass)
        return self.interpolate_delta(int(reached[0]), goal, mass, at_points)

    def epsilon_lower(self, delta: float) -> float:
        """Return the largest epsilon found at which delta is certainly exceeded; zero if there is none."""
        mass, at_points = self.tail_curve(lower=True)
        exponent = self.log_scale - self.order * self.start - (self.order * self.step) * np.arange(len(mass))
        missing = 2 * OUTSIDE * np.exp(np.minimum(exponent, 700.0))
        exceeded = np.flatnonzero(at_points - missing + self.infinite > delta)
        if len(exceeded) == 0:
            return 0.0
        last = int(exceeded[-1])
        goal = delta - self.infinite + float(missing[last])
        beyond = min(last + 1, len(mass) - 1)
        return max(self.start + self.step * last, self.interpolate_delta(beyond, goal, mass, at_points), 0.0)

    def interpolate_delta(self, point: int, goal: float, mass: Array, at_points: Array) -> float:
        """Return where, below a lattice point, delta rises to `goal`."""
        if point == 0:
            return self.start
        # Solves e^-t = (mass - goal) / (mass - delta) for the distance t below the point.
        room = float(mass[point]) - float(at_points[point])
        back = -math.log1p(-min((goal - float(at_points[point])) / room, 1.0 - 1e-15)) if room > 0 else 0.0
        return self.start + self.step * point - min(max(back, 0.0), self.step)


def compose_losses(total: Sum, order: float) -> Composed:
    """Return the law of the sum in the window that holds all but `OUTSIDE` of it, tilted by `order`.

    Raises `TooFine` if the window needs too long a transform.
    """
    centre = total.cumulants(order)
    low, high = choose_window(total, order, centre)
    step = total.step
    first = math.floor((low - total.start) / step)
    points = (high - low) / step
    # Written as a negation so that an undefined or infinite window is refused too.
    if not points < LARGEST:
        raise TooFine
    size = fft.next_fast_len(math.ceil(points) + 2, real=True)
    if size > LARGEST:
        raise TooFine
    log_power, gain = log_transform(total, order, size)
    tilted = fft.irfft(np.exp(log_power), size)
    tilted = np.roll(tilted, -(first % size))
    start = total.start + first * step
    top = start + step * size
    return Composed(
        start=start,
        step=step,
        tilted=tilted,
        order=order,
        log_scale=centre.value,
        rounding=gain,
        above=math.exp(centre.value - order * top) * OUTSIDE,
        infinite=total.infinite,
        slack=(total.times * 64 + 8 * size) * UNIT + 1e-12,
    )


def log_transform(total: Sum, order: float, size: int) -> tuple[NDArray[np.complex128], float]:
    """Return the sum of times * log of the transforms of the tilted masses, and a bound on each entry of the inverse.

    An error of relative size c u log2(n) in a transform becomes times * c u log2(n) |f|^(times - 1) in its power; the
    mean over frequencies bounds the error of any entry of the inverse.
    """
    logs = np.zeros(size // 2 + 1, dtype=np.complex128)
    bound = np.zeros(size // 2 + 1)
    least = np.zeros(size // 2 + 1)
    unit = UNIT * (8 * math.log2(size) + 16)
    for losses, times in total.kinds:
        transform = fft.rfft(fold_masses(tilted_mass(losses, order), size))
        with np.errstate(divide="ignore"):
            log = np.log(transform)
        logs += times * np.maximum(log.real, -1e6) + 1j * (times * log.imag)
        enlarged = np.log(np.abs(transform) + unit)
        bound += times * enlarged
        least = np.minimum(least, enlarged)
    return logs, 1.01 * float(np.exp(bound - least).mean()) * unit * (total.times + 1)


def tilted_mass(losses: Losses, order: float) -> Array:
    """Return mass * e^(order y), normalised."""
    exponent = losses.tilted_exponents(order)
    weight = np.exp(exponent - exponent.max())
    return np.asarray(weight / weight.sum())


def fold_masses(mass: Array, size: int) -> Array:
    """Return the masses wrapped around a circle of `size` points."""
    if len(mass) <= size:
        return mass if len(mass) == size else np.pad(mass, (0, size - len(mass)))
    rows = math.ceil(len(mass) / size)
    return np.asarray(np.pad(mass, (0, rows * size - len(mass))).reshape(rows, size).sum(axis=0))


def choose_window(total: Sum, order: float, centre: Cumulants) -> tuple[float, float]:
    """Return a window by Chernoff bounds on both sides of the tilted sum: at most `OUTSIDE` lies beyond each end."""
    spread = math.sqrt(max(centre.variance, total.step**2))
    slack = math.log(1 / OUTSIDE)
    low, high = -math.inf, math.inf
    # Every order gives a valid bound; a handful around the Gaussian optimum is enough for a tight window.
    for factor in (0.03, 0.12, 0.35, 0.7, 1.0):
        by = factor * math.sqrt(2 * slack) / spread
        high = min(high, (total.log_moment(order + by) - centre.value + slack) / by)
        low = max(low, (centre.value - total.log_moment(order - by) - slack) / by)
    return low, high
