"""The accountant: epsilon, delta and intervals of a composition, alone, step by step, or as a curve."""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

import numpy as np
from scipy.special import gammaln, logsumexp

from sightline import formatting as shown
from sightline.accounting.canonical import Composition, canonical_form, inner_events, kinds_in
from sightline.accounting.composition import TooFine
from sightline.accounting.dominating_pairs import NoLaw, TwoSided
from sightline.accounting.likelihood_ratio import Array
from sightline.accounting.moments import ORDERS, pin_moments
from sightline.accounting.pld import pld_delta, pld_epsilon, pld_interval
from sightline.accounting.renyi import composed_backward, composed_forward, convert_moments, renyi_delta, renyi_epsilon
from sightline.errors import invalid, refuse
from sightline.events import (
    Allocation,
    Clear,
    ConvexSegment,
    Event,
    Exponential,
    FixedCohort,
    Gaussian,
    Poisson,
    Pure,
    ReplacedSegment,
    Segment,
    WithoutReplacement,
    with_known_coins,
)


class Curve(list[float]):
    """Epsilon after 1, 2, ... repetitions, at one delta."""

    def __init__(self, values: list[float], *, delta: float) -> None:
        super().__init__(values)
        self.delta = delta

    def _repr_html_(self) -> str:
        if not self:
            return "<p>nothing was released</p>"
        ends = f"{shown.rounded_up(self[0])} after 1, {shown.rounded_up(self[-1])} after {len(self):,}"
        return shown.svg_curve(f"epsilon at delta = {self.delta:g}: {ends}", self) or f"<p>epsilon: {ends}</p>"


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

    Guarantees: never below the true value; infinite when something was sent without noise; zero when nothing
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
    for form in law_forms(held):
        with suppress(NoLaw, TooFine):
            bounds.append(pld_epsilon(form, delta))
    failed = len(bounds) == 1
    if failed:
        bounds.append(unhidden_epsilon(held, delta))
    if not math.isfinite(min(bounds)) or moments_may_win(held, failed=failed):
        bounds.append(renyi_epsilon(held, delta, unless=min(bounds)))
    return min(bounds)


def law_forms(counts: Mapping[Event, int]) -> list[Mapping[Event, int]]:
    """The composition, and the same by the other law of its replaced segments: both are bounds."""
    if not any(isinstance(event, ReplacedSegment) for event in counts):
        return [counts]
    return [counts, {other_law(event): times for event, times in counts.items()}]


def other_law(event: Event) -> Event:
    """A replaced segment by its other law; other events as they are."""
    return TwoSided(**vars(event)) if isinstance(event, ReplacedSegment) else event


def chance_to_take_part(counts: Mapping[Event, int]) -> float:
    """At most how likely the subject is in anything at all: with that delta everything is private at epsilon zero."""
    return math.fsum(times * chance_of_draw(event) for event, times in counts.items()) * (1 + 1e-12)


def chance_of_draw(event: Event) -> float:
    """At most how likely one event has the subject in it; infinite where no draw decides on that."""
    if isinstance(event, Poisson):
        return event.rate
    if isinstance(event, Segment | ReplacedSegment | ConvexSegment):
        return event.steps * event.rate
    return math.inf


def unhidden_epsilon(counts: Mapping[Event, int], delta: float) -> float:
    """The cost if all sampling were known, which is never less: for events so strong that sampling hardly matters."""
    try:
        return pld_epsilon(canonical_form({with_known_coins(event): times for event, times in counts.items()}), delta)
    except (NoLaw, TooFine):
        return math.inf


def moments_may_win(counts: Mapping[Event, int], *, failed: bool = False) -> bool:
    """Whether moments know more than the law: zCDP of choices, eq. (3) of unequal blocks, cohorts whose law is not
    known or could not be composed.
    """
    kinds = set().union(*(kinds_in(event) for event in counts))
    if kinds & {Exponential, Allocation} or (failed and kinds & {WithoutReplacement, FixedCohort}):
        return True
    return any(unknown_cohorts(event) for event in counts)


def unknown_cohorts(event: Event) -> bool:
    """Whether there is a fixed cohort of anything but a Gaussian in it: such a cohort has no law of its own."""
    cohort = isinstance(event, WithoutReplacement | FixedCohort)
    return any((cohort and not isinstance(inner, Gaussian)) or unknown_cohorts(inner) for inner in inner_events(event))


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
    for form in law_forms(counts):
        with suppress(NoLaw, TooFine):
            bounds.append(pld_delta(form, epsilon))
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
    return (0.0 if kinds & {ReplacedSegment} else min(lower, upper)), upper


def check_delta(delta: float) -> None:
    """Delta must be a probability that the arithmetic can reach."""
    if not SMALLEST_DELTA <= delta < 1:
        law = "delta lies in (0, 1)" if not 0 < delta < 1 else f"deltas below {SMALLEST_DELTA} are not computed"
        invalid("delta", delta, law, "use a value such as 1e-5, below one over the number of subjects")


def refuse_large_delta(
    name: str, delta: float, units: int, noun: str, *, otherwise: str = ", or set allow_large_delta = true"
) -> None:
    """Raise where delta, promised to each of so many units, is one over their number or more.

    Whoever publishes the data of one of n units, picked at random, meets (0, 1/n): such a delta promises nothing.

    >>> refuse_large_delta("delta", 0.5, 10, "clients")
    Traceback (most recent call last):
    ...
    sightline.errors.Refused: delta=0.5: publishing one of 10 clients at random would meet it; use at most 0.01, or \
set allow_large_delta = true
    """
    if delta * units >= 1 - 1e-12:
        way_out = f"use at most {1 / (NEAR * units):.2g}{otherwise}"
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


MARGIN = 1e-3
"""Ceilings stay below the limit by so much of it: far more than the arithmetic of an epsilon can be off."""

AHEAD = 0.25
"""The first ceiling lies so much of the counts above them."""

CEILINGS = 8
FAMILIES = 1024
"""Ceilings kept for one set of events, and sets of events kept at all: forgetting costs time, nothing else."""


class Headroom:
    """What is known to be within epsilon at delta: ceilings, compositions below which everything fits.

    For lists that no data decide on, of which only the end may be left out (accounting-proofs.md). What is chosen after
    looking at results needs a filter.

    Whoever sees more learns no less, so an upper bound for a ceiling is one for every composition with the same events
    and no larger counts. Above the last ceiling each composition is accounted for itself.

    Guarantees: nothing fits whose epsilon is above the limit; by the margin, the same compositions fit whatever was
    asked before. A run of T rounds asks the accountant in the order of log T times, and in every round within the
    margin.
    """

    def __init__(self, limit: float, delta: float, *, accountant: Accountant = Accountant.PLD) -> None:
        self.limit, self.delta, self.accountant = limit, delta, accountant
        self._ceilings: dict[frozenset[Event], list[Mapping[Event, int]]] = {}
        self._ahead: dict[frozenset[Event], float] = {}

    def fits(self, events: Mapping[Event, int]) -> bool:
        """Whether the composition is within the limit.

        >>> from sightline.events import Gaussian
        >>> room = Headroom(1.0, 1e-5)
        >>> [room.fits({Gaussian(10.0): times}) for times in (1, 7, 8, 7)]
        [True, True, False, True]
        """
        family = frozenset(events)
        if any(_epsilon_below(events, ceiling) for ceiling in self._ceilings.get(family, ())):
            return True
        if not self._epsilon(events) <= self.limit:
            return False
        self._look_ahead(family, events)
        return True

    def _epsilon(self, events: Mapping[Event, int]) -> float:
        return epsilon(events, self.delta, accountant=self.accountant)

    def _look_ahead(self, family: frozenset[Event], events: Mapping[Event, int]) -> None:
        """Find the next ceiling, half as far ahead after every one that did not fit."""
        if len(self._ahead) > FAMILIES:
            self._ahead.clear()
            self._ceilings.clear()
        ahead = self._ahead.get(family, AHEAD)
        while ahead * max(events.values(), default=0) >= 1:
            ceiling = {event: times + int(ahead * times) for event, times in events.items()}
            if self._epsilon(ceiling) <= self.limit * (1 - MARGIN):
                self._ceilings[family] = [ceiling, *self._ceilings.get(family, [])[: CEILINGS - 1]]
                break
            ahead /= 2
        self._ahead[family] = ahead


def _epsilon_below(events: Mapping[Event, int], ceiling: Mapping[Event, int]) -> bool:
    return all(times <= ceiling[event] for event, times in events.items())


@dataclass(frozen=True)
class Bridged:
    """One release in which the subject is felt through `bridges` others, and by itself when `own` is 1."""

    noise_multiplier: float
    rate: float
    bridges: int
    own: int = 0

    def __post_init__(self) -> None:
        if not (self.noise_multiplier > 0 and math.isfinite(self.noise_multiplier)):
            invalid("noise_multiplier", self.noise_multiplier, "noise is positive and finite")
        if not 0 < self.rate <= 1:
            invalid("rate", self.rate, "a participation probability lies in (0, 1]")
        if self.bridges < 0 or self.own not in (0, 1):
            invalid("bridges", self.bridges, "is a count, and the subject is in the release once or not at all")

    @property
    def worst(self) -> Gaussian:
        """The same release when everybody takes part: one Gaussian whose mean moves by (own + 2 bridges) C."""
        return Gaussian(self.noise_multiplier / (self.own + 2 * self.bridges))


@lru_cache(maxsize=1024)
def bridged_moments(release: Bridged) -> Array:
    """log E[exp(a (a - 1) (b + 2 j)^2 / (2 z^2))] for a = 0 .. the largest order; both directions are the same.

    >>> round(float(bridged_moments(Bridged(2.0, 1.0, 1))[2]), 9)  # 2 * 1 * 2^2 / (2 * 2.0^2)
    1.0
    """
    chances: dict[int, float] = {}
    for shift, chance in shift_probabilities(release.own, release.rate, 1).items():
        for bridged, other in shift_probabilities(release.bridges, release.rate, 2).items():
            chances[shift + bridged] = float(np.logaddexp(chances.get(shift + bridged, -math.inf), chance + other))
    shifts = np.array(sorted(chances), dtype=np.float64)
    weights = np.array([chances[int(shift)] for shift in shifts])
    growth = (ORDERS * (ORDERS - 1))[:, None] * shifts[None, :] ** 2 / (2 * release.noise_multiplier**2)
    return pin_moments(np.asarray(logsumexp(weights[None, :] + growth, axis=1)))


def shift_probabilities(count: int, rate: float, reach: int) -> dict[int, float]:
    """Shift -> log of its chance: each of `count` members that is sampled moves the sum by `reach`."""
    if rate == 1 or count == 0:
        return {reach * count: 0.0}
    heads = np.arange(count + 1, dtype=np.float64)
    log_chance = gammaln(count + 1) - gammaln(heads + 1) - gammaln(count - heads + 1)
    log_chance = log_chance + heads * math.log(rate) + (count - heads) * math.log1p(-rate)
    return {reach * int(head): float(chance) for head, chance in zip(heads, log_chance, strict=True)}


def bridged_epsilon(
    direct: Mapping[Event, int], bridged: Mapping[Bridged, int], delta: float, *, accountant: Accountant
) -> float:
    """Epsilon of direct releases composed with bridged ones.

    Guarantees: an upper bound; by Renyi moments with the sampling, and with the PLD accountant also by the law of the
    Gaussians without them, whichever is less.
    """
    extra = np.asarray(sum((times * bridged_moments(one) for one, times in bridged.items()), np.zeros(len(ORDERS))))
    back = composed_backward(direct)
    if back.missing >= delta:
        return math.inf
    ahead = convert_moments(composed_forward(direct) + extra, delta)
    found = max(ahead, convert_moments(back.moments + extra, delta - back.missing))
    if accountant is Accountant.RDP:
        return found
    without_sampling: dict[Event, int] = dict(direct)
    for one, times in bridged.items():
        without_sampling[one.worst] = without_sampling.get(one.worst, 0) + times
    return min(found, epsilon(without_sampling, delta))
