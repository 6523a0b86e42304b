"""The page of who learns what of whom: a table or a map of all pairs, a search, and the way of every release."""

import math
from typing import Any

from sightline.engine.record import finite
from sightline.report.numbers import count, short, upper
from sightline.serve.message import Request, Response, plain
from sightline.serve.sight import Sight, named, sight, worst
from sightline.serve.site import Site

TABLE = 90
"""Up to so many cells are printed as numbers; more are shades."""


def page(site: Site, request: Request) -> Response:
    """All pairs, and those of a participant that is searched for."""
    id, q = request.one("run"), request.one("q")[:200]
    with site.live.held(site.shelf.directory(id)) as (run, made):
        held = made.once("sight", lambda: sight(run))
        found = {
            "run": id,
            "q": q,
            "delta": short(run.delta) if run.delta else "",
            "who": run.who,
            "empty": not len(run.ledger),
            "classes": count(len(held.classes)),
            "map": pairs_map(held) if held.pairs is not None else None,
            "matches": [about(held, name) for name in named(held, q)[:1]],
            "names": list(named(held, q)),
        }
        title = f"Who learns what in {run.name}"
    return site.draw(request, "matrix.html", title, **found)


def api(site: Site, request: Request) -> Response:
    """Classes and epsilons as JSON: rows are subjects, columns observers; null is infinite, or nobody but itself."""
    with site.live.held(site.shelf.directory(request.one("run"))) as (run, made):
        held = made.once("sight", lambda: sight(run))
        few = held.pairs is not None
        table = [[held.epsilon(n, i) for i in held.observers] for n in held.subjects] if few else None
        found = {
            "subjects": [held.classes[n].words for n in held.subjects],
            "observers": [held.classes[i].words for i in held.observers],
            "trusted": [held.classes[i].words for i in held.observers if held.classes[i].trusted],
            "epsilon": table,
            "delta": run.delta,
        }
    return plain(finite(found))


def pairs_map(held: Sight) -> dict[str, Any]:
    """Every pair as a cell: where it is, how dark, what it says in short."""
    subjects, observers = held.subjects, held.observers
    epsilons = [[held.epsilon(n, i) for i in observers] for n in subjects]
    top = worst(value for row in epsilons for value in row)
    rows: list[dict[str, Any]] = [
        {
            "class": held.classes[n],
            "words": _short(held, n),
            "cells": [_cell(held, n, i, value, top) for i, value in zip(observers, row, strict=True)],
        }
        for n, row in zip(subjects, epsilons, strict=True)
    ]
    return {
        "columns": [{"class": held.classes[i], "words": _short(held, i)} for i in observers],
        "rows": rows,
        "table": len(subjects) * len(observers) <= TABLE,
        "across": len(observers),
        "down": len(subjects),
        "most": upper(top),
        "data": {"words": [cell["words"] for row in rows for cell in row["cells"]], "across": len(observers)},
    }


def _short(held: Sight, place: int) -> str:
    words = held.classes[place].words
    return words if len(words) <= 60 else words[:57] + "..."


def _cell(held: Sight, n: int, i: int, value: float | None, top: float) -> dict[str, Any]:
    subjects, observers = held.classes[n], held.classes[i]
    of, by = f"Of {_short(held, n)}, {_short(held, i)}", observers.names[0]
    other = next((name for name in subjects.names if name != by), "")
    if value is None:
        words, text, kind = f"{subjects.words}: nobody observes itself.", "", "self"
    elif value == 0:
        words, text, kind = f"{of} learns nothing.", "nothing", "nothing"
    elif math.isinf(value):
        words, text, kind = f"{of} may learn everything: it came in the clear.", "∞", "clear"
    else:
        words, text, kind = f"{of} can learn at most epsilon {upper(value)}.", upper(value), ""
    shade = 0.0 if value is None else 1.0 if math.isinf(value) else min(1.0, value / top) if top else 0.0
    return {"words": words, "text": text, "kind": kind, "shade": f"{shade:.3f}", "subject": other, "observer": by}


def about(held: Sight, name: str) -> dict[str, Any]:
    """What others can learn of a participant, and what it can learn of them; the most first."""
    mine = held.class_of(name)
    if mine is None:
        return {"name": name, "learned": [], "learns": []}
    learned = [(i, held.epsilon(mine, i)) for i in (held.observers if held.pairs else _standing_for(held))]
    learns = [(n, held.epsilon(n, mine)) for n in held.subjects] if held.classes[mine].observer else []
    return {
        "name": name,
        "alike": count(len(held.classes[mine].names) - 1),
        "learned": _sorted(held, learned) if held.classes[mine].subject else [],
        "learns": _sorted(held, learns),
    }


def _standing_for(held: Sight) -> list[int]:
    """One class for each kind of observer, where all of them would be too many to ask."""
    names = [*held.run.observers.values(), *held.run.trusted]
    return [place for place in dict.fromkeys(map(held.class_of, names)) if place is not None]


def _sorted(held: Sight, found: list[tuple[int, float | None]]) -> list[dict[str, Any]]:
    there = sorted(((value, place) for place, value in found if value is not None), key=lambda one: -one[0])
    return [
        {
            "words": held.classes[place].words,
            "trusted": held.classes[place].trusted,
            "epsilon": "in the clear" if math.isinf(value) else upper(value) if value else "nothing",
        }
        for value, place in there
    ]
