"""`sightline run`: train an experiment file into a model, a ledger and a report."""

import json
import math
from pathlib import Path
from typing import Any

import click

from sightline.errors import printable
from sightline.formatting import METRICS

RUN_EXAMPLES = """
\b
Examples:
  sightline run examples/quickstart.toml
  sightline run examples/quickstart.toml --set rounds=50 --set privacy.epsilon=4
  sightline run --resume runs/quickstart
  sightline run examples/quickstart.toml --json | jq .epsilon

A run that was interrupted goes on from its directory, which holds its settings. One that has ended does not.
Exit codes: 0 done, 2 bad input, 3 the privacy budget stopped the run, 130 interrupted
(by SIGTERM 143, by SIGHUP 129), 1 anything else.
"""


class WorkerCount(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A number of processes, or `auto`."""

    name = "N|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """Return the number, or the word `auto`."""
        if value == "auto" or isinstance(value, int):
            return value  # type: ignore[no-any-return]
        try:
            return int(value)
        except ValueError:
            self.fail(f"{value!r} is no number of processes; give one, or auto", param, ctx)


@click.command("run", epilog=RUN_EXAMPLES)
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a key, e.g. privacy.epsilon=4.")
@click.option("--out", type=click.Path(path_type=Path), help="Run directory (default: runs/NAME, numbered).")
@click.option("--resume", is_flag=True, help="Go on with an interrupted run; CONFIG may be its directory.")
@click.option("--accept-changes", is_flag=True, help="Resume although own code or packages are not what they were.")
@click.option("--verify", type=int, metavar="N", help="Compare every value with worlds that lack one of N subjects.")
@click.option("--seed", type=int, help="Same as --set seed=N.")
@click.option("--runtime", default="simulator", show_default=True, help="simulator, flower, or package.module:OBJECT.")
@click.option(
    "--workers", type=WorkerCount(), default="auto", show_default=True, help="Training processes; same results."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on stdout.")
def run_command(
    config: Path, overrides: tuple[str, ...], out: Path | None, resume: bool, accept_changes: bool,
    verify: int | None, seed: int | None, runtime: str, workers: int | str, as_json: bool,
) -> int:  # fmt: skip
    """Train the experiment in CONFIG (a TOML file) and write its report."""
    from sightline.config import read

    words = [*overrides] + ([] if seed is None else [f"seed={seed}"])
    if not config.is_dir():
        # Report mistakes in the file before torch is imported, which takes seconds.
        read(config, words)
    import sightline

    done = sightline.run(
        config, overrides=words, out=out, resume=resume, accept_changes=accept_changes, verify=verify,
        workers=workers, runtime=runtime, progress=True,
    )  # fmt: skip
    summary = done.summary
    if as_json:
        click.echo(json.dumps(summary, allow_nan=False))
    else:
        _print_summary(summary)
    # The budget ended the run: results are valid, and the exit code tells scripts why it is short.
    if summary["status"] == "stopped":
        click.echo(f"sightline: {printable(summary['status_reason'])}", err=True)
        return 3
    return 0


def _print_summary(summary: dict[str, Any]) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    table = Table(box=SIMPLE, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column()
    for name, value in summary_lines(summary):
        table.add_row(Text(printable(name, keep=True)), Text(printable(value)))
    console.print(table)
    console.print(Text(f"report  {summary['report']}"))


def summary_lines(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the name and text of every line that `sightline run` prints at the end."""
    lines = [
        ("rounds", str(summary["rounds_done"])),
        *([("ended early", summary["stopped"])] if summary["stopped"] else []),
        *_metric_lines(summary),
        ("clients' own test sets", _clients_words(summary)),
    ]
    if summary["unit"] == "none":
        lines.append(("privacy", "none: updates are published without noise"))
    else:
        lines.append(
            ("epsilon", f"{_epsilon_words(summary['epsilon'])} at delta = {summary['delta']:g}, per {summary['unit']}")
        )
        # A star with one epsilon for server and public needs no further lines.
        if len(summary["observers"]) > 2 or len(set(summary["observers"].values())) > 1:
            lines += [(f"  against {kind}", _epsilon_words(value)) for kind, value in summary["observers"].items()]
        lines += _together_lines(summary)
        lines.append(("trusted", ", ".join(summary["trusted"]) or "nobody"))
    if "energy_joule" in summary:
        energy, delay = summary["energy_joule"], summary["delay_seconds"]
        lines.append(("uploads", f"{energy:.4g} J, {delay:.4g} s (mean over who could take part)"))
    if summary["rejected_updates"]:
        lines.append(("rejected updates", f"{summary['rejected_updates']} were not finite and counted as zero"))
    if "clusters" in summary:
        lines.append(("clusters", _clusters_words(summary["clusters"])))
    lines += [("note", note) for note in summary["notes"]]
    lines.append(("time", f"{summary['seconds']:.1f} s"))
    return lines


def _together_lines(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the joint cost of the run and the runs that its model started from, if any."""
    found = summary.get("together")
    if found is None:
        return []
    if found.get("unknown"):
        return [("together with the run this model started from", f"epsilon unknown: {found['unknown']}")]
    who = "the same data" if found["same_data"] else "the clients are assumed to be the same"
    said = f"epsilon {_epsilon_words(found['epsilon'])} at delta = {summary['delta']:g} ({who})"
    name = "run" if len(found["runs"]) == 1 else f"{len(found['runs'])} runs"
    return [(f"together with the {name} this model started from", said)]


def _metric_lines(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the task's metrics on the test set, the main one first."""
    (main, reached), *others = ((METRICS[name], value) for name, value in summary["metrics"].items())
    lines = [(f"test {main.title}", main.format_value(reached))]
    beside = ", ".join(f"{metric.title} {metric.format_value(value)}" for metric, value in others)
    return [*lines, *([("also", beside)] if beside else [])]


def _clients_words(summary: dict[str, Any]) -> str:
    """Return the mean, the decile at the worse end, and the worst client with its number of examples."""
    metric = METRICS[summary["metric"]]
    mean, decile, worst = (summary.get(metric.client_key(which)) for which in ("mean", "decile", "worst"))
    words = [f"mean {metric.format_value(mean)}"]
    if decile is not None:
        words.append(f"{metric.decile_title} {metric.format_value(decile)}")
    # A worst client with three examples says little, so the number of examples is shown beside it.
    of = f" (of {summary['client_worst_examples']:.0f})" if summary["client_worst_examples"] else ""
    return ", ".join([*words, f"worst {metric.format_value(worst)}{of}"])


def _clusters_words(found: dict[str, Any]) -> str:
    """Return the clusters of a run in one line; purity and minority only where the true clusters are known."""
    words = [] if found["count"] is None else [str(found["count"])]
    if found["mss"] is not None:
        words.append(f"MSS {found['mss']:.2f}")
    if found["purity"] is not None:
        words.append(f"purity {_percent_words(found['purity'])}")
    for metric in METRICS.values():
        if found.get(f"minority_{metric.name}") is not None:
            words.append(f"minority's {metric.title} {metric.format_value(found[f'minority_{metric.name}'])}")
    return ", ".join(words)


def _percent_words(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{100 * value:.1f}%"


def _epsilon_words(value: float | None) -> str:
    # Rounded up: a printed epsilon is never smaller than the computed one.
    from sightline.apps.report.elements import format_upper

    return "infinite" if value is None else format_upper(value, digits=4)
