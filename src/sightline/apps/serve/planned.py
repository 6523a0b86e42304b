"""Calculators for overlapping groups and trees: who could learn how much about whom, before anything is trained."""

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from sightline import accounting
from sightline.accounting.schemes import CLIP_NORM
from sightline.apps.report.matrix import ITSELF, draw_heat
from sightline.apps.serve.calculator import DELTA, NOISE, RATE, Knob, bar_rows, bar_scale, drawn_knob
from sightline.apps.serve.guard import query_value
from sightline.apps.serve.pages import PageServer, json_response
from sightline.engine.record import replace_nonfinite
from sightline.errors import SightlineError, did_you_mean, invalid
from sightline.events import Event, Gaussian, Pooled
from sightline.formatting import format_count, format_plural, format_short, format_upper
from sightline.ledger import write_parties
from sightline.ledger.group_privacy import PairQuery, PairResult, query_pairs
from sightline.topology import client_name

MOST = 200
"""The most memberships in the map."""

GROUPS_KNOBS = (
    Knob("workers", "Workers", 2, 10_000, 100, whole=True, command="groups"),
    Knob("groups", "Groups", 1, 400, 4, whole=True, command="groups"),
    Knob("period", "Period: epochs from exchange to exchange", 1, 1000, 10, whole=True, command="groups"),
    Knob("epochs", "Epochs", 2, 10_000, 200, whole=True, command="groups"),
    NOISE.starting_at(4.0),
    RATE.starting_at(0.7),
    DELTA,
)
STRUCTURES = {
    "ring": "Ring: neighbours share a worker",
    "string": "String: a ring with open ends",
    "clusters": "Clusters: no group shares a worker",
    "global": "Global: one group",
}
SILENT = {"everyone": ITSELF, "out-of-group": "{of} and {by} share a group: outside this threat."}
THREATS = {
    "everyone": "Every other worker is curious",
    "out-of-group": "Only workers outside a worker's groups are curious",
}


def groups_page(site: PageServer, request: Request) -> Response:
    """Return the form, the numbers and the map."""
    content: dict[str, Any] = {"numbers": [], "ticks": [], "mistake": "", "map": None, "about": "", "cut": ""}
    try:
        content |= groups_result(read_groups(request))
    except SightlineError as error:
        content["mistake"] = str(error)
    return site.draw(
        request,
        "planned_groups.html",
        "Groups",
        knobs=[drawn_knob(knob, request) for knob in GROUPS_KNOBS],
        selects=[
            ("structure", "Structure", STRUCTURES, query_value(request, "structure", "ring")),
            ("threat", "Threat", THREATS, query_value(request, "threat", "everyone")),
        ],
        plus=bool(query_value(request, "plus")),
        **content,
    )


def groups_api(site: PageServer, request: Request) -> Response:
    """Return part of what `sightline groups --json` prints; null is infinite, or there is no observer."""
    answer = cached_answer(read_groups(request))
    facts: dict[str, Any] = {"epsilon_mean": answer.mean, "epsilon_max": answer.largest, "classes": len(answer.pairs)}
    facts |= {"workers": answer.workers, "groups": answer.groups}
    return json_response(replace_nonfinite(facts | answer.claim.facts()))


def read_groups(request: Request) -> PairQuery:
    """Return the question in a request."""
    numbers: dict[str, Any] = {knob.name: knob.read(query_value(request, knob.name)) for knob in GROUPS_KNOBS}
    words: dict[str, Any] = {}
    for name, known in (("structure", STRUCTURES), ("threat", THREATS)):
        words[name] = query_value(request, name, next(iter(known)))
        if words[name] not in known:
            invalid(name, words[name], f"no such {name}", did_you_mean(words[name], list(known)))
    return PairQuery(count=numbers.pop("groups"), plus=bool(query_value(request, "plus")), **numbers, **words)


@lru_cache(maxsize=64)
def cached_answer(question: PairQuery) -> PairResult:
    """Return the answer, cached: turning a knob back computes nothing."""
    return query_pairs(question)


def groups_result(question: PairQuery) -> dict[str, Any]:
    """Return the numbers as bars, and the map of all pairs."""
    answer = cached_answer(question)
    together = cached_answer(replace(question, structure="global", threat="everyone"))
    rows = {
        "worst worker": answer.largest,
        "mean over workers": answer.mean,
        "all workers in one group": together.largest,
    }
    return {
        "numbers": bar_rows("epsilon", rows),
        "ticks": bar_scale(rows.values()).ticks,
        "about": f"{format_plural(answer.workers, 'worker')} in {format_plural(answer.groups, 'group')}, "
        f"{format_plural(len(answer.pairs), 'different membership')}; "
        f"at most {format_plural(answer.releases_max, 'release')} of one worker reach another",
        "map": pairs_map(answer),
        "cut": f"Memberships 1 to {MOST} of {format_count(len(answer.pairs))}." if len(answer.pairs) > MOST else "",
    }


def pairs_map(answer: PairResult) -> dict[str, Any]:
    """Return the map of every membership against every other."""
    members: list[list[str]] = [[] for _ in range(len(answer.pairs))]
    for worker, kind in enumerate(answer.pairs.class_of.tolist()):
        members[kind].append(client_name(worker))
    order = sorted(range(len(members)), key=lambda kind: int(members[kind][0].rpartition("-")[2]))[:MOST]
    words = [write_parties(frozenset(members[kind])) for kind in order]
    values = [[_known_or(answer.matrix[n, i]) for i in order] for n in order]
    return draw_heat(values, words, words, SILENT[answer.query.threat])


def _known_or(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


TREE_KNOBS = (
    NOISE,
    Knob("devices", "Devices per subnet", 1, 100_000, 20, whole=True),
    Knob("segments", "Local aggregations per round", 1, 1000, 2, whole=True),
    Knob("rounds", "Rounds", 1, 100_000, 15, whole=True),
    DELTA,
)
OBSERVERS = ("its edge", "its subnet", "all others")


def tree_page(site: PageServer, request: Request) -> Response:
    """Return the form and the table."""
    content: dict[str, Any] = {"rows": [], "mistake": "", "means": []}
    try:
        numbers = read_tree(request)
        content |= {"rows": _observer_rows(numbers), "means": _mean_rows(numbers)}
    except SightlineError as error:
        content["mistake"] = str(error)
    knobs = [drawn_knob(knob, request) for knob in TREE_KNOBS]
    return site.draw(request, "planned_tree.html", "Tree", knobs=knobs, observers=OBSERVERS, **content)


def tree_api(site: PageServer, request: Request) -> Response:
    """Return the table as JSON; null is without noise."""
    numbers = read_tree(request)
    content: dict[str, Any] = {"trusted": tree_epsilons(numbers, True), "untrusted": tree_epsilons(numbers, False)}
    content |= {"adjacency": "add_remove", "noise_relative_to": CLIP_NORM}
    return json_response(replace_nonfinite({**numbers, **content}))


def read_tree(request: Request) -> dict[str, float]:
    """Return the numbers in a request."""
    return {knob.name: knob.read(query_value(request, knob.name)) for knob in TREE_KNOBS}


def tree_epsilons(numbers: dict[str, float], trusted: bool) -> dict[str, float]:
    """Return epsilon by observer, for a device that takes part in every segment.

    Guarantees: equal to what the ledger of such a run composes. A trusted edge adds noise to
    the sum of its devices. Below an untrusted edge each device adds noise to what it sends; an observer of sums only
    is charged for all noise of the subnet except one device's.
    """
    alone = Gaussian(numbers["noise"])
    others = int(numbers["devices"]) - 1
    # An observer in the subnet knows its own noise, so one device's noise does not protect against it.
    summed: Event = alone if trusted or others < 2 else Pooled(others, alone)
    # A trusted edge receives the updates without noise: against it there is no guarantee.
    own = math.inf if trusted else _event_epsilon(numbers, alone)
    seen = _event_epsilon(numbers, summed)
    return dict(zip(OBSERVERS, (own, seen, seen), strict=True))


def _event_epsilon(numbers: dict[str, float], event: Event) -> float:
    return accounting.epsilon({event: int(numbers["segments"] * numbers["rounds"])}, numbers["delta"])


def _observer_rows(numbers: dict[str, float]) -> list[dict[str, Any]]:
    return [
        {"name": name, "cells": [format_upper(value, digits=4) for value in tree_epsilons(numbers, trusted).values()]}
        for name, trusted in (("below a trusted edge", True), ("below an untrusted edge", False))
    ]


def _mean_rows(numbers: dict[str, float]) -> list[tuple[str, str]]:
    noise, devices = numbers["noise"], numbers["devices"]
    return [
        ("trusted edge", format_short(noise / devices, 3)),
        ("untrusted edge", format_short(noise / math.sqrt(devices), 3)),
    ]
