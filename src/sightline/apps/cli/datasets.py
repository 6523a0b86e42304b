"""`sightline datasets`: what is here, where it was looked for, how to get the rest."""

import dataclasses
import json
from typing import TYPE_CHECKING

import click

from sightline.apps.cli.main import examples_epilog

if TYPE_CHECKING:
    from sightline.data import DatasetStatus


@click.command("datasets", epilog=examples_epilog("datasets", "datasets --json"))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def command(as_json: bool) -> None:
    """List the data sets: which are available, where they were looked for, how to get the rest."""
    from sightline.data import available_datasets
    from sightline.data.load import VARIABLE, data_root

    statuses = available_datasets()
    if as_json:
        folder = str(data_root().absolute())
        listed = [dataclasses.asdict(status) for status in statuses]
        click.echo(json.dumps({"folder": folder, "variable": VARIABLE, "datasets": listed}))
    else:
        print_datasets(statuses, str(data_root().absolute()))


def print_datasets(statuses: "list[DatasetStatus]", folder: str) -> None:
    """A table of all data sets, then a line for each that is missing."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("data set", "", "kind", "examples", "licence"):
        table.add_column(title, no_wrap=title in ("data set", "", "kind"))
    for status in statuses:
        mark = Text("ready", "green") if status.available else Text("missing", "yellow")
        table.add_row(Text(status.name, "bold"), mark, status.kind, status.examples, status.licence)
    console.print(table)
    console.print(Text(f"\nLooked in {folder} (SIGHTLINE_DATA names another folder)."), soft_wrap=True)
    for status in (status for status in statuses if not status.available):
        console.print(Text.assemble((f"\n{status.name}", "bold"), f": {status.how_to_get}"), soft_wrap=True)
    console.print(Text('\nYour own: source = "package.module:function", see docs/data.md.'), soft_wrap=True)
