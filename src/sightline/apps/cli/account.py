"""`sightline account`, `calibrate` and `groups`: epsilon of a scheme, noise for an epsilon, pairs of workers."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sightline.apps.cli.main import examples_epilog
from sightline.formatting import digits_down, digits_up

if TYPE_CHECKING:
    from sightline.accounting import Parameter, Scheme, SchemeFamily
    from sightline.ledger.group_privacy import PairResult


Function = TypeVar("Function", bound=Callable[..., Any])

ACCOUNT_EXAMPLES = """
\b
Examples:
  sightline account poisson --noise 1.0 --rate 0.01 --steps 10000 --delta 1e-5
  sightline account balanced --noise 2 --steps 1000 --uses 100 --delta 1e-5 --interval
  sightline account ledger ledger.json --subject client-0 --observer server --delta 1e-5
"""


def answer_options(*names: str) -> Callable[[Function], Function]:
    """Return the decorator that adds the options shared by all schemes, by name."""
    known = {
        "delta": click.option("--delta", type=float, required=True, help="Delta of the guarantee."),
        "epsilon": click.option("--epsilon", type=float, required=True, help="The budget to meet."),
        "accountant": click.option(
            "--accountant",
            type=click.Choice(["pld", "rdp"]),
            default="pld",
            show_default=True,
            help="How to compose the releases.",
        ),
        "interval": click.option(
            "--interval", is_flag=True, help="Also print a lower bound, by rounding the other way."
        ),
        "json": click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else."),
    }
    return decorate_all([known[name] for name in names])


def decorate_all(decorators: list[Callable[[Function], Function]]) -> Callable[[Function], Function]:
    """Return one decorator that applies all of them in order."""

    def decorate(function: Function) -> Function:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def parameter_option(family: "SchemeFamily", parameter: "Parameter", *, budget: bool) -> Callable[[Function], Function]:
    """Return the option for a scheme's parameter; `budget` if noise is calibrated to an epsilon."""
    said, default = parameter.help, family.defaults.get(parameter.name)
    # An explicit default of None would count as given.
    shown = {} if default is None else {"default": default, "show_default": True}
    if budget and parameter.budget_share is not None:
        said = f"{said.rstrip('.')} (default: {parameter.budget_share:g} of the budget)."
    if parameter.flag:
        return click.option(option_name(parameter.name), is_flag=True, help=said)
    number = int if parameter.whole else float
    return click.option(
        option_name(parameter.name),
        type=click.Choice(parameter.choices) if parameter.choices else number,
        required=family.is_required(parameter, budget=budget),
        help=said,
        **shown,
    )


def option_name(name: str) -> str:
    """Return the command-line name of a parameter."""
    return "--" + name.replace("_", "-")


class SchemeGroup(click.Group):
    """A group with one command for every registered scheme, beside its own commands."""

    def __init__(self, *args: Any, make_command: "Callable[[SchemeFamily], click.Command]", **more: Any) -> None:
        super().__init__(*args, **more)
        self.make_command = make_command

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all commands by name."""
        from sightline.accounting import SCHEMES

        # The registry is read each time, so that schemes registered later appear.
        return sorted({*self.commands, *SCHEMES})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the group's own command of this name, or the command of the scheme."""
        from sightline.accounting import SCHEMES

        if cmd_name in self.commands or cmd_name not in SCHEMES:
            return self.commands.get(cmd_name)
        return self.make_command(SCHEMES[cmd_name])


def make_command(family: "SchemeFamily") -> click.Command:
    """Return the command `sightline account SCHEME`."""
    example = " ".join(f"{option_name(name)} {value}" for name, value in family.example.items())

    @click.command(
        family.name, help=family.help, epilog=examples_epilog(f"account {family.name} {example} --delta 1e-5")
    )
    @decorate_all([parameter_option(family, parameter, budget=False) for parameter in family.parameters])
    @answer_options("delta", "accountant", "interval", "json")
    def account_command(delta: float, accountant: str, interval: bool, as_json: bool, **numbers: Any) -> None:
        account_scheme(family, numbers, delta, accountant, interval, as_json)

    return account_command


@click.group("account", cls=SchemeGroup, make_command=make_command, epilog=ACCOUNT_EXAMPLES)
def account_command() -> None:
    """Print the epsilon of a scheme, or of an exported ledger: a proven upper bound."""


@account_command.command(
    "ledger",
    epilog=examples_epilog(
        "account ledger ledger.json --subject client-0 --observer server --delta 1e-5",
        "account ledger ledger.json --subject client-0 --observer client-7,public --delta 1e-5 --json",
    ),
)
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--subject", required=True, help="The party whose privacy is asked for.")
@click.option(
    "--observer",
    required=True,
    multiple=True,
    help="The party that looks; several, as in client-7,public, form a coalition.",
)
@answer_options("delta", "accountant", "json")
def ledger(file: str, subject: str, observer: tuple[str, ...], delta: float, accountant: str, as_json: bool) -> None:
    """Print what an observer can learn about a subject, from an exported ledger alone."""
    from sightline.accounting import Accountant
    from sightline.ledger import read_export

    held = read_export(file)
    events = held.composition(subject, observer)
    epsilon = held.epsilon(subject, observer, delta, accountant=Accountant(accountant))
    named = [name.strip() for text in observer for name in text.split(",") if name.strip()]
    answer: dict[str, Any] = {
        "epsilon": finite_or_none(epsilon),
        "delta": delta,
        "accountant": accountant,
        "scheme": "ledger",
    }
    answer |= {"subject": subject, "observer": named, "releases": sum(events.values()), "ledger": file}
    first = next(iter(held), None)
    if first is not None:
        answer |= {"unit": str(first.unit), "adjacency": str(first.adjacency)}
        # A noise multiplier means nothing without the sensitivity that it multiplies.
        answer["noise_relative_to"] = "what the subject moves a release by under this adjacency"
    print_answer(answer, as_json)


def account_scheme(
    family: "SchemeFamily", numbers: dict[str, Any], delta: float, accountant: str, interval: bool, as_json: bool
) -> None:
    """Account a scheme and print the result."""
    from sightline.accounting import Accountant
    from sightline.errors import invalid

    if interval and accountant != Accountant.PLD:
        invalid(
            "--interval", accountant, "only the accountant pld gives a lower bound", "remove one of the two options"
        )
    numbers = family.complete_numbers(numbers)
    scheme = family.make(**numbers)
    epsilon = scheme.epsilon(delta=delta, accountant=Accountant(accountant))
    answer: dict[str, Any] = {"epsilon": finite_or_none(epsilon), "delta": delta, "accountant": accountant}
    if interval:
        lower, upper = scheme.interval(delta=delta)
        answer |= {"interval": [finite_or_none(lower), finite_or_none(upper)]}
    answer |= {"scheme": scheme.name, "noise_multiplier": scheme.noise_multiplier, "events": list_events(scheme)}
    answer |= family.state_claim(numbers) | scheme.list_facts(delta=delta)
    note = family.note_delta(numbers, delta)
    print_answer(answer | ({"note": note} if note else {}), as_json)


def list_events(scheme: "Scheme") -> list[dict[str, Any]]:
    """Return the events of a scheme with their counts, as plain values."""
    from sightline.events import to_json

    return [{"times": times, "event": to_json(event)} for event, times in scheme.composition.items()]


def finite_or_none(value: float) -> float | str:
    """Return the value, or the text "infinity": JSON has no infinity."""
    return value if value < float("inf") else "infinity"


def print_answer(answer: dict[str, Any], as_json: bool) -> None:
    """Print one JSON object, or one line per fact."""
    if as_json:
        click.echo(json.dumps(answer, allow_nan=False))
        return
    width = max(len(name) for name in answer)
    for name, value in answer.items():
        if name != "events":
            click.echo(f"{name:<{width}}  {format_value(name, value)}")


UPWARD = (
    "epsilon",
    "noise_multiplier",
    "noise_std",
    "sensitivity",
    "sensitivity_of_a_turn",
    "segment_rate",
)
"""Upper bounds and required noise: what is printed is never less than what was computed."""

DOWNWARD = ("stream_multiplier", "gain")
"""What is available: what is printed is never more than what was computed."""


def format_value(name: str, value: Any) -> str:
    """Return a number with its significant digits, rounded to the safe side."""
    if name == "interval" and all(isinstance(end, float) for end in value):
        return f"{digits_down(value[0])} {digits_up(value[1])}"
    if isinstance(value, float):
        return digits_up(value) if name in UPWARD else digits_down(value) if name in DOWNWARD else f"{value:.6g}"
    return " ".join(format_value(name, part) for part in value) if isinstance(value, list) else str(value)


CALIBRATE_EXAMPLES = """
\b
Examples:
  sightline calibrate poisson --rate 0.1 --steps 1000 --epsilon 8 --delta 1e-5
  sightline calibrate h2fdp --rate 0.05 --segment 5 --steps 800 --epsilon 1 --delta 1e-5
  sightline calibrate clustered --samples 8000 --batch-size 32 --rounds 200 --epsilon 3 --delta 1e-4
  sightline calibrate split --parts 8 --rate 0.1 --steps 1000 --epsilon 8 --delta 1e-5 --json
"""
ASKED = ("epsilon", "delta", "accountant", "json")


def make_calibration(family: "SchemeFamily") -> click.Command:
    """Return the command `sightline calibrate SCHEME`: every parameter except the noise, which is found."""
    options = [parameter for parameter in family.parameters if parameter.name != "noise"]
    required = {parameter.name for parameter in options if family.is_required(parameter, budget=True)}
    shown = {name: value for name, value in family.example.items() if name in required}
    example = " ".join(f"{option_name(name)} {value}" for name, value in shown.items())

    @click.command(
        family.name,
        help=family.calibrate_help,
        epilog=examples_epilog(f"calibrate {family.name} {example} --epsilon 8 --delta 1e-5"),
    )
    @decorate_all([parameter_option(family, parameter, budget=True) for parameter in options])
    @answer_options(*ASKED)
    def calibrate_command(epsilon: float, delta: float, accountant: str, as_json: bool, **numbers: Any) -> None:
        calibrate_scheme(family, numbers, epsilon, delta, accountant, as_json)

    return calibrate_command


@click.group("calibrate", cls=SchemeGroup, make_command=make_calibration, epilog=CALIBRATE_EXAMPLES)
def calibrate_command() -> None:
    """Print the least noise multiplier with which a scheme costs at most (epsilon, delta)."""


@calibrate_command.command(
    "h2fdp", epilog=examples_epilog("calibrate h2fdp --rate 0.05 --segment 5 --steps 800 --epsilon 1 --delta 1e-5")
)
@click.option("--rate", type=float, required=True, help="Probability of taking part in a step.")
@click.option("--steps", type=int, required=True, help="Number of noisy releases: segments, not local steps.")
@answer_options(*ASKED)
@click.option("--segment", type=int, default=5, show_default=True, help="Local steps in each release, m.")
@click.option(
    "--first-step", type=float, default=1.0, show_default=True, help="Effect of a first draw, over that of later steps."
)
@click.option("--constant", type=float, hidden=True, help="c2 of Prop. 3.1: see papers/published.py.")
def h2fdp(
    rate: float,
    steps: int,
    segment: int,
    first_step: float,
    constant: float | None,
    epsilon: float,
    delta: float,
    accountant: str,
    as_json: bool,
) -> None:
    """Print the noise for examples in segments of several local steps."""
    from sightline.errors import invalid

    if constant is not None:
        reason = "a constant of the paper's Prop. 3.1, whose noise gives no guarantee"
        invalid("--constant", constant, reason, "python -m papers.published h2fdp has it; remove it here")
    from sightline import accounting
    from sightline.accounting.named_schemes import claim_segment
    from sightline.mechanisms import segment_rate

    chosen, whole = accounting.Accountant(accountant), segment_rate(rate, segment)
    scheme = accounting.segment(noise=1.0, steps=segment, rate=rate, segments=steps, first_step=first_step)
    scheme = scheme.calibrated(epsilon=epsilon, delta=delta, accountant=chosen)
    answer: dict[str, Any] = {
        "noise_multiplier": scheme.noise_multiplier,
        "epsilon": scheme.epsilon(delta=delta, accountant=chosen),
        "target": epsilon,
        "delta": delta,
        "accountant": accountant,
        "scheme": "h2fdp",
        **claim_segment({"adjacency": "add_remove"}).facts(),
        "segments": steps,
        "segment_rate": whole,
    }
    print_answer(answer, as_json)


def calibrate_scheme(
    family: "SchemeFamily", numbers: dict[str, Any], epsilon: float, delta: float, accountant: str, as_json: bool
) -> None:
    """Calibrate a scheme and print the result."""
    from sightline.accounting import Accountant

    chosen = Accountant(accountant)
    # Defaults may depend on the budget, such as a share of epsilon for one part of a scheme.
    numbers = family.complete_numbers(numbers, epsilon=epsilon)
    scheme = family.calibrated(numbers, epsilon=epsilon, delta=delta, accountant=chosen)
    spent = scheme.epsilon(delta=delta, accountant=chosen)
    answer: dict[str, Any] = {"noise_multiplier": scheme.noise_multiplier, "epsilon": spent, "target": epsilon}
    answer |= {"delta": delta, "accountant": accountant, "scheme": scheme.name}
    answer |= family.state_claim(numbers | {"noise": scheme.noise_multiplier}) | scheme.list_facts(delta=delta)
    note = family.note_delta(numbers, delta)
    print_answer(answer | ({"note": note} if note else {}), as_json)


GROUPS_EXAMPLES = """
\b
Examples:
  sightline groups --structure ring --workers 100 --groups 4 --period 10 --epochs 200 --noise 2 --rate 0.7 --delta 1e-5
  sightline groups --structure groups.json --period 5 --epochs 60 --noise 3 --delta 1e-5 --plot heatmap.png
  sightline groups --structure ring --workers 40 --groups 8 --period 25 --epochs 201 --noise 3 --delta 1e-5 --bottleneck

A membership file is {"workers": 3, "groups": [[0, 1], [1, 2]]}; see docs/groups.md for schedules, rates and factors.
--epochs T: the models of the epochs 1 to T are seen; a training run of R rounds equals --epochs R+1.
"""


@click.command("groups", epilog=GROUPS_EXAMPLES)
@click.option("--structure", required=True, metavar="NAME|FILE", help="global, clusters, ring, string, or a JSON file.")
@click.option("--workers", type=int, help="How many workers there are.")
@click.option("--groups", "count", type=int, help="How many groups there are.")
@click.option("--period", type=int, default=1, show_default=True, help="Epochs from one exchange to the next.")
@click.option(
    "--epochs", type=int, required=True, help="Number of epochs T: the observer sees the models of epochs 1 to T."
)
@click.option("--noise", type=float, required=True, help="Noise multiplier: sigma over the sensitivity.")
@click.option("--rate", type=float, default=1.0, show_default=True, help="Probability of taking part in an epoch.")
@click.option("--delta", type=float, required=True, help="Delta of every epsilon.")
@click.option("--plus", is_flag=True, help="DP-OGL+: one release per interval, in which each worker trains alone.")
@click.option("--threat", type=click.Choice(["everyone", "out-of-group"]), default="everyone", show_default=True)
@click.option("--accountant", type=click.Choice(["pld", "rdp"]), default="pld", show_default=True)
@click.option(
    "--bottleneck",
    is_flag=True,
    help="Use the smaller of the flow count and the bottleneck bound: DP-OGL, unit client, clients that keep nothing.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Write epsilon and releases of all pairs to this .npz.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the heatmap and the curves to this PNG.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else on stdout.")
def groups_command(as_json: bool, out: Path | None, plot: Path | None, **given: Any) -> None:
    """Print the epsilon of every pair of workers in overlapping groups (DP-OGL, DP-OGL+), from the memberships."""
    from sightline.ledger.group_privacy import PairQuery, query_pairs, save_npz

    question = PairQuery(**given)
    answer = query_pairs(question)
    if out is not None:
        save_npz(answer, out)
    if plot is not None:
        from sightline.apps.report.sections import draw_groups

        draw_groups(answer, plot)
    summary = summarise_answer(answer, out, plot)
    if as_json:
        click.echo(json.dumps(summary, allow_nan=False))
    else:
        print_pairs(answer, summary)


def summarise_answer(answer: "PairResult", out: Path | None, plot: Path | None) -> dict[str, Any]:
    """Return what `--json` prints; None where the threat model covers no pair."""
    from sightline.accounting import large_delta_note

    question = answer.query
    summary: dict[str, Any] = {
        "epsilon_mean": _finite_or_none(answer.mean),
        "epsilon_max": _finite_or_none(answer.largest),
        "matrix_shape": [answer.workers, answer.workers],
        "delta": question.delta,
        "accountant": question.accountant,
        "threat": question.threat,
        "algorithm": "dp_ogl_plus" if question.plus else "dp_ogl",
        "structure": question.structure,
        "workers": answer.workers,
        "groups": answer.groups,
        "classes": len(answer.pairs),
        "period": question.period,
        "epochs": question.epochs,
        "noise": question.noise,
        "rate": question.rate,
        "releases_max": answer.releases_max,
        "bottleneck": question.bottleneck,
        **answer.claim.facts(),
    }
    if question.bottleneck:
        summary["pairs_tightened"] = answer.tightened
    note = large_delta_note(question.delta, answer.workers, "workers")
    if note is not None:
        summary["notes"] = [note]
    if out is not None:
        summary["out"] = str(out)
    if plot is not None:
        summary["plot"] = str(plot)
    return summary


def print_pairs(answer: "PairResult", summary: dict[str, Any]) -> None:
    """Print a few lines for people."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"{summary['workers']} workers in {summary['groups']} groups, {summary['classes']} different memberships; "
        f"against {summary['observer']} at delta = {summary['delta']:g} ({summary['accountant'].upper()}), "
        f"adjacency {summary['adjacency']}, noise relative to {summary['noise_relative_to']}"
    )
    if summary["epsilon_max"] is None:
        console.print(
            "epsilon: no pair, every two workers share a group" if math.isnan(answer.largest) else "epsilon: infinite"
        )
        return
    mean, largest = (digits_up(summary[name]) for name in ("epsilon_mean", "epsilon_max"))
    console.print(f"epsilon, worst observer: mean over workers {mean}, largest {largest}")
    if summary["bottleneck"]:
        console.print(
            f"the bottleneck bound is below the flow count for {summary['pairs_tightened']:,} pairs of workers"
        )
        console.print("it holds for unit client, and for workers that keep nothing from one epoch to the next")
    for note in summary.get("notes", []):
        console.print(f"note: {note}")
    for name in ("out", "plot"):
        if name in summary:
            console.print(f"wrote {summary[name]}", markup=False)


def _finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
