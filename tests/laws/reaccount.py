"""A ledger accounted again from its exported file alone, by nothing of the accountant's or the ledger's own code.

Flow is a plain search. The cost of what was found is checked by drawing it: for every event here is the experiment that
it stands for (noise, coins, parts, schedules), the likelihood ratio of what an observer sees, and Monte Carlo estimates
of delta at the epsilon that was claimed. Compositions of Gaussians are also held against their closed form, and sampled
Gaussians against another library.
"""

import json
import math
import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import special, stats

GAUSSIAN_KINDS = {"gaussian", "repeat", "product", "pooled"}
SAMPLED_KINDS = {"gaussian", "repeat", "product", "poisson"}


class Clear(Exception):
    """Something was handed over without noise: no epsilon."""


@lru_cache(maxsize=4096)
def names(text):
    """The set that the short form `client-0..3, server` stands for."""
    found = set()
    for word in (part.strip() for part in text.split(",")):
        span = re.fullmatch(r"(.+)-(\d+)\.\.(\d+)", word)
        if span:
            found |= {f"{span[1]}-{number}" for number in range(int(span[2]), int(span[3]) + 1)}
        elif word:
            found.add(word)
    return found


def reached(releases, observer):
    """Every release that the observer sees, or that something it sees was computed from."""
    found, waiting = set(), [n for n, release in enumerate(releases) if observer in names(release["audience"])]
    while waiting:
        number = waiting.pop()
        if number not in found:
            found.add(number)
            waiting += releases[number]["inputs"]
    return found


def charges(releases, subject, seen, observer):
    """The events by which the subject is seen, as texts with counts; those of one joint name count once."""
    counts, joint = Counter(), set()
    for number in sorted(seen):
        release = releases[number]
        if subject not in names(release["subjects"]):
            continue
        event = release["event"]
        if observer in names(release["coins_known_to"]):
            event = unhidden(event)
        elif observer == "public":
            event = with_one_more_noise(event)
        if release["joint"]:
            if release["joint"] in joint:
                continue
            joint.add(release["joint"])
        counts[json.dumps(event, sort_keys=True)] += 1
    return counts


def with_one_more_noise(event):
    """The event to an outsider: pools leave out one noise, that of an observer who is in them."""
    changed = {"noises": event["noises"] + 1} if event["kind"] == "pooled" else {}
    if "event" in event:
        changed |= {"event": with_one_more_noise(event["event"])}
    if "events" in event:
        changed |= {"events": [with_one_more_noise(inner) for inner in event["events"]]}
    return event | changed


def unhidden(event):
    """The event to somebody who knows every coin, part and schedule in it."""
    kind = event["kind"]
    if kind in ("poisson", "without_replacement", "fixed_cohort", "split", "pooled"):
        return unhidden(event["event"])
    if kind == "allocation":
        return {"kind": "repeat", "times": event["uses"], "event": unhidden(event["event"])}
    if kind == "repeat":
        return event | {"event": unhidden(event["event"])}
    if kind == "product":
        return event | {"events": [unhidden(inner) for inner in event["events"]]}
    return event


def kinds(event):
    """The kinds of an event and of all inside it."""
    inner = event.get("events", [event["event"]] if "event" in event else [])
    return {event["kind"]}.union(*(kinds(one) for one in inner))


def drawn(event, present, rng):
    """log dP/dQ of what is seen of one event; `present` says for every draw whether the subject was there."""
    size = len(present)
    match event["kind"]:
        case "gaussian":
            s = 1 / event["noise_multiplier"]
            return s * (s * present + rng.standard_normal(size)) - s * s / 2
        case "pooled":
            if event["event"]["kind"] != "gaussian":
                raise NotImplementedError("a pool of something other than Gaussian noise")
            one, seen = event["event"]["noise_multiplier"], rng.standard_normal((event["noises"], size)).sum(0)
            s = 1 / (one * math.sqrt(event["noises"]))
            return s * (s * present + seen / math.sqrt(event["noises"])) - s * s / 2
        case "clear":
            raise Clear
        case "pure" | "exponential":
            # A choice has a bounded range: the ratios e^(eps/2) and e^(-eps/2) are one that it can have.
            eps = event["epsilon"] / (1 if event["kind"] == "pure" else 2)
            likely = rng.random(size) < special.expit(np.where(present, eps, -eps))
            return np.where(likely, eps, -eps)
        case "product":
            return sum((drawn(inner, present, rng) for inner in event["events"]), np.zeros(size))
        case "repeat":
            return sum((drawn(event["event"], present, rng) for _ in range(event["times"])), np.zeros(size))
        case "poisson":
            rate = event["rate"]
            inner = drawn(event["event"], present & (rng.random(size) < rate), rng)
            return np.log1p(rate * np.expm1(inner))
        case "split":
            part = rng.integers(event["parts"], size=size)
            copies = [drawn(event["event"], present & (part == j), rng) for j in range(event["parts"])]
            return np.logaddexp.reduce(copies) - math.log(event["parts"])
        case "allocation":
            return scheduled(event, present, rng)
        case "without_replacement":
            return fixed(event, present, rng)
        case "fixed_cohort":
            return zeroed(event, present, rng)
    raise NotImplementedError(event["kind"])


def scheduled(event, present, rng):
    """Exactly k of T steps: the mean over all subsets of the product over their steps, built up step by step."""
    steps, uses = event["steps"], event["uses"]
    used = rng.random((len(present), steps)).argsort(axis=1).argsort(axis=1) < uses
    sums = np.full((uses + 1, len(present)), -np.inf)
    sums[0] = 0.0
    for step in range(steps):
        ratio = drawn(event["event"], present & used[:, step], rng)
        for size in range(uses, 0, -1):
            sums[size] = np.logaddexp(sums[size], sums[size - 1] + ratio)
    return sums[uses] - (special.gammaln(steps + 1) - special.gammaln(uses + 1) - special.gammaln(steps - uses + 1))


def fixed(event, present, rng):
    """A hidden cohort under replace-one: the subject's value is on one side or on the other, when it is drawn at all."""
    if event["event"]["kind"] != "gaussian":
        raise NotImplementedError("a fixed cohort of something other than Gaussian noise")
    rate, half = event["cohort"] / event["population"], 0.5 / event["event"]["noise_multiplier"]
    member = rng.random(len(present)) < rate
    seen = rng.standard_normal(len(present)) + member * np.where(present, half, -half)

    def mixture(side):
        return np.log1p(rate * np.expm1(side * half * seen - half * half / 2))

    return mixture(+1) - mixture(-1)


def zeroed(event, present, rng):
    """A hidden cohort under zero-out: whoever is drawn in the subject's place sends the opposite of what it would."""
    rate, size = event["cohort"] / event["population"], len(present)
    member = rng.random(size) < rate
    if event["event"]["kind"] != "gaussian":  # the others send nothing: as if drawn by itself
        return np.log1p(rate * np.expm1(drawn(event["event"], present & member, rng)))
    s = 1 / event["event"]["noise_multiplier"]
    seen = rng.standard_normal(size) + np.where(member, s * present, -s)
    opposite = (1 - rate) * np.exp(-s * seen - s * s / 2)
    return np.log(opposite + rate * np.exp(s * seen - s * s / 2)) - np.log(opposite + rate)


@dataclass(frozen=True)
class Found:
    """Monte Carlo of delta at an epsilon, the worse direction, with its standard error."""

    delta: float
    error: float


@lru_cache(maxsize=4096)
def monte_carlo(composition, epsilon, draws):
    """Delta at epsilon of a composition (texts with counts), drawn."""
    found = []
    for here in (True, False):
        rng = np.random.default_rng(int(here))
        present = np.full(draws, here)
        ratio = sum(
            (drawn(json.loads(text), present, rng) for text, times in composition for _ in range(times)),
            np.zeros(draws),
        )
        gain = -np.expm1(np.minimum(epsilon - (ratio if here else -ratio), 0.0))
        found.append(Found(float(gain.mean()), float(gain.std()) / math.sqrt(draws)))
    return max(found, key=lambda one: one.delta)


def precision(event):
    """sum of 1/z^2 over an event of Gaussians only."""
    match event["kind"]:
        case "gaussian":
            return event["noise_multiplier"] ** -2
        case "pooled":
            return precision(event["event"]) / event["noises"]
        case "repeat":
            return event["times"] * precision(event["event"])
        case "product":
            return sum(precision(inner) for inner in event["events"])
    raise NotImplementedError(event["kind"])


def gaussian_delta(total, epsilon):
    """Balle and Wang 2018, Theorem 8, for a single Gaussian of that precision."""
    s = math.sqrt(total)
    return stats.norm.cdf(s / 2 - epsilon / s) - math.exp(epsilon) * stats.norm.cdf(-s / 2 - epsilon / s)


@lru_cache(maxsize=4096)
def another_library(composition, delta):
    """Epsilon of sampled Gaussians by dp_accounting's privacy loss distributions."""
    from dp_accounting import dp_event
    from dp_accounting.pld import PLDAccountant

    def event_of(event):
        match event["kind"]:
            case "gaussian":
                return dp_event.GaussianDpEvent(event["noise_multiplier"])
            case "poisson":
                return dp_event.PoissonSampledDpEvent(event["rate"], event_of(event["event"]))
            case "repeat":
                return dp_event.SelfComposedDpEvent(event_of(event["event"]), event["times"])
            case "product":
                return dp_event.ComposedDpEvent([event_of(inner) for inner in event["events"]])

    accountant = PLDAccountant(value_discretization_interval=1e-3)
    for text, times in composition:
        accountant.compose(event_of(json.loads(text)), times)
    return accountant.get_epsilon(delta)


def confirm(composition, epsilon, delta, *, draws):
    """Assert that a composition costs no more than epsilon at delta, and not visibly less where that can be said."""
    events = [json.loads(text) for text, _ in composition]
    present = set().union(*(kinds(event) for event in events)) if events else set()
    if "clear" in present:
        assert math.isinf(epsilon)
        return
    if not composition:
        assert epsilon == 0
        return
    found = monte_carlo(composition, epsilon, draws)
    assert found.delta <= delta + 5 * found.error, (composition, epsilon, found)
    if present <= GAUSSIAN_KINDS:
        total = sum(times * precision(json.loads(text)) for text, times in composition)
        exact = gaussian_delta(total, epsilon)
        assert exact <= delta * (1 + 1e-6)
        assert epsilon == 0 or exact >= delta * (1 - 1e-3)
    elif present <= SAMPLED_KINDS and flat(events):
        theirs = another_library(composition, delta)
        assert abs(epsilon - theirs) <= 5e-3 * max(1.0, theirs), (composition, epsilon, theirs)


def flat(events):
    """Whether coins are only ever tossed for a single Gaussian: what the other library can account."""
    for event in events:
        inner = event.get("events", [event["event"]] if "event" in event else [])
        if event["kind"] == "poisson" and event["event"]["kind"] != "gaussian":
            return False
        if not flat(inner):
            return False
    return True
