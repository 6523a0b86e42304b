"""`sightline compare`: runs side by side, with mean and spread over seeds."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sightline.errors import printable

if TYPE_CHECKING:
    from sightline.report.comparison import Comparison

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
    """Set runs side by side: the settings that differ, accuracy, epsilon, time, traffic and energy."""
    from sightline.report.comparison import compared
    from sightline.report.comparison_page import draw

    comparison = compared(runs)
    if figure is not None:
        draw(comparison, figure)
    show(comparison, as_json, figure)


def show(comparison: "Comparison", as_json: bool, figure: Path | None = None, **more: object) -> None:
    """One JSON object, or a table with its notes."""
    from sightline.report.comparison_notes import notes
    from sightline.report.comparison_plain import plain

    if as_json:
        drawn = {} if figure is None else {"figure": str(figure)}
        click.echo(json.dumps(plain(comparison) | more | drawn, allow_nan=False))
        return
    print_table(comparison)
    for note in notes(comparison):
        click.echo(f"note: {printable(note)}")
    if figure is not None:
        click.echo(f"figure  {figure}")


def print_table(comparison: "Comparison") -> None:
    """The table, as wide as the terminal; in a file as wide as it needs to be."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from sightline.report.comparison_plain import table

    header, rows = table(comparison)
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=max(console.width, 24 * len(header)))
    made = Table(box=SIMPLE, pad_edge=False)
    settings = header.index("Runs")
    for place, name in enumerate(header):
        made.add_column(Text(printable(name)), justify="left" if place < settings else "right", overflow="fold")
    for row in rows:
        made.add_row(*(Text(printable(cell)) for cell in row))
    console.print(made)
