"""Certified epsilon of exactly k of T steps, by sampling the true likelihood ratio; the confidence is part of delta.

Uses of a subject in k of T steps are dominated by P = the mean over k-subsets S of N(s 1_S, I) against Q = N(0, I), s =
1 / noise_multiplier: L = e_k(x) / C(T, k) with x_t = exp(s y_t - s^2 / 2), e_k the elementary symmetric polynomial.
Forward, delta = E_Q (L - e^eps)_+ is sampled where L is large, under dG = L^a / M_a dQ, which bounds the value of a
draw by the Renyi conversion; backward, under normals moved against the subject. A sample of bounded numbers bounds its
mean by Chernoff and Hoeffding. The chance that the certificate is wrong, `beta`, is taken out of delta.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from sightline.accounting.accountant import check_delta, epsilon
from sightline.accounting.compositions import canonical_form
from sightline.accounting.likelihood_ratio import Array
from sightline.accounting.pld import pld_backward_delta
from sightline.events import Allocation, Gaussian

# The chance that a certificate is wrong, counted as part of delta: a wrong certificate is a failure of privacy like any
# other. That holds for a seed not chosen by its result; trying many seeds and keeping the best multiplies beta.
BETA = 1e-9
# Epsilons to try, each on fresh draws; each of both directions may fail with its share of beta.
ATTEMPTS = 4
# The first epsilon lies this much above the pilot's estimate; each further one adds twice as much.
MARGIN = 0.001
# Pilot draws, which choose an epsilon, for every draw that verifies it.
PILOT = 0.3
# These limits on normals, and on steps of the recursion (T x uses x epochs per draw), give the number of draws. If
# there would be too few nothing is sampled: it would take long, and with many uses the block bound loses little.
MOST_NORMALS, MOST_WORK, FEWEST_DRAWS, MOST_DRAWS = 1.0e8, 4.0e9, 60_000, 500_000
# Numbers that the recursion works on at a time, so that they stay in the processor's cache.
CACHED = 2**15
# Above this s nothing is sampled: sums of products would leave the range of doubles.
STRONGEST = 4.0
# Numbers of steps that are in none, in one, in two, ... of some subsets.
Histogram = tuple[int, ...]


@dataclass(frozen=True)
class SampledCertificate:
    """An epsilon at delta with its evidence: `beta` is the chance, over the draws of `seed`, that it is wrong.

    Guarantees: (epsilon, delta) holds for this schedule by itself, with beta included in delta; it is not a law that
    could be composed with other releases. Never above the block bound, and equal to it if `certified` is false.
    """

    epsilon: float
    delta: float
    certified: bool
    beta: float
    seed: int
    draws: int


@dataclass(frozen=True)
class AllocationSchedule:
    """Exactly `uses` of `steps` steps, drawn again in each of `epochs` epochs; each use shifts by `strength`."""

    steps: int
    uses: int
    epochs: int
    strength: float

    @property
    def fewer(self) -> int:
        """Return the smaller of used and unused steps, which the recursion runs over."""
        return min(self.uses, self.steps - self.uses)

    def log_ratios(self, log_x: Array) -> Array:
        """Return log L of draws from log x, which has one row per step."""
        if 2 * self.uses <= self.steps:
            return log_symmetric_mean(np.exp(log_x), self.uses)
        # e_k(x) = e_T(x) e_(T-k)(1/x): the recursion runs over the smaller of the two sets.
        return np.asarray(log_x.sum(axis=0) + log_symmetric_mean(np.exp(-log_x), self.steps - self.uses))

    def log_bound(self, log_x: Array) -> Array:
        """Return an upper bound on log L (Maclaurin: k times the logarithm of the mean ratio)."""
        return np.asarray(self.uses * np.log(np.exp(log_x).mean(axis=0)))

    def count_draws(self) -> int:
        """Return how many draws the limits allow; zero if that would be too few."""
        size = self.steps * self.epochs
        result = int(min(MOST_NORMALS / size, MOST_WORK / (size * max(1, self.fewer))))
        return 0 if result < FEWEST_DRAWS else min(result, MOST_DRAWS)

    def log_x(self, y: Array) -> Array:
        """Return log x_t = s y_t - s^2 / 2."""
        return np.asarray(self.strength * (y - self.strength / 2))

    @property
    def batch(self) -> int:
        """Return the number of draws per batch, so that the recursion stays in the processor's cache."""
        return max(64, min(4096, CACHED // (self.fewer + 1)))


def log_symmetric_mean(x: Array, uses: int) -> Array:
    """Return log of e_k(x_1 .. x_T) / C(T, k) for every column.

    The recursion e_j(t) = e_j(t - 1) + x_t e_(j-1)(t - 1) adds positive terms only: nothing cancels.
    """
    steps, draws = x.shape
    scale, sums, risen = np.zeros(draws), np.zeros((uses + 1, draws)), np.empty((uses, draws))
    sums[0] = 1.0
    # The sums are rescaled every `between` steps, before they can overflow.
    between = max(1, int(500 / math.log(2 + float(x.max()))))
    for t in range(1, steps + 1):
        top = min(t, uses)
        np.multiply(sums[:top], x[t - 1], out=risen[:top])
        sums[1 : top + 1] += risen[:top]
        if t % between == 0:
            largest = sums.max(axis=0)
            sums /= largest
            scale += np.log(largest)
    return np.asarray(np.log(sums[uses]) + scale - log_choose(steps, uses))


class SubsetSampler:
    """A sampler of `order` k-subsets of T steps with weight exp(s^2 sum_t C(c_t, 2)), c_t = how many contain t.

    With y ~ N(s c, I) afterwards it is an exact draw from L^a / M_a dQ. Steps are exchangeable, so only histograms of
    the c_t are drawn: subset by subset, each weighted by what all further subsets can add.
    """

    def __init__(self, schedule: AllocationSchedule, order: int) -> None:
        self.schedule, self.order = schedule, order
        self._growth = schedule.strength**2
        self._moves = lru_cache(None)(self._list_moves)

    @cached_property
    def log_moment(self) -> float:
        """Return log M_a = log E_Q[L^a] of one epoch."""
        steps, uses = self.schedule.steps, self.schedule.uses
        return self._log_value((steps - uses, uses)) - (self.order - 1) * float(log_choose(steps, uses))

    def _log_value(self, histogram: Histogram) -> float:
        """Return log of the weight of all further subsets together."""
        return 0.0 if len(histogram) > self.order else float(logsumexp(self._moves(histogram)[1]))

    def _list_moves(self, histogram: Histogram) -> tuple[list[Histogram], Array]:
        """Return the histograms that one more subset can lead to, and the logarithms of their weights."""
        uses, unused = self.schedule.uses, self.schedule.steps - self.schedule.uses
        reach = [np.arange(max(0, n - unused), min(n, uses) + 1) for n in histogram[1:]]
        chosen = np.stack([axis.ravel() for axis in np.meshgrid(*reach, indexing="ij")], axis=1)
        first = uses - chosen.sum(axis=1)
        held = (first >= 0) & (first <= histogram[0])
        taken = np.column_stack([first, chosen])[held]
        counts = np.array(histogram)
        weight = log_choose(counts, taken).sum(axis=1) + self._growth * taken @ np.arange(len(counts))
        after = np.pad(counts - taken, ((0, 0), (0, 1))) + np.pad(taken, ((0, 0), (1, 0)))
        ends = [tuple(row) for row in after.tolist()]
        return ends, np.asarray(weight + np.array([self._log_value(end) for end in ends]))

    def draw_histograms(self, draws: int, rng: np.random.Generator) -> Counter[Histogram]:
        """Return the histograms of all subsets together, with the number of draws that have each."""
        steps, uses = self.schedule.steps, self.schedule.uses
        held: Counter[Histogram] = Counter({(steps - uses, uses): draws})
        for _ in range(self.order - 1):
            after: Counter[Histogram] = Counter()
            # Sorted, so that the draws depend on the seed alone.
            for histogram, count in sorted(held.items()):
                ends, weight = self._moves(histogram)
                chances = np.exp(weight - logsumexp(weight))
                for index in np.flatnonzero(times := rng.multinomial(count, chances / chances.sum())):
                    after[ends[index]] += int(times[index])
            held = after
        return held

    def draw_rows(self, draws: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return one histogram per draw, in random order."""
        held = sorted(self.draw_histograms(draws, rng).items())
        rows = np.repeat(np.array([h for h, _ in held]), [n for _, n in held], axis=0)
        # Epochs are drawn separately and put side by side: without the shuffle equal histograms would meet.
        return np.asarray(rng.permutation(rows), dtype=np.int64)


def log_choose(total: NDArray[np.int64] | int, chosen: NDArray[np.int64] | int) -> Array:
    """Return log C(n, k)."""
    n, k = np.asarray(total, dtype=np.float64), np.asarray(chosen, dtype=np.float64)
    return np.asarray(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1))


def list_orders(uses: int) -> range:
    """Return the orders at which subsets can be drawn in little time."""
    return range(2, 7 if uses <= 5 else 5 if uses <= 16 else 4)


def log_range(log_moment: float, order: int, at: float) -> float:
    """Return log R, the largest value of one forward draw at an epsilon; it is also the Renyi conversion."""
    return log_moment - (order - 1) * at + (order - 1) * math.log(order - 1) - order * math.log(order)


@dataclass(frozen=True)
class Forward:
    """An estimator of E_Q (L - e^eps)_+ by draws from L^a / M_a dQ."""

    sampler: SubsetSampler

    @property
    def log_moment(self) -> float:
        """Return log M_a of all epochs."""
        return self.sampler.schedule.epochs * self.sampler.log_moment

    def draw_ratios(self, draws: int, rng: np.random.Generator, least: float) -> Array:
        """Return log L of draws; minus infinity where it is certainly below `least`."""
        schedule = self.sampler.schedule
        epochs = [self.sampler.draw_rows(draws, rng) for _ in range(schedule.epochs)]
        parts = []
        for begin in range(0, draws, schedule.batch):
            rows = [counts[begin : begin + schedule.batch] for counts in epochs]
            log_x = [schedule.log_x(self.draw_shifted(some, rng)) for some in rows]
            # A cheap upper bound on log L sorts out draws that cannot count, before the recursion.
            matters = np.sum([schedule.log_bound(one) for one in log_x], axis=0) > least
            result = np.full(len(matters), -np.inf)
            if matters.any():
                result[matters] = np.sum([schedule.log_ratios(one[:, matters]) for one in log_x], axis=0)
            parts.append(result)
        return np.concatenate(parts)

    def draw_shifted(self, histograms: NDArray[np.int64], rng: np.random.Generator) -> Array:
        """Return y ~ N(s c, I), one column per histogram, with the steps that are in most subsets first."""
        schedule, order = self.sampler.schedule, self.sampler.order
        y = rng.standard_normal((schedule.steps, len(histograms)))
        reach = min(schedule.steps, order * schedule.uses)
        index = np.arange(reach)[:, None]
        # The sum of histograms[:, least:] is the number of steps in at least `least` subsets.
        for least in range(1, order + 1):
            y[:reach] += schedule.strength * (index < histograms[:, least:].sum(axis=1))
        return y

    def means(self, log_ratios: Array, at: float) -> float:
        """Return the mean of X = (L - e^eps)_+ L^-a M_a / R, which lies in [0, 1] and has expectation delta / R."""
        held = log_ratios[log_ratios > at]
        order = self.sampler.order
        log_x = np.log(-np.expm1(at - held)) + (1 - order) * held + self.log_moment
        return math.fsum(np.exp(log_x - self.log_range(at))) / len(log_ratios)

    def log_range(self, at: float) -> float:
        """Return log R at an epsilon."""
        return log_range(self.log_moment, self.sampler.order, at)

    def bound(self, log_ratios: Array, at: float, log_odds: float, draws: int) -> float:
        """Return an upper bound on delta at an epsilon."""
        return math.exp(self.log_range(at)) * upper_mean(self.means(log_ratios, at), draws, log_odds)


@dataclass(frozen=True)
class Backward:
    """An estimator of E_Q (1 - e^eps L)_+ by reweighted draws from N(-shift, I).

    L is not below its geometric mean, so a draw only counts where the sum of y is low, and its weight is small there.
    """

    schedule: AllocationSchedule
    at: float

    def log_range(self, shift: float) -> float:
        """Return log of the largest value of one draw."""
        one, total = self.schedule, self.schedule.steps * self.schedule.epochs
        slope = shift * one.steps / (one.uses * one.strength)
        gap = math.log1p(1 / slope)
        reach = -slope * (self.at + gap) + shift * total * (one.strength + shift) / 2
        return reach + math.log(-math.expm1(-gap))

    @cached_property
    def shift(self) -> float:
        """Return the shift at which the largest value of one draw is least."""
        # Slow to load, and most of accounting does not need it.
        from scipy.optimize import minimize_scalar

        result = minimize_scalar(lambda log: self.log_range(math.exp(log)), bounds=(-12.0, 4.0), method="bounded")
        return math.exp(float(result.x))

    def bound(self, draws: int, rng: np.random.Generator, log_odds: float) -> float:
        """Return an upper bound on delta."""
        log_top, total = self.log_range(self.shift), 0.0
        one, moved = self.schedule, self.schedule.steps * self.schedule.epochs * self.shift / 2
        for begin in range(0, draws, one.batch):
            size = (one.steps, min(one.batch, draws - begin))
            noisy = [rng.standard_normal(size) - self.shift for _ in range(one.epochs)]
            log_ratio = np.sum([one.log_ratios(one.log_x(y)) for y in noisy], axis=0)
            log_weight = self.shift * (np.sum([y.sum(axis=0) for y in noisy], axis=0) + moved)
            low = np.minimum(self.at + log_ratio, 0.0)
            total += math.fsum(-np.expm1(low) * np.exp(np.where(low < 0, log_weight - log_top, -np.inf)))
        return math.exp(log_top) * upper_mean(total / draws, draws, log_odds)


def upper_mean(mean: float, draws: int, log_odds: float) -> float:
    """Return the largest mean compatible with a sample in [0, 1]: n kl(mean || q) = log(1 / odds).

    The bound is Chernoff's (Hoeffding 1963).

    >>> round(upper_mean(0.0, 1000, math.log(20)), 6)
    0.002991
    """
    mean = min(mean, 1.0)

    def excess(q: float) -> float:
        rest = (1 - mean) * math.log((1 - mean) / (1 - q)) if mean < 1 else 0.0
        return draws * (rest + (mean * math.log(mean / q) if mean > 0 else 0.0)) - log_odds

    top = 1 - 1e-15
    if mean >= top or excess(top) <= 0:
        return 1.0
    from scipy.optimize import brentq

    return min(1.0, float(brentq(excess, max(mean, 1e-300), top, xtol=1e-16, rtol=1e-13)) * (1 + 1e-9))


def certify_balanced(
    *, noise: float, steps: int, uses: int, epochs: int = 1, delta: float, seed: int = 0, beta: float = BETA,
    draws: int | None = None,
) -> SampledCertificate:  # fmt: skip
    """Return epsilon of `uses` of `steps` steps, certified by draws where that helps, else the block bound.

    >>> found = certify_balanced(noise=0.7, steps=30, uses=4, delta=1e-5, draws=20_000)
    >>> found.certified, 7.88 < found.epsilon < 8.1
    (True, True)
    """
    check_delta(delta)
    event = Allocation(steps, uses, Gaussian(noise))
    block = SampledCertificate(epsilon({event: epochs}, delta), delta, False, 0.0, seed, 0)
    schedule = AllocationSchedule(steps, uses, epochs, 1 / noise)
    draws = schedule.count_draws() if draws is None else draws
    # k = 1 has an exact block bound and k = T is a Gaussian: sampling could not gain anything.
    if uses in (1, steps) or not draws or schedule.strength > STRONGEST or not 2 * beta < delta or block.epsilon == 0:
        return block
    streams = np.random.default_rng(seed).spawn(1 + ATTEMPTS)
    forward = choose_order(schedule, block.epsilon)
    # Union bound over all attempts and both directions: together they fail with probability at most beta.
    log_odds = math.log(2 * ATTEMPTS / beta)
    # The pilot only chooses an epsilon; fresh draws verify it, so the choice does not bias the certificate.
    pilot = forward.draw_ratios(math.ceil(PILOT * draws), streams[0], 0.0)
    at = least_epsilon(lambda e: forward.bound(pilot, e, log_odds, draws), delta - beta, block.epsilon)
    for attempt, rng in enumerate(streams[1:]):
        at *= 1 + MARGIN * 2**attempt
        if at >= block.epsilon:
            return block
        if verify_epsilon(forward, event, at, delta - beta, log_odds, draws, rng):
            return SampledCertificate(at, delta, True, beta, seed, draws)
    return block


def choose_order(schedule: AllocationSchedule, at: float) -> Forward:
    """Return the estimator of the order at which one draw has the smallest range."""
    result = [Forward(SubsetSampler(schedule, order)) for order in list_orders(schedule.fewer)]
    return min(result, key=lambda one: one.log_range(at))


def least_epsilon(bound: Callable[[float], float], delta: float, most: float) -> float:
    """Return where a decreasing bound reaches delta, at most `most`."""
    low, high = 0.0, most
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if bound(middle) > delta else (low, middle)
    return high


def verify_epsilon(
    forward: Forward, event: Allocation, at: float, delta: float, log_odds: float, draws: int, rng: np.random.Generator
) -> bool:
    """Return whether both directions are below delta at an epsilon, on fresh draws."""
    ahead, back = rng.spawn(2)
    if forward.bound(forward.draw_ratios(draws, ahead, at), at, log_odds, draws) > delta:
        return False
    schedule = forward.sampler.schedule
    if pld_backward_delta(canonical_form({event: schedule.epochs}), at) <= delta:
        return True
    return Backward(schedule, at).bound(draws, back, log_odds) <= delta
