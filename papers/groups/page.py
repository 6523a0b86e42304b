"""papers/docs/groups.md from the results: figure by figure what is printed, what came out, and why."""

from pathlib import Path
from typing import Any

from papers.findings import draw_results, write_table
from papers.groups.accuracies import SOURCES, Known
from papers.groups.cells import LOUD, NOISE, PERIODS, QUIET, REGIMES, SIZES, SORTED, STRUCTURES, Cell
from papers.groups.claims import find_findings
from papers.groups.counts import read_counted
from papers.groups.pictures import draw_curves
from papers.paired import measure_mean

Row = dict[str, Any]
WORDS = Path(__file__).with_name("words.md")
"""The hand-written text, with placeholders for the results."""


def write_page(rows: list[Row], path: Path) -> None:
    """Write the page, and its pictures beside it."""
    findings = find_findings(rows, read_counted())
    made = {
        "findings": write_table(findings),
        "pictures": draw_results(findings, path.parent, "groups"),
        "accuracies": list_accuracies(rows),
        "curves": draw_curves(rows, path.with_name("groups-accuracy.svg")) if rows else "",
    }
    text = WORDS.read_text(encoding="utf-8")
    for name, words in made.items():
        text = text.replace(f"{{{name}}}", words)
    path.write_text(text, encoding="utf-8")


def list_accuracies(rows: list[Row]) -> str:
    """One line for each curve and regime: both data sets."""
    lines = ["| regime | structure (N, M, S, noise) | MNIST | Fashion-MNIST | epsilon |", "|" + "---|" * 5]
    for regime in REGIMES:
        for cell in (*STRUCTURES, *SIZES, *PERIODS, *NOISE, SORTED, LOUD, QUIET):
            for private in (True, False):
                cells = [tell_seeds(rows, cell, regime, source, private) for source in SOURCES]
                if any(value != "-" for value in cells):
                    name = cell.name if private else f"{cell.name} without noise and clipping"
                    spent = find_epsilon(rows, cell, regime) if private else "none"
                    lines.append(f"| {regime} | {name} | {' | '.join(cells)} | {spent} |")
    return "\n".join(lines) if len(lines) > 2 else ""


def tell_seeds(rows: list[Row], cell: Cell, regime: str, source: str, private: bool) -> str:
    """Mean and standard error of the last accuracies in %."""
    found = list(Known(rows, source).values(cell, regime, private=private).values())
    return str(measure_mean(found)) if found else "-"


def find_epsilon(rows: list[Row], cell: Cell, regime: str) -> str:
    """PLD, largest over pairs (outsiders in brackets), of a run in that regime: no data, no seed enters."""
    same = [r for r in rows if (r["name"], r["regime"], r["private"]) == (cell.name, regime, True)]
    if not same:
        return "-"
    outside = same[0]["epsilon"].get("out-of-group workers")
    return f"{same[0]['epsilon']['other workers']:.1f}" + ("" if outside is None else f" ({outside:.1f})")
