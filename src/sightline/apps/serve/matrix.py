"""One line of sight in full: what it adds up to, and by which way each release got through."""

import math
from dataclasses import dataclass
from typing import Any

from sightline.apps.report import RunView
from sightline.apps.report.ledger_words import explain_event
from sightline.apps.report.matrix import cell_phrase, draw_heat
from sightline.apps.report.numbers import format_count, format_plural, format_short, format_upper
from sightline.apps.serve.guard import Request, Response, json_response
from sightline.apps.serve.pages import PageServer
from sightline.apps.serve.sight import WORK, Class, PairClasses, epsilon_of, find_named, pair_classes
from sightline.engine.record import replace_nonfinite
from sightline.ledger.pairs import Route, next_hops, trace_routes


def pair_page(site: PageServer, request: Request) -> Response:
    """One pair in full: what it adds up to, and by which way each release got through."""
    subject, observer = request.one("subject"), request.one("observer")
    with site.live.held(site.runs_folder.directory(request.one("run"))) as (run, made):
        view = run.ledger.view(observer)
        composed = view.composition(subject)
        hops = made.once(("hops", view.observers), lambda: next_hops(run.ledger, view.observers))
        content = {
            "subject": subject,
            "observer": observer,
            "epsilon": _pair_words(run, epsilon_of(run, composed)),
            "events": [f"{format_count(times)} × {explain_event(event, run.who)}" for event, times in composed.items()],
            "ways": [_way_words(way) for way in trace_routes(run.ledger, subject, hops)],
        }
    return site.draw(request, "pair.html", "Pair", **content)


def _pair_words(run: RunView, value: float) -> str:
    if math.isinf(value):
        return "no bound: something came without noise, or nothing is promised"
    return f"epsilon {format_upper(value)}" + (f" at δ = {format_short(run.delta)}" if run.delta else "")


def _way_words(way: Route) -> str:
    seen = "seen directly" if len(way.path) == 1 else f"by way of {' → '.join(way.path)}"
    return f"{format_plural(way.releases, 'release')} of {way.source} up to round {format_count(way.last)}, {seen}"


TABLE = 90
"""Up to so many cells are printed as numbers; more are shades."""
QUICK = 100_000
"""Up to so many releases times observers are walked before the page is answered; more are announced first."""
LISTED = 12
"""So many lines tell of a participant that is searched for; the rest is summed up."""

NOTHING: dict[str, Any] = {"table": None, "map": None, "sides": [], "beside": {}}


@dataclass(frozen=True)
class Window:
    """The classes that are set against each other: all of them where they are few."""

    held: PairClasses
    row: int
    column: int

    @property
    def subjects(self) -> list[int]:
        """The rows."""
        return self.held.subjects[self.row : self.row + self.held.width]

    @property
    def observers(self) -> list[int]:
        """The columns."""
        return self.held.observers[self.column : self.column + self.held.width]

    @property
    def values(self) -> list[list[float | None]]:
        """Epsilon of every pair in the window."""
        columns = [self.held.column(self.subjects, i) for i in self.observers]
        return [list(row) for row in zip(*columns, strict=True)]

    @property
    def quick(self) -> bool:
        """Whether it is worked out in no time."""
        return len(self.observers) * len(self.held.run.ledger) <= QUICK


def matrix_window(held: PairClasses, request: Request, found: str | None) -> Window:
    """The window that holds who is searched for, or that starts where the query says."""
    mine = held.class_of(found) if found else None
    return Window(held, *(_window_start(request.one(n), held.width, side, mine) for n, side in
                          (("row", held.subjects), ("column", held.observers))))  # fmt: skip


def _window_start(asked: str, width: int, side: list[int], mine: int | None) -> int:
    if mine in side and not asked:
        return side.index(mine) // width * width
    place = int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 10 else 0
    return min(place, max(0, len(side) - 1)) // width * width


def matrix_page(site: PageServer, request: Request) -> Response:
    """Pairs as a table or a map, and those of a participant that is searched for."""
    id, q = request.one("run"), request.one("q")[:200]
    with site.live.held(site.runs_folder.directory(id)) as (run, made):
        held = made.once("sight", lambda: pair_classes(run))
        names = list(find_named(held, q))
        view = matrix_window(held, request, names[0] if names else None)
        place = ("window", view.row, view.column)
        ready = view.quick or bool({"part", "wait"} & set(request.query)) or made.has(place)
        found: dict[str, Any] = {
            "run": id,
            "q": q,
            "delta": format_short(run.delta) if run.delta else "",
            "who": run.who,
            "empty": not len(run.ledger),
            "names": names,
            "waiting": "" if ready else format_plural(len(view.subjects) * len(view.observers), "pair"),
            "matches": [about_participant(held, name) for name in names[:1]] if ready else [],
        }
        mine = held.class_of(names[0]) if names else None
        found |= draw_window(view, made.once(place, lambda: view.values), mine) if ready else NOTHING
        title = f"Who learns what in {run.name}"
    return site.draw(request, "matrix.html", title, **found)


def draw_window(view: Window, values: list[list[float | None]], mine: int | None) -> dict[str, Any]:
    """The table or the map, and where the windows beside it start."""
    small = len(view.subjects) * len(view.observers) <= TABLE
    return {
        "table": pairs_table(view, values) if small else None,
        "map": pairs_map(view, values, mine) if not small else None,
        "sides": [
            _side_words("Rows", "row", view.row, len(view.subjects), len(view.held.subjects), view.held.width),
            _side_words(
                "Columns", "column", view.column, len(view.observers), len(view.held.observers), view.held.width
            ),
        ],
        "beside": {"row": view.row, "column": view.column},
    }


def _side_words(title: str, name: str, start: int, shown: int, total: int, width: int) -> dict[str, Any]:
    return {
        "name": name,
        "words": f"{title} {format_count(start + 1)} to {format_count(start + shown)} of {format_count(total)}"
        if shown < total
        else "",
        "before": start - width if start else None,
        "after": start + width if start + shown < total else None,
    }


def matrix_api(site: PageServer, request: Request) -> Response:
    """Classes and epsilons as JSON: rows are subjects, columns observers; null is infinite, or nobody but itself.

    Of more classes than fit, `row` and `column` say where the window starts; `total` says how many there are.
    """
    with site.live.held(site.runs_folder.directory(request.one("run"))) as (run, made):
        held = made.once("sight", lambda: pair_classes(run))
        view = matrix_window(held, request, None)
        found = {
            "subjects": [held.classes[n].words for n in view.subjects],
            "observers": [held.classes[i].words for i in view.observers],
            "trusted": [held.classes[i].words for i in view.observers if held.classes[i].trusted],
            "epsilon": made.once(("window", view.row, view.column), lambda: view.values),
            "delta": run.delta,
            "row": view.row,
            "column": view.column,
            "total": [len(held.subjects), len(held.observers)],
        }
    return json_response(replace_nonfinite(found))


def pairs_table(view: Window, values: list[list[float | None]]) -> dict[str, Any]:
    """Every pair as a number in a table."""
    held = view.held
    rows: list[dict[str, Any]] = [
        {
            "words": _short_name(held.classes[n]),
            "cells": [
                _table_cell(held.classes[n], held.classes[i], v) for i, v in zip(view.observers, row, strict=True)
            ],
        }
        for n, row in zip(view.subjects, values, strict=True)
    ]
    return {
        "columns": [{"class": held.classes[i], "words": _short_name(held.classes[i])} for i in view.observers],
        "rows": rows,
        "data": {"words": [cell["words"] for row in rows for cell in row["cells"]], "across": len(view.observers)},
    }


def _short_name(one: Class) -> str:
    return one.words if len(one.words) <= 60 else one.words[:57] + "..."


def _table_cell(subjects: Class, observers: Class, value: float | None) -> dict[str, Any]:
    text, kind = ("", "self") if value is None else ("nothing", "nothing") if value == 0 else (format_upper(value), "")
    if value is not None and math.isinf(value):
        text, kind = "∞", "clear"
    words = cell_phrase(value).format(of=_short_name(subjects), by=_short_name(observers))
    seen = observers.names[0]
    return {"words": words, "text": text, "kind": kind, "subject": subjects.other_than(seen) or "", "observer": seen}


def pairs_map(view: Window, values: list[list[float | None]], mine: int | None) -> dict[str, Any]:
    """Every pair as a shade; `mine` is the class that is marked."""
    held = view.held
    subjects, observers = ([held.classes[n] for n in side] for side in (view.subjects, view.observers))
    found = draw_heat(values, [_short_name(one) for one in subjects], [_short_name(one) for one in observers])
    found["data"] |= {"of": [one.names[:2] for one in subjects], "by": [one.names[0] for one in observers]}
    found["row"] = view.subjects.index(mine) if mine in view.subjects else None
    found["column"] = view.observers.index(mine) if mine in view.observers else None
    return found


def about_participant(held: PairClasses, name: str) -> dict[str, Any]:
    """What others can learn of a participant, and what it can learn of them; the most first."""
    mine = held.class_of(name)
    if mine is None:
        return {"name": name, "learned": [], "learns": [], "silent": True}
    few = len(held.observers) * len(held.run.ledger) <= WORK
    learned = _sort_pairs(held, [(i, held.epsilon(mine, i)) for i in held.observers]) if few else _by_kind(held)
    learns = zip(held.subjects, held.column(held.subjects, mine), strict=True) if held.classes[mine].observer else ()
    return {
        "name": name,
        "alike": format_count(len(held.classes[mine].names) - 1),
        "learned": learned if held.classes[mine].subject else [],
        "learns": _sort_pairs(held, list(learns)),
        "silent": not (held.classes[mine].subject or held.classes[mine].observer),
    }


def _by_kind(held: PairClasses) -> list[dict[str, Any]]:
    """Where observers are too many to ask them all: the worst of each kind, of whoever is worst off."""
    return [
        {"words": f"{kind}, of whoever is worst off", "trusted": False, "epsilon": _epsilon_words(value)}
        for kind, value in sorted(held.run.spent.items(), key=lambda one: -one[1])
    ]


def _sort_pairs(held: PairClasses, found: list[tuple[int, float | None]]) -> list[dict[str, Any]]:
    there = sorted(((value, place) for place, value in found if value is not None), key=lambda one: -one[0])
    lines: list[dict[str, Any]] = [
        {"words": held.classes[place].words, "trusted": held.classes[place].trusted, "epsilon": _epsilon_words(value)}
        for value, place in there[:LISTED]
    ]
    if there[LISTED:]:
        rest = f"{format_count(len(there) - LISTED)} more, each at most"
        lines.append({"words": rest, "trusted": False, "epsilon": _epsilon_words(there[LISTED][0])})
    return lines


def _epsilon_words(value: float) -> str:
    return "without noise" if math.isinf(value) else format_upper(value) if value else "nothing"
