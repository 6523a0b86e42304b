"""`sightline calibrate`: the least noise with which a registered scheme meets a budget."""

from typing import TYPE_CHECKING, Any

import click

from sightline.apps.cli.account import (
    SchemeGroup,
    answer_options,
    decorate_all,
    finite_or_none,
    option_name,
    parameter_option,
    print_answer,
)
from sightline.apps.cli.main import examples_epilog

if TYPE_CHECKING:
    from sightline.accounting import Scheme, SchemeFamily

EXAMPLES = """
\b
Examples:
  sightline calibrate poisson --rate 0.1 --steps 1000 --epsilon 8 --delta 1e-5
  sightline calibrate h2fdp --rate 0.05 --segment 5 --steps 800 --epsilon 1 --delta 1e-5
  sightline calibrate clustered --samples 8000 --batch-size 32 --rounds 200 --epsilon 3 --delta 1e-4
  sightline calibrate split --parts 8 --rate 0.1 --steps 1000 --epsilon 8 --delta 1e-5 --json
"""
ASKED = ("epsilon", "delta", "accountant", "json")


def make_command(family: "SchemeFamily") -> click.Command:
    """`sightline calibrate SCHEME`: every number of the scheme but the noise, which is found."""
    options = [one for one in family.parameters if one.name != "noise"]
    required = {one.name for one in options if family.is_required(one, budget=True)}
    shown = {name: value for name, value in family.example.items() if name in required}
    example = " ".join(f"{option_name(name)} {value}" for name, value in shown.items())

    @click.command(
        family.name,
        help=family.calibrate_help,
        epilog=examples_epilog(f"calibrate {family.name} {example} --epsilon 8 --delta 1e-5"),
    )
    @decorate_all([parameter_option(family, one, budget=True) for one in options])
    @answer_options(*ASKED)
    def calibrate_command(epsilon: float, delta: float, accountant: str, as_json: bool, **numbers: Any) -> None:
        calibrate_scheme(family, numbers, epsilon, delta, accountant, as_json)

    return calibrate_command


@click.group("calibrate", cls=SchemeGroup, make_command=make_command, epilog=EXAMPLES)
def command() -> None:
    """The least noise multiplier with which a scheme costs at most (epsilon, delta)."""


@command.command(
    "h2fdp", epilog=examples_epilog("calibrate h2fdp --rate 0.05 --segment 5 --steps 800 --epsilon 1 --delta 1e-5")
)
@click.option("--rate", type=float, required=True, help="Probability of taking part in a step.")
@click.option("--steps", type=int, required=True, help="Number of noisy releases: segments, not local steps.")
@answer_options(*ASKED)
@click.option("--segment", type=int, default=5, show_default=True, help="Local steps in each release, m.")
@click.option(
    "--first-step", type=float, default=1.0, show_default=True, help="Effect of a first draw, over that of later steps."
)
@click.option(
    "--constant", type=float, default=2.0, show_default=True, help="c2 of Prop. 3.1, which has no name there."
)
def h2fdp(
    rate: float,
    steps: int,
    segment: int,
    first_step: float,
    constant: float,
    epsilon: float,
    delta: float,
    accountant: str,
    as_json: bool,
) -> None:
    """Examples in segments of several local steps: the noise that is needed, and beside it what Prop. 3.1 prints."""
    from sightline import accounting
    from sightline.accounting.published import as_published_noise
    from sightline.accounting.schemes import claim_segment
    from sightline.mechanisms import segment_rate

    chosen, whole = accounting.Accountant(accountant), segment_rate(rate, segment)
    scheme = accounting.segment(noise=1.0, steps=segment, rate=rate, segments=steps, first_step=first_step)
    scheme = scheme.calibrated(epsilon=epsilon, delta=delta, accountant=chosen)
    printed = as_published_noise(rate=rate, steps=steps, epsilon=epsilon, delta=delta, constant=constant)
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
        "as_published_noise": printed.value,
        "as_published_costs": finite_or_none(_cost_of(scheme, printed.value, delta, chosen)),
        "notice": printed.notice,
    }
    print_answer(answer, as_json)


def _cost_of(scheme: "Scheme", noise: float, delta: float, accountant: Any) -> float:
    """Epsilon with a noise that somebody printed; without noise there is no bound."""
    return scheme.with_noise(noise).epsilon(delta=delta, accountant=accountant) if noise > 0 else float("inf")


def calibrate_scheme(
    family: "SchemeFamily", numbers: dict[str, Any], epsilon: float, delta: float, accountant: str, as_json: bool
) -> None:
    """Calibrate a scheme and print it."""
    from sightline.accounting import Accountant

    chosen = Accountant(accountant)
    numbers = family.complete_numbers(numbers, epsilon=epsilon)
    scheme = family.calibrated(numbers, epsilon=epsilon, delta=delta, accountant=chosen)
    spent = scheme.epsilon(delta=delta, accountant=chosen)
    answer: dict[str, Any] = {"noise_multiplier": scheme.noise_multiplier, "epsilon": spent, "target": epsilon}
    answer |= {"delta": delta, "accountant": accountant, "scheme": scheme.name}
    answer |= family.state_claim(numbers | {"noise": scheme.noise_multiplier}) | scheme.list_facts(delta=delta)
    if family.published is not None:
        printed = family.published(**numbers, epsilon=epsilon, delta=delta)
        answer |= {"as_published_noise": finite_or_none(printed.value), "notice": printed.notice}
    note = family.note_delta(numbers, delta)
    print_answer(answer | ({"note": note} if note else {}), as_json)
