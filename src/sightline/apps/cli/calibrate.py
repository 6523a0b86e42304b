"""`sightline calibrate`: the least noise with which a scheme meets a budget."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from sightline.apps.cli.account import finite_or_none, print_answer, scheme_options
from sightline.apps.cli.main import examples_epilog

if TYPE_CHECKING:
    from sightline.accounting import Scheme

EXAMPLES = """
\b
Examples:
  sightline calibrate poisson --rate 0.1 --steps 1000 --epsilon 8 --delta 1e-5
  sightline calibrate h2fdp --rate 0.05 --segment 5 --steps 800 --epsilon 1 --delta 1e-5
  sightline calibrate clustered --samples 8000 --batch-size 32 --rounds 200 --epsilon 3 --delta 1e-4
  sightline calibrate split --parts 8 --rate 0.1 --steps 1000 --epsilon 8 --delta 1e-5 --json
"""
ASKED = ("epsilon", "delta", "accountant", "json")


@click.group("calibrate", epilog=EXAMPLES)
def command() -> None:
    """The least noise multiplier with which a scheme costs at most (epsilon, delta)."""


@command.command("gaussian", epilog=examples_epilog("calibrate gaussian --steps 100 --epsilon 8 --delta 1e-5"))
@scheme_options("steps", *ASKED)
def gaussian(steps: int, **asked: Any) -> None:
    """Every step uses every subject."""
    from sightline import accounting

    calibrate_scheme(accounting.gaussian(noise=1.0, steps=steps), **asked)


@command.command(
    "poisson", epilog=examples_epilog("calibrate poisson --rate 0.01 --steps 10000 --epsilon 8 --delta 1e-5")
)
@scheme_options("rate", "steps", *ASKED)
def poisson(rate: float, steps: int, **asked: Any) -> None:
    """Each step uses each subject with a probability, independently."""
    from sightline import accounting

    calibrate_scheme(accounting.poisson(noise=1.0, rate=rate, steps=steps), **asked)


@command.command(
    "balanced", epilog=examples_epilog("calibrate balanced --steps 1000 --uses 100 --epsilon 8 --delta 1e-5")
)
@scheme_options("steps", "uses", "epochs", *ASKED)
def balanced(steps: int, uses: int, epochs: int, **asked: Any) -> None:
    """Each subject is used in exactly K of T steps."""
    from sightline import accounting

    calibrate_scheme(accounting.balanced(noise=1.0, steps=steps, uses=uses, epochs=epochs), **asked)


@command.command(
    "split", epilog=examples_epilog("calibrate split --parts 8 --rate 0.1 --steps 1000 --epsilon 8 --delta 1e-5")
)
@scheme_options("parts", "rate", "steps", "unsplit", *ASKED)
def split(parts: int, rate: float, steps: int, unsplit_noise: float | None, **asked: Any) -> None:
    """Each subject trains one of D parts of the model; --unsplit-noise is fixed, the split part's noise is found."""
    from sightline import accounting

    fixed = unsplit_noise
    calibrate_scheme(accounting.split(noise=1.0, parts=parts, rate=rate, steps=steps), unsplit_noise=fixed, **asked)


@command.command(
    "dropout", epilog=examples_epilog("calibrate dropout --rate 0.1 --steps 1000 --epsilon 8 --delta 1e-5")
)
@scheme_options("rate", "steps", "unsplit", *ASKED)
def dropout(rate: float, steps: int, unsplit_noise: float | None, **asked: Any) -> None:
    """Dropout with probability one half; --unsplit-noise is fixed, the split part's noise is found."""
    from sightline import accounting

    calibrate_scheme(accounting.dropout(noise=1.0, rate=rate, steps=steps), unsplit_noise=unsplit_noise, **asked)


@command.command(
    "check-ins", epilog=examples_epilog("calibrate check-ins --steps 1000 --chance 0.5 --epsilon 8 --delta 1e-5")
)
@scheme_options("steps", "chance", *ASKED)
def check_ins(steps: int, chance: float, **asked: Any) -> None:
    """Each subject opts in with a probability, then takes part once, at a random step."""
    from sightline import accounting

    calibrate_scheme(accounting.check_ins(noise=1.0, steps=steps, chance=chance), **asked)


@command.command(
    "h2fdp", epilog=examples_epilog("calibrate h2fdp --rate 0.05 --segment 5 --steps 800 --epsilon 1 --delta 1e-5")
)
@scheme_options("rate", "steps", *ASKED)
@click.option("--segment", type=int, default=5, show_default=True, help="Local steps in each release, m.")
@click.option(
    "--constant", type=float, default=2.0, show_default=True, help="c2 of Prop. 3.1, which has no name there."
)
def h2fdp(
    rate: float, steps: int, segment: int, constant: float, epsilon: float, delta: float, accountant: str, as_json: bool
) -> None:
    """Examples in segments of several local steps: the noise that is needed, and beside it what Prop. 3.1 prints."""
    from sightline import accounting
    from sightline.accounting.published import as_published_noise
    from sightline.mechanisms import segment_rate

    chosen, whole = accounting.Accountant(accountant), segment_rate(rate, segment)
    scheme = accounting.poisson(noise=1.0, rate=whole, steps=steps)
    scheme = scheme.calibrated(epsilon=epsilon, delta=delta, accountant=chosen)
    printed = as_published_noise(rate=rate, steps=steps, epsilon=epsilon, delta=delta, constant=constant)
    answer: dict[str, Any] = {
        "noise_multiplier": scheme.noise_multiplier,
        "epsilon": scheme.epsilon(delta=delta, accountant=chosen),
        "target": epsilon,
        "delta": delta,
        "accountant": accountant,
        "scheme": "h2fdp",
        "segment_rate": whole,
        "as_published_noise": printed.value,
        "as_published_costs": finite_or_none(_cost_of(scheme, printed.value, delta, chosen)),
        "notice": printed.notice,
    }
    print_answer(answer, as_json)


def _cost_of(scheme: "Scheme", noise: float, delta: float, accountant: Any) -> float:
    """Epsilon with a noise that somebody printed; without noise there is no bound."""
    return scheme.with_noise(noise).epsilon(delta=delta, accountant=accountant) if noise > 0 else float("inf")


@command.command(
    "clustered",
    epilog=examples_epilog("calibrate clustered --samples 8000 --batch-size 32 --rounds 200 --epsilon 8 --delta 1e-5"),
)
@scheme_options("samples", "batch", "rounds", "selections")
@click.option("--selection-epsilon", type=float, help="What one choice costs (default: 0.03 of the budget).")
@scheme_options(*ASKED)
def clustered(rounds: int, selections: int | None, selection_epsilon: float | None, **asked: Any) -> None:
    """One full-batch round, small batches in the others, and private choices of a cluster: one noise for all."""
    from sightline import accounting
    from sightline.accounting.published import clustered_noise

    numbers = {name: asked.pop(name) for name in ("samples", "batch_size")} | {
        "rounds": rounds,
        "selections": rounds // 10 if selections is None else selections,
        "selection_epsilon": 0.03 * asked["epsilon"] if selection_epsilon is None else selection_epsilon,
    }
    scheme = accounting.clustered(noise=1.0, **numbers)
    split = clustered_noise(**numbers, epsilon=asked["epsilon"], delta=asked["delta"])
    note = accounting.large_delta_note(asked["delta"], numbers["samples"], "examples")
    more = {"as_published_noise": finite_or_none(split.value), "notice": split.notice} | (
        {"note": note} if note else {}
    )
    calibrate_scheme(scheme, **asked, more=more)


def calibrate_scheme(
    scheme: "Scheme",
    epsilon: float,
    delta: float,
    accountant: str,
    as_json: bool,
    unsplit_noise: float | None = None,
    more: Mapping[str, Any] | None = None,
) -> None:
    """Calibrate a scheme and print it."""
    from sightline.accounting import Accountant

    chosen = Accountant(accountant)
    if unsplit_noise is not None:
        scheme = beside_unsplit(scheme, unsplit_noise, epsilon, delta, chosen)
    else:
        scheme = scheme.calibrated(epsilon=epsilon, delta=delta, accountant=chosen)
    spent = scheme.epsilon(delta=delta, accountant=chosen)
    answer: dict[str, Any] = {"noise_multiplier": scheme.noise_multiplier, "epsilon": spent, "target": epsilon}
    answer |= {"delta": delta, "accountant": accountant, "scheme": scheme.name}
    print_answer(answer | dict(more or {}), as_json)


def beside_unsplit(scheme: "Scheme", unsplit_noise: float, epsilon: float, delta: float, accountant: Any) -> "Scheme":
    """The least noise of the split part when the unsplit part's noise is given, both under one draw."""
    from sightline.accounting import Scheme, calibrate
    from sightline.events import Event, Gaussian, Poisson, Product

    def at(noise: float) -> dict[Event, int]:
        events: dict[Event, int] = {}
        for event, times in scheme.with_noise(noise).events:
            if isinstance(event, Poisson):
                event = Poisson(event.rate, Product((Gaussian(unsplit_noise), event.event)))
            events[event] = times
        return events

    noise = calibrate(at, epsilon=epsilon, delta=delta, accountant=accountant)
    return Scheme(scheme.name, noise, tuple(at(noise).items()))
