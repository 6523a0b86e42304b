"""From events to the laws of their dominating pairs: one function per kind of event."""

import math
from functools import singledispatch

import numpy as np

from sightline.accounting.averaging import loss_deviation, mean_of_copies, spread_of
from sightline.accounting.canonical import MOST_HIDDEN_NOISE
from sightline.accounting.law import NOTHING, Law, multiply_laws, on_step, sampled_points, trim_law
from sightline.accounting.lognormal import gaussian_law
from sightline.accounting.remember import LawCache
from sightline.events import (
    Allocation,
    Event,
    Exponential,
    Gaussian,
    Poisson,
    Product,
    Pure,
    Repeat,
    Split,
    WithoutReplacement,
)

FINENESS = 0.01
"""Native lattice step over the spread of a law that is processed further."""
FARTHEST = 500.0
"""Losses beyond this would need masses that cannot be represented."""
MOST_POINTS = 8000
"""Above this many points a native law becomes coarser instead of slower."""


LEAST_CHOICE = 1e-9
"""Below this epsilon a choice is taken for any release of that epsilon: it costs nothing that could be seen."""
CHOICE_CELLS = 400
"""Cells between the least and the largest loss of a choice."""


class NoLaw(Exception):
    """The event has no law here: un-noised, or too strong for its masses to be represented."""


@LawCache
def lattice_law(event: Event, step: float, tail: float) -> Law:
    """The law of one event on a given lattice: from closed forms where they exist, else from its native law."""
    if isinstance(event, Gaussian):
        return gaussian_law(check_noise(event), step, tail)
    if isinstance(event, Poisson) and isinstance(event.event, Gaussian):
        return gaussian_law(check_noise(event.event), step, tail, rate=event.rate)
    if isinstance(event, Poisson):
        return sampled_points(native_law(event.event, tail), event.rate).on_lattice(step)
    return on_step(native_law(event, tail), step)


def check_noise(event: Gaussian) -> float:
    """The noise multiplier, when the masses of its law can be represented at all."""
    if event.noise_multiplier < 0.05:
        raise NoLaw
    return min(event.noise_multiplier, MOST_HIDDEN_NOISE)


@LawCache
def native_law(event: Event, tail: float) -> Law:
    """The law of one event on a lattice as fine as its own spread asks."""
    return law_of(event, tail)


@singledispatch
def law_of(event: Event, tail: float) -> Law:
    """The law of an event; registered per kind. Kinds without one raise `NoLaw`."""
    raise NoLaw


@law_of.register
def _(event: Gaussian, tail: float) -> Law:
    noise = check_noise(event)
    return gaussian_law(noise, FINENESS / noise, tail)


@law_of.register
def _(event: Pure, tail: float) -> Law:
    """Randomised response dominates every epsilon-DP release (Kairouz, Oh and Viswanath 2015)."""
    if event.epsilon == 0:
        return NOTHING
    if event.epsilon > 300:
        raise NoLaw
    odds = 1 / (1 + math.exp(event.epsilon))
    return Law(-event.epsilon, 2 * event.epsilon, np.array([1 - odds, odds]))


@law_of.register
def _(event: Exponential, tail: float) -> Law:
    r"""A choice has log ratios in an interval [t - eps, t], 0 <= t <= eps, of which only the width is known.

    Given t the worst law has two points; its stop-loss is (e^-t - e^-eps)(e^t - x) / (1 - e^-eps). The largest over t,
    at t = (eps + log x) / 2, is (1 - sqrt(x) e^(-eps/2))^2 / (1 - e^-eps): convex, so it is the stop-loss of one law
    that dominates them all. Its loss has the density e^(-(eps + y) / 2) / (2 (1 - e^-eps)) on [-eps, eps], a third of
    the variance of randomised response. Splitting the cells of a lattice leaves every point its trapezoid.
    """
    eps = event.epsilon
    if eps < LEAST_CHOICE:
        return law_of(Pure(eps), tail)
    if eps > 300:
        raise NoLaw
    step = 2 * eps / CHOICE_CELLS
    mass = np.exp(-step * np.arange(CHOICE_CELLS + 1) / 2)
    mass[[0, -1]] /= 2
    return Law(-eps, step, mass * (2 * math.tanh(step / 4) / -math.expm1(-eps)))


@law_of.register
def _(event: WithoutReplacement, tail: float) -> Law:
    """Without amplification: valid for any hidden cohort by joint convexity."""
    return native_law(event.event, tail)


@law_of.register
def _(event: Poisson, tail: float) -> Law:
    points = sampled_points(native_law(event.event, tail), event.rate)
    step = max(FINENESS * spread_of(points.loss, points.mass), float(points.loss[-1] - points.loss[0]) / MOST_POINTS)
    return trim_law(points.on_lattice(step), tail)


@law_of.register
def _(event: Split, tail: float) -> Law:
    return mean_of_copies(native_law(event.event, tail), event.parts, tail)


@law_of.register
def _(event: Allocation, tail: float) -> Law:
    """Blocks: r = T mod k of ceil(T/k) steps and k - r of floor(T/k), each used once; they compose independently."""
    law = NOTHING
    for block, times in allocation_blocks(event):
        law = join_laws(law, repeat_law(native_law(block, tail), times, tail), tail)
    return law


@law_of.register
def _(event: Repeat, tail: float) -> Law:
    return repeat_law(native_law(event.event, tail), event.times, tail)


@law_of.register
def _(event: Product, tail: float) -> Law:
    law = NOTHING
    for inner in event.events:
        law = join_laws(law, native_law(inner, tail), tail)
    return law


def allocation_blocks(event: Allocation) -> list[tuple[Event, int]]:
    """The blocks of an allocation as events with counts.

    >>> allocation_blocks(Allocation(10, 4, Gaussian(2.0)))[0][1], allocation_blocks(Allocation(10, 4, Gaussian(2.0)))[1][1]
    (2, 2)
    """
    size, longer = divmod(event.steps, event.uses)
    listed = [(size + 1, longer), (size, event.uses - longer)]
    return [(one_use(steps, event.event), times) for steps, times in listed if times]


def one_use(steps: int, event: Event) -> Event:
    """One use in a block of steps: the mean of as many copies."""
    return event if steps == 1 else Split(steps, event)


def join_laws(one: Law, other: Law, tail: float) -> Law:
    """The product of two laws on a lattice as fine as the result asks."""
    if one is NOTHING or other is NOTHING:
        return other if one is NOTHING else one
    if one.loss[-1] + other.loss[-1] > FARTHEST or one.start + other.start < -FARTHEST:
        raise NoLaw
    reach = one.step * len(one.mass) + other.step * len(other.mass)
    step = max(FINENESS * math.hypot(loss_deviation(one), loss_deviation(other)) / math.sqrt(2), reach / MOST_POINTS)
    return trim_law(multiply_laws(on_step(one, step), on_step(other, step)), tail)


def repeat_law(law: Law, times: int, tail: float) -> Law:
    """The law of `times` independent releases, by repeated squaring."""
    result = NOTHING
    while times:
        if times & 1:
            result = join_laws(result, law, tail)
        times >>= 1
        if times:
            law = join_laws(law, law, tail)
    return result
