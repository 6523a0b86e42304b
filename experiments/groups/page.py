"""docs/reproduction/groups.md from the results: the paper's claim, ours, verdict."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.claims import table
from experiments.groups.cells import NOISE, PERIODS, SIZES, STRUCTURES, Cell
from experiments.groups.claims import SOURCES, claims
from experiments.groups.pictures import draw

Row = dict[str, Any]
RESULTS = Path(__file__).parent / "results"
WORDS = Path(__file__).with_name("words.md")
"""What a person wrote about it, with places for what the results make."""


def counted(folder: Path = RESULTS) -> dict[str, Any]:
    """What `python -m experiments.groups.figure4` found."""
    path = folder / "figure4.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


def write_page(rows: list[Row], path: Path) -> None:
    """Write the page, and its picture beside it."""
    made = {"claims": table(claims(rows, counted())), "accuracies": accuracies(rows)}
    made["picture"] = draw(rows, path.with_name("groups-accuracy.svg")) if rows else ""
    text = WORDS.read_text(encoding="utf-8")
    for name, words in made.items():
        text = text.replace(f"{{{name}}}", words)
    path.write_text(text, encoding="utf-8")


def accuracies(rows: list[Row]) -> str:
    """One line for each curve: both data sets, with noise and without."""
    lines = ["| structure (N, M, S, noise) | MNIST | without noise | Fashion-MNIST | without noise | epsilon |"]
    lines.append("|" + "---|" * 6)
    for cell in (*STRUCTURES, *SIZES, *PERIODS, *NOISE):
        cells = [each(rows, cell, source, private) for source in SOURCES for private in (True, False)]
        if any(value != "-" for value in cells):
            lines.append(f"| {cell.name} | {' | '.join(cells)} | {spent(rows, cell)} |")
    return "\n".join(lines) if len(lines) > 2 else ""


def runs_of(rows: list[Row], cell: Cell, source: str, private: bool) -> list[Row]:
    """The seeds of one curve."""
    keys = [replace(cell, source=source, private=private, seed=seed).key for seed in (0, 1)]
    return [row for key in keys for row in rows if row["key"] == key]


def each(rows: list[Row], cell: Cell, source: str, private: bool) -> str:
    """Last accuracies in %, seed by seed."""
    own = runs_of(rows, cell, source, private)
    return " / ".join(f"{100 * row['test_accuracy'][-1]:.1f}" for row in own) or "-"


def spent(rows: list[Row], cell: Cell) -> str:
    """The epsilons of seed 0 on MNIST."""
    own = runs_of(rows, cell, "mnist", True)
    if not own:
        return "-"
    outside = own[0]["epsilon"].get("out-of-group workers")
    return f"{own[0]['epsilon']['other workers']:.1f}" + ("" if outside is None else f" ({outside:.1f})")
