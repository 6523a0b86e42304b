"""`sightline datasets`, `experiments` and `completion`: available data and experiments, and shell completion."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, get_completion_class
from typing_extensions import override

from sightline.apps.cli.main import examples_epilog

if TYPE_CHECKING:
    from sightline.config.experiment_file import Reproduction
    from sightline.data import DatasetStatus


@click.command("datasets", epilog=examples_epilog("datasets", "datasets --json"))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def datasets_command(as_json: bool) -> None:
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
    """Print a table of all data sets, then a line for each missing one."""
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


EXPERIMENTS_EXAMPLES = """
\b
Examples:
  sightline experiments
  sightline experiments hierarchy
  sightline run papers/hierarchy/figure4.toml --set rounds=10
"""


@click.command("experiments", epilog=EXPERIMENTS_EXAMPLES)
@click.argument("system", required=False)
@click.option(
    "--folder", type=click.Path(path_type=Path), default=Path("papers"), help="Where the experiment files are."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def experiments_command(system: str | None, folder: Path, as_json: bool) -> None:
    """List the papers' figures and tables: what each reproduces, what to expect, how long it takes.

    SYSTEM limits the list to one paper, such as groups or hierarchy.
    """
    from sightline.config.experiment_file import read_reproductions
    from sightline.errors import did_you_mean, invalid

    reproductions = read_reproductions(folder)
    systems = list(dict.fromkeys(reproduction.system for reproduction in reproductions))
    if system is not None and system not in systems:
        invalid("system", system, "no paper of this name has figures or tables here", did_you_mean(system, systems))
    reproductions = [reproduction for reproduction in reproductions if system in (None, reproduction.system)]
    if as_json:
        click.echo(json.dumps({"experiments": [_plain_reproduction(reproduction) for reproduction in reproductions]}))
    else:
        _print_reproductions(reproductions)


def _plain_reproduction(reproduction: "Reproduction") -> dict[str, str]:
    words = ("reproduces", "expect", "takes", "whole")
    return {"file": reproduction.file.as_posix(), **{name: getattr(reproduction, name) for name in words}}


def _print_reproductions(reproductions: "list[Reproduction]") -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for reproduction in reproductions:
        one_run = f"sightline run {reproduction.file.as_posix()}"
        console.print(Text(reproduction.reproduces, "bold"), soft_wrap=True)
        console.print(Text.assemble("  figure:  ", (reproduction.whole, "bold")), soft_wrap=True)
        console.print(Text(f"  one run: {one_run}"), soft_wrap=True)
        console.print(Text(f"  expect:  {reproduction.expect}"))
        console.print(Text(f"  takes:   {reproduction.takes}\n", "dim"))
    console.print(Text("Figures are written to papers/docs/, results into papers/docs/index.md. All: make reproduce"))


@add_completion_class
class BashWithValues(BashComplete):
    """Completion for bash, which takes KEY=VALUE for three words: they are joined again before click sees them."""

    # No space after `KEY=`, because the value follows.
    source_template = BashComplete.source_template.replace(
        "COMPREPLY+=($value)", "COMPREPLY+=($value)\n            [[ $value == *= ]] && compopt -o nospace"
    )
    _typed = ""
    """What bash keeps in front of a completion: the key and its equals sign."""

    @override
    def get_completion_args(self) -> tuple[list[str], str]:
        words, last = super().get_completion_args()
        joined: list[str] = []
        for word in (*words, last):
            if joined and (word == "=" or (joined[-1].endswith("=") and word)):
                joined[-1] += word
            else:
                joined.append(word)
        # As bash sees it, an equals sign is a word: one inside a word is part of what is completed.
        self._typed = "" if joined[-1] == last else f"{joined[-1].partition('=')[0]}="
        return joined[:-1], joined[-1]

    @override
    def format_completion(self, item: CompletionItem) -> str:
        return f"{item.type},{item.value.removeprefix(self._typed)}"


SHELLS = ("bash", "zsh", "fish")
COMPLETION_EXAMPLES = """
\b
Examples:
  sightline completion bash >> ~/.bashrc
  sightline completion zsh >> ~/.zshrc
  sightline completion fish > ~/.config/fish/completions/sightline.fish
"""


@click.command("completion", epilog=COMPLETION_EXAMPLES)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion_command(context: click.Context, shell: str) -> None:
    """Print the completion script for SHELL; it takes effect in the next shell that you open."""
    completion = get_completion_class(shell)
    if completion is not None:
        click.echo(completion(context.find_root().command, {}, "sightline", "_SIGHTLINE_COMPLETE").source())
