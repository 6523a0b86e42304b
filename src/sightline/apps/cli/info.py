"""`sightline new`, `datasets`, `experiments` and `completion`: what an experiment can begin with, and its commands."""

import ast
import dataclasses
import inspect
import json
import re
import shlex
import textwrap
import tomllib
from collections.abc import Mapping
from itertools import pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, get_completion_class
from typing_extensions import override

from sightline.apps.cli.main import examples_epilog
from sightline.errors import InvalidInput, did_you_mean, invalid, printable
from sightline.formatting import write_whole

if TYPE_CHECKING:
    from sightline.config.experiment_file import Reproduction
    from sightline.data import DatasetStatus

DEFAULT_EPSILON = 8.0
Line = tuple[str, str]
"""A line of an experiment file, and the comment beside it."""

DIGITS: tuple[Line, ...] = (
    ('source = "digits"', 'sightline datasets lists others; your own: "patients.csv", a folder, "module:function"'),
)
DEALT: tuple[Line, ...] = (
    ('partition = "dirichlet"', "each client has its own mix of classes; iid, label_shards, natural, ..."),
    ("concentration = 1.0", "smaller: mixes differ more"),
)
SHIFTED: tuple[Line, ...] = (
    ('partition = "label_shift"', "three kinds of clients, whose labels mean different things"),
    ("clusters = [2, 3, 4]", "clients of each kind"),
    ("reuse = true", "every kind is dealt the whole data set; epsilon is per copy"),
)


@dataclasses.dataclass(frozen=True)
class Start:
    """What a file for one kind of topology begins with."""

    algorithm: str
    unit: str
    clients: int
    topology: tuple[Line, ...] = ()
    dealt: tuple[Line, ...] = DEALT
    rate: float | None = None
    """Of Poisson cohorts, for client-level privacy; None: all clients take part in every round."""


STARTS: Mapping[str, Start] = {
    "star": Start("fedavg", "client", 100, rate=0.5),
    "tree": Start(
        "h2fdp",
        "client",
        40,
        (("subnets = 5", "groups of clients, each below its edge server"),
         ("trusted = 0.6", "probability that an edge is trusted; below others, clients add their own noise")),
    ),
    "groups": Start(
        "dp_ogl",
        "client",
        200,
        (('structure = "ring"', 'or string, clusters, global, labels; or file = "groups.json"'),
         ("groups = 4", ""),
         ("period = 5", "rounds from one mixing of the groups' models to the next")),
        rate=0.7,
    ),
    "clusters": Start(
        "rdpcfl", "sample", 9, (("count = 3", 'or "auto": rdpcfl finds it'),), dealt=SHIFTED
    ),
    "graph": Start("dsgd", "sample", 16, (('structure = "ring"', 'or grid, random, complete; or file = "edges.txt"'),)),
}  # fmt: skip


def _complete_algorithms(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from sightline.algorithms import REGISTRY

    return [name for name in sorted(REGISTRY) if name.startswith(incomplete)]


@click.command(
    "new",
    epilog=examples_epilog(
        "new mine.toml", "new tree.toml --topology tree --algorithm h2fdp", "new sample.toml --unit sample --epsilon 2"
    ),
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--topology", type=click.Choice(list(STARTS)), help="Who sends to whom (default: what the algorithm needs)."
)
@click.option(
    "--algorithm", shell_complete=_complete_algorithms, help="Name, such as fedprox (default: what the topology needs)."
)
@click.option("--unit", type=click.Choice(["client", "sample", "none"]), help="What is protected.")
@click.option("--epsilon", type=click.FloatRange(min=0, min_open=True), help=f"Default: {DEFAULT_EPSILON:g}.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def new_command(
    file: Path, topology: str | None, algorithm: str | None, unit: str | None, epsilon: float | None, as_json: bool
) -> None:
    """Write FILE, a commented experiment file that runs as it stands."""
    if file.suffix != ".toml":
        invalid("file", file, "an experiment file ends in .toml", f"e.g. {printable(str(file))}.toml")
    if file.exists():
        invalid("file", file, "exists and is not overwritten", "choose another name")
    if not file.parent.is_dir():
        invalid("file", file, "its folder does not exist", "make the folder first")
    if unit == "none" and epsilon is not None:
        invalid("--epsilon", epsilon, "--unit none has no guarantee", "remove one of the two")
    text = experiment_text(file, topology, algorithm, unit, epsilon or DEFAULT_EPSILON)
    write_whole(file, text)
    if as_json:
        click.echo(json.dumps({"file": str(file)}))
    else:
        shown = printable(shlex.quote(str(file)))
        click.echo(f"Wrote {shown}. Next: sightline run {shown} --plan")


def experiment_text(
    file: Path,
    topology: str | None = None,
    algorithm: str | None = None,
    unit: str | None = None,
    epsilon: float = DEFAULT_EPSILON,
) -> str:
    """Return the text of an experiment file. Raise for a combination that has no guarantee or does not run."""
    from sightline import engine
    from sightline.algorithms import REGISTRY
    from sightline.config import parse

    if algorithm is not None and algorithm not in REGISTRY:
        invalid("--algorithm", algorithm, "no such algorithm", did_you_mean(algorithm, list(REGISTRY)))
    able = tuple(STARTS) if algorithm is None else REGISTRY[algorithm].facts.topologies
    kind = topology or able[0]
    if kind not in able:
        invalid("--topology", kind, f"{algorithm} does not run on it", f"use {' or '.join(able)}")
    units = (unit,) if unit else tuple(dict.fromkeys((STARTS[kind].unit, "client", "sample")))
    wrong: list[InvalidInput] = []
    # Where the noise is added follows from the unit; some algorithms need it elsewhere, or another unit.
    for where, own_unit in product(("", "client", "edge"), units):
        privacy = _privacy_lines(own_unit, where, epsilon)
        text = _write_sections(file, kind, algorithm or STARTS[kind].algorithm, privacy)
        try:
            # The whole way to the noise, so that a file that is written is a file that runs.
            engine.calibrate_noise(engine.build_experiment(parse(tomllib.loads(text))))
        except InvalidInput as error:
            wrong.append(error)
        else:
            return text
    raise wrong[0]


def _write_sections(file: Path, kind: str, algorithm: str, privacy: list[Line]) -> str:
    start, settings = STARTS[kind], _setting_lines(algorithm)
    counts_steps = any(line.startswith("local_aggregation") for line, _ in settings)
    work = ("steps = 5", "or epochs = 1") if counts_steps else ("epochs = 1", "or steps = 5")
    others = ", ".join(other for other in STARTS if other != kind)
    drawn = f'clients = {{scheme = "poisson", rate = {start.rate}}}'
    client_level = start.rate is not None and privacy[0][0] == 'unit = "client"'
    sections: dict[str, list[Line]] = {
        "": [(f'name = "{_run_name(file)}"', "the run directory is runs/NAME"), ("seed = 0", ""), ("rounds = 20", "")],
        "data": [*DIGITS, (f"clients = {start.clients}", ""), *start.dealt],
        "model": [('name = "linear"', 'or mlp, cnn, ...; your own: "module:factory"')],
        "topology": [(f'kind = "{kind}"', f"or {others}"), *start.topology],
        "algorithm": [(f'name = "{algorithm}"', ""), *settings],
        "local": [work, ("batch_size = 16", ""), ("learning_rate = 0.3", "")],
        "sampling": [(drawn, "who takes part in a round; a secret draw costs less epsilon")] if client_level else [],
        "privacy": privacy,
    }
    shown = printable(shlex.quote(file.name))
    head = (
        f"# What it promises and costs:  sightline run {shown} --plan\n"
        f"# Train it:                    sightline run {shown}\n"
    )
    return head + "\n".join(_write_section(title, lines) for title, lines in sections.items() if lines)


def _run_name(file: Path) -> str:
    """Return a name for the runs of a file, which becomes that of a folder."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", file.stem)[:80].strip("-.") or "experiment"


def _privacy_lines(unit: str, where: str, epsilon: float) -> list[Line]:
    kinds = {"client": "a client with all its examples", "sample": "one example", "none": "nothing is promised"}
    lines = [(f'unit = "{unit}"', f"{kinds[unit]}; client, sample or none")]
    if unit == "none":
        return lines
    delta, among = ("5e-4", "clients") if unit == "client" else ("1e-4", "examples")
    return [
        *lines,
        *([(f'where = "{where}"', "who adds the noise: server, client or edge")] if where else []),
        (
            f"epsilon = {epsilon!r}",
            "against the observer who learns most; the noise follows. Or noise_multiplier = 1.0",
        ),
        (f"delta = {delta}", f"well below one over the number of {among}"),
        ("clip_norm = 0.5", "the norm that an update is clipped to" if unit == "client" else "of a gradient"),
    ]


def _setting_lines(algorithm: str) -> list[Line]:
    """Return the settings of an algorithm with their defaults; those without one as comments."""
    from sightline.algorithms import REGISTRY
    from sightline.algorithms.contract import DERIVED

    settings = REGISTRY[algorithm].settings
    comments, lines = _field_comments(settings), list[Line]()
    for field in dataclasses.fields(settings):
        if not field.metadata.get(DERIVED):
            line = f"# {field.name} =" if field.default is None else f"{field.name} = {json.dumps(field.default)}"
            lines.append((line, comments.get(field.name, "")))
    return lines


def _field_comments(settings: type) -> dict[str, str]:
    """Return the first line of the text below each field, in the class and those it extends."""
    comments: dict[str, str] = {}
    for owner in settings.__mro__[:-1]:
        tree = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        body = tree.body if isinstance(tree, ast.ClassDef) else []
        for field, below in pairwise(body):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
            ):
                text = str(below.value.value).splitlines()[0].rstrip(".")
                comments.setdefault(ast.unparse(field.target), text[:1].lower() + text[1:])
    return comments


def _write_section(title: str, lines: list[Line]) -> str:
    width = max(len(line) for line, comment in lines if comment) if any(comment for _, comment in lines) else 0
    written = [f"{line:<{width}}  # {comment}" if comment else line for line, comment in lines]
    return "\n".join([*([f"[{title}]"] if title else []), *written]) + "\n"


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
