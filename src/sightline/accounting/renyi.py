"""Renyi accounting: exact forward moments of every event, and backward moments read off the discretised law.

Forward: log E_Q[L^a] = (a - 1) D_a(P || Q). Backward: log E_Q[L^(1 - a)] = (a - 1) D_a(Q || P), outside a part of some
mass that is charged to delta. Bounds between integer orders follow because both are convex in the order.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, singledispatch

import numpy as np

from sightline import events as ev
from sightline.accounting.cohort_laws import cohort_log_moments
from sightline.accounting.dominating_pairs import NoLaw, allocation_blocks, native_law, pooled_chances
from sightline.accounting.likelihood_ratio import Array, Law
from sightline.accounting.mixtures import EVERY_DRAW, TooFar, mixture_moments, replaced_pair, segment_pair
from sightline.accounting.moments import (
    MOST_ORDER,
    ORDERS,
    centred_moments,
    cohort_moments,
    log_sum,
    mean_moments,
    overlap_moments,
    pin_moments,
    sampled_gaussian_moments,
    sampled_moments,
)
from sightline.events import Event

# Mass at the ends of the laws that backward moments are read from.
TAIL = 1e-40
# With less noise the moments of a cohort's law take long to compute, and amplification hardly helps.
LEAST_COHORT_NOISE = 0.25
LOW_ORDERS = np.concatenate([np.arange(1.01, 1.5, 0.01), np.arange(1.5, 20, 0.05)])
REAL_ORDERS = np.unique(np.concatenate([np.arange(2, 20, 0.05), np.arange(20, 64, 0.5), np.arange(64, MOST_ORDER + 1)]))


@dataclass(frozen=True, eq=False)
class Backward:
    """Logarithms of backward moments per order, leaving out a mass of at most `missing`."""

    moments: Array
    missing: float = 0.0


@lru_cache(maxsize=512)
def forward_moments(event: Event) -> Array:
    """Return log E_Q[L^a] of one event for a = 0..MOST_ORDER, cached."""
    return forward_of(event)


@lru_cache(maxsize=512)
def backward_moments(event: Event) -> Backward:
    """Return log E_Q[L^(1 - a)] of one event for a = 0..MOST_ORDER, cached."""
    return backward_of(event)


@singledispatch
def forward_of(event: Event) -> Array:
    """Return the forward moments of an event; registered per kind."""
    raise NotImplementedError(f"{event.kind} has no moments")


@singledispatch
def backward_of(event: Event) -> Backward:
    """Return the backward moments of an event; equal to the forward ones for a symmetric pair."""
    return Backward(forward_moments(event))


@forward_of.register
def _(event: ev.Gaussian) -> Array:
    return np.asarray(ORDERS * (ORDERS - 1) / (2 * event.noise_multiplier**2))


@forward_of.register
def _(event: ev.Clear) -> Array:
    return np.where(ORDERS > 1, np.inf, 0.0)


@forward_of.register
def _(event: ev.Pure) -> Array:
    # Randomised response is the worst epsilon-DP release: log((e^(a eps) + e^((1 - a) eps)) / (1 + e^eps)).
    eps = event.epsilon
    return pin_moments(np.logaddexp(ORDERS * eps, (1 - ORDERS) * eps) - np.logaddexp(0.0, eps))


@forward_of.register
def _(event: ev.Exponential) -> Array:
    # eps-DP, and eps^2/8-zCDP (Cesar and Rogers 2021, Lemma 3.4).
    return np.minimum(forward_of(ev.Pure(event.epsilon)), ORDERS * (ORDERS - 1) * (event.epsilon * event.epsilon / 8))


@forward_of.register
def _(event: ev.Product) -> Array:
    return composed_forward(Counter(event.events))


@backward_of.register
def _(event: ev.Product) -> Backward:
    return composed_backward(Counter(event.events))


@forward_of.register
def _(event: ev.Repeat) -> Array:
    return composed_forward({event.event: event.times})


@backward_of.register
def _(event: ev.Repeat) -> Backward:
    return composed_backward({event.event: event.times})


@forward_of.register
def _(event: ev.Poisson) -> Array:
    return sampled_moments(forward_moments(event.event), event.rate)


@backward_of.register
def _(event: ev.Poisson) -> Backward:
    # For a Gaussian the forward moments are larger (Mironov, Talwar and Zhang 2019, Theorem 5); otherwise use the law.
    if isinstance(event.event, ev.Gaussian):
        return Backward(forward_moments(event))
    return from_law(event, event.event)


@forward_of.register
def _(event: ev.PooledDraws) -> Array:
    # The number of noises is public, so the moments are the mean over it; both directions are the same.
    chances = [(1 - event.rate, np.zeros(len(ORDERS)))]
    chances += [(event.rate * chance, forward_moments(ev.Gaussian(noise))) for chance, noise in pooled_chances(event)]
    terms = [math.log(chance) + moments for chance, moments in chances]
    return pin_moments(log_sum(np.stack(terms, axis=1)))


@forward_of.register
def _(event: ev.Split) -> Array:
    return mean_moments(forward_moments(event.event), event.parts)


@backward_of.register
def _(event: ev.Split) -> Backward:
    return from_law(event, event.event)


@forward_of.register
def _(event: ev.Allocation) -> Array:
    # Per order the lesser of the block bound and of eq. (3) of the partitioning paper.
    by_blocks = composed_forward(dict(allocation_blocks(event)))
    if isinstance(event.event, ev.Gaussian):
        return np.minimum(by_blocks, overlap_moments(event.steps, event.uses, event.event.noise_multiplier))
    return by_blocks


@backward_of.register
def _(event: ev.Allocation) -> Backward:
    return composed_backward(dict(allocation_blocks(event)))


@forward_of.register
def _(event: ev.WithoutReplacement) -> Array:
    # Under replace-one one bound holds for both directions; it is never worse than no amplification.
    inner = np.maximum(forward_moments(event.event), backward_moments(event.event).moments)
    centred = centred_moments(event.event.noise_multiplier) if isinstance(event.event, ev.Gaussian) else None
    known = np.minimum(cohort_moments(inner, event.cohort / event.population, centred), inner)
    return known if (exact := moments_of_cohort(event)) is None else np.minimum(known, np.maximum(*exact))


@backward_of.register
def _(event: ev.WithoutReplacement) -> Backward:
    return Backward(forward_moments(event), backward_moments(event.event).missing)


@forward_of.register
def _(event: ev.Segment | ev.ConvexSegment) -> Array:
    # Moments of the mixture; if its shifts are out of reach, moments with known draws.
    try:
        return mixture_moments(segment_pair(event, EVERY_DRAW))
    except TooFar:
        return forward_moments(event.known)


@backward_of.register
def _(event: ev.Segment | ev.ConvexSegment) -> Backward:
    return from_law(event, event.known)


@forward_of.register
def _(event: ev.ReplacedSegment) -> Array:
    # Moments of the two mixtures, which mirror each other; never more than with known draws.
    try:
        return np.minimum(mixture_moments(replaced_pair(event)), forward_moments(event.known))
    except TooFar:
        return forward_moments(event.known)


@forward_of.register
def _(event: ev.FixedCohort) -> Array:
    # For a Gaussian by its law, and never worse than no amplification.
    inner = forward_moments(event.event)
    return inner if (exact := moments_of_cohort(event)) is None else np.minimum(inner, exact[0])


@backward_of.register
def _(event: ev.FixedCohort) -> Backward:
    inner = backward_moments(event.event)
    exact = moments_of_cohort(event)
    return inner if exact is None else Backward(np.minimum(inner.moments, exact[1]), inner.missing)


@lru_cache(maxsize=64)
def moments_of_cohort(event: ev.Cohort) -> tuple[Array, Array] | None:
    """Return forward and backward moments by the law of a cohort; None if it is unknown or would take too long."""
    if not isinstance(event.event, ev.Gaussian) or event.event.noise_multiplier < LEAST_COHORT_NOISE:
        return None
    rate, noise = event.cohort / event.population, event.event.noise_multiplier
    return cohort_log_moments(rate, noise, zero_out=isinstance(event, ev.FixedCohort))


def from_law(event: Event, inner: Event) -> Backward:
    """Return backward moments of the event's law; without a law those of the inner event, which are larger."""
    try:
        return of_law(native_law(event, TAIL))
    except NoLaw:
        return backward_moments(inner)


def of_law(law: Law) -> Backward:
    """Return log E_Q[L^(1 - a); L > 0] per order, and the mass at zero."""
    held = law.mass > 0
    terms = np.log(law.mass[held])[None, :] + (1 - ORDERS)[:, None] * law.loss[held][None, :]
    return Backward(pin_moments(log_sum(terms)), law.zero)


def composed_forward(counts: Mapping[Event, int]) -> Array:
    """Return the forward moments of a composition: moments of independent releases multiply."""
    return np.asarray(sum((times * forward_moments(event) for event, times in counts.items()), np.zeros(len(ORDERS))))


def composed_backward(counts: Mapping[Event, int]) -> Backward:
    """Return the backward moments of a composition; missing masses add."""
    each = [(backward_moments(event), times) for event, times in counts.items()]
    moments = sum((times * one.moments for one, times in each), np.zeros(len(ORDERS)))
    return Backward(np.asarray(moments), sum(times * one.missing for one, times in each))


def renyi_epsilon(counts: Mapping[Event, int], delta: float, *, unless: float = math.inf) -> float:
    """Return the least epsilon over orders, for the worse direction; infinite if it cannot be below `unless`."""
    if all(isinstance(event, ev.Gaussian) for event in counts):
        return gaussian_renyi_epsilon(float(composed_forward(counts)[2]), delta)
    if all(sampled_gaussian(event) for event in counts):
        between = at_orders(low_moments(counts), LOW_ORDERS, delta)
        return min(between, convert_moments(composed_forward(counts), delta))
    # Backward moments need the discretised law, which is slow: skip them if the forward direction is already too large.
    first = convert_moments(composed_forward(counts), delta)
    if first >= unless:
        return math.inf
    back = composed_backward(counts)
    return math.inf if back.missing >= delta else max(first, convert_moments(back.moments, delta - back.missing))


def convert_moments(moments: Array, delta: float) -> float:
    """Return the least epsilon of the moments over all orders."""
    # Moments are convex in the order, so linear interpolation between integer orders is an upper bound.
    return at_orders(np.interp(REAL_ORDERS, ORDERS, moments), REAL_ORDERS, delta)


def at_orders(moments: Array, a: Array, delta: float) -> float:
    """Return the least of D_a + log(1/(a delta))/(a - 1) + log(1 - 1/a) over the given real orders."""
    # Canonne, Kamath and Steinke 2020, Proposition 12.
    epsilon = (moments - np.log(a * delta)) / (a - 1) + np.log1p(-1 / a)
    return max(0.0, float(np.min(epsilon)))


def sampled_gaussian(event: Event) -> bool:
    """Return whether the event is a Gaussian, Poisson-sampled or not: its forward moments bound the backward ones."""
    return isinstance(event, ev.Gaussian) or (isinstance(event, ev.Poisson) and isinstance(event.event, ev.Gaussian))


def low_moments(counts: Mapping[Event, int]) -> Array:
    """Return forward moments of sampled Gaussians at real orders near one, where integers are too far apart."""
    each = (times * low_moments_of(event) for event, times in counts.items())
    return np.asarray(sum(each, np.zeros(len(LOW_ORDERS))))


@lru_cache(maxsize=512)
def low_moments_of(event: Event) -> Array:
    """Return log E_Q[L^a] of one (sampled) Gaussian at LOW_ORDERS."""
    rate, inner = (event.rate, event.event) if isinstance(event, ev.Poisson) else (1.0, event)
    if not isinstance(inner, ev.Gaussian):
        raise NoLaw(f"{event.kind} is not a sampled Gaussian")
    return sampled_gaussian_moments(inner.noise_multiplier, rate, LOW_ORDERS)


def gaussian_renyi_epsilon(precision: float, delta: float) -> float:
    """Return the least epsilon for Gaussians alone, whose moments are known at every real order."""
    best = math.sqrt(2 * math.log(1 / delta) / precision)
    # `above` is the order minus one, which may be far below one.
    above = best * np.geomspace(0.1, 2.0, 4001)
    epsilon = (1 + above) * precision / 2 - (np.log1p(above) + math.log(delta)) / above + np.log(above / (1 + above))
    return max(0.0, float(np.min(epsilon)))


def renyi_delta(counts: Mapping[Event, int], epsilon: float) -> float:
    """Return the least delta at epsilon over orders, for the worse direction."""
    return float(renyi_delta_curve(counts, np.array([epsilon]))[0])


def renyi_delta_curve(counts: Mapping[Event, int], epsilons: Array) -> Array:
    """Return the least deltas over orders at many epsilons, for the worse direction."""
    back = composed_backward(counts)
    worse = np.maximum(
        least_delta(composed_forward(counts), epsilons), least_delta(back.moments, epsilons) + back.missing
    )
    return np.minimum(1.0, worse)


def least_delta(moments: Array, epsilons: Array) -> Array:
    """Return the conversion solved for delta."""
    a = REAL_ORDERS
    at_zero = np.interp(a, ORDERS, moments) + (a - 1) * np.log1p(-1 / a) - np.log(a)
    exponent = at_zero[None, :] - (a - 1)[None, :] * epsilons[:, None]
    return np.asarray(np.exp(np.minimum(0.0, np.min(exponent, axis=1))))
