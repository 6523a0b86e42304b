"""The calculator's schemes: which numbers each takes, and what it is set against."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sightline import accounting
from sightline.accounting import Accountant, Scheme
from sightline.events import with_known_coins
from sightline.serve.knobs import NOISE, RATE, STEPS, Knob

USES = Knob("uses", "Uses of each subject", 1, 100_000, 100, whole=True)
EPOCHS = Knob("epochs", "Epochs", 1, 1000, 1, whole=True)
PARTS = Knob("parts", "Parts of the model", 1, 1000, 4, whole=True)
CHANCE = Knob("chance", "Chance of checking in", 1e-6, 1, 0.5)

Numbers = Mapping[str, float]


@dataclass(frozen=True)
class Entry:
    """A scheme of the calculator; `poisson` is the plain Poisson sampling that it is set against."""

    title: str
    words: str
    knobs: tuple[Knob, ...]
    make: Callable[..., Scheme]
    poisson: Callable[[Numbers], Scheme] | None = None


def _poisson_line(rate: Callable[[Numbers], float], steps: Callable[[Numbers], float]) -> Callable[[Numbers], Scheme]:
    return lambda n: accounting.poisson(noise=n["noise"], rate=min(1.0, rate(n)), steps=int(steps(n)))


SCHEMES: dict[str, Entry] = {
    "poisson": Entry(
        "Poisson: each with a probability",
        "Each step uses each subject with the same probability, independently.",
        (NOISE, RATE.starting_at(0.01), STEPS),
        accounting.poisson,
    ),
    "balanced": Entry(
        "Balanced: exactly k of T steps",
        "Each subject is used in exactly so many of the steps, a hidden choice.",
        (NOISE, STEPS, USES, EPOCHS),
        accounting.balanced,
        _poisson_line(lambda n: n["uses"] / n["steps"], lambda n: n["steps"] * n["epochs"]),
    ),
    "split": Entry(
        "Split model: one of d parts",
        "Each subject that takes part trains one of the parts of the model, a hidden choice.",
        (NOISE, PARTS, RATE, STEPS),
        accounting.split,
        _poisson_line(lambda n: n["rate"], lambda n: n["steps"]),
    ),
    "dropout": Entry(
        "Dropout, one mask per subject",
        "Each subject that takes part trains half of the model, a hidden choice.",
        (NOISE, RATE, STEPS),
        accounting.dropout,
        _poisson_line(lambda n: n["rate"], lambda n: n["steps"]),
    ),
    "check-ins": Entry(
        "Random check-ins",
        "Each subject opts in with a probability and then takes part once, at a hidden step.",
        (NOISE, STEPS, CHANCE),
        accounting.check_ins,
        _poisson_line(lambda n: n["chance"] / n["steps"], lambda n: n["steps"]),
    ),
    "gaussian": Entry(
        "No sampling",
        "Every step uses every subject.",
        (NOISE, STEPS),
        accounting.gaussian,
    ),
}


def known_coins(scheme: Scheme) -> Scheme:
    """The scheme against somebody who knows every coin: no amplification."""
    return Scheme(scheme.name, scheme.noise_multiplier, tuple((with_known_coins(e), n) for e, n in scheme.events))


def comparison_lines(entry: Entry, numbers: Numbers) -> dict[str, tuple[Scheme, Accountant]]:
    """What the calculator sets side by side, by name: the scheme first."""
    scheme = entry.make(**numbers)
    found = {"this scheme": (scheme, Accountant.PLD), "by RDP": (scheme, Accountant.RDP)}
    if entry.poisson is not None:
        found["Poisson sampling"] = (entry.poisson(numbers), Accountant.PLD)
    if entry.make is not accounting.gaussian:
        found["no amplification"] = (known_coins(scheme), Accountant.PLD)
    return found
