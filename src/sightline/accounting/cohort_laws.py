"""Laws of cohorts of a fixed size: the likelihood ratio if exactly m of n are drawn, in closed form.

Everything is relative to the m - 1 others that are in the sum in any case. The subject moves the sum by v, its
neighbour by v', and the client that replaces it when it is not drawn by w: with q = m / n

    P = (1 - q) N(w) + q N(v)      against      Q = (1 - q) N(w) + q N(v')

Under zero-out v' = 0, and v and w have norm at most s = 1 / noise_multiplier; under replace-one all three are at most s
apart. For L > 1 the worst w lies opposite v, for L < 1 on it (Kahane's inequality with signs): on a line, with v = s
and v' = 0, the half above one of the pair with w = -s (zero-out) or w = 0 (replace-one), the half below one of the pair
with w = s, and the rest of the mass at one.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from sightline.accounting.likelihood_ratio import NODES, WEIGHTS, Array, Law
from sightline.accounting.moments import MOST_ORDER, ORDERS, log_sum, pin_moments

# Panels of the quadrature are no wider than this, nor than 1 / s: the zeros of Q's density are pi / s away.
WIDEST = 0.25
# Cells narrower than this part of a panel have three nodes: their seventh derivative is lost in rounding.
NARROW, FEW = 0.1, np.polynomial.legendre.leggauss(3)


@dataclass(frozen=True)
class Half:
    """One half of a law: P = (1 - q) N(w) + q N(s) against Q = (1 - q) N(w) + q N(0) on one side of L = 1.

    L grows with x and is one at s / 2. The half is the one above it, unless w = s.
    """

    rate: float
    strength: float
    other: float

    @property
    def is_upper(self) -> bool:
        """Return whether it is the half with L > 1."""
        return self.other < self.strength

    @property
    def middle(self) -> float:
        """Return the x at which L is one."""
        return self.strength / 2

    def log_ratio(self, x: Array) -> Array:
        """Return log L(x), from L - 1 = q (N(s) - N(0)) / Q: no digits are lost where L is near one."""
        climb = self.strength * (x - self.middle)
        if not self.is_upper:
            base = (1 - self.rate) * np.exp(climb) + self.rate
            near = np.log1p(self.rate * np.expm1(np.maximum(climb, -1.0)) / base)
            return np.where(climb > -1, near, climb - np.log(base))
        with np.errstate(divide="ignore"):
            excess = np.where(climb < 30, np.log(np.expm1(np.minimum(climb, 30.0))), climb)
        opposite = math.log1p(-self.rate) + self.other * (x - self.other / 2)
        return np.logaddexp(0.0, math.log(self.rate) + excess - np.logaddexp(opposite, math.log(self.rate)))

    def place_of(self, loss: Array) -> Array:
        """Return the x at which log L is `loss`, on the half's own side."""
        q, s = self.rate, self.strength
        if not self.is_upper:
            exponent = loss + math.log(q) - np.log(-np.expm1(loss + math.log1p(-q)))
        elif self.other == 0:
            exponent = np.where(loss < 30, np.log1p(np.expm1(np.minimum(loss, 30.0)) / q), loss - math.log(q))
        else:  # a quadratic equation in e^(s x)
            root = np.exp(-loss) * -np.expm1(-loss) * (4 * (1 - q) / q * math.exp(-s * s))
            exponent = loss + np.log1p(root / (2 * (1 + np.sqrt(1 + root))))
        return np.asarray(exponent / s + s / 2)

    def log_density(self, x: Array) -> Array:
        """Return log of Q's density."""
        others = math.log1p(-self.rate) - (x - self.other) ** 2 / 2
        return np.logaddexp(others, math.log(self.rate) - x * x / 2) - math.log(2 * math.pi) / 2

    def outside(self, x: float) -> tuple[float, float]:
        """Return the masses beyond x, away from the middle, under P and under Q."""
        sign = -1.0 if self.is_upper else 1.0
        others = (1 - self.rate) * float(ndtr(sign * (x - self.other)))
        return (
            others + self.rate * float(ndtr(sign * (x - self.strength))),
            others + self.rate * float(ndtr(sign * x)),
        )

    def reach(self, tail: float) -> float:
        """Return the x beyond which P (above), or Q (below), has at most about `tail` of the subject's mass."""
        far = -float(ndtri(min(tail / self.rate, 0.1)))
        return self.strength + far if self.is_upper else min(-far, 0.0)

    def panels(self, ends: Array) -> tuple[Array, Array, NDArray[np.int64]]:
        """Return nodes in x between the increasing ends, log of their Q-masses, and the cell number of each.

        Wide cells are cut into panels; narrow ones need fewer nodes for the same digits.
        """
        width = np.diff(ends) * max(1 / WIDEST, self.strength)
        parts = np.maximum(1, np.ceil(width)).astype(np.int64)
        groups = []
        for cells, (nodes, weights) in ((width <= NARROW, FEW), (width > NARROW, (NODES, WEIGHTS))):
            count = np.where(cells, parts, 0)
            cell = np.repeat(np.arange(len(parts)), count)
            within = np.arange(len(cell)) - np.repeat(np.cumsum(count) - count, count)
            half = (np.diff(ends) / parts)[cell] / 2
            x = (ends[:-1][cell] + half * 2 * within)[:, None] + half[:, None] * (1 + nodes)
            log_mass = self.log_density(x) + np.log(weights * half[:, None])
            groups.append((x.ravel(), log_mass.ravel(), np.repeat(cell, len(nodes))))
        (x, log_mass, cell), others = groups
        return np.append(x, others[0]), np.append(log_mass, others[1]), np.append(cell, others[2])

    def cut_cells(self, step: float, cells: int) -> tuple[Array, Array, Array]:
        """Return lower ends and split masses of `cells` cells of log L from the middle outward, in increasing order.

        The masses are those that go to the lower and to the upper end of each cell.
        """
        numbers = np.arange(cells + 1) if self.is_upper else np.arange(-cells, 1)
        losses = np.asarray(step * numbers, dtype=np.float64)
        ends = np.where(numbers == 0, self.middle, self.place_of(losses))
        x, log_mass, cell = self.panels(ends)
        mass = np.exp(log_mass)
        raised = mass * np.clip(np.expm1(self.log_ratio(x) - losses[cell]) / math.expm1(step), 0.0, 1.0)
        low, high = np.bincount(cell, mass - raised, cells), np.bincount(cell, raised, cells)
        return losses[:-1], low.astype(np.float64), high.astype(np.float64)

    def end_masses(self, step: float, cells: int) -> tuple[float, float]:
        """Return the masses beyond `cells` cells, under P and under Q."""
        loss = step * cells if self.is_upper else -step * cells
        return self.outside(float(self.place_of(np.array([loss]))[0]))


def halves_of(rate: float, noise_multiplier: float, *, zero_out: bool) -> tuple[Half, Half]:
    """Return the halves above and below one."""
    s = 1 / noise_multiplier
    return Half(rate, s, -s if zero_out else 0.0), Half(rate, s, s)


def cohort_law(rate: float, noise_multiplier: float, *, zero_out: bool, step: float, tail: float) -> Law:
    """Return the law of one release of a cohort of share `rate`, on a lattice that has a point at L = 1.

    Guarantees: dominates the exact law in convex order, both directions; at most about `tail` of P-mass at infinity and
    of Q-mass at zero.
    """
    upper, lower = halves_of(rate, noise_multiplier, zero_out=zero_out)
    counts = [max(1, math.ceil(abs(farthest_loss(half, tail)) / step)) for half in (upper, lower)]
    mass = np.zeros(sum(counts) + 1)
    for half, begin, cells in ((upper, counts[1], counts[0]), (lower, 0, counts[1])):
        _, low, high = half.cut_cells(step, cells)
        mass[begin : begin + cells] += low
        mass[begin + 1 : begin + cells + 1] += high
    p_above, q_above = upper.end_masses(step, counts[0])
    p_below, q_below = lower.end_masses(step, counts[1])
    at_lowest = min(p_below * math.exp(step * counts[1]), q_below)
    mass[-1] += q_above
    mass[0] += at_lowest
    # Both halves have the same delta at epsilon zero and together at most mass one. With the rest at L = 1 they form
    # one law whose stop-loss is the largest everywhere, so it composes.
    mass[counts[1]] += max(0.0, 1 - float(mass.sum()) - (q_below - at_lowest))
    infinite = max(p_above - q_above * math.exp(step * counts[0]), 0.0) * (1 + 1e-9)
    return Law(-step * counts[1], step, mass, q_below - at_lowest, infinite)


def farthest_loss(half: Half, tail: float) -> float:
    """Return log L where the half has only `tail` left."""
    return float(half.log_ratio(np.array([half.reach(tail)]))[0])


def cohort_reach(rate: float, noise_multiplier: float, *, zero_out: bool, tail: float) -> float:
    """Return how far the losses of one release reach."""
    upper, lower = halves_of(rate, noise_multiplier, zero_out=zero_out)
    return farthest_loss(upper, tail) - farthest_loss(lower, tail)


def cohort_atoms(rate: float, noise_multiplier: float, *, zero_out: bool, width: float) -> tuple[Array, Array]:
    """Return losses in increasing order and their Q-masses, every cell of `width` collapsed to its mean.

    Guarantees: dominated by the exact law in convex order.
    """
    loss, mass = [], []
    for half in reversed(halves_of(rate, noise_multiplier, zero_out=zero_out)):
        cells = max(1, math.ceil(abs(farthest_loss(half, 1e-22)) / width))
        start, low, high = half.cut_cells(width, cells)
        with np.errstate(invalid="ignore", divide="ignore"):
            middles = start + np.log1p(math.expm1(width) * (high / (low + high)))
        p, q = half.end_masses(width, cells)
        end = [math.log(p / q)] if p > 0 and q > 0 else [0.0]
        loss.append(np.concatenate([middles, end] if half.is_upper else [end, middles]))
        mass.append(np.concatenate([low + high, [q]] if half.is_upper else [[q], low + high]))
    rest = max(0.0, 1 - sum(float(part.sum()) for part in mass))
    losses, masses = np.concatenate([loss[0], [0.0], loss[1]]), np.concatenate([mass[0], [rest], mass[1]])
    return losses[masses > 0], masses[masses > 0]


def cohort_log_moments(rate: float, noise_multiplier: float, *, zero_out: bool) -> tuple[Array, Array]:
    """Return log E_Q[L^a] and log E_Q[L^(1 - a)] for a = 0..MOST_ORDER by quadrature; every term is positive."""
    halves = halves_of(rate, noise_multiplier, zero_out=zero_out)
    terms, held = [], 0.0
    for half in halves:
        far = MOST_ORDER * half.strength + 14.0
        ends = np.array([half.middle, half.strength + far] if half.is_upper else [-far, half.middle])
        x, log_mass, _ = half.panels(ends)
        held += float(np.exp(log_mass).sum())
        terms.append((log_mass, half.log_ratio(x)))
    terms.append((np.full(1, math.log(max(1 - held, 0.0) + 1e-12)), np.zeros(1)))
    log_mass, loss = (np.concatenate(both) for both in zip(*terms, strict=True))
    return (pin_moments(sum_powers(log_mass, loss, ORDERS)), pin_moments(sum_powers(log_mass, loss, 1 - ORDERS)))


def sum_powers(log_mass: Array, loss: Array, orders: Array) -> Array:
    """Return log of the sum of mass * L^order for every order."""
    # One order at a time: a matrix of all orders and points could be too large.
    return np.array([float(log_sum((log_mass + order * loss)[None, :])[0]) for order in orders])
