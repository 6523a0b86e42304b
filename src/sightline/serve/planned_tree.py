"""The calculator for a tree: what each observer could learn of a device, by whether its edge is trusted."""

import math
from typing import Any

from sightline import accounting
from sightline.engine.record import finite
from sightline.errors import SightlineError
from sightline.events import Event, Gaussian, Pooled
from sightline.report.numbers import short, upper
from sightline.serve.knobs import DELTA, NOISE, Knob, drawn_knob
from sightline.serve.message import Request, Response, plain
from sightline.serve.site import Site

KNOBS = (
    NOISE,
    Knob("devices", "Devices of a subnet", 1, 100_000, 20, whole=True),
    Knob("segments", "Local aggregations a round", 1, 1000, 2, whole=True),
    Knob("rounds", "Rounds", 1, 100_000, 15, whole=True),
    DELTA,
)
OBSERVERS = ("its edge", "its subnet", "all others")


def page(site: Site, request: Request) -> Response:
    """The form and the table."""
    content: dict[str, Any] = {"rows": [], "mistake": "", "means": []}
    try:
        numbers = asked(request)
        content |= {"rows": _rows(numbers), "means": _means(numbers)}
    except SightlineError as error:
        content["mistake"] = str(error)
    knobs = [drawn_knob(knob, request) for knob in KNOBS]
    return site.draw(request, "planned_tree.html", "Tree", knobs=knobs, observers=OBSERVERS, **content)


def api(site: Site, request: Request) -> Response:
    """The same as JSON; null is in the clear."""
    numbers = asked(request)
    return plain(finite({**numbers, "trusted": epsilons(numbers, True), "untrusted": epsilons(numbers, False)}))


def asked(request: Request) -> dict[str, float]:
    """The numbers of a request."""
    return {knob.name: knob.read(request.one(knob.name)) for knob in KNOBS}


def epsilons(numbers: dict[str, float], trusted: bool) -> dict[str, float]:
    """Observer -> epsilon, for a device that takes part in every segment.

    Guarantees: what the ledger of such a run adds up to (decisions 0070, 0072): a trusted edge noises the sum of
    its devices; below an untrusted one each device noises what it sends, and who sees only sums is charged with all
    noises of the subnet but one.
    """
    alone = Gaussian(numbers["noise"])
    others = int(numbers["devices"]) - 1
    summed: Event = alone if trusted or others < 2 else Pooled(others, alone)
    own = math.inf if trusted else _epsilon(numbers, alone)
    seen = _epsilon(numbers, summed)
    return dict(zip(OBSERVERS, (own, seen, seen), strict=True))


def _epsilon(numbers: dict[str, float], event: Event) -> float:
    return accounting.epsilon({event: int(numbers["segments"] * numbers["rounds"])}, numbers["delta"])


def _rows(numbers: dict[str, float]) -> list[dict[str, Any]]:
    return [
        {"name": name, "cells": [upper(value, digits=4) for value in epsilons(numbers, trusted).values()]}
        for name, trusted in (("below a trusted edge", True), ("below an untrusted edge", False))
    ]


def _means(numbers: dict[str, float]) -> list[tuple[str, str]]:
    noise, devices = numbers["noise"], numbers["devices"]
    return [
        ("trusted edge", short(noise / devices, 3)),
        ("untrusted edge", short(noise / math.sqrt(devices), 3)),
    ]
