"""The updates of round one as points, with the components that a mixture found in them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SIZE = 480
"""Height and width of the drawing, in its own units."""
EDGE = 40
COLOURS = 6


@dataclass(frozen=True)
class Point:
    """One client's update."""

    x: float
    y: float
    colour: int
    apart: bool
    """Whether the client's data come from the smallest true cluster."""
    words: str


@dataclass(frozen=True)
class Ring:
    """One component: its centre and one radius around it."""

    x: float
    y: float
    radius: float
    colour: int
    name: str


@dataclass(frozen=True)
class Scatter:
    """Points and rings on a square."""

    points: tuple[Point, ...]
    rings: tuple[Ring, ...]
    size: int = SIZE


def draw_scatter(facts: Mapping[str, Any]) -> Scatter | None:
    """The drawing; None when the run's clusters do not come from a mixture in the plane."""
    given = facts.get("points") or []
    there = [n for n, at in enumerate(given) if len(at) == 2 and all(_finite_point(value) for value in at)]
    centres = facts.get("centres") or []
    raw = int(facts.get("dimensions") or 2) > len(given)  # two of many parameters show nothing
    if not there or raw or not centres or any(len(centre) != 2 for centre in centres):
        return None
    place = _place_points([given[n] for n in there], centres)
    points = tuple(_make_point(n, place(given[n]), facts) for n in there)
    rings = []
    for m, (centre, radius) in enumerate(zip(centres, facts.get("radii") or [], strict=True)):
        x, y = place(centre)
        rings.append(Ring(x, y, _radius_length(place, centre, float(radius)), colour_of(m), f"cluster {m}"))
    return Scatter(points, tuple(rings))


def colour_of(cluster: int) -> int:
    """The colour of a cluster: the same in every drawing of the page."""
    return 1 + cluster % COLOURS


def _finite_point(value: Any) -> bool:
    return value is not None and math.isfinite(value)


def _place_points(points: Sequence[Sequence[float]], centres: Sequence[Sequence[float]]) -> Any:
    """Values to places: both directions on one scale, so that circles are circles."""
    columns = list(zip(*points, *centres, strict=True))
    lows = [min(column) for column in columns]
    span = max(max(column) - low for column, low in zip(columns, lows, strict=True)) or 1.0
    room = (SIZE - 2 * EDGE) / span

    def place(at: Sequence[float]) -> tuple[float, float]:
        return round(EDGE + (at[0] - lows[0]) * room, 1), round(SIZE - EDGE - (at[1] - lows[1]) * room, 1)

    return place


def _radius_length(place: Any, centre: Sequence[float], radius: float) -> float:
    return round(abs(float(place((centre[0] + radius, centre[1]))[0] - place(centre)[0])), 1)


def _make_point(client: int, at: tuple[float, float], facts: Mapping[str, Any]) -> Point:
    chances = (facts.get("confidence") or [])[client]
    likeliest = max(range(len(chances)), key=lambda m: chances[m])
    truth = facts.get("truth")
    words = f"client-{client}: cluster {likeliest} with probability {chance_words(chances[likeliest])}"
    if truth is not None:
        smallest = ", the smallest" if truth[client] == facts.get("minority") else ""
        words += f"; its data were made for true cluster {truth[client]}{smallest}"
    return Point(*at, colour_of(likeliest), truth is not None and truth[client] == facts.get("minority"), words + ".")


def chance_words(chance: float) -> str:
    """A probability as a person reads it: never rounded to certainty.

    >>> chance_words(0.9999), chance_words(0.731)
    ('above 99.9 %', '73.1 %')
    """
    return "above 99.9 %" if chance > 0.999 else f"{100 * chance:.1f} %"
