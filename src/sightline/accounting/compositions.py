"""Canonical form of compositions: neutral wrappers vanish, repetitions and products become counts."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import singledispatch

from sightline import events as ev
from sightline.errors import invalid, refuse
from sightline.events import Event

Composition = Mapping[Event, int]
"""A multiset of events: what one observer saw of one subject."""

# Gaussians are merged into copies whose 1 / noise_multiplier is at most this, so that masses stay representable.
STRONGEST = 12.0
# A larger epsilon is not a meaningful guarantee and counts as no noise.
MOST_EPSILON = 1e100
# Less noise counts as none; more counts as this much (inside wrappers: as MOST_HIDDEN_NOISE). Each replacement costs at
# least as much as the original, so the bound stays valid.
LEAST_NOISE, MOST_NOISE, MOST_HIDDEN_NOISE = 1e-100, 1e100, 1e7


def canonical_form(events: Composition) -> dict[Event, int]:
    """Return the same composition with Repeat and Product resolved and all Gaussians merged.

    Raises for counts that are not whole numbers, for too large counts and for mixed adjacencies.
    """
    counts: Counter[Event] = Counter()
    for event, times in events.items():
        if times < 0 or int(times) != times:
            invalid("times", times, "an event must be counted a whole number of times")
        if times:
            for part, repeats in parts_of(event).items():
                counts[part] += repeats * int(times)
    if counts and (most := max(counts.values())) > ev.MOST_COUNTED:
        invalid("times", most, f"an event can be counted at most {ev.MOST_COUNTED:.0e} times")
    check_adjacency(counts)
    return merged_gaussians(counts)


def merged_gaussians(counts: Mapping[Event, int]) -> dict[Event, int]:
    """Return the composition with all Gaussians merged into copies of one."""
    # Exact: Gaussians composed are one Gaussian whose 1/z^2 is the sum.
    precision = math.fsum(n / e.noise_multiplier**2 for e, n in counts.items() if isinstance(e, ev.Gaussian))
    others = {event: times for event, times in counts.items() if times and not isinstance(event, ev.Gaussian)}
    if precision == 0:
        return others
    copies = max(1, math.ceil(precision / STRONGEST**2))
    return {ev.Gaussian(math.sqrt(copies / precision)): copies} | others


@singledispatch
def parts_of(event: Event) -> dict[Event, int]:
    """Return the independent releases that an event consists of, with their counts."""
    return {event: 1}


@parts_of.register
def _(event: ev.Gaussian) -> dict[Event, int]:
    if event.noise_multiplier < LEAST_NOISE:
        return {ev.Clear(): 1}
    return {event if event.noise_multiplier <= MOST_NOISE else ev.Gaussian(MOST_NOISE): 1}


@parts_of.register
def _(event: ev.Pure | ev.Exponential) -> dict[Event, int]:
    return {ev.Clear() if event.epsilon > MOST_EPSILON else event: 1}


@parts_of.register
def _(event: ev.Repeat) -> dict[Event, int]:
    return {part: times * event.times for part, times in parts_of(event.event).items() if event.times}


@parts_of.register
def _(event: ev.Product) -> dict[Event, int]:
    counts: Counter[Event] = Counter()
    for inner in event.events:
        counts.update(parts_of(inner))
    return dict(counts)


@parts_of.register
def _(event: ev.Poisson) -> dict[Event, int]:
    inner = simplify_event(event.event)
    return parts_of(inner) if event.rate == 1 else wrap_event(inner, ev.Poisson(event.rate, inner))


@parts_of.register
def _(event: ev.Pooled) -> dict[Event, int]:
    inner = simplify_event(event.event)
    # Only Gaussian noises add up to more; the factor below covers the rounding of the square root.
    if event.noises == 1 or not isinstance(inner, ev.Gaussian):
        return parts_of(inner)
    return {ev.Gaussian(inner.noise_multiplier * math.sqrt(event.noises) * (1 - 1e-12)): 1}


@parts_of.register
def _(event: ev.PooledDraws) -> dict[Event, int]:
    inner = simplify_event(event.event)
    # Without Gaussians neither the noises nor the public draws reduce the cost.
    if not isinstance(inner, ev.Gaussian):
        return parts_of(inner)
    if event.rate == 1:
        return parts_of(ev.Pooled(event.others + 1, inner))
    return {ev.PooledDraws(event.rate, event.others, inner): 1}


@parts_of.register
def _(event: ev.Split) -> dict[Event, int]:
    inner = simplify_event(event.event)
    return parts_of(inner) if event.parts == 1 else wrap_event(inner, ev.Split(event.parts, inner))


@parts_of.register
def _(event: ev.Cohort) -> dict[Event, int]:
    inner = simplify_event(event.event)
    if event.cohort == event.population:
        return parts_of(inner)
    return wrap_event(inner, replace(event, event=inner))


@parts_of.register
def _(event: ev.Allocation) -> dict[Event, int]:
    inner = simplify_event(event.event)
    if event.uses == event.steps:
        return {part: times * event.uses for part, times in parts_of(inner).items()}
    return wrap_event(inner, ev.Allocation(event.steps, event.uses, inner))


@parts_of.register
def _(event: ev.HiddenSteps) -> dict[Event, int]:
    # With rate 1 the draws are known. One step is a sampled Gaussian, but not under replace-one, where neither data set
    # is the one without the subject.
    (inner,) = parts_of(event.event)
    held = replace(event, event=lower_noise(inner))
    if event.rate == 1 or isinstance(inner, ev.Clear):
        return parts_of(held.known)
    if event.steps == 1 and not isinstance(event, ev.ReplacedSegment):
        return parts_of(ev.Poisson(event.rate, held.known))
    return {held: 1}


def wrap_event(inner: Event, event: Event) -> dict[Event, int]:
    """Return the wrapper with count one; empty if there is nothing inside it."""
    return {} if inner == ev.Product(()) else {event: 1}


def simplify_event(event: Event) -> Event:
    """Return the event inside a wrapper in canonical form: one event, or a Product of Repeats under one draw."""
    counts = merged_gaussians(parts_of(event))
    counts = {lower_noise(inner): times for inner, times in counts.items()}
    listed = tuple(inner if times == 1 else ev.Repeat(times, inner) for inner, times in counts.items())
    ordered = tuple(sorted(listed, key=repr))
    return ordered[0] if len(ordered) == 1 else ev.Product(ordered)


def lower_noise(event: Event) -> Event:
    """Return the event with a Gaussian's noise limited to what laws on lattices can distinguish."""
    loud = isinstance(event, ev.Gaussian) and event.noise_multiplier > MOST_HIDDEN_NOISE
    return ev.Gaussian(MOST_HIDDEN_NOISE) if loud else event


def kinds_in(event: Event) -> set[type[Event]]:
    """Return the types of an event and of everything inside it."""
    return {type(event)}.union(*(kinds_in(inner) for inner in ev.inner_events(event)))


def check_adjacency(counts: Mapping[Event, int]) -> None:
    """Raise if a composition mixes events accounted under replace-one with events accounted under add/remove."""
    # The losses of two different changes of the data do not add up to the loss of either.
    kinds = set().union(*(kinds_in(event) for event in counts)) if counts else set()
    hidden = kinds & {ev.Poisson, ev.Split, ev.Allocation, ev.FixedCohort, ev.Segment, ev.ConvexSegment}
    replaced = kinds & {ev.ReplacedSegment}
    if ev.WithoutReplacement in kinds and hidden:
        refuse(
            "composition",
            " and ".join(sorted(kind.kind for kind in hidden | {ev.WithoutReplacement})),
            "without_replacement is accounted under replace-one adjacency, other sampling under add/remove",
            "use Poisson cohorts, or fixed_cohort for cohorts of a fixed size under add/remove",
        )
    if replaced and hidden:
        reason = "replaced_segment is accounted under replace-one adjacency, hidden sampling under add/remove"
        mixed = " and ".join(sorted(kind.kind for kind in hidden | replaced))
        refuse("composition", mixed, reason, "use one adjacency")
