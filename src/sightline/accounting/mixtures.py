"""Laws of likelihood ratios between Gaussian mixtures on a line, for segments of hidden steps.

Only the end of a segment is released. Which of its steps drew the subject is hidden, and each possibility moves the end
by at most a known distance. Aligned shifts of these lengths are the worst case (Kahane's inequality, with signs).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import bdtrc, gammaln, ndtr, ndtri

from sightline.accounting.likelihood_ratio import Array, Law
from sightline.accounting.moments import ORDERS, log_sum, pin_moments
from sightline.events import BallSegment, ConvexSegment, Gaussian, ReplacedSegment, Segment

NODES, WEIGHTS = np.polynomial.legendre.leggauss(6)
NEWTON_STEPS = 3
# Panels integrated at a time; bounds the memory of the node arrays.
BATCH = 1 << 15
# Panels are narrower than this over the largest shift, and than a tenth: six nodes are then exact in doubles.
NARROW = 0.2
# The masses of larger shifts cannot be represented in doubles.
FARTHEST_SHIFT = 25.0
# Passed instead of a tail: keep every number of draws, however rare, because moments of high orders rest on the rare
# ones.
EVERY_DRAW = -1.0
# Terms of a mixture's density held in memory at a time.
AT_A_TIME = 1 << 21
# With more possible first draws than this, neighbours are merged into the earliest of them. An earlier first draw moves
# the end further, so merging only enlarges the bound.
MOST_COMPONENTS = 512


class TooFar(Exception):
    """The shifts are too large for the masses of their law to be represented."""


@dataclass(frozen=True, eq=False)
class Mixture:
    """A mixture of unit Gaussians at `shifts`; weight `lost` is out of reach and charged as infinite loss."""

    weights: Array
    shifts: Array
    lost: float = 0.0

    def log_density(self, y: Array) -> Array:
        """Return log(density / standard Gaussian density) at the points `y`."""
        out, some = np.empty(len(y)), max(1, AT_A_TIME // len(self.shifts))
        offsets = (np.log(self.weights) - self.shifts**2 / 2)[:, None]
        for first in range(0, len(y), some):
            terms = self.shifts[:, None] * y[None, first : first + some] + offsets
            top = terms.max(axis=0)
            out[first : first + some] = top + np.log(np.exp(terms - top).sum(axis=0))
        return out

    def mean_shift(self, y: Array) -> Array:
        """Return the posterior mean of the shift at the points `y`: the derivative of `log_density`."""
        out, some = np.empty(len(y)), max(1, AT_A_TIME // len(self.shifts))
        offsets = (np.log(self.weights) - self.shifts**2 / 2)[:, None]
        for first in range(0, len(y), some):
            terms = self.shifts[:, None] * y[None, first : first + some] + offsets
            likely = np.exp(terms - terms.max(axis=0))
            out[first : first + some] = self.shifts @ likely / likely.sum(axis=0)
        return out

    def mass_below(self, y: float) -> float:
        """Return the probability of lying below `y`."""
        return float(np.dot(self.weights, ndtr(y - self.shifts)))

    def mass_above(self, y: float) -> float:
        """Return the probability of lying above `y`, without the lost weight."""
        return float(np.dot(self.weights, ndtr(self.shifts - y)))

    @property
    def mirrored(self) -> "Mixture":
        """Return the mixture with all shifts negated."""
        return Mixture(self.weights, -self.shifts, self.lost)


# The mixture of a subject that moves nothing.
NOWHERE = Mixture(np.ones(1), np.zeros(1))


def first_draws(event: BallSegment) -> tuple[Array, Array]:
    """Return (probability that step j is the first to draw the subject, number of steps after it) for j = 1..m."""
    width = -(-event.steps // MOST_COMPONENTS)
    first = np.arange(0, event.steps, width, dtype=np.float64)
    count = np.minimum(width, event.steps - first)
    log_rest = math.log1p(-event.rate)
    return np.exp(first * log_rest) * -np.expm1(count * log_rest), event.steps - 1 - first


def first_draw_mixture(event: BallSegment) -> Mixture:
    r"""Return w_0 N(0) + sum_j w_j N(t_j), w_j = q (1 - q)^(j - 1), t_j = (first_step + m - j) / (m z): zero-out.

    Until its first draw at step j the subject does not affect the path. Step j then moves by at most `first_step` ball
    diameters, and each later step by at most one diameter, because both of its possible values lie in the ball.
    """
    chances, left = first_draws(event)
    never = math.exp(event.steps * math.log1p(-event.rate))
    shifts = (event.first_step + left) / (event.steps * noise_of(event))
    return checked_mixture(np.append(never, chances), np.append(0.0, shifts))


def convex_mixture(event: ConvexSegment, tail: float) -> Mixture:
    """Return sum_k Bin(k; m, q) N(k / z): each of k draws moves the end by at most one sensitivity.

    Convex steps contract, so only the draws move two paths apart. Numbers of draws with a total probability of at most
    `tail` are left out and counted as lost.
    """
    most = event.steps
    while most > 1 and bdtrc(most // 2, event.steps, event.rate) <= tail:
        most //= 2
    while most > 1 and bdtrc(most - 1, event.steps, event.rate) <= tail:
        most -= 1
    # Check the reach before the arrays are made: `most` can be millions.
    if most / noise_of(event) > FARTHEST_SHIFT:
        raise TooFar
    k, m = np.arange(most + 1, dtype=np.float64), event.steps
    log_chance = gammaln(m + 1) - gammaln(k + 1) - gammaln(m - k + 1)
    log_chance += k * math.log(event.rate) + (m - k) * math.log1p(-event.rate)
    chances = np.exp(log_chance)
    held = chances > 0
    # A probability that underflowed to zero would drop a draw that moments of high orders rest on.
    if tail == EVERY_DRAW and not held.all():
        raise TooFar
    lost = float(bdtrc(most, m, event.rate)) if most < m else 0.0
    return checked_mixture(chances[held] * ((1 - lost) / chances.sum()), k[held] / noise_of(event), lost)


def checked_mixture(weights: Array, shifts: Array, lost: float = 0.0) -> Mixture:
    """Return the mixture without its weightless components. Raises `TooFar` for shifts out of reach."""
    if shifts.max() > FARTHEST_SHIFT:
        raise TooFar
    held = weights > 0
    return Mixture(weights[held], shifts[held], lost)


def noise_of(event: BallSegment | ConvexSegment) -> float:
    """Return the noise multiplier of the Gaussian inside. Raises `TooFar` for any other event."""
    if not isinstance(event.event, Gaussian):
        raise TooFar
    return event.event.noise_multiplier


@dataclass(frozen=True, eq=False)
class Pair:
    """Two mixtures whose ratio L = dP/dQ increases along the line."""

    p: Mixture
    q: Mixture

    def log_ratio(self, y: Array) -> Array:
        """Return log L at the points `y`."""
        return self.p.log_density(y) - self.q.log_density(y)

    @property
    def width(self) -> float:
        """Return the width of the panels to integrate over."""
        largest = max(float(np.abs(self.p.shifts).max()), float(np.abs(self.q.shifts).max()))
        return min(0.1, NARROW / max(largest, 1e-300))

    def reach(self, tail: float) -> tuple[float, float]:
        """Return points with about `tail` of Q's mass below and of P's mass above."""
        far = float(-ndtri(tail))
        low, high = float(self.q.shifts.min()) - far, float(self.p.shifts.max()) + far
        points = np.linspace(low, high, 400)
        above = np.array([self.p.mass_above(y) for y in points])
        return low, float(points[min(int(np.searchsorted(-above, -tail)), len(points) - 1)])

    def grid(self, tail: float) -> Array:
        """Return an increasing grid over the reach whose points are at most one panel width apart."""
        low, high = self.reach(tail)
        return np.linspace(low, high, max(2, math.ceil((high - low) / self.width) + 1))


def mixture_law(pair: Pair, step: float, tail: float) -> Law:
    """Return the law of L = dP/dQ under Q on a lattice.

    Every panel lies in one cell of the lattice, up to the rounding of its ends. Its nodes are split between the two
    lattice points around them, so that mass and mean are kept.

    Guarantees: dominates the exact law in convex order; at most about `tail` of P-mass at infinity and of Q-mass at
    zero, besides the lost weight.
    """
    grid = pair.grid(tail)
    losses = pair.log_ratio(grid)
    start = float(losses[0])
    cells = max(1, math.ceil((float(losses[-1]) - start) / step))
    inner = invert_ratio(pair, np.asarray(start + step * np.arange(1.0, cells)), grid, losses)
    mass = split_panels(pair, np.unique(np.concatenate([grid, inner])), start, step, cells)
    return close_ends(pair, mass, (float(grid[0]), float(grid[-1])), start, step)


def invert_ratio(pair: Pair, targets: Array, grid: Array, losses: Array) -> Array:
    """Return the points where log L takes the target values, by Newton's method within the panels of the grid.

    Cells of the lattice begin and end there. If they were off, a panel would lie in two cells and its nodes could
    understate the law.
    """
    above = np.clip(np.searchsorted(losses, targets), 1, len(grid) - 1)
    y = np.interp(targets, losses, grid)
    for _ in range(NEWTON_STEPS):
        slope = np.maximum(pair.p.mean_shift(y) - pair.q.mean_shift(y), 1e-300)
        y = np.clip(y - (pair.log_ratio(y) - targets) / slope, grid[above - 1], grid[above])
    return np.asarray(y)


def split_panels(pair: Pair, edges: Array, start: float, step: float, cells: int) -> Array:
    """Return the Q-mass of every lattice point, from all panels."""
    mass = np.zeros(cells + 1)
    for loss, weight in integrate_panels(pair, edges):
        position = np.clip((loss.ravel() - start) / step, 0.0, cells)
        below = np.minimum(np.floor(position), cells - 1)
        upward = np.expm1((position - below) * step) / math.expm1(step)
        index, held = below.astype(np.int64), weight.ravel()
        mass += np.bincount(index, held * (1 - upward), cells + 1)
        mass += np.bincount(index + 1, held * upward, cells + 1)
    return mass


def integrate_panels(pair: Pair, edges: Array) -> Iterator[tuple[Array, Array]]:
    """Yield (log L, Q-mass) of the nodes of every panel, one row per panel, in batches."""
    for first in range(0, len(edges) - 1, BATCH):
        part = edges[first : first + BATCH + 1]
        half = np.diff(part) / 2
        y = part[:-1, None] + half[:, None] * (1 + NODES)
        log_q = pair.q.log_density(y.ravel())
        loss = (pair.p.log_density(y.ravel()) - log_q).reshape(y.shape)
        density = np.exp(log_q.reshape(y.shape) - y * y / 2) / math.sqrt(2 * math.pi)
        yield loss, density * WEIGHTS * half[:, None]


def close_ends(pair: Pair, mass: Array, ends: tuple[float, float], start: float, step: float) -> Law:
    """Return the law with both tails closed.

    The low tail goes to zero and the lowest point, the high tail to the last point but one and infinity.
    """
    # The low tail keeps its P-mass at the lowest point; the rest of its Q-mass goes to zero. Both tails stay
    # mean-preserving, so the law remains an upper bound in both directions.
    at_lowest = min(pair.p.mass_below(ends[0]) * math.exp(-start), pair.q.mass_below(ends[0]))
    above, last = pair.q.mass_above(ends[1]), len(mass) - 2
    mass[0] += at_lowest
    mass[last] += above
    infinite = max(0.0, pair.p.mass_above(ends[1]) - math.exp(start + step * last) * above) + pair.p.lost
    # The factor covers the rounding of the distribution functions.
    return Law(start, step, mass, max(0.0, pair.q.mass_below(ends[0]) - at_lowest), infinite * (1 + 1e-9))


def collapsed_panels(pair: Pair, width: float) -> tuple[Array, Array]:
    """Return (log L, Q-mass) with every panel collapsed to its mean: dominated by the exact law in convex order."""
    grid = pair.grid(1e-22)
    losses = pair.log_ratio(grid)
    cells = max(1, math.ceil(float(losses[-1] - losses[0]) / width))
    inner = np.interp(losses[0] + width * np.arange(1, cells), losses, grid)
    edges = np.unique(np.concatenate([grid, inner]))
    q = np.concatenate([held.sum(axis=1) for _, held in integrate_panels(pair, edges)])
    p = np.concatenate([(held * np.exp(loss)).sum(axis=1) for loss, held in integrate_panels(pair, edges)])
    low, high = float(edges[0]), float(edges[-1])
    q = np.concatenate([[pair.q.mass_below(low)], q, [pair.q.mass_above(high)]])
    p = np.concatenate([[pair.p.mass_below(low)], p, [pair.p.mass_above(high)]])
    held = (q > 0) & (p > 0)
    return np.log(p[held] / q[held]), q[held]


def segment_pair(event: Segment | ConvexSegment, tail: float) -> Pair:
    """Return the pair of end distributions with the subject and without it."""
    with_it = first_draw_mixture(event) if isinstance(event, Segment) else convex_mixture(event, tail)
    return Pair(with_it, NOWHERE)


def replaced_pair(event: ReplacedSegment) -> Pair:
    """Return sum w_j N(t_j) against sum w_j N(-t_j): each data set moves the end to its own side of the zeroed one."""
    with_it = first_draw_mixture(event)
    return Pair(with_it, with_it.mirrored)


def replaced_law(event: ReplacedSegment, step: float, tail: float) -> Law:
    r"""Return the law with the mixture over j of 1 - g + g X_j above one, its mirror below one, the rest at one.

    g = 1 - (1 - q)^m, and X_j is the ratio of a shift by t_j = (min(1, 2 first_step) + m - j) / (m z): how far the two
    data sets lead apart if step j is the first to draw the subject. Above one, a mixture (1 - g) M + g P_j against (1 -
    g) M + g Q_j costs no more than (1 - g) Q_j + g P_j against Q_j (advanced joint convexity), and everything is
    symmetric.
    """
    chances, left = first_draws(event)
    shifts = (min(1.0, 2 * event.first_step) + left) / (event.steps * noise_of(event))
    chance = float(chances.sum())
    if shifts.max() > FARTHEST_SHIFT:
        raise TooFar
    above, infinite = np.zeros(2), 0.0
    for weight, shift in zip(chances / chance, shifts, strict=True):
        mass, excess = masses_above_one(float(shift), chance, step, tail)
        size = max(len(above), len(mass))
        above = np.pad(above, (0, size - len(above))) + weight * np.pad(mass, (0, size - len(mass)))
        infinite += weight * excess
    # Mass at the lattice point L = 1 belongs to the rest.
    above = above[1:]
    mirrored = above * np.exp(step * np.arange(1, len(above) + 1))
    rest = max(0.0, 1.0 - above.sum() - mirrored.sum() - infinite)
    return Law(-step * len(above), step, np.concatenate([mirrored[::-1], [rest], above]), infinite, infinite)


def masses_above_one(shift: float, rate: float, step: float, tail: float) -> tuple[Array, float]:
    """Return Q-masses of 1 - g + g X at 1, e^step, e^(2 step), ... from X > 1, and the P-mass above all of them."""
    far = shift + float(-ndtri(tail))
    cells = max(1, math.ceil(float(sampled_loss(np.array([far]), shift, rate)[0]) / step))
    ends = np.log1p(np.expm1(step * np.arange(1, cells)) / rate) / shift + shift / 2
    grid = np.linspace(shift / 2, far, math.ceil((far - shift / 2) / min(0.1, NARROW / shift)) + 1)
    edges = np.unique(np.concatenate([grid, ends]))
    mass = np.zeros(cells + 1)
    for first in range(0, len(edges) - 1, BATCH):
        part = edges[first : first + BATCH + 1]
        half = np.diff(part) / 2
        y = (part[:-1, None] + half[:, None] * (1 + NODES)).ravel()
        held = np.exp(-y * y / 2) / math.sqrt(2 * math.pi) * (WEIGHTS * half[:, None]).ravel()
        position = np.clip(sampled_loss(y, shift, rate) / step, 0.0, cells)
        below = np.minimum(np.floor(position), cells - 1)
        upward = np.expm1((position - below) * step) / math.expm1(step)
        index = below.astype(np.int64)
        mass += np.bincount(index, held * (1 - upward), cells + 1) + np.bincount(index + 1, held * upward, cells + 1)
    beyond = float(ndtr(-far))
    mass[-2] += beyond
    excess = (1 - rate) * beyond + rate * float(ndtr(shift - far)) - math.exp(step * (cells - 1)) * beyond
    return mass, max(0.0, excess) * (1 + 1e-9)


def sampled_loss(y: Array, shift: float, rate: float) -> Array:
    """Return log(1 - g + g X) at the points `y`."""
    exponent = shift * y - shift * shift / 2
    return np.asarray(np.logaddexp(math.log1p(-rate), math.log(rate) + exponent) if rate < 1 else exponent)


def mixture_moments(pair: Pair) -> Array:
    """Return log E_Q[L^a] for a = 0..MOST_ORDER by quadrature; every term is positive."""
    largest = max(float(np.abs(pair.p.shifts).max()), float(np.abs(pair.q.shifts).max()))
    low = float(pair.q.shifts.min()) - 14.0
    # At order a the integrand peaks about a shifts above the origin: the grid must reach the peak of the largest order.
    high = 14.0 + float(ORDERS[-1]) * float(pair.p.shifts.max() - pair.q.shifts.min())
    nodes, weights = np.polynomial.legendre.leggauss(8)
    edges = np.arange(low, high, 0.25 / max(1.0, largest / 4))
    half = (edges[1] - edges[0]) / 2
    moments = np.full(len(ORDERS), -np.inf)
    for part in np.array_split(edges, max(1, len(edges) // 512)):
        y = (part[:, None] + half * (1 + nodes)[None, :]).ravel()
        log_q = pair.q.log_density(y)
        loss = pair.p.log_density(y) - log_q
        held = log_q - y * y / 2 - math.log(2 * math.pi) / 2 + np.log(np.tile(half * weights, len(part)))
        moments = np.logaddexp(moments, log_sum(held[None, :] + ORDERS[:, None] * loss[None, :]))
    # The margin is far above the error of the quadrature, so the moments stay upper bounds.
    return pin_moments(moments + 1e-9)
