"""Independent accounting of an exported ledger, without any code of the accountant or the ledger.

Flow is a plain graph search. Costs are checked by sampling: for every event this module has the experiment that it
stands for (noise, sampling, parts, schedules), the likelihood ratio of what an observer sees, and Monte Carlo estimates
of delta at the claimed epsilon. Compositions of Gaussians are also compared with their closed form, and sampled
Gaussians with another library.
"""

import json
import math
import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from sightline import accounting
from sightline.accounting import Accountant
from sightline.events import from_json, to_json
from sightline.ledger import Ledger, export_ledger
from sightline.plugins import BrokenLaw, import_extra

Plain = dict[str, Any]
"""An event or a release as in the exported file."""
Texts = tuple[tuple[str, int], ...]
"""A composition: events as text, with counts."""
Draws = NDArray[np.float64]
LAW = "independent accounting confirms the ledger"
GAUSSIAN_KINDS = {"gaussian", "repeat", "product", "pooled"}
SAMPLED_KINDS = {"gaussian", "repeat", "product", "poisson"}


class Clear(Exception):
    """Raised when a value was sent without noise: there is no epsilon."""


@lru_cache(maxsize=4096)
def read_names(text: str) -> set[str]:
    """Return the set that the short form `client-0..3, server` stands for."""
    result = set[str]()
    for word in (part.strip() for part in text.split(",")):
        span = re.fullmatch(r"(.+)-(\d+)\.\.(\d+)", word)
        if span:
            result |= {f"{span[1]}-{number}" for number in range(int(span[2]), int(span[3]) + 1)}
        elif word:
            result.add(word)
    return result


def find_reached(releases: list[Plain], observer: str) -> set[int]:
    """Return every release that the observer sees, or from which something it sees was computed."""
    result, waiting = (
        set[int](),
        [n for n, release in enumerate(releases) if observer in read_names(release["audience"])],
    )
    while waiting:
        number = waiting.pop()
        if number not in result:
            result.add(number)
            waiting += releases[number]["inputs"]
    return result


def count_charges(releases: list[Plain], subject: str, seen: set[int], observer: str) -> Counter[str]:
    """Return the events charged to the subject, as text with counts; events of one joint name count once."""
    counts, joint = Counter[str](), set[str]()
    for number in sorted(seen):
        release = releases[number]
        if subject not in read_names(release["subjects"]):
            continue
        event = release["event"]
        if observer in read_names(release["coins_known_to"]):
            event = reveal_draws(event)
        elif observer == "public":
            event = add_noise(event)
        # Releases of one joint name are one charged event, such as one epoch of a schedule.
        if release["joint"]:
            if release["joint"] in joint:
                continue
            joint.add(release["joint"])
        counts[json.dumps(event, sort_keys=True)] += 1
    return counts


def add_noise(event: Plain) -> Plain:
    """Return the event as an outsider sees it: add back the noise that a pool leaves out for its members."""
    changed: Plain = {"noises": event["noises"] + 1} if event["kind"] == "pooled" else {}
    if "event" in event:
        changed |= {"event": add_noise(event["event"])}
    if "events" in event:
        changed |= {"events": [add_noise(inner) for inner in event["events"]]}
    return event | changed


def reveal_draws(event: Plain) -> Plain:
    """Return the event as seen by a party that knows every draw, part and schedule in it."""
    kind = event["kind"]
    # The worst case: the first step draws the subject.
    if kind == "segment":
        share = (event["steps"] - 1 + event["first_step"]) / event["steps"]
        return {"kind": "gaussian", "noise_multiplier": event["event"]["noise_multiplier"] / share}
    if kind == "convex_segment":
        return {"kind": "gaussian", "noise_multiplier": event["event"]["noise_multiplier"] / event["steps"]}
    if kind in ("poisson", "without_replacement", "fixed_cohort", "split", "pooled"):
        return reveal_draws(event["event"])
    if kind == "allocation":
        return {"kind": "repeat", "times": event["uses"], "event": reveal_draws(event["event"])}
    if kind == "repeat":
        return event | {"event": reveal_draws(event["event"])}
    if kind == "product":
        return event | {"events": [reveal_draws(inner) for inner in event["events"]]}
    return event


def list_kinds(event: Plain) -> set[str]:
    """Return the kinds of an event and of all events inside it."""
    inner = event.get("events", [event["event"]] if "event" in event else [])
    return {event["kind"]}.union(*(list_kinds(one) for one in inner))


def draw_ratio(event: Plain, present: NDArray[np.bool_], rng: np.random.Generator) -> Draws:
    """Return log dP/dQ of what is seen of one event; `present` says for every draw whether the subject takes part."""
    size = len(present)
    match event["kind"]:
        case "gaussian":
            s = 1 / event["noise_multiplier"]
            return np.asarray(s * (s * present + rng.standard_normal(size)) - s * s / 2)
        case "pooled":
            if event["event"]["kind"] != "gaussian":
                raise NotImplementedError("pools of Gaussian noise only")
            one, seen = event["event"]["noise_multiplier"], rng.standard_normal((event["noises"], size)).sum(0)
            s = 1 / (one * math.sqrt(event["noises"]))
            return np.asarray(s * (s * present + seen / math.sqrt(event["noises"])) - s * s / 2)
        case "clear":
            raise Clear
        case "pure" | "exponential":
            # A choice has a bounded range: e^(eps/2) and e^(-eps/2) are ratios that it can attain.
            eps = event["epsilon"] / (1 if event["kind"] == "pure" else 2)
            likely = rng.random(size) < special.expit(np.where(present, eps, -eps))
            return np.asarray(np.where(likely, eps, -eps))
        case "product":
            return sum((draw_ratio(inner, present, rng) for inner in event["events"]), np.zeros(size))
        case "repeat":
            return sum((draw_ratio(event["event"], present, rng) for _ in range(event["times"])), np.zeros(size))
        case "poisson":
            rate = event["rate"]
            inner = draw_ratio(event["event"], present & (rng.random(size) < rate), rng)
            return np.asarray(np.log1p(rate * np.expm1(inner)))
        case "split":
            part = rng.integers(event["parts"], size=size)
            copies = [draw_ratio(event["event"], present & (part == j), rng) for j in range(event["parts"])]
            return np.asarray(np.logaddexp.reduce(copies) - math.log(event["parts"]))
        case "allocation":
            return draw_scheduled(event, present, rng)
        case "without_replacement":
            return draw_fixed(event, present, rng)
        case "fixed_cohort":
            return draw_zeroed(event, present, rng)
        case "segment" | "convex_segment":
            return draw_bent(event, present, rng)
    raise NotImplementedError(event["kind"])


def draw_scheduled(event: Plain, present: NDArray[np.bool_], rng: np.random.Generator) -> Draws:
    """Return the ratio of exactly k of T steps: the mean over all subsets of the product over their steps."""
    steps, uses = event["steps"], event["uses"]
    used = rng.random((len(present), steps)).argsort(axis=1).argsort(axis=1) < uses
    sums = np.full((uses + 1, len(present)), -np.inf)
    sums[0] = 0.0
    for step in range(steps):
        ratio = draw_ratio(event["event"], present & used[:, step], rng)
        # Elementary symmetric polynomials by dynamic programming; downwards, so that a step enters a subset once.
        for size in range(uses, 0, -1):
            sums[size] = np.logaddexp(sums[size], sums[size - 1] + ratio)
    subsets = special.gammaln(steps + 1) - special.gammaln(uses + 1) - special.gammaln(steps - uses + 1)
    return np.asarray(sums[uses] - subsets)


def draw_fixed(event: Plain, present: NDArray[np.bool_], rng: np.random.Generator) -> Draws:
    """Return the ratio of a hidden cohort under replace-one: the subject's value is +half or -half if it is drawn."""
    if event["event"]["kind"] != "gaussian":
        raise NotImplementedError("fixed cohorts of Gaussian noise only")
    rate, half = event["cohort"] / event["population"], 0.5 / event["event"]["noise_multiplier"]
    member = rng.random(len(present)) < rate
    seen = rng.standard_normal(len(present)) + member * np.where(present, half, -half)

    def mixture(side: int) -> Any:
        return np.log1p(rate * np.expm1(side * half * seen - half * half / 2))

    return np.asarray(mixture(+1) - mixture(-1))


def draw_zeroed(event: Plain, present: NDArray[np.bool_], rng: np.random.Generator) -> Draws:
    """Return the ratio of a hidden cohort under zero-out, in the worst case."""
    rate, size = event["cohort"] / event["population"], len(present)
    member = rng.random(size) < rate
    # The other clients send nothing here, so the subject is as if Poisson sampled.
    if event["event"]["kind"] != "gaussian":
        return np.asarray(np.log1p(rate * np.expm1(draw_ratio(event["event"], present & member, rng))))
    s = 1 / event["event"]["noise_multiplier"]
    # The client drawn in the subject's place sends the opposite of what the subject would send.
    seen = rng.standard_normal(size) + np.where(member, s * present, -s)
    opposite = (1 - rate) * np.exp(-s * seen - s * s / 2)
    return np.asarray(np.log(opposite + rate * np.exp(s * seen - s * s / 2)) - np.log(opposite + rate))


def draw_bent(event: Plain, present: NDArray[np.bool_], rng: np.random.Generator) -> Draws:
    """Return the ratio of the end of a segment: each draw of the subject moves the path as allowed."""
    steps, rate, noise = event["steps"], event["rate"], event["event"]["noise_multiplier"]
    draws = rng.random((steps, len(present))) < rate
    if event["kind"] == "segment":
        shifts = (event["first_step"] + steps - 1 - np.arange(steps)) / (steps * noise)
        weights = rate * (1 - rate) ** np.arange(steps)
        moved = np.where(draws.any(0), shifts[draws.argmax(0)], 0.0)
    else:
        shifts, weights = np.arange(1, steps + 1) / noise, stats.binom.pmf(np.arange(1, steps + 1), steps, rate)
        moved = draws.sum(0) / noise
    y = moved * present + rng.standard_normal(len(present))
    ratios = np.exp(shifts[:, None] * y - shifts[:, None] ** 2 / 2)
    return np.asarray(np.log((1 - rate) ** steps + weights @ ratios))


@dataclass(frozen=True)
class Found:
    """Monte Carlo estimate of delta at an epsilon, in the worse direction, with its standard error."""

    delta: float
    error: float


@lru_cache(maxsize=4096)
def estimate_delta(composition: Texts, epsilon: float, draws: int) -> Found:
    """Return the Monte Carlo estimate of delta at epsilon for a composition (events as text, with counts)."""
    result = []
    for here in (True, False):
        rng = np.random.default_rng(int(here))
        present = np.full(draws, here)
        ratio = sum(
            (draw_ratio(json.loads(text), present, rng) for text, times in composition for _ in range(times)),
            np.zeros(draws),
        )
        # E[max(0, 1 - e^(epsilon - loss))], computed without cancellation near 0.
        gain = -np.expm1(np.minimum(epsilon - (ratio if here else -ratio), 0.0))
        result.append(Found(float(gain.mean()), float(gain.std()) / math.sqrt(draws)))
    return max(result, key=lambda one: one.delta)


def sum_precision(event: Plain) -> float:
    """Return the sum of 1/z^2 over an event of Gaussians only."""
    match event["kind"]:
        case "gaussian":
            return float(event["noise_multiplier"] ** -2)
        case "pooled":
            return sum_precision(event["event"]) / float(event["noises"])
        case "repeat":
            return float(event["times"]) * sum_precision(event["event"])
        case "product":
            return sum(sum_precision(inner) for inner in event["events"])
    raise NotImplementedError(event["kind"])


def gaussian_delta(total: float, epsilon: float) -> float:
    """Return delta of a single Gaussian of that precision (Balle and Wang 2018, Theorem 8)."""
    s = math.sqrt(total)
    return float(stats.norm.cdf(s / 2 - epsilon / s) - math.exp(epsilon) * stats.norm.cdf(-s / 2 - epsilon / s))


@lru_cache(maxsize=4096)
def epsilon_elsewhere(composition: Texts, delta: float) -> float:
    """Return the epsilon of sampled Gaussians by dp_accounting's privacy loss distributions."""
    dp_event = import_extra("dp_accounting.dp_event", "interop")
    PLDAccountant = import_extra("dp_accounting.pld", "interop").PLDAccountant

    def event_of(event: Plain) -> Any:
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
    return float(accountant.get_epsilon(delta))


def confirm_composition(composition: Texts, epsilon: float, delta: float, *, draws: int) -> None:
    """Raise `BrokenLaw` if a composition costs more than epsilon, or clearly less where a second method can tell."""
    events = [json.loads(text) for text, _ in composition]
    present = set().union(*(list_kinds(event) for event in events)) if events else set()
    if "clear" in present:
        _hold(math.isinf(epsilon), "a value without noise costs infinitely much", epsilon)
        return
    if not composition:
        _hold(epsilon == 0, "nothing costs nothing", epsilon)
        return
    result = estimate_delta(composition, epsilon, draws)
    # Five standard errors: with thousands of compositions a test must not fail by chance.
    _hold(result.delta <= delta + 5 * result.error, f"drawing it shows delta {result.delta:.3g}", epsilon)
    if present <= GAUSSIAN_KINDS:
        total = sum(times * sum_precision(json.loads(text)) for text, times in composition)
        exact = gaussian_delta(total, epsilon)
        _hold(exact <= delta * (1 + 1e-6), f"Gaussians in closed form have delta {exact:.6g}", epsilon)
        # Also from below: an epsilon that is far too large would hide a mistake in the accountant.
        _hold(epsilon == 0 or exact >= delta * (1 - 1e-3), f"Gaussians in closed form have delta {exact:.6g}", epsilon)
    elif present <= SAMPLED_KINDS and is_flat(events):
        theirs = epsilon_elsewhere(composition, delta)
        _hold(abs(epsilon - theirs) <= 5e-3 * max(1.0, theirs), f"another library says {theirs:.6g}", epsilon)


def is_flat(events: list[Plain]) -> bool:
    """Return whether only single Gaussians are sampled, which is what the other library can account."""
    for event in events:
        inner = event.get("events", [event["event"]] if "event" in event else [])
        if event["kind"] == "poisson" and event["event"]["kind"] != "gaussian":
            return False
        if not is_flat(inner):
            return False
    return True


def _hold(holds: bool, reason: str, epsilon: float) -> None:
    if not holds:
        raise BrokenLaw(LAW, f"epsilon {epsilon:.6g} is stated, but {reason}")


def confirm_ledger(ledger: Ledger, trusted: set[str], delta: float, *, draws: int) -> float:
    """Return the worst epsilon over all untrusted observers and all subjects, confirmed from the export alone."""
    # The round trip through JSON guarantees that nothing but the exported file is used.
    releases = json.loads(json.dumps(export_ledger(ledger)))["releases"]
    people = set[str]().union(*(read_names(release["subjects"]) for release in releases))
    onlookers = set[str]().union(*(read_names(r["audience"]) | read_names(r["coins_known_to"]) for r in releases))
    worst = 0.0
    for observer in sorted(onlookers - trusted):
        seen = find_reached(releases, observer)
        for subject in sorted(people - {observer}):
            result = count_charges(releases, subject, seen, observer)
            ours = ledger.composition(subject, observer).items()
            if result != Counter({json.dumps(to_json(event), sort_keys=True): n for event, n in ours}):
                raise BrokenLaw(LAW, f"a graph search finds another flow from {subject} to {observer}")
            worst = max(worst, confirmed_epsilon(result, delta, draws))
    return worst


def confirmed_epsilon(composition: Counter[str], delta: float, draws: int) -> float:
    """Return the accountant's epsilon of a composition, after the independent code has confirmed it."""
    events = {from_json(json.loads(text)): times for text, times in composition.items()}
    epsilon = accounting.epsilon(events, delta, accountant=Accountant.PLD)
    confirm_composition(tuple(sorted(composition.items())), epsilon, delta, draws=draws)
    return epsilon
