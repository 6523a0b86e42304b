"""Who can learn how much about whom: classes of participants against each other, and each pair in full."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from sightline.apps.report import RunView
from sightline.apps.report.guarantee import pair_attack
from sightline.apps.report.ledger_rows import explain_event
from sightline.apps.report.matrix import cell_phrase, draw_heat
from sightline.apps.serve.guard import query_value
from sightline.apps.serve.pages import PageServer, json_response
from sightline.engine.record import replace_nonfinite
from sightline.formatting import format_count, format_plural, format_short, format_upper
from sightline.ledger import Composition, write_parties
from sightline.ledger.group_pairs import Route, group_alike, next_hops, trace_routes

MOST = 200
"""The most classes on each side of the matrix; with more, a window is shown."""
WORK = 800_000
"""The most releases times observers that are visited for a window."""
LEAST = 12
"""The smallest window, however long the run is."""


@dataclass(frozen=True)
class Class:
    """Participants that every release treats alike."""

    names: tuple[str, ...]
    subject: bool
    observer: bool
    trusted: bool

    @cached_property
    def words(self) -> str:
        """The names, in short form."""
        return write_parties(frozenset(self.names))

    def other_than(self, name: str) -> str | None:
        """Return a member with another name."""
        return next((one for one in self.names[:2] if one != name), None)


@dataclass(frozen=True, eq=False)
class PairClasses:
    """The classes of a run; the epsilon of a pair is computed on demand and cached."""

    run: RunView
    classes: tuple[Class, ...]
    _known: dict[tuple[int, int], float | None] = field(default_factory=dict)

    @cached_property
    def subjects(self) -> list[int]:
        """Classes about which something was released."""
        return [index for index, group in enumerate(self.classes) if group.subject]

    @cached_property
    def observers(self) -> list[int]:
        """Classes that saw something."""
        return [index for index, group in enumerate(self.classes) if group.observer]

    @cached_property
    def _class_of(self) -> dict[str, int]:
        return {name: index for index, group in enumerate(self.classes) for name in group.names}

    def class_of(self, name: str) -> int | None:
        """Return the class of a participant."""
        return self._class_of.get(name)

    @property
    def width(self) -> int:
        """The number of classes on each side of a window."""
        # Exact cells in seconds: a longer ledger gets a smaller window, never thinned or averaged cells.
        return min(MOST, max(LEAST, WORK // max(1, len(self.run.ledger))))

    def epsilon(self, subject: int, observer: int) -> float | None:
        """Return epsilon of a pair of classes; None if its only pair is a participant with itself."""
        return self.column([subject], observer)[0]

    def column(self, subjects: Sequence[int], observer: int) -> list[float | None]:
        """Return, for each subject class, the epsilon of one of its members against a member of the observer class."""
        missing = [n for n in subjects if (n, observer) not in self._known]
        if missing:
            self._compute(missing, observer)
        return [self._known[n, observer] for n in subjects]

    def _compute(self, subjects: Sequence[int], observer: int) -> None:
        # One member stands for its class: every release treats the members alike.
        seen = self.classes[observer].names[0]
        others = {n: self.classes[n].other_than(seen) for n in subjects}
        compositions = self.run.ledger.passing_view(seen).compositions_of(frozenset(filter(None, others.values())))
        for n, other in others.items():
            self._known[n, observer] = None if other is None else epsilon_of(self.run, compositions[other])


def pair_classes(run: RunView) -> PairClasses:
    """Return the classes of a run's participants, subjects and observers alike."""
    subjects, observers = (
        _union_of(release.subjects for release in run.ledger),
        _union_of(release.audience for release in run.ledger),
    )
    trusted = frozenset(run.trusted)
    names = sorted(subjects | observers | run.ledger.participants, key=_natural_key)
    classes = (
        Class(some, some[0] in subjects, some[0] in observers, not trusted.isdisjoint(some))
        for some in group_alike(run.ledger, names)
    )
    return PairClasses(run, tuple(classes))


def epsilon_of(run: RunView, composed: Composition) -> float:
    """Return epsilon of a composition; zero if nothing was seen, infinite without a guarantee."""
    return run.epsilon_of(frozenset(composed.items())) if composed else 0.0


def find_named(sight: PairClasses, text: str, most: int = 24) -> Sequence[str]:
    """Return the participants with that name, or else those whose name contains the text."""
    wanted = text.strip().lower()
    if not wanted:
        return ()
    names = [name for one in sight.classes for name in one.names]
    exact = [name for name in names if name.lower() == wanted]
    return exact or [name for name in names if wanted in name.lower()][:most]


def _union_of(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset[str]().union(*set(sets))


def _natural_key(name: str) -> tuple[str, int]:
    kind, _, number = name.rpartition("-")
    return (kind, int(number)) if kind and number.isdigit() else (name, -1)


def pair_page(site: PageServer, request: Request) -> Response:
    """Return one pair in full: its epsilon, and the route of each release."""
    subject, observer = query_value(request, "subject"), query_value(request, "observer")
    with site.live.held(site.runs_folder.directory(query_value(request, "run"))) as (run, made):
        view = run.ledger.view(observer)
        composed = view.composition(subject)
        hops = made.once(("hops", view.observers), lambda: next_hops(run.ledger, view.observers))
        content = {
            "subject": subject,
            "observer": observer,
            "epsilon": _pair_words(run, epsilon_of(run, composed)),
            "attack": pair_attack(run, frozenset(composed.items())),
            "events": [f"{format_count(times)} × {explain_event(event, run.who)}" for event, times in composed.items()],
            "ways": [_way_words(way) for way in trace_routes(run.ledger, subject, hops)],
        }
    return site.draw(request, "pair.html", "Pair", **content)


def _pair_words(run: RunView, value: float) -> str:
    if math.isinf(value):
        return "no bound: a value was released without noise, or the run has no guarantee"
    return f"epsilon {format_upper(value)}" + (f" at δ = {format_short(run.delta)}" if run.delta else "")


def _way_words(way: Route) -> str:
    seen = "seen directly" if len(way.path) == 1 else f"by way of {' → '.join(way.path)}"
    return f"{format_plural(way.releases, 'release')} of {way.source} up to round {format_count(way.last)}, {seen}"


TABLE = 90
"""The most cells shown as numbers; more are shades."""
QUICK = 100_000
"""The most releases times observers that are visited before the page is answered; more are announced first."""
LISTED = 12
"""The most lines about a participant; the rest is one line."""

NOTHING: dict[str, Any] = {"table": None, "map": None, "sides": [], "beside": {}}


@dataclass(frozen=True)
class Window:
    """The classes that are shown: all of them if they fit."""

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
        """Whether the values are quick to compute."""
        return len(self.observers) * len(self.held.run.ledger) <= QUICK


def matrix_window(held: PairClasses, request: Request, name: str | None) -> Window:
    """Return the window with the participant that was searched for, or the one the query asks for."""
    mine = held.class_of(name) if name else None
    return Window(held, *(_window_start(query_value(request, n), held.width, side, mine) for n, side in
                          (("row", held.subjects), ("column", held.observers))))  # fmt: skip


def _window_start(asked: str, width: int, side: list[int], mine: int | None) -> int:
    if mine in side and not asked:
        return side.index(mine) // width * width
    start = int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 10 else 0
    return min(start, max(0, len(side) - 1)) // width * width


def matrix_page(site: PageServer, request: Request) -> Response:
    """Return the pairs as a table or a map, and those of the participant that was searched for."""
    id, q = query_value(request, "run"), query_value(request, "q")[:200]
    with site.live.held(site.runs_folder.directory(id)) as (run, made):
        held = made.once("sight", lambda: pair_classes(run))
        names = list(find_named(held, q))
        view = matrix_window(held, request, names[0] if names else None)
        window_key = ("window", view.row, view.column)
        # A slow window is announced first, and the script asks for it with `part`; links without a script use `wait`.
        ready = view.quick or bool({"part", "wait"} & request.query_params.keys()) or made.has(window_key)
        content: dict[str, Any] = {
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
        content |= draw_window(view, made.once(window_key, lambda: view.values), mine) if ready else NOTHING
        title = f"Who learns what in {run.name}"
    return site.draw(request, "matrix.html", title, **content)


def draw_window(view: Window, values: list[list[float | None]], mine: int | None) -> dict[str, Any]:
    """Return the table or the map, and where the neighbouring windows start."""
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
    """Return classes and epsilons as JSON: rows are subjects, columns observers; null is infinite, or only itself.

    `row` and `column` tell where the window starts, `total` how many classes there are.
    """
    with site.live.held(site.runs_folder.directory(query_value(request, "run"))) as (run, made):
        held = made.once("sight", lambda: pair_classes(run))
        view = matrix_window(held, request, None)
        content = {
            "subjects": [held.classes[n].words for n in view.subjects],
            "observers": [held.classes[i].words for i in view.observers],
            "trusted": [held.classes[i].words for i in view.observers if held.classes[i].trusted],
            "epsilon": made.once(("window", view.row, view.column), lambda: view.values),
            "delta": run.delta,
            "row": view.row,
            "column": view.column,
            "total": [len(held.subjects), len(held.observers)],
        }
    return json_response(replace_nonfinite(content))


def pairs_table(view: Window, values: list[list[float | None]]) -> dict[str, Any]:
    """Return every pair as a number in a table."""
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


def _short_name(group: Class) -> str:
    return group.words if len(group.words) <= 60 else group.words[:57] + "..."


def _table_cell(subjects: Class, observers: Class, value: float | None) -> dict[str, Any]:
    text, kind = ("", "self") if value is None else ("nothing", "nothing") if value == 0 else (format_upper(value), "")
    if value is not None and math.isinf(value):
        text, kind = "∞", "clear"
    words = cell_phrase(value).format(of=_short_name(subjects), by=_short_name(observers))
    seen = observers.names[0]
    return {"words": words, "text": text, "kind": kind, "subject": subjects.other_than(seen) or "", "observer": seen}


def pairs_map(view: Window, values: list[list[float | None]], mine: int | None) -> dict[str, Any]:
    """Return every pair as a shade; `mine` is the class to mark."""
    held = view.held
    subjects, observers = ([held.classes[n] for n in side] for side in (view.subjects, view.observers))
    heat = draw_heat(values, [_short_name(one) for one in subjects], [_short_name(one) for one in observers])
    heat["data"] |= {"of": [one.names[:2] for one in subjects], "by": [one.names[0] for one in observers]}
    heat["row"] = view.subjects.index(mine) if mine in view.subjects else None
    heat["column"] = view.observers.index(mine) if mine in view.observers else None
    return heat


def about_participant(held: PairClasses, name: str) -> dict[str, Any]:
    """Return what others can learn about a participant, and what it can learn about them; the largest first."""
    mine = held.class_of(name)
    if mine is None:
        return {"name": name, "learned": [], "learns": [], "silent": True}
    # Otherwise show the worst of each kind over all participants, which bounds this one; one neighbour standing for all
    # would not.
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
    """Return the worst epsilon of each kind of observer, over all subjects: there are too many observers to list."""
    return [
        {"words": f"{kind}, worst case over all participants", "trusted": False, "epsilon": _epsilon_words(value)}
        for kind, value in sorted(held.run.spent.items(), key=lambda one: -one[1])
    ]


def _sort_pairs(held: PairClasses, pairs: list[tuple[int, float | None]]) -> list[dict[str, Any]]:
    there = sorted(((value, number) for number, value in pairs if value is not None), key=lambda one: -one[0])
    lines: list[dict[str, Any]] = [
        {"words": held.classes[number].words, "trusted": held.classes[number].trusted, "epsilon": _epsilon_words(value)}
        for value, number in there[:LISTED]
    ]
    if there[LISTED:]:
        # Sorted by epsilon, so the first that is left out bounds the rest.
        rest = f"{format_count(len(there) - LISTED)} more, each at most"
        lines.append({"words": rest, "trusted": False, "epsilon": _epsilon_words(there[LISTED][0])})
    return lines


def _epsilon_words(value: float) -> str:
    return "without noise" if math.isinf(value) else format_upper(value) if value else "nothing"
