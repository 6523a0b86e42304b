"""docs/reproduction.md: one page over the systems' own pages, written from them and from the gallery."""

import re
from collections import Counter
from pathlib import Path

from sightline.config.exhibit import exhibits

DOCS = Path(__file__).parents[1] / "docs"
SYSTEMS = {
    "groups": "Overlapping groups (DP-OGL, DP-OGL+)",
    "upcycled": "Upcycled-FL",
    "clustered": "Clustered (R-DPCFL)",
    "hierarchy": "Hierarchy (H2FDP)",
    "partitioning": "Partitioning (splitting, dropout, balanced iterations)",
}
MISSING = "Its page is not written yet."
FEW = 20
"""A table of claims has at most so many rows; longer ones are cells of a table of numbers and are counted."""


def write_overview(path: Path = DOCS / "reproduction.md") -> None:
    """Write the page."""
    parts = [
        "# What was reproduced\n",
        "Written by `python -m experiments --page-only` from the pages of the systems, which say how every number was "
        "made; `make reproduce` runs everything again.\n",
    ]
    for system, title in SYSTEMS.items():
        page = DOCS / "reproduction" / f"{system}.md"
        parts.append(f"## {title}\n")
        if page.is_file():
            parts.append(f"[The whole page](reproduction/{system}.md).\n")
            parts.extend(_summary(page.read_text(encoding="utf-8")))
        else:
            parts.append(f"{MISSING}\n")
        parts.append(_files(system))
    path.write_text("\n".join(parts), encoding="utf-8")


def _summary(text: str) -> list[str]:
    """The tables whose last column is a verdict: claims as they stand, cells of few kinds counted by verdict."""
    found = []
    for header, rows in _tables(text):
        if header[-1] != "verdict":
            continue
        verdicts = [re.sub(r"[*_]", "", row[-1]).split(":")[0].strip() for row in rows]
        told = header[0] == "claim" or len(set(verdicts)) > len(rows) / 2
        if told and len(rows) <= FEW:
            lines = [_row(header), _row(["---"] * len(header)), *map(_row, rows)]
            found.append("\n".join(lines) + "\n")
        else:
            words = ", ".join(f"{verdict} {count}" for verdict, count in Counter(verdicts).most_common())
            found.append(f"{_heading(text, rows)}: of {len(rows)} cells {words}.\n")
    return found


def _tables(text: str) -> list[tuple[list[str], list[list[str]]]]:
    blocks = re.findall(r"^(\|.*\|)\n\|[-:| ]+\|\n((?:\|.*\|\n?)*)", text, re.MULTILINE)
    return [(_cells(header), [_cells(row) for row in rows.splitlines()]) for header, rows in blocks]


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", row.strip().strip("|"))]


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _heading(text: str, rows: list[list[str]]) -> str:
    """The heading above a table, found by its first row's first cells."""
    before = text[: text.index(f"| {rows[0][0]} | {rows[0][1]} |")]
    return re.findall(r"^#+ (.*)$", before, re.MULTILINE)[-1]


def _files(system: str) -> str:
    lines = ["| file | reproduces | takes | the whole of it |", "|---|---|---|---|"]
    for exhibit in exhibits(Path(__file__).parent):
        if exhibit.system == system:
            name = f"`experiments/{system}/{exhibit.file.name}`"
            lines.append(f"| {name} | {exhibit.reproduces} | {exhibit.takes} | `{exhibit.whole}` |")
    return "\n".join(lines) + "\n"
