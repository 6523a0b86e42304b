"""Epsilon from the composed law of the likelihood ratio: a grid chosen for the answer, one transform per direction."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from scipy.special import ndtri

from sightline.accounting.dominating_pairs import allocation_blocks, lattice_law, native_law
from sightline.accounting.fft import (
    Losses,
    Sum,
    TooFine,
    backward_losses_of,
    compose_losses,
    forward_losses_of,
    order_for_delta,
    order_for_epsilon,
)
from sightline.accounting.likelihood_ratio import (
    Array,
    Law,
    LawCache,
    gaussian_delta,
    gaussian_epsilon,
    log_sampled,
    on_step,
)
from sightline.accounting.lower_bounds import lower_law
from sightline.events import Allocation, Cohort, Event, Gaussian, Poisson

# Relative discretisation error of epsilon that the grid is chosen for. Neighbouring questions may use different grids,
# so epsilon is monotone in noise, steps and delta only up to about 2e-4.
TOLERANCE = 5e-5
COHORT_TOLERANCE = 1e-5
# Cohorts of a fixed size use COHORT_TOLERANCE as long as their laws, which are fast to compute, have no more points.
FAST_POINTS = 2**15
# First guess of the lattice step over the spread of one release.
COARSE = 0.025
# No refinement beyond about this many points of one law.
MOST_POINTS = 2**20
# The same with cohorts of a fixed size: if few of many are drawn, rare losses reach far.
MOST_COHORT_POINTS = 2**18
FIRST_POINTS = 2**14
THIN = 4096

Kinds = list[tuple[Event, int]]


def resolve_allocations(counts: Mapping[Event, int]) -> Kinds:
    """Return the composition with allocations resolved into their blocks."""
    kinds: Counter[Event] = Counter()
    for event, times in counts.items():
        for part, repeats in allocation_blocks(event) if isinstance(event, Allocation) else [(event, 1)]:
            kinds[part] += times * repeats
    return list(kinds.items())


def pld_epsilon(counts: Mapping[Event, int], delta: float) -> float:
    """Return an upper bound on epsilon at delta for a canonical composition. Raises `NoLaw` if an event has no law."""
    strength = only_gaussian(counts)
    if strength is not None:
        return gaussian_epsilon(strength, delta)
    kinds = resolve_allocations(counts)
    fit = fit_lattice(kinds, tail_for(kinds, delta), lambda total: order_for_delta(total, delta))
    try:
        return fitted_epsilon(fit, delta)
    except TooFine:
        return fitted_epsilon(fit.coarsen(8), delta)


def fitted_epsilon(fit: "Fit", delta: float) -> float:
    """Return epsilon of both directions on a lattice."""
    first = direction_epsilon(fit.losses_by_law(forward_losses), delta, fit.order, 0.0)
    order = order_for_delta(Sum(fit.losses_by_law(thin_backward)), delta)
    return direction_epsilon(fit.losses_by_law(backward_losses), delta, order, first)


def pld_delta(counts: Mapping[Event, int], epsilon: float) -> float:
    """Return an upper bound on delta at epsilon for a canonical composition."""
    strength = only_gaussian(counts)
    if strength is not None:
        return min(1.0, gaussian_delta(strength, epsilon) * (1 + 1e-9))
    kinds = resolve_allocations(counts)
    fit = fit_lattice(kinds, tail_for(kinds, 1e-14), lambda total: order_for_epsilon(total, epsilon))
    order = order_for_epsilon(Sum(fit.losses_by_law(thin_backward)), epsilon)
    return max(
        compose_losses(Sum(fit.losses_by_law(forward_losses)), fit.order).delta(epsilon),
        compose_losses(Sum(fit.losses_by_law(backward_losses)), order).delta(epsilon),
    )


def pld_backward_delta(counts: Mapping[Event, int], epsilon: float) -> float:
    """Return an upper bound on delta at epsilon of the backward direction, without the subject against with it."""
    strength = only_gaussian(counts)
    if strength is not None:
        return min(1.0, gaussian_delta(strength, epsilon) * (1 + 1e-9))
    kinds = resolve_allocations(counts)
    fit = fit_lattice(kinds, tail_for(kinds, 1e-14), lambda total: order_for_epsilon(total, epsilon))
    order = order_for_epsilon(Sum(fit.losses_by_law(thin_backward)), epsilon)
    return compose_losses(Sum(fit.losses_by_law(backward_losses)), order).delta(epsilon)


def pld_delta_curve(counts: Mapping[Event, int], epsilons: Array, anchors: Sequence[float]) -> Array:
    """Return upper bounds on delta at many epsilons at once, tight where delta is near one of the anchors."""
    kinds = resolve_allocations(counts)
    tail = tail_for(kinds, min(anchors))
    curves = [np.ones(len(epsilons)), np.ones(len(epsilons))]
    for delta in anchors:
        fit = fit_lattice(kinds, tail, partial(order_for_delta, delta=delta))
        order = order_for_delta(Sum(fit.losses_by_law(thin_backward)), delta)
        for side, (losses, tilt) in enumerate(((forward_losses, fit.order), (backward_losses, order))):
            # Every transform bounds delta at all epsilons, best around the order it is tilted by, so the least is
            # valid.
            result = compose_losses(Sum(fit.losses_by_law(losses)), tilt).delta_curve(epsilons)
            curves[side] = np.minimum(curves[side], result)
    return np.maximum(*curves)


def only_gaussian(counts: Mapping[Event, int]) -> float | None:
    """Return the joint strength if only Gaussians are composed; else None."""
    if all(isinstance(event, Gaussian) for event in counts):
        return math.sqrt(math.fsum(n / e.noise_multiplier**2 for e, n in counts.items() if isinstance(e, Gaussian)))
    return None


def tail_for(kinds: Kinds, delta: float) -> float:
    """Return the mass per release that may go to infinite loss."""
    wanted = 1e-6 * delta / sum(times for _, times in kinds)
    # Powers of 1e-4 only, so that laws are shared between counts, rounds and deltas.
    return float(10.0 ** (4 * math.floor(math.log10(wanted) / 4)))


def lower_step(step: float) -> float:
    """Return the next lower power of the square root of two, so that lattices are shared between questions."""
    return float(2.0 ** (math.floor(2 * math.log2(step)) / 2))


# An event, the step of its lattice, the mass its ends may hold.
LawKey = tuple[Event, float, float]


# Cached functions of a LawKey: log L under P, -log L under Q, and the first on twice the step, which shows the
# discretisation error. The thin ones have a few thousand points, which is enough to choose an order.
forward_losses = LawCache(lambda *key: forward_losses_of(lattice_law(*key)))
backward_losses = LawCache(lambda *key: backward_losses_of(lattice_law(*key)))
coarse_losses = LawCache(lambda event, step, tail: forward_losses_of(on_step(lattice_law(event, step, tail), 2 * step)))
thin_law = LawCache(lambda event, step, tail: thin_out(lattice_law(event, step, tail), step))
thin_forward = LawCache(lambda *key: forward_losses_of(thin_law(*key)))
thin_backward = LawCache(lambda *key: backward_losses_of(thin_law(*key)))


def thin_out(law: Law, step: float) -> Law:
    """Return a law on a lattice of a few thousand points."""
    return on_step(law, step * max(1, len(law.mass) // THIN))


@dataclass(frozen=True)
class Fit:
    """The laws of a composition on one lattice, and the order around which the answer lies."""

    laws: tuple[tuple[LawKey, int], ...]
    order: float

    def losses_by_law(self, losses_of: Callable[[Event, float, float], Losses]) -> list[tuple[Losses, int]]:
        """Return one direction of every law, with its count."""
        return [(losses_of(*key), times) for key, times in self.laws]

    def coarsen(self, factor: int) -> "Fit":
        """Return the same fit on a coarser lattice: rare losses may reach further than a transform has points."""
        return Fit(tuple(((event, factor * step, tail), n) for (event, step, tail), n in self.laws), self.order)


def fit_lattice(kinds: Kinds, tail: float, order_of: Callable[[Sum], float]) -> Fit:
    """Return the coarsest lattice on which the error of epsilon is within tolerance, or the finest that fits."""
    step = first_step(kinds, tail)
    cohorts = any(isinstance(event, Cohort) for event, _ in kinds)
    most = MOST_COHORT_POINTS if cohorts else MOST_POINTS
    for _ in range(12):
        laws = tuple(((event, step, tail), times) for event, times in kinds)
        fit = Fit(laws, order_of(Sum([(thin_forward(*key), times) for key, times in laws])))
        total = Sum(fit.losses_by_law(forward_losses))
        centre = total.cumulants(fit.order)
        error = discretisation_error(fit, total)
        fast = cohorts and max(len(losses.mass) for losses, _ in total.kinds) < FAST_POINTS
        allowed = (COHORT_TOLERANCE if fast else TOLERANCE) * max(centre.mean, 0.1 * math.sqrt(centre.variance))
        if error <= allowed or too_many(total, math.sqrt(centre.variance), step / 2, most):
            break
        step = lower_step(step * max(1 / 16, min(0.71, 0.9 * math.sqrt(allowed / error))))
    return fit


def too_many(total: Sum, spread: float, step: float, most: int) -> bool:
    """Return whether a lattice of this step would have too many points."""
    longest = max(len(losses.mass) * losses.step for losses, _ in total.kinds)
    return longest / step > most or 16 * spread / step > 4 * most


def discretisation_error(fit: Fit, total: Sum) -> float:
    """Return the error of epsilon, estimated by comparing with twice the step."""
    # Splits are mean-preserving, so errors are of second order: twice the step has four times the error, and the change
    # is three times the error. Dividing by the order turns cumulants into epsilon.
    change = Sum(fit.losses_by_law(coarse_losses)).log_moment(fit.order) - total.log_moment(fit.order)
    return max(change, 0.0) / 3 / fit.order


def first_step(kinds: Kinds, tail: float) -> float:
    """Return a first lattice step from the root mean square spread of one release, with a limited number of points."""
    total = sum(times * log_second_moment(event, tail) for event, times in kinds)
    spread = math.sqrt(total / sum(times for _, times in kinds))
    return lower_step(max(COARSE * spread, *(loss_reach(event, tail) / FIRST_POINTS for event, _ in kinds), 1e-14))


@lru_cache(maxsize=1024)
def log_second_moment(event: Event, tail: float) -> float:
    """Return log E_Q[L^2] of one release."""
    if isinstance(event, Gaussian):
        return 1 / event.noise_multiplier**2
    if isinstance(event, Poisson):
        inner = min(log_second_moment(event.event, tail), 600.0)
        return math.log1p(event.rate**2 * math.expm1(inner))
    return native_law(event, tail).log_second_moment


@lru_cache(maxsize=1024)
def loss_reach(event: Event, tail: float) -> float:
    """Return about how far the losses of one release reach."""
    if isinstance(event, Gaussian):
        return -2 * float(ndtri(tail)) / event.noise_multiplier
    if isinstance(event, Poisson) and isinstance(event.event, Gaussian):
        s = 1 / event.event.noise_multiplier
        return log_sampled(s * s / 2 - s * float(ndtri(min(tail / event.rate, 0.1))), event.rate)
    if isinstance(event, Poisson):
        inner = native_law(event.event, tail)
        return log_sampled(float(inner.loss[-1]), event.rate) - log_sampled(inner.start, event.rate)
    law = native_law(event, tail)
    return law.step * len(law.mass)


def direction_epsilon(kinds: Sequence[tuple[Losses, int]], delta: float, order: float, least: float) -> float:
    """Return the larger of `least` and the epsilon of one direction."""
    total = Sum(kinds)
    if total.infinite >= delta:
        return math.inf
    bound = chernoff_epsilon(total, order, delta)
    # A Chernoff bound already shows that this direction is not the larger one: no transform is needed.
    if least and bound <= least:
        return least
    for _ in range(8):
        composed = compose_losses(total, order)
        bound = min(bound, max(composed.epsilon(delta), 0.0))
        if bound > composed.start or composed.start <= 0:
            break
        order /= 2
    return max(least, bound * (1 + 1e-12))


def chernoff_epsilon(total: Sum, order: float, delta: float) -> float:
    """Return epsilon by moments alone, with the sharp constant; the order here is one less than Renyi's."""
    rest = delta - total.infinite
    renyi = order + 1
    if renyi == 1:
        return math.inf
    return max(0.0, (total.log_moment(order) - math.log(renyi * rest)) / order + math.log1p(-1 / renyi))


def pld_interval(counts: Mapping[Event, int], delta: float) -> tuple[float, float]:
    """Return a lower and an upper bound on the epsilon of the dominating pairs: opposite roundings on one lattice."""
    upper = pld_epsilon(counts, delta)
    if only_gaussian(counts) is not None:
        return upper * (1 - 1e-9), upper
    kinds = resolve_allocations(counts)
    fit = fit_lattice(kinds, tail_for(kinds, delta), lambda total: order_for_delta(total, delta))
    laws = [(lower_law(event, step), times) for (event, step, _), times in fit.laws]
    lower = 0.0
    for side in (forward_losses_of, backward_losses_of):
        total = Sum([(side(law), times) for law, times in laws])
        order = order_for_delta(total, delta)
        lower = max(lower, *(compose_losses(total, tilt * order).epsilon_lower(delta) for tilt in (1.0, 1.4)))
    return min(lower, upper), upper
