"""`sightline run`: train an experiment file into a model, a ledger and a report."""

import json
import math
from pathlib import Path
from typing import Any

import click
from typing_extensions import override

from sightline.apps.cli.main import set_option
from sightline.errors import invalid, printable
from sightline.formatting import METRICS, format_plural, merge_silent, metric_named

RUN_EXAMPLES = """
\b
Examples:
  sightline run examples/quickstart.toml
  sightline run examples/quickstart.toml --set rounds=50 --set privacy.epsilon=4
  sightline run examples/quickstart.toml --plan
  sightline run --resume runs/quickstart
  sightline run runs/quickstart --rounds +20
  sightline run examples/quickstart.toml --json | jq .epsilon

--resume continues an interrupted run from its directory, which holds its settings. --rounds adds rounds to a run that
has ended: the noise stays the same, so epsilon grows, and the new epsilon is printed before training starts.
Exit codes: 0 done, 2 bad input, 3 the privacy budget stopped the run, 130 interrupted
(by SIGTERM 143, by SIGHUP 129), 1 anything else.
"""


class WorkerCount(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A number of processes, or `auto`."""

    name = "N|auto"

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        if value == "auto" or isinstance(value, int):
            return value  # type: ignore[no-any-return]
        try:
            return int(value)
        except ValueError:
            self.fail(f"{value!r} is not a number of processes; give a number or auto", param, ctx)


@click.command("run", epilog=RUN_EXAMPLES)
@click.argument("config", type=click.Path(path_type=Path))
@set_option("Change a key, e.g. privacy.epsilon=4.")
@click.option("--out", type=click.Path(path_type=Path), help="Run directory (default: runs/NAME, numbered).")
@click.option("--resume", is_flag=True, help="Continue an interrupted run; CONFIG may be its directory.")
@click.option("--rounds", metavar="+N", help="Add rounds to a run that has ended; CONFIG is its directory.")
@click.option("--accept-changes", is_flag=True, help="Resume although your own code or the packages have changed.")
@click.option("--verify", type=int, metavar="N", help="Compare every value with worlds that lack one of N subjects.")
@click.option("--seed", type=int, help="Same as --set seed=N.")
@click.option("--runtime", default="simulator", show_default=True, help="simulator, flower, or package.module:OBJECT.")
@click.option(
    "--workers", type=WorkerCount(), default="auto", show_default=True, help="Training processes; same results."
)
@click.option("--plan", is_flag=True, help="Show noise, epsilon by observer, traffic and rough time; train nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on stdout.")
def run_command(
    config: Path, overrides: tuple[str, ...], out: Path | None, resume: bool, rounds: str | None,
    accept_changes: bool, verify: int | None, seed: int | None, runtime: str, workers: int | str, plan: bool,
    as_json: bool,
) -> int:  # fmt: skip
    """Train the experiment in CONFIG (a TOML file) and write its report."""
    from sightline.config import read

    words = [*overrides] + ([] if seed is None else [f"seed={seed}"])
    if not config.is_dir():
        # Report mistakes in the file before torch is imported, which takes seconds.
        read(config, words)
    if plan:
        if resume or accept_changes or rounds is not None or out is not None:
            invalid(
                "--plan",
                True,
                "a plan neither makes nor continues a run directory",
                "remove --resume, --rounds, --accept-changes and --out",
            )
        if verify is not None or runtime != "simulator":
            invalid("--plan", True, "a plan trains nothing", "remove --verify and --runtime")
        return _show_plan(config, words, as_json=as_json)
    more_rounds = None if rounds is None else _read_more(rounds)
    import sightline

    done = sightline.run(
        config, overrides=words, out=out, resume=resume, more_rounds=more_rounds, accept_changes=accept_changes,
        verify=verify, workers=workers, runtime=runtime, progress=True,
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


def _read_more(rounds: str) -> int:
    number = rounds.removeprefix("+")
    if number == rounds or not (number.isascii() and number.isdigit()):
        invalid(
            "--rounds",
            rounds,
            "adds rounds to a run that has ended",
            "e.g. --rounds +20; for a new run --set rounds=20",
        )
    return int(number)


def _show_plan(config: Path, words: list[str], *, as_json: bool) -> int:
    from sightline.api import plan

    result = plan(config, words)
    if as_json:
        click.echo(json.dumps(result, allow_nan=False))
    else:
        _print_table(plan_lines(result))
        click.echo("Nothing was trained and nothing was written.")
    return 0


def plan_lines(plan: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the name and text of every line that `sightline run --plan` prints."""
    from sightline.formatting import floats_as_bytes, format_duration, format_short

    about = f"{plan['algorithm']}, {plan['topology']}, {plan['clients']} clients, {plan['examples']:,} examples"
    lines = [
        ("plan", about),
        ("rounds", f"{plan['rounds']}, {plan['releases']:,} releases in the ledger"),
    ]
    if plan["unit"] == "none":
        lines.append(("privacy", "none: updates are published without noise, nothing is promised"))
    else:
        words, clip = _noise_words(plan["noise_multiplier"], plan["noise_multiplier_max"]), plan["clip_norm"]
        lines += [
            ("noise multiplier", words + (f", clip norm {format_short(clip)}" if clip else "")),
            *_observer_lines(plan),
            ("trusted", ", ".join(plan["trusted"]) or "nobody"),
        ]
        stop = plan["stop_at_epsilon"]
        if stop is not None and (plan["epsilon"] is None or plan["epsilon"] > stop):
            lines.append(("budget", f"stop_at_epsilon = {format_short(stop)} ends the run before its last round"))
    up, down = (floats_as_bytes(plan[name]) for name in ("uplink_floats", "downlink_floats"))
    size = floats_as_bytes(plan["parameters"])
    lines.append(("traffic", f"about {up} up and {down} down over the run (a model is {size})"))
    seconds = plan["seconds"]
    lines.append(("time", "not estimated" if seconds is None else f"roughly {format_duration(seconds)} in one process"))
    return lines + [("note", note) for note in plan["notes"]]


def _noise_words(least: float | None, most: float | None) -> str:
    """Return z, or its range if every client has its own; rounded down, as less noise protects less."""
    from sightline.formatting import digits_down

    if least is None or most is None:
        return "as the file says"
    return digits_down(least, 4) + ("" if most == least else f" to {digits_down(most, 4)}, by client")


def _print_summary(summary: dict[str, Any]) -> None:
    _print_table(summary_lines(summary))
    click.echo(f"report  {printable(summary['report'])}")


def _print_table(lines: list[tuple[str, str]]) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    table = Table(box=SIMPLE, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column()
    for name, value in lines:
        table.add_row(Text(printable(name, keep=True)), Text(printable(value)))
    console.print(table)


def summary_lines(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the name and text of every line that `sightline run` prints at the end."""
    lines = [
        ("rounds", str(summary["rounds_done"])),
        *([("ended early", summary["stopped"])] if summary["stopped"] else []),
        *_metric_lines(summary),
        *_best_lines(summary),
        ("clients' own test sets", _clients_words(summary)),
    ]
    if summary["unit"] == "none":
        lines.append(("privacy", "none: updates are published without noise"))
    else:
        lines += [*_observer_lines(summary), *_together_lines(summary)]
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


def _observer_lines(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Return epsilon of a run or a plan, as a whole and against every kind of observer."""
    from sightline.ledger import write_parties

    whole = _epsilon_words(summary["epsilon"])
    lines = [("epsilon", f"{whole} at delta = {summary['delta']:g}, {_per_words(summary)}")]
    lines += [
        (f"  against {kind}", _epsilon_words(value)) for kind, value in merge_silent(summary["observers"]).items()
    ]
    if summary["trusted"]:
        lines.append((f"  against {write_parties(frozenset(summary['trusted']))}", "infinite: trusted"))
    return lines


def _per_words(summary: dict[str, Any]) -> str:
    """Return whom epsilon protects, and between which worlds."""
    who = "example" if summary["unit"] == "sample" else summary["unit"]
    how = {"add_remove": " added or removed", "replace": " exchanged for another"}.get(summary["adjacency"], "")
    return f"per {who}{how}"


def _together_lines(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the joint cost of the run and the runs that its model started from, if any."""
    together = summary.get("together")
    if together is None:
        return []
    if together.get("unknown"):
        return [("together with the run this model started from", f"epsilon unknown: {together['unknown']}")]
    who = "the same data" if together["same_data"] else "the clients are assumed to be the same"
    said = f"epsilon {_epsilon_words(together['epsilon'])} at delta = {summary['delta']:g} ({who})"
    name = "run" if len(together["runs"]) == 1 else f"{len(together['runs'])} runs"
    return [(f"together with the {name} this model started from", said)]


def _metric_lines(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the task's metrics on the test set, the main one first."""
    (main, reached), *others = ((metric_named(name), value) for name, value in summary["metrics"].items())
    lines = [(f"test {main.title}", main.format_value(reached))]
    beside = ", ".join(f"{metric.title} {metric.format_value(value)}" for metric, value in others)
    return [*lines, *([("also", beside)] if beside else [])]


def _best_lines(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the round whose model was kept as the best, if one was."""
    best = summary.get("best")
    if best is None:
        return []
    metric = metric_named(best["metric"])
    return [("best round", f"{best['round']}, {metric.title} {metric.format_value(best['value'])} (best.safetensors)")]


def _clients_words(summary: dict[str, Any]) -> str:
    """Return the mean, the decile at the worse end, and the worst client with its number of examples."""
    metric = METRICS[summary["metric"]]
    mean, decile, worst = (summary.get(metric.client_key(which)) for which in ("mean", "decile", "worst"))
    words = [f"mean {metric.format_value(mean)}"]
    if decile is not None:
        words.append(f"{metric.decile_title} {metric.format_value(decile)}")
    # A worst client with three examples says little, so the number of examples is shown beside it.
    examples = summary["client_worst_examples"]
    of = f" (a client with {format_plural(int(examples), 'test example')})" if examples else ""
    return ", ".join([*words, f"worst {metric.format_value(worst)}{of}"])


def _clusters_words(clusters: dict[str, Any]) -> str:
    """Return the clusters of a run in one line; purity and minority only where the true clusters are known."""
    words = [] if clusters["count"] is None else [str(clusters["count"])]
    if clusters["mss"] is not None:
        words.append(f"MSS {clusters['mss']:.2f}")
    if clusters["purity"] is not None:
        words.append(f"purity {_percent_words(clusters['purity'])}")
    for metric in METRICS.values():
        if clusters.get(f"minority_{metric.name}") is not None:
            words.append(f"minority's {metric.title} {metric.format_value(clusters[f'minority_{metric.name}'])}")
    return ", ".join(words)


def _percent_words(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{100 * value:.1f}%"


def _epsilon_words(value: float | None) -> str:
    # Rounded up: a printed epsilon is never smaller than the computed one.
    from sightline.formatting import format_upper

    return "infinite" if value is None else format_upper(value, digits=4)
