"""What an observer's view costs: epsilon at delta, delta at epsilon, curves and intervals, for any mix of events."""

import math
from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from functools import lru_cache

from sightline.accounting.canonical import Composition, canonical_form, kinds_in
from sightline.accounting.composed import TooFine
from sightline.accounting.curve import Curve
from sightline.accounting.dominating import NoLaw
from sightline.accounting.pld import pld_delta, pld_epsilon, pld_interval
from sightline.accounting.renyi import renyi_delta, renyi_epsilon
from sightline.errors import invalid, refuse
from sightline.events import (
    Allocation,
    Clear,
    Event,
    Exponential,
    Poisson,
    Pure,
    WithoutReplacement,
    with_known_coins,
)

SMALLEST_DELTA = 1e-30
NEAR = 10
"""A delta above one over so many times the number of units is remarked upon."""


class Accountant(StrEnum):
    """How events become epsilon.

    `PLD`: the least of all valid bounds (the composed law of the likelihood ratio, and moments where they can be less).
    `RDP`: moments only.
    """

    PLD = "pld"
    RDP = "rdp"


def epsilon(events: Composition, delta: float, *, accountant: Accountant = Accountant.PLD) -> float:
    """An upper bound on the epsilon of a composition at delta.

    Guarantees: never below the true value; infinite when something was handed over in the clear; zero when nothing
    was seen.

    >>> from sightline.events import Gaussian, Poisson
    >>> round(epsilon({Poisson(0.1, Gaussian(2.05)): 1000}, 1e-5), 3)
    8.004
    """
    check_delta(delta)
    counts = canonical_form(events)
    if not counts:
        return 0.0
    if any(Clear in kinds_in(event) for event in counts):
        return math.inf
    return cached_epsilon(tuple(sorted(counts.items(), key=repr)), delta, Accountant(accountant))


@lru_cache(maxsize=4096)
def cached_epsilon(counts: tuple[tuple[Event, int], ...], delta: float, accountant: Accountant) -> float:
    """Epsilon of a canonical, ordered composition."""
    held = dict(counts)
    if chance_to_take_part(held) <= delta:
        return 0.0
    if accountant is Accountant.RDP:
        return renyi_epsilon(held, delta)
    bounds = [summed_epsilon(held)]
    with suppress(NoLaw, TooFine):
        bounds.append(pld_epsilon(held, delta))
    if len(bounds) == 1:
        bounds.append(unhidden_epsilon(held, delta))
    if not math.isfinite(min(bounds)) or moments_may_win(held):
        bounds.append(renyi_epsilon(held, delta, unless=min(bounds)))
    return min(bounds)


def chance_to_take_part(counts: Mapping[Event, int]) -> float:
    """At most how likely the subject is in anything at all: with that delta everything is private at epsilon zero."""
    rates = [times * event.rate if isinstance(event, Poisson) else math.inf for event, times in counts.items()]
    return math.fsum(rates) * (1 + 1e-12)


def unhidden_epsilon(counts: Mapping[Event, int], delta: float) -> float:
    """The cost if all coins were known, which is never less: for events so strong that sampling hardly matters."""
    try:
        return pld_epsilon(canonical_form({with_known_coins(event): times for event, times in counts.items()}), delta)
    except (NoLaw, TooFine):
        return math.inf


def moments_may_win(counts: Mapping[Event, int]) -> bool:
    """Whether moments know more than the law: zCDP of choices, fixed cohorts, eq. (3) of unequal blocks."""
    kinds = set().union(*(kinds_in(event) for event in counts))
    return bool(kinds & {Exponential, WithoutReplacement, Allocation})


def summed_epsilon(counts: Mapping[Event, int]) -> float:
    """The sum of pure epsilons, when all are pure."""
    if all(isinstance(event, Pure | Exponential) for event in counts):
        return math.fsum(times * event.epsilon for event, times in counts.items())  # type: ignore[attr-defined]
    return math.inf


def delta(events: Composition, epsilon: float, *, accountant: Accountant = Accountant.PLD) -> float:
    """An upper bound on the delta of a composition at epsilon."""
    if not epsilon >= 0:
        invalid("epsilon", epsilon, "epsilon is not negative")
    counts = canonical_form(events)
    if not counts:
        return 0.0
    if any(Clear in kinds_in(event) for event in counts):
        return 1.0
    if Accountant(accountant) is Accountant.RDP:
        return renyi_delta(counts, epsilon)
    bounds = [0.0 if summed_epsilon(counts) <= epsilon else 1.0]
    with suppress(NoLaw, TooFine):
        bounds.append(pld_delta(counts, epsilon))
    if len(bounds) == 1 or moments_may_win(counts):
        bounds.append(renyi_delta(counts, epsilon))
    return min(bounds)


def epsilon_curve(event: Event, times: int, delta: float, *, accountant: Accountant = Accountant.PLD) -> Curve:
    """Epsilon after 1, 2, ..., `times` repetitions of an event; never decreasing."""
    check_delta(delta)
    if times < 0:
        invalid("times", times, "a count is not negative")
    values: list[float] = []
    for count in range(1, times + 1):
        values.append(max(values[-1] if values else 0.0, epsilon({event: count}, delta, accountant=accountant)))
    return Curve(values, delta=delta)


def interval(events: Composition, delta: float) -> tuple[float, float]:
    """What the grid leaves open: a lower and an upper bound on epsilon at delta, by opposite roundings.

    The upper end is `epsilon`. The lower end belongs to the dominating pairs of the events (for an allocation: of
    its blocks);
    it is zero where an event is accounted by moments alone.
    """
    upper = epsilon(events, delta)
    counts = canonical_form(events)
    if not counts or math.isinf(upper):
        return upper, upper
    try:
        lower, _ = pld_interval(counts, delta)
    except (NoLaw, TooFine):
        lower = 0.0
    kinds = set().union(*(kinds_in(event) for event in counts))
    return (0.0 if WithoutReplacement in kinds else min(lower, upper)), upper


def check_delta(delta: float) -> None:
    """Delta must be a probability that the arithmetic can reach."""
    if not SMALLEST_DELTA <= delta < 1:
        law = "delta lies in (0, 1)" if not 0 < delta < 1 else f"deltas below {SMALLEST_DELTA} are not computed"
        invalid("delta", delta, law, "use a value such as 1e-5, below one over the number of subjects")


def refuse_large_delta(name: str, delta: float, units: int, noun: str) -> None:
    """Raise where delta, promised to each of so many units, is one over their number or more.

    Whoever publishes the data of one of n units, picked at random, meets (0, 1/n): such a delta promises nothing.

    >>> refuse_large_delta("delta", 0.5, 10, "clients")
    Traceback (most recent call last):
    ...
    sightline.errors.Refused: delta=0.5: publishing one of 10 clients at random would meet it; use at most 0.01, or \
set allow_large_delta = true
    """
    if delta * units >= 1 - 1e-12:
        way_out = f"use at most {1 / (NEAR * units):.2g}, or set allow_large_delta = true"
        refuse(name, f"{delta:g}", f"publishing one of {units} {noun} at random would meet it", way_out)


def large_delta_note(delta: float, units: int, noun: str) -> str | None:
    """What is to be said of a delta within a factor of ten of one over the number of units, or above; else None.

    >>> large_delta_note(1e-3, 100, "clients") is None
    True
    """
    if delta * units * NEAR <= 1 + 1e-12:
        return None
    what = f"publishing one of {units} {noun} at random has delta = {1 / units:.2g}"
    return f"delta = {delta:g} is large: {what}; {1 / (NEAR * units):.2g} or less is usual"
