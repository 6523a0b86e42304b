"""`sightline account`: epsilon of a registered scheme by its numbers, or of an exported ledger."""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sightline.apps.cli.main import examples_epilog
from sightline.shown import digits_down, digits_up

if TYPE_CHECKING:
    from sightline.accounting import Parameter, Scheme, SchemeFamily

Function = TypeVar("Function", bound=Callable[..., Any])

EXAMPLES = """
\b
Examples:
  sightline account poisson --noise 1.0 --rate 0.01 --steps 10000 --delta 1e-5
  sightline account balanced --noise 2 --steps 1000 --uses 100 --delta 1e-5 --interval
  sightline account ledger ledger.json --subject client-0 --observer server --delta 1e-5
"""


def answer_options(*names: str) -> Callable[[Function], Function]:
    """The options that every scheme has, by their names in the house."""
    known = {
        "delta": click.option("--delta", type=float, required=True, help="Delta of the guarantee."),
        "epsilon": click.option("--epsilon", type=float, required=True, help="The budget to meet."),
        "accountant": click.option(
            "--accountant", type=click.Choice(["pld", "rdp"]), default="pld", show_default=True, help="How to compose."
        ),
        "interval": click.option("--interval", is_flag=True, help="Also a lower bound, by the opposite rounding."),
        "json": click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else."),
    }
    return decorate_all([known[name] for name in names])


def decorate_all(decorators: list[Callable[[Function], Function]]) -> Callable[[Function], Function]:
    """All of them in their order, as one."""

    def decorate(function: Function) -> Function:
        for one in reversed(decorators):
            function = one(function)
        return function

    return decorate


def parameter_option(family: "SchemeFamily", parameter: "Parameter", *, budget: bool) -> Callable[[Function], Function]:
    """The option of a scheme's number; `budget` where the noise is searched for one."""
    said, default = parameter.help, family.defaults.get(parameter.name)
    shown = {} if default is None else {"default": default, "show_default": True}  # None itself would count as given
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
    """How a number is called on the command line."""
    return "--" + name.replace("_", "-")


class SchemeGroup(click.Group):
    """A group with one command for every registered scheme, beside those that it has itself."""

    def __init__(self, *args: Any, make_command: "Callable[[SchemeFamily], click.Command]", **more: Any) -> None:
        super().__init__(*args, **more)
        self.make_command = make_command

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All by name; the registry is asked anew each time."""
        from sightline.accounting import SCHEMES

        return sorted({*self.commands, *SCHEMES})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The group's own command of this name, or that of the scheme."""
        from sightline.accounting import SCHEMES

        if cmd_name in self.commands or cmd_name not in SCHEMES:
            return self.commands.get(cmd_name)
        return self.make_command(SCHEMES[cmd_name])


def make_command(family: "SchemeFamily") -> click.Command:
    """`sightline account SCHEME`."""
    example = " ".join(f"{option_name(name)} {value}" for name, value in family.example.items())

    @click.command(
        family.name, help=family.help, epilog=examples_epilog(f"account {family.name} {example} --delta 1e-5")
    )
    @decorate_all([parameter_option(family, one, budget=False) for one in family.parameters])
    @answer_options("delta", "accountant", "interval", "json")
    def account_command(delta: float, accountant: str, interval: bool, as_json: bool, **numbers: Any) -> None:
        account_scheme(family, numbers, delta, accountant, interval, as_json)

    return account_command


@click.group("account", cls=SchemeGroup, make_command=make_command, epilog=EXAMPLES)
def command() -> None:
    """Epsilon of a scheme, or of an exported ledger: a proven upper bound."""


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
@answer_options("delta", "accountant", "json")
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
    first = next(iter(held), None)
    if first is not None:
        answer |= {"unit": str(first.unit), "adjacency": str(first.adjacency)}
        answer["noise_relative_to"] = "what the subject moves a release by under this adjacency"
    print_answer(answer, as_json)


def account_scheme(
    family: "SchemeFamily", numbers: dict[str, Any], delta: float, accountant: str, interval: bool, as_json: bool
) -> None:
    """Account a scheme and print it."""
    from sightline.accounting import Accountant

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


UPWARD = (
    "epsilon",
    "noise_multiplier",
    "noise_std",
    "sensitivity",
    "sensitivity_of_a_turn",
    "segment_rate",
    "as_published_costs",
)
"""Upper bounds, and noise that is needed: what is printed is never less than what was computed."""

DOWNWARD = ("stream_multiplier", "gain")
"""What one has: never more than what was computed."""


def format_value(name: str, value: Any) -> str:
    """A number with the digits that matter, rounded to the private side."""
    if name == "interval" and all(isinstance(end, float) for end in value):
        return f"{digits_down(value[0])} {digits_up(value[1])}"
    if isinstance(value, float):
        return digits_up(value) if name in UPWARD else digits_down(value) if name in DOWNWARD else f"{value:.6g}"
    return " ".join(format_value(name, part) for part in value) if isinstance(value, list) else str(value)
