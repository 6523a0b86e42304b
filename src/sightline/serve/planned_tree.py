"""The calculator for a tree: what each observer could learn of a device, by whether its edge is trusted."""

import math
from typing import Any

from sightline import accounting
from sightline.engine.record import replace_nonfinite
from sightline.errors import SightlineError
from sightline.events import Event, Gaussian, Pooled
from sightline.report.numbers import format_short, format_upper
from sightline.serve.knobs import DELTA, NOISE, Knob, drawn_knob
from sightline.serve.message import Request, Response, json_response
from sightline.serve.site import PageServer

TREE_KNOBS = (
    NOISE,
    Knob("devices", "Devices of a subnet", 1, 100_000, 20, whole=True),
    Knob("segments", "Local aggregations a round", 1, 1000, 2, whole=True),
    Knob("rounds", "Rounds", 1, 100_000, 15, whole=True),
    DELTA,
)
OBSERVERS = ("its edge", "its subnet", "all others")


def tree_page(site: PageServer, request: Request) -> Response:
    """The form and the table."""
    content: dict[str, Any] = {"rows": [], "mistake": "", "means": []}
    try:
        numbers = read_tree(request)
        content |= {"rows": _observer_rows(numbers), "means": _mean_rows(numbers)}
    except SightlineError as error:
        content["mistake"] = str(error)
    knobs = [drawn_knob(knob, request) for knob in TREE_KNOBS]
    return site.draw(request, "planned_tree.html", "Tree", knobs=knobs, observers=OBSERVERS, **content)


def tree_api(site: PageServer, request: Request) -> Response:
    """The same as JSON; null is in the clear."""
    numbers = read_tree(request)
    return json_response(
        replace_nonfinite(
            {**numbers, "trusted": tree_epsilons(numbers, True), "untrusted": tree_epsilons(numbers, False)}
        )
    )


def read_tree(request: Request) -> dict[str, float]:
    """The numbers of a request."""
    return {knob.name: knob.read(request.one(knob.name)) for knob in TREE_KNOBS}


def tree_epsilons(numbers: dict[str, float], trusted: bool) -> dict[str, float]:
    """Observer -> epsilon, for a device that takes part in every segment.

    Guarantees: what the ledger of such a run adds up to (decisions 0070, 0072): a trusted edge noises the sum of
    its devices; below an untrusted one each device noises what it sends, and who sees only sums is charged with all
    noises of the subnet but one.
    """
    alone = Gaussian(numbers["noise"])
    others = int(numbers["devices"]) - 1
    summed: Event = alone if trusted or others < 2 else Pooled(others, alone)
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
