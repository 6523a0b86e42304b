"""The law of a likelihood ratio on a logarithmic lattice, rounded up in convex order; closed forms for Gaussians.

A law describes L = dP/dQ under Q, with an atom at zero (infinite backward loss) and a P-mass at infinity (infinite
forward loss). Every rounding is a mean-preserving split, so one object is an upper bound in both directions at once,
and sampling, averaging and composition keep it one.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx, log_ndtr, ndtr, ndtri

Value = TypeVar("Value")
# Lattice points that one cache keeps (16 MB of doubles).
MOST_POINTS = 2**21


class LawCache(Generic[Value]):
    """A memoised function of hashable arguments; the newest results are kept up to a total number of lattice points."""

    def __init__(self, function: Callable[..., Value]) -> None:
        self.function = function
        self.held: OrderedDict[Hashable, Value] = OrderedDict()
        self.points = 0
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    def __call__(self, *key: Hashable) -> Value:
        """Return the cached result, or compute and store it."""
        if key in self.held:
            self.held.move_to_end(key)
            return self.held[key]
        value = self.function(*key)
        self.held[key] = value
        self.points += count_points(value)
        while self.points > MOST_POINTS and len(self.held) > 1:
            _, dropped = self.held.popitem(last=False)
            self.points -= count_points(dropped)
        return value


def count_points(value: Any) -> int:
    """Return the number of lattice points of a law."""
    return len(value.mass)


Array = NDArray[np.float64]


# A lattice is extended down to an atom that lies at most this many lattice lengths below it. An atom further away is
# split between the lowest point and zero instead.
FAR = 10.0


@dataclass(frozen=True, eq=False)
class Law:
    """Q-masses of L at the points exp(start + step * j), at zero, and the P-mass at infinity.

    Guarantees: sum(mass) + zero = 1 and sum(mass * exp(loss)) + infinite = 1, up to rounding.
    """

    start: float
    step: float
    mass: Array
    zero: float = 0.0
    infinite: float = 0.0

    @property
    def loss(self) -> Array:
        """Return the logarithms of the lattice points, increasing."""
        return np.asarray(self.start + self.step * np.arange(len(self.mass)))

    @property
    def log_second_moment(self) -> float:
        """Return log E_Q[L^2] of the finite part: a measure of spread, for a Gaussian the variance of the loss."""
        exponents = 2 * self.loss
        top = float(exponents.max())
        return max(float(np.log(np.dot(self.mass, np.exp(exponents - top))) + top), 0.0)


# The law of a release that tells nothing: L = 1.
NOTHING = Law(0.0, 1.0, np.ones(1))


def resplit_atoms(loss: Array, mass: Array, step: float, *, zero: float = 0.0, infinite: float = 0.0) -> Law:
    """Return the law of atoms at increasing losses, moved onto a lattice that starts at the lowest of them.

    Each atom goes to the two lattice points around it, so that its mass and its mean in L are kept.
    """
    # The lattice starts at the lowest atom, not at a multiple of the step: after Poisson sampling most of the mass sits
    # at 1 - g exactly, and composition only adds the starts.
    position = (loss - loss[0]) / step
    below = np.floor(position)
    upward = np.expm1((position - below) * step) / np.expm1(step)
    index = below.astype(np.int64)
    size = int(index[-1]) + 2
    out = np.bincount(index, mass * (1 - upward), size).astype(np.float64)
    out += np.bincount(index + 1, mass * upward, size)
    return Law(float(loss[0]), step, out, zero, infinite)


def on_step(law: Law, step: float) -> Law:
    """Return the law on a lattice of another step."""
    if step == law.step:
        return law
    return resplit_atoms(law.loss, law.mass, step, zero=law.zero, infinite=law.infinite)


def trim_law(law: Law, tail: float) -> Law:
    """Return the law without ends that hold at most `tail` each.

    The low end goes to zero and the lowest point, the high end to the top point and infinity.
    """
    ratio = np.exp(law.loss)
    low = int(np.searchsorted(np.cumsum(law.mass), tail, side="right"))
    from_top = np.cumsum((law.mass * ratio)[::-1])
    high = len(law.mass) - int(np.searchsorted(from_top, tail, side="right"))
    low, high = min(low, len(law.mass) - 1), max(high, 1)
    if low >= high:
        return law
    mass = law.mass[low:high].copy()
    at_low = float(np.dot(law.mass[:low], ratio[:low] / ratio[low]))
    mass[0] += at_low
    above = law.mass[high:]
    mass[-1] += above.sum()
    infinite = law.infinite + max(float(np.dot(above, ratio[high:] - ratio[high - 1])), 0.0)
    zero = law.zero + max(float(law.mass[:low].sum()) - at_low, 0.0)
    return Law(law.start + low * law.step, law.step, mass, zero, infinite)


def multiply_laws(one: Law, other: Law) -> Law:
    """Return the law of L1 * L2 for independent releases; the losses add."""
    other = on_step(other, one.step)
    return Law(
        one.start + other.start,
        one.step,
        # Direct sums, not a transform: small masses keep all their digits.
        np.convolve(one.mass, other.mass),
        either_probability(one.zero, other.zero),
        either_probability(one.infinite, other.infinite),
    )


def either_probability(one: float, other: float) -> float:
    """Return the probability that at least one of two independent events happens."""
    return one + other - one * other


@dataclass(frozen=True, eq=False)
class Points:
    """Masses at increasing losses that are not on a lattice yet, at zero and at infinity."""

    loss: Array
    mass: Array
    zero: float
    infinite: float

    def on_lattice(self, step: float) -> Law:
        """Return the law on a lattice that starts at the lowest of the losses."""
        return resplit_atoms(self.loss, self.mass, step, zero=self.zero, infinite=self.infinite)


def sampled_points(law: Law, rate: float) -> Points:
    """Return the law of 1 - g + g L, before it is put on a lattice.

    The atom at zero moves to 1 - g. Where that is far below all other points, it is split between the lowest of them
    and zero.
    """
    loss = np.log1p(rate * np.expm1(law.loss))
    mass, zero, lowest = law.mass, 0.0, float(np.log1p(-rate)) if rate < 1 else -np.inf
    if law.zero > 0 and loss[0] - lowest <= FAR * (loss[-1] - loss[0]):
        loss, mass = np.append(lowest, loss), np.append(law.zero, mass)
    elif law.zero > 0:
        kept = law.zero * float(np.exp(lowest - loss[0]))
        mass, zero = mass.copy(), law.zero - kept
        mass[0] += kept
    return Points(loss, mass, zero, rate * law.infinite)


NODES, WEIGHTS = np.polynomial.legendre.leggauss(8)
BATCH = 8192
# Cells narrower than this (in standard deviations) are integrated by quadrature: closed forms would cancel.
NARROW = 0.3


def gaussian_law(noise_multiplier: float, step: float, tail: float, *, rate: float = 1.0) -> Law:
    r"""Return the law of L = 1 - g + g X with X = exp(s N - s^2/2), s = 1 / noise_multiplier, split on a lattice.

    Guarantees: dominates the exact law in convex order; at most about `tail` of P-mass at infinity and of Q-mass at
    zero.
    """
    s = 1.0 / noise_multiplier
    reach = float(-ndtri(tail))
    reach_above = float(-ndtri(min(tail / rate, 0.1)))
    lowest = math.exp(-s * reach - s * s / 2)
    # If the low end is within 256 cells of the atom at 1 - g, the lattice reaches down to X = 0: nothing goes to zero.
    if rate < 1 and rate * lowest < 256 * step * (1 - rate):
        lowest = 0.0
    log_top = s * reach_above + s * s / 2
    start = math.log1p(rate * (lowest - 1)) if rate < 1 else -s * reach - s * s / 2
    cells = max(1, math.ceil((log_sampled(log_top, rate) - start) / step))
    edges = log_edges(lowest, rate, step, cells) if rate < 1 else np.asarray(start + step * np.arange(cells + 1))
    return from_edges(edges, s, rate, Law(start, step, np.zeros(cells + 1)))


def log_sampled(log_ratio: float, rate: float) -> float:
    """Return log(1 - g + g e^x), also for large x."""
    if log_ratio > 30:
        return log_ratio + math.log(rate) + math.log1p((1 - rate) / rate * math.exp(-log_ratio))
    return math.log1p(rate * math.expm1(log_ratio))


def log_edges(lowest: float, rate: float, step: float, cells: int) -> Array:
    """Return log x at the cell ends: 1 - g + g x_j = (1 - g + g x_0) e^(j step), solved without cancellation."""
    steps = step * np.arange(cells + 1)
    odds = (1 - rate) / rate
    # Beyond 600 the exponentials would overflow; there x_j grows like e^(j step), to all digits.
    with np.errstate(divide="ignore", over="ignore"):
        if lowest == 0.0:
            near = np.log(odds) + np.log(np.expm1(np.minimum(steps, 600.0)))
        elif lowest > 0.5:
            near = math.log(lowest) + np.log1p((1 + odds / lowest) * np.expm1(np.minimum(steps, 600.0)))
        else:
            near = np.log(lowest * np.exp(np.minimum(steps, 600.0)) + odds * np.expm1(np.minimum(steps, 600.0)))
    return np.asarray(np.where(steps < 600.0, near, np.log(odds + lowest) + steps))


def from_edges(log_x: Array, s: float, rate: float, frame: Law) -> Law:
    """Return the law with the mass of each lognormal cell split between its two ends, and both tails closed."""
    u = log_x / s + s / 2
    lower, upper = cell_splits(u, s)
    mass = frame.mass.copy()
    mass[:-1] += lower
    mass[1:] += upper
    below, above = ndtr(u[0]), ndtr(-u[-1])
    at_lowest = float(below_share(u[0], s))
    mass[0] += at_lowest
    mass[-1] += above
    excess = call_above(float(u[-1]), s)
    return Law(frame.start, frame.step, mass, max(float(below) - at_lowest, 0.0), rate * excess)


def below_share(u: float, s: float) -> float:
    """Return E[X; X < x0] / x0: the part of the low tail that is kept at x0; the rest goes to zero."""
    if math.isinf(u):
        return 0.0
    return math.exp(float(log_normal_cdf(u - s)) - (s * u - s * s / 2))


def call_above(u: float, s: float) -> float:
    """Return E[(X - x)_+] at x = exp(s u - s^2/2): the P-mass that the top point cannot carry."""
    scale = math.exp(-((u - s) ** 2) / 2) / 2
    value = scale * float(erfcx((u - s) / math.sqrt(2)) - erfcx(u / math.sqrt(2)))
    return max(value, 0.0) * (1 + 1e-9)


def log_normal_cdf(u: float) -> float:
    """Return log Phi(u), accurate far in the tail."""
    return float(log_ndtr(u))


def cell_splits(u: Array, s: float) -> tuple[Array, Array]:
    """Return the Q-mass of each cell [u_j, u_j+1] that goes to its lower and to its upper end."""
    left, right = u[:-1], u[1:]
    # Written as a negation so that a cell with an infinite or undefined width counts as wide.
    wide = ~(right - left <= NARROW)
    lower, upper = np.empty(len(left)), np.empty(len(left))
    lower[~wide], upper[~wide] = by_quadrature(left[~wide], right[~wide], s)
    lower[wide], upper[wide] = by_closed_form(left[wide], right[wide], s)
    return lower, upper


def by_quadrature(left: Array, right: Array, s: float) -> tuple[Array, Array]:
    """Return the splits of narrow cells by Gauss-Legendre quadrature: every term is positive, nothing cancels."""
    lower, upper = np.empty(len(left)), np.empty(len(left))
    for begin in range(0, len(left), BATCH):
        part = slice(begin, begin + BATCH)
        lower[part], upper[part] = integrate_cells(left[part], right[part], s)
    return lower, upper


def integrate_cells(left: Array, right: Array, s: float) -> tuple[Array, Array]:
    """Return the mass sent to the lower and to the upper end of each cell."""
    half = (right - left) / 2
    inside = left[:, None] + half[:, None] * (1 + NODES)
    density = np.exp(-inside * inside / 2) * WEIGHTS * (half / math.sqrt(2 * math.pi))[:, None]
    climb = np.expm1(s * (inside - left[:, None])) / np.expm1(2 * s * half)[:, None]
    upper = (density * climb).sum(axis=1)
    return density.sum(axis=1) - upper, upper


def by_closed_form(left: Array, right: Array, s: float) -> tuple[Array, Array]:
    """Return the splits of wide cells by differences of the normal distribution; the lowest may reach down to X = 0."""
    q, p = normal_between(left, right), normal_between(left - s, right - s)
    with np.errstate(over="ignore"):
        low = np.where(np.isinf(left), 0.0, np.exp(s * left - s * s / 2))
        high = np.exp(s * right - s * s / 2)
    with np.errstate(invalid="ignore"):
        upper = np.where(np.isinf(high), 0.0, (p - low * q) / (high - low))
    upper = np.clip(upper, 0.0, q)
    return q - upper, upper


def normal_between(left: Array, right: Array) -> Array:
    """Return Phi(right) - Phi(left), computed from the tail that keeps the digits."""
    flip = left > 0
    return np.asarray(np.where(flip, ndtr(-left) - ndtr(-right), ndtr(right) - ndtr(left)))


def gaussian_delta(strength: float, epsilon: float) -> float:
    """Return delta at epsilon of Gaussian noise with strength mu = sensitivity / noise_std.

    Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu), written without cancellation.
    """
    near, far = epsilon / strength - strength / 2, epsilon / strength + strength / 2
    if near < -5:
        return float(ndtr(-near)) - math.exp(-near * near / 2) * float(erfcx(far / math.sqrt(2))) / 2
    scale = math.exp(-near * near / 2) / 2
    return scale * float(erfcx(near / math.sqrt(2)) - erfcx(far / math.sqrt(2)))


def gaussian_epsilon(strength: float, delta: float) -> float:
    """Return the least epsilon at delta, rounded up.

    >>> round(gaussian_epsilon(1.0, 1e-5), 4)
    4.3772
    """
    if strength == 0 or gaussian_delta(strength, 0.0) <= delta:
        return 0.0
    low, high = 0.0, strength * strength / 2 + strength * math.sqrt(2 * math.log(1 / delta))
    while gaussian_delta(strength, high) > delta:
        low, high = high, 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        if not low < middle < high or high - low < 1e-14 * high:
            break
        low, high = (middle, high) if gaussian_delta(strength, middle) > delta else (low, middle)
    return high * (1 + 1e-10)
