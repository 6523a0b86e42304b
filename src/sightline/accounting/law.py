"""The law of a likelihood ratio, kept on a logarithmic lattice and always rounded up in convex order.

A release is dominated by a pair (P, Q): with the subject, without it. L = dP/dQ under Q has mean one, and both
directions of the hockey-stick divergence are expectations of convex functions of L. So every operation here may move
mass apart (which keeps the mean and only enlarges convex expectations) but never together.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


FAR = 10.0
"""A lattice reaches down to an atom that lies so many times its own length below; not to one that lies further."""


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
        """The logarithms of the lattice points, increasing."""
        return np.asarray(self.start + self.step * np.arange(len(self.mass)))

    @property
    def log_second_moment(self) -> float:
        """log E_Q[L^2] of the finite part: a measure of spread that is the variance of a Gaussian's loss."""
        exponents = 2 * self.loss
        top = float(exponents.max())
        return max(float(np.log(np.dot(self.mass, np.exp(exponents - top))) + top), 0.0)


NOTHING = Law(0.0, 1.0, np.ones(1))
"""The law of a release that tells nothing: L = 1."""


def resplit_atoms(loss: Array, mass: Array, step: float, *, zero: float = 0.0, infinite: float = 0.0) -> Law:
    """Move atoms at increasing losses onto a lattice that starts at the lowest of them.

    Each atom goes to the two lattice points around it, so that its mass and its mean in L are kept.
    """
    place = (loss - loss[0]) / step
    below = np.floor(place)
    upward = np.expm1((place - below) * step) / np.expm1(step)
    index = below.astype(np.int64)
    size = int(index[-1]) + 2
    out = np.bincount(index, mass * (1 - upward), size).astype(np.float64)
    out += np.bincount(index + 1, mass * upward, size)
    return Law(float(loss[0]), step, out, zero, infinite)


def on_step(law: Law, step: float) -> Law:
    """The law on a lattice of another step."""
    if step == law.step:
        return law
    return resplit_atoms(law.loss, law.mass, step, zero=law.zero, infinite=law.infinite)


def trim_law(law: Law, tail: float) -> Law:
    """Drop ends that hold at most `tail`: below to zero and the lowest point, above to the top point and infinity."""
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
    """L1 * L2 for independent releases: the losses add. Direct sums, so that small masses keep all their digits."""
    other = on_step(other, one.step)
    return Law(
        one.start + other.start,
        one.step,
        np.convolve(one.mass, other.mass),
        either_probability(one.zero, other.zero),
        either_probability(one.infinite, other.infinite),
    )


def either_probability(one: float, other: float) -> float:
    """The probability that at least one of two independent things happens."""
    return one + other - one * other


@dataclass(frozen=True, eq=False)
class Points:
    """Masses at increasing losses that are on no lattice yet, at zero and at infinity."""

    loss: Array
    mass: Array
    zero: float
    infinite: float

    def on_lattice(self, step: float) -> Law:
        """The law on a lattice that starts at the lowest of them."""
        return resplit_atoms(self.loss, self.mass, step, zero=self.zero, infinite=self.infinite)


def sampled_points(law: Law, rate: float) -> Points:
    """1 - g + g L, before it is put on a lattice.

    The atom at zero sits at 1 - g; where that is far below all others, it is moved apart, to the lowest of them and to
    zero.
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


def sample_law(law: Law, rate: float, step: float) -> Law:
    """The law of Poisson sampling, L -> 1 - g + g L, on a lattice of the given step."""
    return sampled_points(law, rate).on_lattice(step)
