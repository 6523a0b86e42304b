"""Laws of dominating pairs, one function per kind of event, and means of independent copies."""

import math
from dataclasses import dataclass
from functools import singledispatch

import numpy as np
from numpy.typing import NDArray

from sightline import events as ev
from sightline.accounting.cohort_laws import cohort_law, cohort_reach
from sightline.accounting.compositions import MOST_HIDDEN_NOISE
from sightline.accounting.likelihood_ratio import (
    NOTHING,
    Array,
    Law,
    LawCache,
    Points,
    gaussian_law,
    multiply_laws,
    on_step,
    sampled_points,
    trim_law,
)
from sightline.accounting.mixtures import TooFar, mixture_law, replaced_law, replaced_pair, segment_pair
from sightline.events import Event

# Lattice step over the spread of the law for one level of averaging; divided by the root of the number of levels.
AVERAGING_FINENESS = 0.022
# Above this many lattice points a level of averaging becomes coarser instead of slower.
MOST_AVERAGING_POINTS = 6000
# More copies than these are averaged on lattices with a sixth of the points, and only the first eight bits of their
# number count.
MANY = 2**20
# If averaging would make a law narrower than this, fewer copies are averaged: narrower laws reach the limits of
# doubles.
NARROWEST = 1e-8
# Points of a lattice that reaches down to the atoms at zero; if more are needed, these atoms are split instead.
FARTHEST_AVERAGED = 10**5


@dataclass(frozen=True, eq=False)
class MeanOf:
    """The law of the mean of `copies` copies."""

    copies: int
    law: Law


def mean_of_copies(law: Law, copies: int, tail: float) -> Law:
    """Return the law of (L_1 + ... + L_d) / d for independent copies, by doubling.

    Guarantees: dominates the exact law of the mean in convex order if `law` dominates that of one copy.
    """
    # The mean of fewer copies dominates the mean of more in convex order, so the number of copies may be rounded down.
    copies = max(1, min(copies, int((loss_deviation(law) / NARROWEST) ** 2)))
    if copies > MANY:
        copies, fineness = rounded_down(copies), Fineness(AVERAGING_FINENESS / math.sqrt(5), MOST_AVERAGING_POINTS // 6)
    else:
        fineness = Fineness(AVERAGING_FINENESS / math.sqrt(max(count_levels(copies), 5)), MOST_AVERAGING_POINTS)
    power = MeanOf(1, settle_law(law, fineness, tail))
    total: MeanOf | None = None
    rest = copies
    while True:
        if rest & 1:
            total = power if total is None else average_weighted(total, power, fineness, tail)
        rest >>= 1
        if not rest:
            return total.law if total else law
        power = average_weighted(power, power, fineness, tail)


@dataclass(frozen=True)
class Fineness:
    """The step of a lattice over the spread of its law, and the most points it may have."""

    step: float
    points: int


def rounded_down(number: int) -> int:
    """Return the number with only its first eight bits."""
    shift = max(0, number.bit_length() - 8)
    return number >> shift << shift


def count_levels(copies: int) -> int:
    """Return how many sums the doubling needs."""
    return copies.bit_length() + copies.bit_count() - 2


def settle_law(law: Law, fineness: Fineness, tail: float) -> Law:
    """Return the law trimmed and put on the step that its spread needs, never a finer one."""
    law = trim_law(law, tail)
    return on_step(law, max(law.step, choose_step(law, fineness)))


def choose_step(law: Law, fineness: Fineness) -> float:
    """Return the step that keeps the relative added variance small and the number of points bounded."""
    return max(fineness.step * loss_deviation(law), law.step * len(law.mass) / fineness.points)


def loss_deviation(law: Law) -> float:
    """Return the standard deviation of the loss under Q."""
    return spread_of(law.loss, law.mass)


def spread_of(loss: Array, mass: Array) -> float:
    """Return the standard deviation of losses with the given masses."""
    total = mass.sum()
    mean = float((mass * loss).sum()) / total
    return math.sqrt(max(float((mass * (loss - mean) ** 2).sum()) / total, 1e-300))


def average_weighted(one: MeanOf, other: MeanOf, fineness: Fineness, tail: float) -> MeanOf:
    """Return the mean over the copies of both, on a lattice as fine as the result needs."""
    copies = one.copies + other.copies
    share = one.copies / copies
    step = max(one.law.step, other.law.step)
    first, second = on_step(one.law, step), on_step(other.law, step)
    target = fineness.step * math.hypot(share * loss_deviation(first), (1 - share) * loss_deviation(second))
    finer = max(1, math.floor(step / target + 1e-9))
    law = weighted_sum(first, second, share, finer)
    return MeanOf(copies, settle_law(law, fineness, tail))


def weighted_sum(first: Law, second: Law, share: float, finer: int) -> Law:
    """Return w A + (1 - w) B for independent A, B on lattices of one step, on a step `finer` times smaller."""
    step = first.step / finer
    log_share, log_rest = math.log(share), math.log1p(-share)
    start = math.log(share * math.exp(first.start) + (1 - share) * math.exp(second.start))
    top = math.log(share * math.exp(first.loss[-1]) + (1 - share) * math.exp(second.loss[-1]))
    zero = first.zero * second.zero
    lowest = min(start, first.start + log_share, second.start + log_rest)
    # If A = 0 the sum is (1 - w) B, not zero: the lattice reaches down to these atoms if that is affordable. Otherwise
    # they are split between its lowest point and zero.
    near = (first.zero > 0 or second.zero > 0) and (top - lowest) / step <= FARTHEST_AVERAGED
    if near:
        start = lowest
    out = np.zeros(math.ceil((top - start) / step) + 3)
    ahead = np.arange(1 - len(second.mass), len(first.mass), dtype=np.float64)
    shift = np.logaddexp(log_rest, log_share + first.start - second.start + first.step * ahead) + second.start - start
    add_pairs(out, first.mass, second.mass, ahead, shift, step, finer)
    if near:
        add_shifted(out, first.mass * second.zero, first.start + log_share - start, step, finer)
        add_shifted(out, second.mass * first.zero, second.start + log_rest - start, step, finer)
    else:
        zero += add_apart(out, first.mass * second.zero, first.loss + log_share - start, step)
        zero += add_apart(out, second.mass * first.zero, second.loss + log_rest - start, step)
    infinite = share * first.infinite + (1 - share) * second.infinite
    return Law(start, step, out, zero, infinite)


def add_pairs(out: Array, first: Array, second: Array, ahead: Array, shift: Array, step: float, finer: int) -> None:
    """Add the mass of every pair (i, j) at j * finer + shift[i - j] / step, split over the two points around it."""
    base, upward = place_on_lattice(np.maximum(shift / step, -finer * np.maximum(-ahead, 0.0)), step)
    # The shift depends on i - j only, so each diagonal of pairs is added as one strided slice.
    for difference, index, share in zip(ahead.astype(int).tolist(), base.tolist(), upward.tolist(), strict=True):
        low, high = max(0, -difference), min(len(second), len(first) - difference)
        pair = first[low + difference : high + difference] * second[low:high]
        begin, end = index + finer * low, index + finer * (high - 1) + 1
        raised = pair * share
        out[begin:end:finer] += pair - raised
        out[begin + 1 : end + 1 : finer] += raised


def add_shifted(out: Array, mass: Array, shift: float, step: float, finer: int) -> None:
    """Add a lattice of masses, shifted by a constant."""
    if mass.any():
        base, upward = place_on_lattice(np.array([max(shift / step, 0.0)]), step)
        begin, end = int(base[0]), int(base[0]) + finer * (len(mass) - 1) + 1
        out[begin:end:finer] += mass * (1 - upward[0])
        out[begin + 1 : end + 1 : finer] += mass * upward[0]


def add_apart(out: Array, mass: Array, shift: Array, step: float) -> float:
    """Add atoms of which some lie below the lattice, and return the mass that goes to zero.

    Atoms below go to the lowest point and to zero, so that their mean is kept.
    """
    if not mass.any():
        return 0.0
    below = shift < 0
    kept = np.exp(shift[below])
    out[0] += float(np.dot(mass[below], kept))
    base, upward = place_on_lattice(shift[~below] / step, step)
    np.add.at(out, base, mass[~below] * (1 - upward))
    np.add.at(out, base + 1, mass[~below] * upward)
    return float(np.dot(mass[below], 1 - kept))


def place_on_lattice(position: Array, step: float) -> tuple[NDArray[np.int64], Array]:
    """Return the lattice point below each position (in steps), and the mean-preserving part for the point above it."""
    below = np.floor(position)
    return below.astype(np.int64), np.expm1((position - below) * step) / np.expm1(step)


# Native lattice step over the spread of a law that is processed further.
FINENESS = 0.01
# Losses beyond this would need masses that cannot be represented.
FARTHEST = 500.0
# Above this many points a native law becomes coarser instead of slower.
MOST_POINTS = 8000


# Step of the lattice on which the spread of a segment's loss is first estimated, for noise multipliers up to one.
ROUGH_STEP = 0.02

# Numbers of noises that are distinguished.
MOST_POOLED = 160
# Enough points to see how wide a law is.
ROUGH_POINTS = 500
# Below this epsilon a choice is accounted as a pure release: the difference in cost is negligible.
LEAST_CHOICE = 1e-9
# Cells between the least and the largest loss of a choice.
CHOICE_CELLS = 400


class NoLaw(Exception):
    """The event has no law here: it has no noise, or is too strong for its masses to be represented."""


@LawCache
def lattice_law(event: Event, step: float, tail: float) -> Law:
    """Return the law of one event on a given lattice: from a closed form where one exists, else from its native law."""
    if isinstance(event, ev.Gaussian):
        return gaussian_law(check_noise(event), step, tail)
    if isinstance(event, ev.Poisson) and isinstance(event.event, ev.Gaussian):
        return gaussian_law(check_noise(event.event), step, tail, rate=event.rate)
    if isinstance(event, ev.Cohort) and isinstance(event.event, ev.Gaussian):
        return cohort_law(*share_and_noise(event), zero_out=isinstance(event, ev.FixedCohort), step=step, tail=tail)
    if isinstance(event, ev.PooledDraws):
        return pooled_points(event, step, tail).on_lattice(step)
    if isinstance(event, ev.Poisson):
        return sampled_points(native_law(event.event, tail), event.rate).on_lattice(step)
    if isinstance(event, ev.HiddenSteps):
        return segment_law(event, step, tail)
    return on_step(native_law(event, tail), step)


def segment_law(event: ev.HiddenSteps, step: float, tail: float) -> Law:
    """Return the law of a segment on a given lattice. Raises `NoLaw` if its shifts are out of reach."""
    try:
        if isinstance(event, TwoSided):
            return mixture_law(replaced_pair(event), step, tail)
        if isinstance(event, ev.ReplacedSegment):
            return replaced_law(event, step, tail)
        return mixture_law(segment_pair(event, tail), step, tail)
    except TooFar:
        raise NoLaw from None


@dataclass(frozen=True)
class TwoSided(ev.ReplacedSegment, stored=False):
    """The same segment accounted by its other law, two mixtures: tighter for few releases, looser for many."""


def check_noise(event: ev.Gaussian) -> float:
    """Return the noise multiplier, limited above. Raises `NoLaw` if the masses of its law cannot be represented."""
    if event.noise_multiplier < 0.05:
        raise NoLaw
    return min(event.noise_multiplier, MOST_HIDDEN_NOISE)


def share_and_noise(event: ev.Cohort) -> tuple[float, float]:
    """Return the sampling share of a cohort and the noise multiplier inside. Raises `NoLaw` without a Gaussian."""
    if not isinstance(event.event, ev.Gaussian):
        raise NoLaw(f"{event.event.kind} in a cohort has no closed form")
    return event.cohort / event.population, check_noise(event.event)


@LawCache
def native_law(event: Event, tail: float) -> Law:
    """Return the law of one event on a lattice as fine as its own spread needs."""
    return law_of(event, tail)


@singledispatch
def law_of(event: Event, tail: float) -> Law:
    """Return the law of an event; registered per kind. Kinds without a law raise `NoLaw`."""
    raise NoLaw


@law_of.register
def _(event: ev.Gaussian, tail: float) -> Law:
    noise = check_noise(event)
    return gaussian_law(noise, FINENESS / noise, tail)


@law_of.register
def _(event: ev.Pure, tail: float) -> Law:
    # Randomised response dominates every epsilon-DP release (Kairouz, Oh and Viswanath 2015).
    if event.epsilon == 0:
        return NOTHING
    if event.epsilon > 300:
        raise NoLaw
    odds = 1 / (1 + math.exp(event.epsilon))
    return Law(-event.epsilon, 2 * event.epsilon, np.array([1 - odds, odds]))


@law_of.register
def _(event: ev.Exponential, tail: float) -> Law:
    # A choice has log ratios in an interval [t - eps, t], 0 <= t <= eps, of which only the width is known. Given t the
    # worst law has two points; its stop-loss is (e^-t - e^-eps)(e^t - x) / (1 - e^-eps). The largest over t, at t =
    # (eps + log x) / 2, is (1 - sqrt(x) e^(-eps/2))^2 / (1 - e^-eps): convex, so it is the stop-loss of one law that
    # dominates them all. Its loss has the density e^(-(eps + y) / 2) / (2 (1 - e^-eps)) on [-eps, eps], a third of the
    # variance of randomised response. Splitting the cells of a lattice leaves every point its trapezoid.
    eps = event.epsilon
    if eps < LEAST_CHOICE:
        return law_of(ev.Pure(eps), tail)
    if eps > 300:
        raise NoLaw
    step = 2 * eps / CHOICE_CELLS
    mass = np.exp(-step * np.arange(CHOICE_CELLS + 1) / 2)
    mass[[0, -1]] /= 2
    return Law(-eps, step, mass * (2 * math.tanh(step / 4) / -math.expm1(-eps)))


@law_of.register(ev.WithoutReplacement)
@law_of.register(ev.FixedCohort)
def _(event: ev.Cohort, tail: float) -> Law:
    # A Gaussian has a closed form. Anything else is counted without amplification: valid for any hidden cohort by joint
    # convexity.
    if not isinstance(event.event, ev.Gaussian):
        return native_law(event.event, tail)
    (rate, noise), zero_out = share_and_noise(event), isinstance(event, ev.FixedCohort)
    reach = cohort_reach(rate, noise, zero_out=zero_out, tail=tail)
    rough = cohort_law(rate, noise, zero_out=zero_out, step=reach / ROUGH_POINTS, tail=tail)
    step = max(min(FINENESS * loss_deviation(rough), rough.step), reach / MOST_POINTS)
    return cohort_law(rate, noise, zero_out=zero_out, step=step, tail=tail)


@law_of.register
def _(event: ev.Poisson, tail: float) -> Law:
    points = sampled_points(native_law(event.event, tail), event.rate)
    step = max(FINENESS * spread_of(points.loss, points.mass), float(points.loss[-1] - points.loss[0]) / MOST_POINTS)
    return trim_law(points.on_lattice(step), tail)


@law_of.register
def _(event: ev.HiddenSteps, tail: float) -> Law:
    # Estimate the spread on a coarse lattice first.
    rough = segment_law(event, ROUGH_STEP / max(1.0, event.event.noise_multiplier), tail)  # type: ignore[attr-defined]
    reach = rough.step * len(rough.mass)
    return trim_law(segment_law(event, max(FINENESS * loss_deviation(rough), reach / MOST_POINTS), tail), tail)


@law_of.register
def _(event: ev.PooledDraws, tail: float) -> Law:
    noise = check_noise(inner_gaussian(event))
    step = FINENESS / noise / math.sqrt(1 + event.rate * event.others)
    return trim_law(pooled_points(event, step, tail).on_lattice(step), tail)


def inner_gaussian(event: ev.PooledDraws) -> ev.Gaussian:
    """Return the Gaussian inside. Raises `NoLaw` for any other event."""
    if not isinstance(event.event, ev.Gaussian):
        raise NoLaw(f"{event.event.kind} does not add up to more")
    return event.event


def pooled_chances(event: ev.PooledDraws) -> list[tuple[float, float]]:
    """Return (probability, noise multiplier) for every number of other drawn clients, given a drawn subject."""
    # Slow to load, and nothing else here needs it.
    from scipy import stats

    z, drawn = check_noise(inner_gaussian(event)), stats.binom(event.others, event.rate)
    low, high = int(drawn.ppf(1e-22)), int(drawn.isf(1e-22))
    # Many numbers are grouped, each group with its least noise; the tails go to the first group and to the noise of the
    # subject alone. Less noise only raises the bound.
    starts = np.unique(np.linspace(low, high + 1, min(high + 2 - low, MOST_POOLED)).astype(np.int64))
    ends = np.append(starts[1:], event.others + 1)
    held = drawn.sf(starts - 1) - drawn.sf(ends - 1)
    chances = [(float(p), z * math.sqrt(k + 1)) for p, k in zip(held, starts.tolist(), strict=True) if p > 0]
    rest = max(0.0, 1 - math.fsum(p for p, _ in chances))
    return [(rest, z), *chances] if rest > 0 else chances


def pooled_points(event: ev.PooledDraws, step: float, tail: float) -> Points:
    """Return the mixture of laws over the number of noises, which the observer knows."""
    losses, masses, zero, infinite = [np.zeros(1)], [np.array([1 - event.rate])], 0.0, 0.0
    for chance, noise in pooled_chances(event):
        law = gaussian_law(min(noise, MOST_HIDDEN_NOISE), step, tail)
        losses.append(law.loss)
        masses.append(event.rate * chance * law.mass)
        zero, infinite = zero + event.rate * chance * law.zero, infinite + event.rate * chance * law.infinite
    lowest = min(float(loss[0]) for loss in losses)
    # A massless point: a lattice that starts there has a point at L = 1.
    losses.append(np.array([-step * math.ceil(-lowest / step)]))
    masses.append(np.zeros(1))
    order = np.argsort(loss := np.concatenate(losses), kind="stable")
    return Points(loss[order], np.concatenate(masses)[order], zero, infinite)


@law_of.register
def _(event: ev.Split, tail: float) -> Law:
    return mean_of_copies(native_law(event.event, tail), event.parts, tail)


@law_of.register
def _(event: ev.Allocation, tail: float) -> Law:
    # Blocks: r = T mod k of ceil(T/k) steps and k - r of floor(T/k), each used once. A uniform k-subset is a random
    # partition into such blocks with one uniform pick in each; by joint convexity the blocks compose independently.
    law = NOTHING
    for block, times in allocation_blocks(event):
        law = join_laws(law, repeat_law(native_law(block, tail), times, tail), tail)
    return law


@law_of.register
def _(event: ev.Repeat, tail: float) -> Law:
    return repeat_law(native_law(event.event, tail), event.times, tail)


@law_of.register
def _(event: ev.Product, tail: float) -> Law:
    law = NOTHING
    for inner in event.events:
        law = join_laws(law, native_law(inner, tail), tail)
    return law


def allocation_blocks(event: ev.Allocation) -> list[tuple[Event, int]]:
    """Return the blocks of an allocation as events with counts.

    >>> [times for _, times in allocation_blocks(ev.Allocation(10, 4, ev.Gaussian(2.0)))]
    [2, 2]
    """
    size, longer = divmod(event.steps, event.uses)
    listed = [(size + 1, longer), (size, event.uses - longer)]
    return [(one_use(steps, event.event), times) for steps, times in listed if times]


def one_use(steps: int, event: Event) -> Event:
    """Return one use in a block of steps: the mean of that many copies."""
    return event if steps == 1 else ev.Split(steps, event)


def join_laws(one: Law, other: Law, tail: float) -> Law:
    """Return the product of two laws on a lattice as fine as the result needs. Raises `NoLaw` for too large losses."""
    if one is NOTHING or other is NOTHING:
        return other if one is NOTHING else one
    if one.loss[-1] + other.loss[-1] > FARTHEST or one.start + other.start < -FARTHEST:
        raise NoLaw
    reach = one.step * len(one.mass) + other.step * len(other.mass)
    step = max(FINENESS * math.hypot(loss_deviation(one), loss_deviation(other)) / math.sqrt(2), reach / MOST_POINTS)
    return trim_law(multiply_laws(on_step(one, step), on_step(other, step)), tail)


def repeat_law(law: Law, times: int, tail: float) -> Law:
    """Return the law of `times` independent releases, by repeated squaring."""
    result = NOTHING
    while times:
        if times & 1:
            result = join_laws(result, law, tail)
        times >>= 1
        if times:
            law = join_laws(law, law, tail)
    return result
