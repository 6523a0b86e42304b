"""`sightline experiments`: the gallery of figures and tables, each an experiment file that runs."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from sightline.config.exhibit import Exhibit

EPILOG = """
\b
Examples:
  sightline experiments
  sightline experiments hierarchy
  sightline run experiments/hierarchy/figure4.toml --set rounds=10
"""


@click.command("experiments", epilog=EPILOG)
@click.argument("system", required=False)
@click.option("--folder", type=click.Path(path_type=Path), default=Path("experiments"), help="Where the gallery is.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def command(system: str | None, folder: Path, as_json: bool) -> None:
    """List the papers' figures and tables: what each reproduces, what to expect, how long it takes.

    SYSTEM narrows the list to one of them, such as groups or hierarchy.
    """
    from sightline.config.exhibit import read_exhibits
    from sightline.errors import did_you_mean, invalid

    found = read_exhibits(folder)
    systems = list(dict.fromkeys(exhibit.system for exhibit in found))
    if system is not None and system not in systems:
        invalid("system", system, "not in the gallery", did_you_mean(system, systems))
    found = [exhibit for exhibit in found if system in (None, exhibit.system)]
    if as_json:
        click.echo(json.dumps({"experiments": [_plain_exhibit(exhibit) for exhibit in found]}))
    else:
        _print_exhibits(found)


def _plain_exhibit(exhibit: "Exhibit") -> dict[str, str]:
    words = ("reproduces", "expect", "takes", "whole")
    return {"file": exhibit.file.as_posix(), **{name: getattr(exhibit, name) for name in words}}


def _print_exhibits(found: "list[Exhibit]") -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for exhibit in found:
        console.print(Text(f"sightline run {exhibit.file.as_posix()}", "bold"), soft_wrap=True)
        console.print(Text(f"  {exhibit.reproduces}"))
        console.print(Text(f"  expect: {exhibit.expect}"))
        console.print(Text(f"  takes: {exhibit.takes}   ({exhibit.whole})\n", "dim"))
    console.print(Text("What came out of them: docs/reproduction.md. All of them: make reproduce"))
