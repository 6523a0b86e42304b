"""`sightline account`: epsilon of a scheme by its numbers, or of an exported ledger."""

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sightline.apps.cli.main import examples_epilog
from sightline.shown import digits_down, digits_up

if TYPE_CHECKING:
    from sightline.accounting import Scheme

Function = TypeVar("Function", bound=Callable[..., Any])

EXAMPLES = """
\b
Examples:
  sightline account poisson --noise 1.0 --rate 0.01 --steps 10000 --delta 1e-5
  sightline account balanced --noise 2 --steps 1000 --uses 100 --delta 1e-5 --interval
  sightline account ledger ledger.json --subject client-0 --observer server --delta 1e-5
"""


def scheme_options(*names: str) -> Callable[[Function], Function]:
    """The options of a scheme, by their names in the house."""
    known = {
        "noise": click.option("--noise", type=float, required=True, help="Noise multiplier z = sigma / sensitivity."),
        "rate": click.option("--rate", type=float, required=True, help="Probability of taking part in a step."),
        "steps": click.option("--steps", type=int, required=True, help="Number of noisy steps."),
        "uses": click.option("--uses", type=int, required=True, help="Steps that use each subject, of all steps."),
        "epochs": click.option("--epochs", type=int, default=1, show_default=True, help="Repetitions of the schedule."),
        "parts": click.option("--parts", type=int, required=True, help="Disjoint parts of the model."),
        "unsplit": click.option("--unsplit-noise", type=float, help="Noise multiplier of the part that is not split."),
        "chance": click.option("--chance", type=float, required=True, help="Probability of checking in at all."),
        "samples": click.option("--samples", type=int, required=True, help="Examples of the client."),
        "batch": click.option("--batch-size", type=int, required=True, help="Batch size of the later rounds."),
        "rounds": click.option("--rounds", type=int, required=True, help="Rounds; the first is a full batch."),
        "selections": click.option("--selections", type=int, help="Private choices (default: a tenth of the rounds)."),
        "delta": click.option("--delta", type=float, required=True, help="Delta of the guarantee."),
        "epsilon": click.option("--epsilon", type=float, required=True, help="The budget to meet."),
        "accountant": click.option(
            "--accountant", type=click.Choice(["pld", "rdp"]), default="pld", show_default=True, help="How to compose."
        ),
        "interval": click.option("--interval", is_flag=True, help="Also a lower bound, by the opposite rounding."),
        "json": click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else."),
    }

    def decorate(function: Function) -> Function:
        for name in reversed(names):
            function = known[name](function)
        return function

    return decorate


ASKED = ("delta", "accountant", "interval", "json")


@click.group("account", epilog=EXAMPLES)
def command() -> None:
    """Epsilon of a scheme, or of an exported ledger: a proven upper bound."""


@command.command("gaussian", epilog=examples_epilog("account gaussian --noise 4 --steps 100 --delta 1e-5"))
@scheme_options("noise", "steps", *ASKED)
def gaussian(noise: float, steps: int, **asked: Any) -> None:
    """Every step uses every subject."""
    from sightline import accounting

    account_scheme(accounting.gaussian(noise=noise, steps=steps), **asked)


@command.command("poisson", epilog=examples_epilog("account poisson --noise 1 --rate 0.01 --steps 10000 --delta 1e-5"))
@scheme_options("noise", "rate", "steps", *ASKED)
def poisson(noise: float, rate: float, steps: int, **asked: Any) -> None:
    """Each step uses each subject with a probability, independently."""
    from sightline import accounting

    account_scheme(accounting.poisson(noise=noise, rate=rate, steps=steps), **asked)


@command.command("balanced", epilog=examples_epilog("account balanced --noise 2 --steps 1000 --uses 100 --delta 1e-5"))
@scheme_options("noise", "steps", "uses", "epochs", *ASKED)
def balanced(noise: float, steps: int, uses: int, epochs: int, **asked: Any) -> None:
    """Each subject is used in exactly K of T steps."""
    from sightline import accounting

    account_scheme(accounting.balanced(noise=noise, steps=steps, uses=uses, epochs=epochs), **asked)


@command.command(
    "split", epilog=examples_epilog("account split --noise 1 --parts 8 --rate 0.1 --steps 1000 --delta 1e-5")
)
@scheme_options("noise", "parts", "rate", "steps", "unsplit", *ASKED)
def split(noise: float, parts: int, rate: float, steps: int, unsplit_noise: float | None, **asked: Any) -> None:
    """Each subject trains one of D parts of the model."""
    from sightline import accounting

    scheme = accounting.split(noise=noise, parts=parts, rate=rate, steps=steps, unsplit_noise=unsplit_noise)
    account_scheme(scheme, **asked)


@command.command("dropout", epilog=examples_epilog("account dropout --noise 1 --rate 0.1 --steps 1000 --delta 1e-5"))
@scheme_options("noise", "rate", "steps", "unsplit", *ASKED)
def dropout(noise: float, rate: float, steps: int, unsplit_noise: float | None, **asked: Any) -> None:
    """Dropout with probability one half, one mask per subject and release."""
    from sightline import accounting

    account_scheme(accounting.dropout(noise=noise, rate=rate, steps=steps, unsplit_noise=unsplit_noise), **asked)


@command.command(
    "check-ins", epilog=examples_epilog("account check-ins --noise 1 --steps 1000 --chance 0.5 --delta 1e-5")
)
@scheme_options("noise", "steps", "chance", *ASKED)
def check_ins(noise: float, steps: int, chance: float, **asked: Any) -> None:
    """Each subject opts in with a probability, then takes part once, at a random step."""
    from sightline import accounting

    account_scheme(accounting.check_ins(noise=noise, steps=steps, chance=chance), **asked)


@command.command(
    "clustered",
    epilog=examples_epilog(
        "account clustered --noise 2 --samples 8000 --batch-size 32 --rounds 200 --selection-epsilon 0.1 --delta 1e-5"
    ),
)
@scheme_options("noise", "samples", "batch", "rounds", "selections")
@click.option("--selection-epsilon", type=float, required=True, help="What one choice costs.")
@scheme_options(*ASKED)
def clustered(rounds: int, selections: int | None, **asked: Any) -> None:
    """One full-batch round, small batches in the others, and private choices of a cluster."""
    from sightline import accounting

    of_scheme = {name: asked.pop(name) for name in ("noise", "samples", "batch_size", "selection_epsilon")}
    times = rounds // 10 if selections is None else selections
    note = accounting.large_delta_note(asked["delta"], of_scheme["samples"], "examples")
    scheme = accounting.clustered(rounds=rounds, selections=times, **of_scheme)
    account_scheme(scheme, **asked, more={"note": note} if note else {})


@command.command(
    "ledger",
    epilog=examples_epilog(
        "account ledger ledger.json --subject client-0 --observer server --delta 1e-5",
        "account ledger ledger.json --subject client-0 --observer client-7,public --delta 1e-5 --json",
    ),
)
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--subject", required=True, help="Whose privacy.")
@click.option(
    "--observer", required=True, multiple=True, help="Against whom; several, as in client-7,public, are a coalition."
)
@scheme_options("delta", "accountant", "json")
def ledger(file: str, subject: str, observer: tuple[str, ...], delta: float, accountant: str, as_json: bool) -> None:
    """What an observer learns of a subject, from an exported ledger alone."""
    from sightline.accounting import Accountant
    from sightline.ledger import read_export

    held = read_export(file)
    events = held.composition(subject, observer)
    epsilon = held.epsilon(subject, observer, delta, accountant=Accountant(accountant))
    named = [name.strip() for one in observer for name in one.split(",") if name.strip()]
    answer: dict[str, Any] = {
        "epsilon": finite_or_none(epsilon),
        "delta": delta,
        "accountant": accountant,
        "scheme": "ledger",
    }
    answer |= {"subject": subject, "observer": named, "releases": sum(events.values()), "ledger": file}
    print_answer(answer, as_json)


def account_scheme(
    scheme: "Scheme",
    delta: float,
    accountant: str,
    interval: bool,
    as_json: bool,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Account a scheme and print it."""
    from sightline.accounting import Accountant

    epsilon = scheme.epsilon(delta=delta, accountant=Accountant(accountant))
    answer: dict[str, Any] = {"epsilon": finite_or_none(epsilon), "delta": delta, "accountant": accountant}
    if interval:
        lower, upper = scheme.interval(delta=delta)
        answer |= {"interval": [finite_or_none(lower), finite_or_none(upper)]}
    answer |= {"scheme": scheme.name, "noise_multiplier": scheme.noise_multiplier, "events": list_events(scheme)}
    print_answer(answer | dict(more), as_json)


def list_events(scheme: "Scheme") -> list[dict[str, Any]]:
    """The events of a scheme with their counts, as plain values."""
    from sightline.events import to_json

    return [{"times": times, "event": to_json(event)} for event, times in scheme.composition.items()]


def finite_or_none(value: float) -> float | str:
    """JSON has no infinity."""
    return value if value < float("inf") else "infinity"


def print_answer(answer: dict[str, Any], as_json: bool) -> None:
    """One JSON object, or one line per fact."""
    if as_json:
        click.echo(json.dumps(answer, allow_nan=False))
        return
    width = max(len(name) for name in answer)
    for name, value in answer.items():
        if name != "events":
            click.echo(f"{name:<{width}}  {format_value(name, value)}")


UPWARD = ("epsilon", "noise_multiplier", "segment_rate", "as_published_costs")
"""Upper bounds, and noise that is needed: what is printed is never less than what was computed."""


def format_value(name: str, value: Any) -> str:
    """A number with the digits that matter, rounded to the private side."""
    if name == "interval" and all(isinstance(end, float) for end in value):
        return f"{digits_down(value[0])} {digits_up(value[1])}"
    if isinstance(value, float):
        return digits_up(value) if name in UPWARD else f"{value:.6g}"
    return " ".join(format_value(name, part) for part in value) if isinstance(value, list) else str(value)
