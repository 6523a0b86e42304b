"""Composition: the law of a sum of losses in a window, by one Fourier transform of the tilted masses."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from sightline.accounting.law import Array
from sightline.accounting.losses import UNIT, Cumulants, Losses, Sum

OUTSIDE = 1e-10
"""Tilted mass that may lie outside the window on either side; it is charged in full."""
LARGEST = 2**23
"""Longest transform (64 MB of doubles)."""


class TooFine(Exception):
    """The composed law does not fit into the longest transform on this lattice."""


@dataclass(frozen=True, eq=False)
class Composed:
    """The composed law in a window: e^(log_scale - order * y) times `tilted` is its mass at loss y.

    `rounding` bounds the error of each entry of `tilted`; `above` the true mass above the window.
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
        """The lattice of composed losses in the window."""
        return np.asarray(self.start + self.step * np.arange(len(self.tilted)))

    def tail_curve(self, *, lower: bool = False) -> tuple[Array, Array]:
        """At every point y: the mass at y and above, and E[(1 - e^(y - Y))_+]; rounded up (or down).

        Going down by a step h, the latter becomes e^-h times itself plus (1 - e^-h) times the former: nothing cancels.
        """
        from scipy.signal import lfilter  # slow to load, and closed forms do without

        index = np.arange(len(self.tilted))
        sign = -1.0 if lower else 1.0
        tilted = np.maximum(np.maximum(self.tilted, 0.0) + sign * self.rounding, 0.0)
        mass = tilted * np.exp(self.log_scale - self.order * self.start - (self.order * self.step) * index)
        above = np.cumsum(mass[::-1] * (1 + sign * self.slack))
        gains = -math.expm1(-self.step) * np.append(0.0, above[:-1])
        delta = lfilter([1.0], [1.0, -math.exp(-self.step)], gains)
        return np.ascontiguousarray(above[::-1]), np.ascontiguousarray(delta[::-1])

    def outside_mass(self, loss: float) -> float:
        """Mass that can be missing below the window, or wrapped into it, and matters above `loss`."""
        return OUTSIDE * math.exp(min(self.log_scale - self.order * loss, 700.0))

    def delta(self, epsilon: float) -> float:
        """An upper bound on delta at epsilon."""
        mass, delta = self.tail_curve()
        point = max(0, math.ceil((epsilon - self.start) / self.step))
        inside = 0.0
        if point < len(mass):
            rest = max(self.start + self.step * point - epsilon, 0.0)
            inside = -math.expm1(-rest) * float(mass[point]) + math.exp(-rest) * float(delta[point])
        below = self.outside_mass(epsilon) if epsilon < self.start else 0.0
        return min(1.0, inside + self.above + self.infinite + below)

    def epsilon(self, delta: float) -> float:
        """The least epsilon of the window at which delta is reached; its start when that lies below the window."""
        goal = delta - self.above - self.infinite
        if goal <= 0:
            return math.inf
        mass, at_points = self.tail_curve()
        reached = np.flatnonzero(at_points <= goal)
        if len(reached) == 0:
            return self.start + self.step * len(mass)
        return self.interpolate_delta(int(reached[0]), goal, mass, at_points)

    def epsilon_lower(self, delta: float) -> float:
        """An epsilon at which delta is certainly exceeded, the largest found; zero when there is none."""
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
        """Where, going down from a lattice point, delta rises to `goal`: e^-t = (mass - goal) / (mass - delta)."""
        if point == 0:
            return self.start
        room = float(mass[point]) - float(at_points[point])
        back = -math.log1p(-min((goal - float(at_points[point])) / room, 1.0 - 1e-15)) if room > 0 else 0.0
        return self.start + self.step * point - min(max(back, 0.0), self.step)


def compose_losses(total: Sum, order: float) -> Composed:
    """The law of the sum in the window where, tilted by `order`, all but `OUTSIDE` of it lies."""
    centre = total.cumulants(order)
    low, high = choose_window(total, order, centre)
    step = total.step
    first = math.floor((low - total.start) / step)
    points = (high - low) / step
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
    """Sum of times * log of the transforms of the tilted masses, and a bound on each entry of the inverse.

    An error of relative size c u log2(n) in a transform becomes times * c u log2(n) |f|^(times - 1) in its power;
    the mean
    over frequencies bounds the error of any entry of the inverse.
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
    """mass * e^(order y), normalised."""
    exponent = losses.tilted_exponents(order)
    weight = np.exp(exponent - exponent.max())
    return np.asarray(weight / weight.sum())


def fold_masses(mass: Array, size: int) -> Array:
    """The masses wrapped around a circle of `size` points."""
    if len(mass) <= size:
        return mass if len(mass) == size else np.pad(mass, (0, size - len(mass)))
    rows = math.ceil(len(mass) / size)
    return np.asarray(np.pad(mass, (0, rows * size - len(mass))).reshape(rows, size).sum(axis=0))


def choose_window(total: Sum, order: float, centre: Cumulants) -> tuple[float, float]:
    """Chernoff bounds on both sides of the tilted sum: outside lies at most `OUTSIDE` each."""
    spread = math.sqrt(max(centre.variance, total.step**2))
    slack = math.log(1 / OUTSIDE)
    low, high = -math.inf, math.inf
    for factor in (0.03, 0.12, 0.35, 0.7, 1.0):
        by = factor * math.sqrt(2 * slack) / spread
        high = min(high, (total.log_moment(order + by) - centre.value + slack) / by)
        low = max(low, (centre.value - total.log_moment(order - by) - slack) / by)
    return low, high
