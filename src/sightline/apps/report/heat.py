"""A map of many pairs: equal shades are one path each, so that tens of thousands of cells stay a small drawing."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from sightline.apps.report.numbers import format_upper

SHADES = 24
"""Shades between nothing and the largest epsilon; a value takes the next darker one."""
TICKS = 24
"""At most so many names along a side."""
LENGTH = 16
"""Longer names are cut at a side; the words of a cell have them whole."""

LINES = 40
"""Up to so many rows and columns are ruled."""

Values = Sequence[Sequence[float | None]]

ITSELF = "{of}: nobody observes itself."
PHRASES = {
    0.0: "Of {of}, {by} learns nothing.",
    math.inf: "Of {of}, {by} may learn everything: it came without noise.",
}


def draw_heat(values: Values, rows: Sequence[str], columns: Sequence[str], silent: str = ITSELF) -> dict[str, Any]:
    """Rows are subjects, columns observers; infinity is without noise, None is what `silent` says."""
    top = max((v for row in values for v in row if v is not None and math.isfinite(v)), default=0.0)
    different = sorted({v for row in values for v in row}, key=lambda v: -1.0 if v is None else v)
    number = {value: place for place, value in enumerate(different)}
    return {
        "across": len(columns),
        "down": len(rows),
        "shades": shade_paths(values, top),
        "lines": grid_lines(len(rows), len(columns)) if max(len(rows), len(columns)) <= LINES else "",
        "row_ticks": name_ticks(rows),
        "column_ticks": name_ticks(columns),
        "most": format_upper(top),
        "bare": math.inf in number,
        "row": None,
        "column": None,
        "data": {
            "rows": list(rows),
            "columns": list(columns),
            "phrases": [cell_phrase(value, silent) for value in different],
            "cells": [number[value] for row in values for value in row],
        },
    }


def cell_phrase(value: float | None, silent: str = ITSELF) -> str:
    """What a cell says, with {of} and {by} for the names."""
    if value is None:
        return silent
    if value in PHRASES:
        return PHRASES[value]
    return f"Of {{of}}, {{by}} can learn at most epsilon {format_upper(value)}."


def shade_paths(values: Values, top: float) -> list[dict[str, str]]:
    """Class, opacity and path of every shade; what is not drawn is nothing."""
    strokes: dict[tuple[str, str], list[str]] = defaultdict(list)
    for y, row in enumerate(values):
        x = 0
        for kind, width in _equal_stretches(_cell_kind(value, top) for value in row):
            if kind is not None:
                strokes[kind].append(f"M{x} {y}h{width}v1h-{width}z")
            x += width
    return [{"kind": kind, "opacity": opacity, "path": "".join(d)} for (kind, opacity), d in sorted(strokes.items())]


def grid_lines(down: int, across: int) -> str:
    """The path of the lines between cells."""
    return "".join([f"M0 {y}h{across}" for y in range(1, down)] + [f"M{x} 0v{down}" for x in range(1, across)])


def _cell_kind(value: float | None, top: float) -> tuple[str, str] | None:
    if value is None:
        return "self", "1"
    if math.isinf(value):
        return "clear", "1"
    return ("", f"{math.ceil(SHADES * value / top) / SHADES:.3f}") if value and top else None


def _equal_stretches(kinds: Iterable[tuple[str, str] | None]) -> list[tuple[tuple[str, str] | None, int]]:
    found: list[tuple[tuple[str, str] | None, int]] = []
    for kind in kinds:
        if found and found[-1][0] == kind:
            found[-1] = (kind, found[-1][1] + 1)
        else:
            found.append((kind, 1))
    return found


def name_ticks(words: Sequence[str]) -> list[dict[str, str]]:
    """Names along a side, and where their cells have their middle, in percent.

    >>> name_ticks(["client-0", "a very long name of somebody"])
    [{'at': '25.00', 'text': 'client-0'}, {'at': '75.00', 'text': 'a very long nam…'}]
    """
    every = -(-len(words) // TICKS) if words else 1
    return [
        {"at": f"{100 * (place + 0.5) / len(words):.2f}", "text": _cut_word(words[place])}
        for place in range(0, len(words), every)
    ]


def _cut_word(word: str) -> str:
    return word if len(word) <= LENGTH else word[: LENGTH - 1] + "…"
