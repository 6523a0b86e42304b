"""Laws of likelihood ratios between mixtures of Gaussians on one line: segments of hidden steps.

Only the end of a segment is released. Which of its steps drew the subject is hidden, and each possibility moves the end
by a known distance at most; aligned shifts of these lengths are the worst case (Kahane's inequality, with signs).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import bdtrc, gammaln, ndtr, ndtri

from sightline.accounting.likelihood_ratio import Array, Law
from sightline.accounting.moments import ORDERS, log_sum, pin_moments
from sightline.events import ConvexSegment, Gaussian, ReplacedSegment, Segment

NODES, WEIGHTS = np.polynomial.legendre.leggauss(6)
NEWTON_STEPS = 3
BATCH = 1 << 15
"""Panels that are integrated at a time."""
NARROW = 0.2
"""Panels are narrower than this over the largest shift, and than a tenth: six nodes are then exact in doubles."""
FARTHEST_SHIFT = 25.0
"""Ratios of larger shifts have masses that doubles cannot hold."""
EVERY_DRAW = -1.0
"""In place of a tail: no number of draws is left out, however rare; moments of high orders rest on them."""
AT_A_TIME = 1 << 21
"""Terms of a mixture's density that are held at a time."""
MOST_COMPONENTS = 512
"""Beyond as many possible first draws, neighbours are taken for the earlier of them, which moves the end further."""


class TooFar(Exception):
    """The shifts are too large for the masses of their law to be represented."""


@dataclass(frozen=True, eq=False)
class Mixture:
    """Unit Gaussians at `shifts` with these weights; the weight that is `lost` lies out of reach."""

    weights: Array
    shifts: Array
    lost: float = 0.0

    def log_density(self, y: Array) -> Array:
        """The logarithm of the density over that of the standard Gaussian at the places."""
        out, some = np.empty(len(y)), max(1, AT_A_TIME // len(self.shifts))
        offsets = (np.log(self.weights) - self.shifts**2 / 2)[:, None]
        for first in range(0, len(y), some):
            terms = self.shifts[:, None] * y[None, first : first + some] + offsets
            top = terms.max(axis=0)
            out[first : first + some] = top + np.log(np.exp(terms - top).sum(axis=0))
        return out

    def mean_shift(self, y: Array) -> Array:
        """The mean of the shifts given the places: the slope of the logarithm."""
        out, some = np.empty(len(y)), max(1, AT_A_TIME // len(self.shifts))
        offsets = (np.log(self.weights) - self.shifts**2 / 2)[:, None]
        for first in range(0, len(y), some):
            terms = self.shifts[:, None] * y[None, first : first + some] + offsets
            likely = np.exp(terms - terms.max(axis=0))
            out[first : first + some] = self.shifts @ likely / likely.sum(axis=0)
        return out

    def mass_below(self, y: float) -> float:
        """The probability to be below a place."""
        return float(np.dot(self.weights, ndtr(y - self.shifts)))

    def mass_above(self, y: float) -> float:
        """The probability to be above a place, among the shifts that are held."""
        return float(np.dot(self.weights, ndtr(self.shifts - y)))

    @property
    def mirrored(self) -> "Mixture":
        """The same with all shifts the other way."""
        return Mixture(self.weights, -self.shifts, self.lost)


NOWHERE = Mixture(np.ones(1), np.zeros(1))
"""The subject moves nothing."""


def first_draws(event: Segment | ReplacedSegment) -> tuple[Array, Array]:
    """(chance that step j is the first with the subject, steps that are left after it) for j = 1..m."""
    width = -(-event.steps // MOST_COMPONENTS)
    first = np.arange(0, event.steps, width, dtype=np.float64)
    count = np.minimum(width, event.steps - first)
    log_rest = math.log1p(-event.rate)
    return np.exp(first * log_rest) * -np.expm1(count * log_rest), event.steps - 1 - first


def first_draw_mixture(event: Segment | ReplacedSegment) -> Mixture:
    r"""w_0 N(0) + sum_j w_j N(t_j), w_j = q (1 - q)^(j - 1), t_j = (first_step + m - j) / (m z): zero-out.

    Until its first draw at step j the subject is not in the path; then it moves the step by `first_step` of a ball's
    diameter, and whatever a later step is moved by, both ends of it lie in the ball.
    """
    chances, left = first_draws(event)
    never = math.exp(event.steps * math.log1p(-event.rate))
    shifts = (event.first_step + left) / (event.steps * noise_of(event))
    return checked_mixture(np.append(never, chances), np.append(0.0, shifts))


def convex_mixture(event: ConvexSegment, tail: float) -> Mixture:
    """Sum_k Bin(k; m, q) N(k / z): each of k draws moves the end of a contracting path by one sensitivity at most."""
    most = event.steps
    while most > 1 and bdtrc(most // 2, event.steps, event.rate) <= tail:
        most //= 2
    while most > 1 and bdtrc(most - 1, event.steps, event.rate) <= tail:
        most -= 1
    if most / noise_of(event) > FARTHEST_SHIFT:
        raise TooFar
    k, m = np.arange(most + 1, dtype=np.float64), event.steps
    log_chance = gammaln(m + 1) - gammaln(k + 1) - gammaln(m - k + 1)
    log_chance += k * math.log(event.rate) + (m - k) * math.log1p(-event.rate)
    chances = np.exp(log_chance)
    held = chances > 0
    if tail == EVERY_DRAW and not held.all():
        raise TooFar
    lost = float(bdtrc(most, m, event.rate)) if most < m else 0.0
    return checked_mixture(chances[held] * ((1 - lost) / chances.sum()), k[held] / noise_of(event), lost)


def checked_mixture(weights: Array, shifts: Array, lost: float = 0.0) -> Mixture:
    """The mixture, unless its shifts are out of reach."""
    if shifts.max() > FARTHEST_SHIFT:
        raise TooFar
    held = weights > 0
    return Mixture(weights[held], shifts[held], lost)


def noise_of(event: Segment | ReplacedSegment | ConvexSegment) -> float:
    """The noise multiplier inside."""
    if not isinstance(event.event, Gaussian):
        raise TooFar
    return event.event.noise_multiplier


@dataclass(frozen=True, eq=False)
class Pair:
    """Two mixtures whose ratio L = dP/dQ increases along the line."""

    p: Mixture
    q: Mixture

    def log_ratio(self, y: Array) -> Array:
        """log L at the places."""
        return self.p.log_density(y) - self.q.log_density(y)

    @property
    def width(self) -> float:
        """Of the panels to integrate over."""
        largest = max(float(np.abs(self.p.shifts).max()), float(np.abs(self.q.shifts).max()))
        return min(0.1, NARROW / max(largest, 1e-300))

    def reach(self, tail: float) -> tuple[float, float]:
        """Places with about `tail` of Q's mass below and of P's mass above."""
        far = float(-ndtri(tail))
        low, high = float(self.q.shifts.min()) - far, float(self.p.shifts.max()) + far
        places = np.linspace(low, high, 400)
        above = np.array([self.p.mass_above(y) for y in places])
        return low, float(places[min(int(np.searchsorted(-above, -tail)), len(places) - 1)])

    def grid(self, tail: float) -> Array:
        """Places from one end to the other, at most a panel's width apart."""
        low, high = self.reach(tail)
        return np.linspace(low, high, max(2, math.ceil((high - low) / self.width) + 1))


def mixture_law(pair: Pair, step: float, tail: float) -> Law:
    """The law of L = dP/dQ under Q on a lattice.

    Every panel lies in one cell of the lattice, up to the rounding of its ends, and its nodes are split between the two
    lattice points around them, so that mass and mean are kept.

    Guarantees: dominates the exact law in convex order; at most about `tail` of P-mass at infinity and of Q-mass at
    zero, besides the weight that is out of reach.
    """
    grid = pair.grid(tail)
    losses = pair.log_ratio(grid)
    start = float(losses[0])
    cells = max(1, math.ceil((float(losses[-1]) - start) / step))
    inner = invert_ratio(pair, np.asarray(start + step * np.arange(1.0, cells)), grid, losses)
    mass = split_panels(pair, np.unique(np.concatenate([grid, inner])), start, step, cells)
    return close_ends(pair, mass, (float(grid[0]), float(grid[-1])), start, step)


def invert_ratio(pair: Pair, targets: Array, grid: Array, losses: Array) -> Array:
    """Where log L has these values, by Newton's method inside the panels of the grid that hold them.

    Cells of the lattice begin and end there: were they off, a panel would lie in two cells and its nodes could tell
    less than the law does.
    """
    above = np.clip(np.searchsorted(losses, targets), 1, len(grid) - 1)
    y = np.interp(targets, losses, grid)
    for _ in range(NEWTON_STEPS):
        slope = np.maximum(pair.p.mean_shift(y) - pair.q.mean_shift(y), 1e-300)
        y = np.clip(y - (pair.log_ratio(y) - targets) / slope, grid[above - 1], grid[above])
    return np.asarray(y)


def split_panels(pair: Pair, edges: Array, start: float, step: float, cells: int) -> Array:
    """Q-mass of every lattice point from all panels."""
    mass = np.zeros(cells + 1)
    for loss, weight in integrate_panels(pair, edges):
        place = np.clip((loss.ravel() - start) / step, 0.0, cells)
        below = np.minimum(np.floor(place), cells - 1)
        upward = np.expm1((place - below) * step) / math.expm1(step)
        index, held = below.astype(np.int64), weight.ravel()
        mass += np.bincount(index, held * (1 - upward), cells + 1)
        mass += np.bincount(index + 1, held * upward, cells + 1)
    return mass


def integrate_panels(pair: Pair, edges: Array) -> Iterator[tuple[Array, Array]]:
    """(log L, Q-mass) of the nodes of every panel, a row for each panel."""
    for first in range(0, len(edges) - 1, BATCH):
        part = edges[first : first + BATCH + 1]
        half = np.diff(part) / 2
        y = part[:-1, None] + half[:, None] * (1 + NODES)
        log_q = pair.q.log_density(y.ravel())
        loss = (pair.p.log_density(y.ravel()) - log_q).reshape(y.shape)
        density = np.exp(log_q.reshape(y.shape) - y * y / 2) / math.sqrt(2 * math.pi)
        yield loss, density * WEIGHTS * half[:, None]


def close_ends(pair: Pair, mass: Array, ends: tuple[float, float], start: float, step: float) -> Law:
    """Both tails below to zero and the lowest point, above to the last point before and infinity."""
    at_lowest = min(pair.p.mass_below(ends[0]) * math.exp(-start), pair.q.mass_below(ends[0]))
    above, last = pair.q.mass_above(ends[1]), len(mass) - 2
    mass[0] += at_lowest
    mass[last] += above
    infinite = max(0.0, pair.p.mass_above(ends[1]) - math.exp(start + step * last) * above) + pair.p.lost
    return Law(start, step, mass, max(0.0, pair.q.mass_below(ends[0]) - at_lowest), infinite * (1 + 1e-9))


def collapsed_panels(pair: Pair, width: float) -> tuple[Array, Array]:
    """(log L, Q-mass) with every panel collapsed to its mean: dominated by the exact law in convex order."""
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
    """With the subject against without it."""
    with_it = first_draw_mixture(event) if isinstance(event, Segment) else convex_mixture(event, tail)
    return Pair(with_it, NOWHERE)


def replaced_pair(event: ReplacedSegment) -> Pair:
    """Sum w_j N(t_j) against sum w_j N(-t_j): both data sets move the end away from where the subject's zero leads."""
    with_it = first_draw_mixture(event)
    return Pair(with_it, with_it.mirrored)


def replaced_law(event: ReplacedSegment, step: float, tail: float) -> Law:
    r"""For L > 1 the mixture over j of 1 - g + g X_j, mirrored for L < 1, the rest at L = 1; g = 1 - (1 - q)^m.

    X_j is the ratio of a shift by t_j = (min(1, 2 first_step) + m - j) / (m z): how far the two data sets lead apart if
    step j is the first to draw the subject. Above one, a mixture (1 - g) M + g P_j against (1 - g) M + g Q_j costs no
    more than (1 - g) Q_j + g P_j against Q_j (advanced joint convexity), and everything is symmetric.
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
    above = above[1:]
    mirrored = above * np.exp(step * np.arange(1, len(above) + 1))
    rest = max(0.0, 1.0 - above.sum() - mirrored.sum() - infinite)
    return Law(-step * len(above), step, np.concatenate([mirrored[::-1], [rest], above]), infinite, infinite)


def masses_above_one(shift: float, rate: float, step: float, tail: float) -> tuple[Array, float]:
    """Q-masses of 1 - g + g X at 1, e^step, e^(2 step), ... from X > 1, and the P-mass above all of them."""
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
        place = np.clip(sampled_loss(y, shift, rate) / step, 0.0, cells)
        below = np.minimum(np.floor(place), cells - 1)
        upward = np.expm1((place - below) * step) / math.expm1(step)
        index = below.astype(np.int64)
        mass += np.bincount(index, held * (1 - upward), cells + 1) + np.bincount(index + 1, held * upward, cells + 1)
    beyond = float(ndtr(-far))
    mass[-2] += beyond
    excess = (1 - rate) * beyond + rate * float(ndtr(shift - far)) - math.exp(step * (cells - 1)) * beyond
    return mass, max(0.0, excess) * (1 + 1e-9)


def sampled_loss(y: Array, shift: float, rate: float) -> Array:
    """log(1 - g + g X) at the places."""
    exponent = shift * y - shift * shift / 2
    return np.asarray(np.logaddexp(math.log1p(-rate), math.log(rate) + exponent) if rate < 1 else exponent)


def mixture_moments(pair: Pair) -> Array:
    """log E_Q[L^a] for a = 0..MOST_ORDER by quadrature: every term is positive."""
    largest = max(float(np.abs(pair.p.shifts).max()), float(np.abs(pair.q.shifts).max()))
    low = float(pair.q.shifts.min()) - 14.0
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
    return pin_moments(moments + 1e-9)
