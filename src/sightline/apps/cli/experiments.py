"""`sightline experiments`: figures and tables of the papers, each an experiment file that runs."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from sightline.config.experiment_file import Reproduction

EPILOG = """
\b
Examples:
  sightline experiments
  sightline experiments hierarchy
  sightline run papers/hierarchy/figure4.toml --set rounds=10
"""


@click.command("experiments", epilog=EPILOG)
@click.argument("system", required=False)
@click.option(
    "--folder", type=click.Path(path_type=Path), default=Path("papers"), help="Where the experiment files are."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def command(system: str | None, folder: Path, as_json: bool) -> None:
    """List the papers' figures and tables: what each reproduces, what to expect, how long it takes.

    SYSTEM narrows the list to one of them, such as groups or hierarchy.
    """
    from sightline.config.experiment_file import read_reproductions
    from sightline.errors import did_you_mean, invalid

    found = read_reproductions(folder)
    systems = list(dict.fromkeys(reproduction.system for reproduction in found))
    if system is not None and system not in systems:
        invalid("system", system, "has no figures and tables here", did_you_mean(system, systems))
    found = [reproduction for reproduction in found if system in (None, reproduction.system)]
    if as_json:
        click.echo(json.dumps({"experiments": [_plain_reproduction(reproduction) for reproduction in found]}))
    else:
        _print_reproductions(found)


def _plain_reproduction(reproduction: "Reproduction") -> dict[str, str]:
    words = ("reproduces", "expect", "takes", "whole")
    return {"file": reproduction.file.as_posix(), **{name: getattr(reproduction, name) for name in words}}


def _print_reproductions(found: "list[Reproduction]") -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for reproduction in found:
        console.print(Text(f"sightline run {reproduction.file.as_posix()}", "bold"), soft_wrap=True)
        console.print(Text(f"  {reproduction.reproduces}"))
        console.print(Text(f"  expect: {reproduction.expect}"))
        console.print(Text(f"  takes: {reproduction.takes}   ({reproduction.whole})\n", "dim"))
    console.print(Text("What came out of them: papers/docs/index.md. All of them: make reproduce"))
