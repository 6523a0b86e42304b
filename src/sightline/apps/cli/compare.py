"""`sightline compare`: runs side by side, with mean and spread over seeds."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sightline.errors import printable

if TYPE_CHECKING:
    from sightline.apps.report.comparison import Comparison

EXAMPLES = """
\b
Examples:
  sightline compare runs/quickstart runs/quickstart-2
  sightline compare runs --figure comparison.html
  sightline compare runs/prox-sweep --json | jq '.groups[] | {settings, test_accuracy}'

A folder of runs stands for every run in it. Runs that differ in nothing but the seed become one row.
"""


@click.command("compare", epilog=EXAMPLES)
@click.argument("runs", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="RUN...")
@click.option("--figure", type=click.Path(path_type=Path), help="Also draw it to this .html, .png, .svg or .pdf.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on stdout.")
def command(runs: tuple[Path, ...], figure: Path | None, as_json: bool) -> None:
    """Set runs side by side: the settings that differ, metrics, epsilon, time, traffic and energy."""
    from sightline.apps.report.comparison import compare_runs
    from sightline.apps.report.comparison_page import draw_comparison
    from sightline.apps.report.run_view import checked_records

    with checked_records(", ".join(map(str, runs))):
        comparison = compare_runs(runs)
        if figure is not None:
            draw_comparison(comparison, figure)
        print_comparison(comparison, as_json, figure)


def print_comparison(comparison: "Comparison", as_json: bool, figure: Path | None = None, **more: object) -> None:
    """One JSON object, or a table with its notes."""
    from sightline.apps.report.comparison import comparison_notes, plain_comparison

    if as_json:
        drawn = {} if figure is None else {"figure": str(figure)}
        click.echo(json.dumps(plain_comparison(comparison) | more | drawn, allow_nan=False))
        return
    print_table(comparison)
    for note in comparison_notes(comparison):
        click.echo(f"note: {printable(note)}")
    if figure is not None:
        click.echo(f"figure  {figure}")


def print_table(comparison: "Comparison") -> None:
    """The table: within the width of a terminal, in a file as wide as it needs to be."""
    from rich.console import Console

    from sightline.apps.report.comparison import comparison_table

    header, rows = comparison_table(comparison)
    console = Console(highlight=False)
    cells = [[printable(cell) for cell in row] for row in (header, *rows)]
    left = header.index("Runs")
    for line in lay_out(cells[0], cells[1:], left=left, width=console.width if console.is_terminal else None):
        click.echo(line)


def lay_out(header: list[str], rows: list[list[str]], *, left: int, width: int | None) -> list[str]:
    """A table as lines of text, the first `left` columns set to the left; nothing in it is ever cut off.

    Where it is wider than `width`, long headings are broken; where that does not do, the columns are set below each
    other in blocks whose rows are numbered.

    >>> print("\\n".join(lay_out(["privacy.epsilon", "Runs"], [["2", "4"]], left=1, width=14)))
    privacy.
    epsilon   Runs
    --------------
    2            4
    """
    columns = [_Column(name, [row[place] for row in rows], place < left) for place, name in enumerate(header)]
    if width is None or _table_width(columns) <= width:
        return _draw_table(columns)
    columns = [column.broken() for column in columns]
    if _table_width(columns) <= width:
        return _draw_table(columns)
    number = _Column("", [str(place) for place in range(1, len(rows) + 1)], False)
    room = max(1, width - number.width - len(GAP))
    blocks: list[list[_Column]] = [[]]
    for column in (column.folded(room) for column in columns):
        if blocks[-1] and _table_width([*blocks[-1], column]) > room:
            blocks.append([])
        blocks[-1].append(column)
    lines = [line for block in blocks for line in (*_draw_table([number, *block]), "")]
    return lines[:-1]


GAP = "  "


@dataclass(frozen=True)
class _Column:
    """A heading and its cells; each may take several lines."""

    heading: str
    cells: list[str]
    left: bool

    @property
    def width(self) -> int:
        return max(_cell_width(line) for text in (self.heading, *self.cells) for line in text.split("\n"))

    def broken(self) -> "_Column":
        """The heading on several lines, broken at spaces, dots and underscores, no wider than it has to be."""
        pieces = [piece for piece in re.findall(r"[^ ._]*[._]?", self.heading) if piece]
        most = max(max(map(_cell_width, pieces), default=0), *(_cell_width(cell) for cell in self.cells), 1)
        lines = [""]
        for piece in pieces:
            space = "" if not lines[-1] or lines[-1][-1] in "._" else " "
            if lines[-1] and _cell_width(lines[-1] + space + piece) > most:
                lines.append(piece)
            else:
                lines[-1] += space + piece
        return replace(self, heading="\n".join(lines))

    def folded(self, most: int) -> "_Column":
        """With no line longer than that."""
        from rich.cells import chop_cells

        def fold(text: str) -> str:
            return "\n".join(part for line in text.split("\n") for part in (chop_cells(line, most) or [""]))

        return replace(self, heading=fold(self.heading), cells=[fold(cell) for cell in self.cells])


def _table_width(columns: Sequence[_Column]) -> int:
    return sum(column.width for column in columns) + len(GAP) * (len(columns) - 1)


def _draw_table(columns: Sequence[_Column]) -> list[str]:
    rows = zip(*(column.cells for column in columns), strict=True)
    body = [line for row in rows for line in _row_lines(columns, row)]
    return [
        *_row_lines(columns, [column.heading for column in columns], bottom=True),
        "-" * _table_width(columns),
        *body,
    ]


def _row_lines(columns: Sequence[_Column], texts: Sequence[str], bottom: bool = False) -> list[str]:
    """One row of the table: cells of several lines start at its top, headings end at its bottom."""
    split = [text.split("\n") for text in texts]
    high = max(len(lines) for lines in split)
    padded = [[""] * (high - len(s)) + s if bottom else s + [""] * (high - len(s)) for s in split]
    return [
        GAP.join(_pad_cell(text, column) for text, column in zip(line, columns, strict=True)).rstrip()
        for line in zip(*padded, strict=True)
    ]


def _pad_cell(text: str, column: _Column) -> str:
    space = " " * (column.width - _cell_width(text))
    return text + space if column.left else space + text


def _cell_width(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)
