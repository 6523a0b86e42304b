"""The accountant: epsilon, delta and intervals of a composition, at once, step by step, or as a curve."""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

import numpy as np
from scipy.special import gammaln, logsumexp

from sightline import events as ev
from sightline import formatting as shown
from sightline.accounting.compositions import Composition, canonical_form, kinds_in
from sightline.accounting.dominating_pairs import NoLaw, TwoSided
from sightline.accounting.fft import TooFine
from sightline.accounting.likelihood_ratio import Array
from sightline.accounting.moments import ORDERS, pin_moments
from sightline.accounting.pld import pld_delta, pld_epsilon, pld_interval
from sightline.accounting.renyi import composed_backward, composed_forward, convert_moments, renyi_delta, renyi_epsilon
from sightline.errors import invalid, refuse
from sightline.events import Event


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


# The tilted transform keeps its relative precision down to about here.
SMALLEST_DELTA = 1e-30
# A delta above 1 / (NEAR * number of units) is noted.
NEAR = 10


class Accountant(StrEnum):
    """How events become epsilon.

    `PLD`: the least of all valid bounds (the composed law of the likelihood ratio, and moments where they can be less).
    `RDP`: moments only.
    """

    PLD = "pld"
    RDP = "rdp"


def epsilon(events: Composition, delta: float, *, accountant: Accountant = Accountant.PLD) -> float:
    """Return an upper bound on the epsilon of a composition at delta.

    Guarantees: never below the true value; infinite if anything was sent without noise; zero if nothing was seen.

    >>> from sightline.events import Gaussian, Poisson
    >>> round(epsilon({Poisson(0.1, Gaussian(2.05)): 1000}, 1e-5), 3)
    8.004
    """
    check_delta(delta)
    counts = canonical_form(events)
    if not counts:
        return 0.0
    if any(ev.Clear in kinds_in(event) for event in counts):
        return math.inf
    return cached_epsilon(tuple(sorted(counts.items(), key=repr)), delta, Accountant(accountant))


@lru_cache(maxsize=4096)
def cached_epsilon(counts: tuple[tuple[Event, int], ...], delta: float, accountant: Accountant) -> float:
    """Return epsilon of a canonical, ordered composition."""
    held = dict(counts)
    if chance_to_take_part(held) <= delta:
        return 0.0
    if accountant is Accountant.RDP:
        return renyi_epsilon(held, delta)
    # Each of these bounds is valid for the whole composition, so the least of them is.
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
    """Return the composition, and the same with the other law of its replaced segments: both are bounds."""
    if not any(isinstance(event, ev.ReplacedSegment) for event in counts):
        return [counts]
    return [counts, {other_law(event): times for event, times in counts.items()}]


def other_law(event: Event) -> Event:
    """Return a replaced segment with its other law; other events unchanged."""
    return TwoSided(**vars(event)) if isinstance(event, ev.ReplacedSegment) else event


def chance_to_take_part(counts: Mapping[Event, int]) -> float:
    """Return an upper bound on the probability that the subject is in anything: with that delta epsilon is zero."""
    return math.fsum(times * chance_of_draw(event) for event, times in counts.items()) * (1 + 1e-12)


def chance_of_draw(event: Event) -> float:
    """Return an upper bound on the probability that one event has the subject in it; infinite without a draw."""
    if isinstance(event, ev.Poisson):
        return event.rate
    if isinstance(event, ev.HiddenSteps):
        return event.steps * event.rate
    return math.inf


def unhidden_epsilon(counts: Mapping[Event, int], delta: float) -> float:
    """Return epsilon as if all sampling were known, an upper bound; infinite if that has no law either."""
    try:
        # For events so strong that their sampled law cannot be represented; sampling hardly helps there.
        known = {ev.with_known_coins(event): times for event, times in counts.items()}
        return pld_epsilon(canonical_form(known), delta)
    except (NoLaw, TooFine):
        return math.inf


def moments_may_win(counts: Mapping[Event, int], *, failed: bool = False) -> bool:
    """Return whether moments may give less than the law."""
    kinds = set().union(*(kinds_in(event) for event in counts))
    # Moments know zCDP of private choices, eq. (3) of the partitioning paper for allocations, and cohorts without a
    # law.
    if kinds & {ev.Exponential, ev.Allocation} or (failed and kinds & {ev.WithoutReplacement, ev.FixedCohort}):
        return True
    return any(unknown_cohorts(event) for event in counts)


def unknown_cohorts(event: Event) -> bool:
    """Return whether a fixed cohort of anything but a Gaussian is in it: such a cohort has no law of its own."""
    if isinstance(event, ev.Cohort) and not isinstance(event.event, ev.Gaussian):
        return True
    return any(unknown_cohorts(inner) for inner in ev.inner_events(event))


def summed_epsilon(counts: Mapping[Event, int]) -> float:
    """Return the sum of pure epsilons; infinite if some event is not pure."""
    if all(isinstance(event, ev.Pure | ev.Exponential) for event in counts):
        return math.fsum(times * event.epsilon for event, times in counts.items())  # type: ignore[attr-defined]
    return math.inf


def delta(events: Composition, epsilon: float, *, accountant: Accountant = Accountant.PLD) -> float:
    """Return an upper bound on the delta of a composition at epsilon."""
    if not epsilon >= 0:
        invalid("epsilon", epsilon, "epsilon must be >= 0")
    counts = canonical_form(events)
    if not counts:
        return 0.0
    if any(ev.Clear in kinds_in(event) for event in counts):
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
    """Return epsilon after 1, 2, ..., `times` repetitions of an event; never decreasing."""
    check_delta(delta)
    if times < 0:
        invalid("times", times, "a count must be >= 0")
    values: list[float] = []
    for count in range(1, times + 1):
        # Two counts may be accounted on different grids, so monotonicity is enforced.
        values.append(max(values[-1] if values else 0.0, epsilon({event: count}, delta, accountant=accountant)))
    return Curve(values, delta=delta)


def interval(events: Composition, delta: float) -> tuple[float, float]:
    """Return a lower and an upper bound on epsilon at delta, by opposite roundings of the grid.

    The upper end is `epsilon`. The lower end belongs to the dominating pairs of the events (for an allocation, of its
    blocks); it is zero where an event is accounted by moments alone.
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
    return (0.0 if kinds & {ev.ReplacedSegment} else min(lower, upper)), upper


def check_delta(delta: float) -> None:
    """Raise unless delta is a probability that the arithmetic can reach."""
    if not SMALLEST_DELTA <= delta < 1:
        reason = (
            "delta must lie in (0, 1)" if not 0 < delta < 1 else f"deltas below {SMALLEST_DELTA} cannot be computed"
        )
        invalid("delta", delta, reason, "use a value such as 1e-5, below one over the number of subjects")


def refuse_large_delta(
    name: str, delta: float, units: int, noun: str, *, otherwise: str = ", or set allow_large_delta = true"
) -> None:
    """Raise if delta, promised to each of `units` units, is one over their number or more.

    Publishing the data of one of n units, picked at random, is (0, 1/n)-private: such a delta promises nothing.

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
    """Return a note if delta is at least a tenth of one over the number of units; else None.

    >>> large_delta_note(1e-3, 100, "clients") is None
    True
    """
    if delta * units * NEAR <= 1 + 1e-12:
        return None
    what = f"publishing one of {units} {noun} at random has delta = {1 / units:.2g}"
    return f"delta = {delta:g} is large: {what}; {1 / (NEAR * units):.2g} or less is usual"


# Ceilings stay below the limit by this share of it: far more than the rounding of an epsilon.
MARGIN = 1e-3

# The first ceiling has counts larger by this share.
AHEAD = 0.25

CEILINGS = 8
# Ceilings kept for one set of events, and sets of events kept at all; forgetting only costs time.
FAMILIES = 1024


class Headroom:
    """A cache of what is within epsilon at delta: ceilings, compositions below which everything fits.

    For lists of events that no data decide on and of which only the end may be left out. Experiments chosen after
    looking at results need a filter.

    An observer who sees more learns no less, so an upper bound for a ceiling is one for every composition with the same
    events and no larger counts. Above the last ceiling each composition is accounted for itself.

    Guarantees: nothing fits whose epsilon is above the limit; by the margin, the same compositions fit whatever was
    asked before. A run of T rounds asks the accountant in the order of log T times, and in every round within the
    margin.
    """

    def __init__(self, limit: float, delta: float, *, accountant: Accountant = Accountant.PLD) -> None:
        self.limit, self.delta, self.accountant = limit, delta, accountant
        self._ceilings: dict[frozenset[Event], list[Mapping[Event, int]]] = {}
        self._ahead: dict[frozenset[Event], float] = {}

    def fits(self, events: Mapping[Event, int]) -> bool:
        """Return whether the composition is within the limit.

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
        """Find the next ceiling, half as far ahead after each one that did not fit."""
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
    """One release in which the subject is felt through `bridges` others, and by itself if `own` is 1."""

    noise_multiplier: float
    rate: float
    bridges: int
    own: int = 0

    def __post_init__(self) -> None:
        if not (self.noise_multiplier > 0 and math.isfinite(self.noise_multiplier)):
            invalid("noise_multiplier", self.noise_multiplier, "noise must be positive and finite")
        if not 0 < self.rate <= 1:
            invalid("rate", self.rate, "a participation probability must lie in (0, 1]")
        if self.bridges < 0 or self.own not in (0, 1):
            invalid("bridges", self.bridges, "must be a count, and own must be 0 or 1")

    @property
    def worst(self) -> ev.Gaussian:
        """Return the release with everyone taking part: one Gaussian whose mean moves by (own + 2 bridges) C."""
        return ev.Gaussian(self.noise_multiplier / (self.own + 2 * self.bridges))


@lru_cache(maxsize=1024)
def bridged_moments(release: Bridged) -> Array:
    """Return log E[exp(a (a - 1) (b + 2 j)^2 / (2 z^2))] for a = 0..MOST_ORDER; both directions are the same.

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
    """Return shift -> log probability: each of `count` members that is sampled moves the sum by `reach`."""
    if rate == 1 or count == 0:
        return {reach * count: 0.0}
    heads = np.arange(count + 1, dtype=np.float64)
    log_chance = gammaln(count + 1) - gammaln(heads + 1) - gammaln(count - heads + 1)
    log_chance = log_chance + heads * math.log(rate) + (count - heads) * math.log1p(-rate)
    return {reach * int(head): float(chance) for head, chance in zip(heads, log_chance, strict=True)}


def bridged_epsilon(
    direct: Mapping[Event, int], bridged: Mapping[Bridged, int], delta: float, *, accountant: Accountant
) -> float:
    """Return epsilon of direct releases composed with bridged ones.

    Guarantees: an upper bound; by Renyi moments with the sampling, and with the PLD accountant also by the law of the
    Gaussians without sampling, whichever is less.
    """
    extra = np.asarray(sum((times * bridged_moments(one) for one, times in bridged.items()), np.zeros(len(ORDERS))))
    back = composed_backward(direct)
    if back.missing >= delta:
        return math.inf
    ahead = convert_moments(composed_forward(direct) + extra, delta)
    result = max(ahead, convert_moments(back.moments + extra, delta - back.missing))
    if accountant is Accountant.RDP:
        return result
    without_sampling: dict[Event, int] = dict(direct)
    for one, times in bridged.items():
        without_sampling[one.worst] = without_sampling.get(one.worst, 0) + times
    return min(result, epsilon(without_sampling, delta))
