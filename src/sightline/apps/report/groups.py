"""Overlapping groups: every pair of workers as a heatmap, and for each cell what got through and by which path."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sightline.apps.report.heat import draw_heat
from sightline.apps.report.numbers import format_plural, format_upper
from sightline.apps.report.run_view import RunView
from sightline.apps.report.section import Content, Section
from sightline.events import Unit
from sightline.ledger import LedgerPairs, ledger_pairs, write_parties
from sightline.ledger.pairs import Route, group_alike, next_hops, trace_routes
from sightline.topology import client_name

MOST = 48
"""Up to so many different memberships every cell tells by which paths releases got through."""
MAPPED = 200
"""More different memberships than these are not drawn."""
SIZE = 480
"""Height and width of the drawing, in its own units."""


@dataclass(frozen=True)
class Square:
    """One cell: where it lies, how dark it is, and what it says."""

    x: float
    y: float
    side: float
    shade: str
    words: str


def groups_content(run: RunView) -> Content | None:
    """The heatmap of a run on overlapping groups; None for every other run."""
    if run.fact("topology") != "groups" or run.unit is Unit.NONE or not len(run.ledger):
        return None
    names = [client_name(n) for n in range(int(run.fact("clients", 0)))]
    number = len(group_alike(run.ledger, names))
    about: Content = {"few": number <= MOST, "classes": format_plural(number, "different membership"), "map": None}
    if not number or number > MAPPED:
        return about | {"few": False}
    pairs = ledger_pairs(run.ledger, names)
    epsilons = [[_pair_epsilon(run, pairs, n, i) for i in range(len(row))] for n, row in enumerate(pairs.compositions)]
    if number > MOST:
        words = [write_parties(frozenset(some)) for some in pairs.classes]
        return about | {"map": draw_heat(epsilons, words, words)}
    top = max((value for row in epsilons for value in row if value is not None and math.isfinite(value)), default=0.0)
    squares = _draw_squares(run, pairs, epsilons, top)
    return about | {
        "size": SIZE,
        "squares": squares,
        "across": len(pairs.classes),
        "data": {"words": [square.words for square in squares], "across": len(pairs.classes)},
        "least": "0",
        "most": format_upper(top),
        "worst": max(squares, key=lambda square: float(square.shade)).words,
    }


SECTION = Section("groups", "Every pair of workers", groups_content)


def _pair_epsilon(run: RunView, pairs: LedgerPairs, subject: int, observer: int) -> float | None:
    composed = pairs.compositions[subject][observer]
    return None if composed is None else run.epsilon_of(frozenset(composed.items()))


def _draw_squares(
    run: RunView, pairs: LedgerPairs, epsilons: Sequence[Sequence[float | None]], top: float
) -> list[Square]:
    side = SIZE / len(pairs.classes)
    found = []
    hops = [next_hops(run.ledger, names[0]) for names in pairs.classes]
    for n, row in enumerate(epsilons):
        for i, value in enumerate(row):
            subject = next((name for name in pairs.classes[n] if name != pairs.classes[i][0]), "")
            ways = trace_routes(run.ledger, subject, hops[i]) if subject else []
            words = _pair_words(pairs.classes[n], pairs.classes[i], value, ways)
            shade = 0.0 if value is None else min(1.0, value / top) if top else 0.0
            found.append(Square(round(i * side, 2), round(n * side, 2), round(side, 2), f"{shade:.3f}", words))
    return found


def _pair_words(subjects: Sequence[str], observers: Sequence[str], epsilon: float | None, ways: Sequence[Route]) -> str:
    who, whom = write_parties(frozenset(observers)), write_parties(frozenset(subjects))
    if epsilon is None:
        return f"{whom}: nobody observes itself."
    if not epsilon:
        return f"Of {whom}, {who} learned nothing: no release got through."
    counted = "; ".join(
        f"{format_plural(way.releases, 'release')} of {way.source} up to round {way.last}"
        + (" seen directly" if len(way.path) == 1 else f" by way of {' → '.join(way.path)}")
        for way in ways
    )
    return f"Of {whom}, seen by {who}: epsilon {format_upper(epsilon)}. {counted}."
