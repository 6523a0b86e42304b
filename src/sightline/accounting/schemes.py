"""Schemes: what a training run does to a subject, as one frozen value with its privacy cost; their registry.

Each scheme is declared once: a function of its numbers, registered with the texts of the commands and of the
calculator's page. `sightline account`, `sightline calibrate` and the page are generated from `SCHEMES`.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeVar

from typing_extensions import override

from sightline import events as ev
from sightline import formatting as shown
from sightline.accounting.accountant import Accountant, interval, large_delta_note
from sightline.accounting.accountant import delta as delta_of
from sightline.accounting.accountant import epsilon as epsilon_of
from sightline.accounting.calibration import MOST_NOISE, calibrate
from sightline.accounting.certified import BETA, SampledCertificate, certify_balanced
from sightline.errors import InvalidInput, invalid, refuse
from sightline.events import Event

# The deltas at which a notebook shows the cost of a scheme.
DELTAS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-8)


@dataclass(frozen=True)
class Scheme:
    """A named composition whose Gaussian noise is `noise_multiplier`; other noises keep their ratio to it."""

    name: str
    noise_multiplier: float
    events: tuple[tuple[Event, int], ...]

    @property
    def composition(self) -> Mapping[Event, int]:
        """Return the multiset of events."""
        return MappingProxyType(dict(self.events))

    def epsilon(self, *, delta: float, accountant: Accountant = Accountant.PLD) -> float:
        """Return an upper bound on epsilon at delta."""
        return epsilon_of(self.composition, delta, accountant=accountant)

    def delta(self, *, epsilon: float, accountant: Accountant = Accountant.PLD) -> float:
        """Return an upper bound on delta at epsilon."""
        return delta_of(self.composition, epsilon, accountant=accountant)

    def interval(self, *, delta: float) -> tuple[float, float]:
        """Return a lower and an upper bound on epsilon from opposite roundings of the grid."""
        return interval(self.composition, delta)

    def list_facts(self, *, delta: float) -> dict[str, Any]:
        """Return what the bound rests on besides proofs; empty for a plain scheme."""
        return {}

    def list_pictures(self) -> "tuple[Picture, ...]":
        """Return what the page draws of the scheme besides its cost; empty for a plain scheme."""
        return ()

    def calibrate_over(
        self, at: "Callable[[float], Scheme]", *, epsilon: float, delta: float, accountant: Accountant
    ) -> "Scheme":
        """Return `at` of the least noise with which it costs at most (epsilon, delta)."""
        return at(calibrate(lambda noise: at(noise).composition, epsilon=epsilon, delta=delta, accountant=accountant))

    def with_noise(self, noise_multiplier: float) -> "Scheme":
        """Return the same scheme with another noise; the noise of an unsplit part is scaled by the same factor."""
        factor = noise_multiplier / self.noise_multiplier
        scaled = tuple((ev.scale_noise(event, factor), times) for event, times in self.events)
        return Scheme(self.name, noise_multiplier, scaled)

    def calibrated(self, *, epsilon: float, delta: float, accountant: Accountant = Accountant.PLD) -> "Scheme":
        """Return the scheme with the least noise that costs at most (epsilon, delta).

        >>> from sightline.accounting import gaussian
        >>> round(gaussian(noise=1, steps=4).calibrated(epsilon=8.0, delta=1e-5).noise_multiplier, 2)
        1.2
        """
        return self.calibrate_over(self.with_noise, epsilon=epsilon, delta=delta, accountant=accountant)

    def _repr_html_(self) -> str:
        events = shown.html_table(
            f"{self.name}, noise multiplier {self.noise_multiplier:.6g}", ("event", "times"), self.events
        )
        costs = [(f"{delta:g}", shown.rounded_up(self.epsilon(delta=delta))) for delta in DELTAS]
        return events + shown.html_table("upper bounds", ("delta", "epsilon"), costs)


@dataclass(frozen=True)
class Picture:
    """Several lines over the same x values, for a page to draw."""

    name: str
    title: str
    x_label: str
    y_label: str
    x: tuple[float, ...]
    lines: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class CertifiedSchedule(Scheme):
    """A `balanced` scheme whose epsilon is certified by sampling; the chance that it is wrong is part of delta.

    The certificate holds for the schedule by itself. `composition` is the block bound's, for anything that composes
    further.
    """

    seed: int = 0
    beta: float = BETA

    def certificate(self, *, delta: float) -> SampledCertificate:
        """Return epsilon at delta with the evidence it rests on."""
        ((event, epochs),) = self.events
        steps, uses = (event.steps, event.uses) if isinstance(event, ev.Allocation) else (1, 1)
        numbers = (self.noise_multiplier, steps, uses, epochs)
        return cached_certificate(*numbers, delta, self.seed, self.beta)

    def epsilon(self, *, delta: float, accountant: Accountant = Accountant.PLD) -> float:
        """Return an upper bound on epsilon at delta. Raises for the RDP accountant, whose moments are not certified."""
        if Accountant(accountant) is Accountant.RDP:
            reason = "a certificate bounds the distribution of the privacy loss, not its moments"
            refuse("accountant", accountant, reason, "remove --accountant rdp or --certified")
        return self.certificate(delta=delta).epsilon

    def interval(self, *, delta: float) -> tuple[float, float]:
        """Return zero and the certified epsilon; the lower end of the block bound may lie above the truth."""
        return 0.0, self.epsilon(delta=delta)

    def list_facts(self, *, delta: float) -> dict[str, Any]:
        """Return whether draws were needed, the chance that they are wrong, their seed and their number."""
        certificate = self.certificate(delta=delta)
        return {name: getattr(certificate, name) for name in ("certified", "beta", "seed", "draws")}

    @override
    def with_noise(self, noise_multiplier: float) -> "CertifiedSchedule":
        return replace(self, noise_multiplier=noise_multiplier, events=super().with_noise(noise_multiplier).events)

    def calibrate_over(
        self, at: Callable[[float], Scheme], *, epsilon: float, delta: float, accountant: Accountant
    ) -> Scheme:
        """Return the scheme with the least certified noise of several attempts.

        Every attempt takes the block bound's noise for a larger epsilon and certifies it.
        """
        # Each attempt has its share of beta, so the best may be taken although it was chosen by its result.
        within, allowed, careful = [], epsilon, replace(self, beta=self.beta / TURNS)
        for _ in range(TURNS):
            plain = super().calibrate_over(at, epsilon=allowed, delta=delta, accountant=accountant)
            tried = careful.with_noise(plain.noise_multiplier)
            cost = tried.epsilon(delta=delta, accountant=accountant)
            within += [tried] if cost <= epsilon else []
            allowed *= 0.999 * epsilon / cost
        return min(within, key=lambda scheme: scheme.noise_multiplier)


# Attempts to certify less noise. More attempts would divide beta further.
TURNS = 4


@lru_cache(maxsize=256)
def cached_certificate(
    noise: float, steps: int, uses: int, epochs: int, delta: float, seed: int, beta: float
) -> SampledCertificate:
    """Return the certificate of these numbers, cached: it takes seconds and the same seed gives the same result."""
    return certify_balanced(noise=noise, steps=steps, uses=uses, epochs=epochs, delta=delta, seed=seed, beta=beta)


def check_count(name: str, value: int) -> int:
    """Return the value as an int. Raises unless it is a whole number from 1 to MOST_COUNTED."""
    if not (1 <= value <= ev.MOST_COUNTED and int(value) == value):
        invalid(name, value, f"must be a whole number from 1 to {ev.MOST_COUNTED:.0e}")
    return int(value)


# The numbers of a scheme by the names of its parameters.
Numbers = Mapping[str, Any]


@dataclass(frozen=True)
class Parameter:
    """A number of a scheme: a keyword of its function, an option of the commands, a field of the page.

    On the page it ranges from `low` to `high` and starts at `start`. A parameter without a range, choices or a switch
    is left out there and must not be required.
    """

    name: str
    help: str
    label: str = ""
    low: float | None = None
    high: float | None = None
    start: float | None = None
    whole: bool = False
    derive: Callable[[Numbers], float] | None = None
    """Compute the value from the other numbers if it is not given."""
    budget_share: float | None = None
    """Default value during calibration, as a share of the target epsilon."""
    counts: str = ""
    """The units it counts, if delta is promised to each of them: a large delta is noted."""
    choices: tuple[str, ...] = ()
    """The allowed words, if the value is a word."""
    flag: bool = False
    """Whether it is a switch, off by default."""

    def starting_at(self, start: float) -> "Parameter":
        """Return the same parameter with another start."""
        return replace(self, start=start)


@dataclass(frozen=True)
class Claim:
    """The conditions under which the epsilon of a scheme holds; commands and page state them in every answer."""

    observer: str
    """The observers it protects against."""
    adjacency: str
    """The change of the data it hides: a value of `Adjacency`."""
    noise_relative_to: str
    """The quantity that a noise multiplier of 1 equals."""

    def facts(self) -> dict[str, str]:
        """Return the three fields by name."""
        return vars(self).copy()


@dataclass(frozen=True)
class SchemeFamily:
    """A registered scheme: its function, its parameters and its texts."""

    name: str
    make: Callable[..., Scheme]
    parameters: tuple[Parameter, ...]
    """The keywords of `make` in order, which is also the order of the options; calibration solves for `noise`."""
    title: str
    help: str
    example: Numbers
    """Numbers that make sense together, in the order in which an example shows them."""
    claim: Claim | Callable[[Numbers], Claim]
    """The conditions of its epsilon, or a function of the numbers that returns them."""
    hint: str = ""
    calibrate_help: str = ""
    matched_poisson: Callable[[Numbers], tuple[float, int]] | None = None
    """Rate and steps of the Poisson sampling that uses each subject as often on average."""

    @property
    def defaults(self) -> dict[str, Any]:
        """Return the default values of the function's keywords."""
        keywords = inspect.signature(self.make).parameters.values()
        return {
            parameter.name: parameter.default
            for parameter in keywords
            if parameter.default is not inspect.Parameter.empty
        }

    @property
    def chosen_parameters(self) -> tuple[Parameter, ...]:
        """Return the parameters with choices and a default: the page offers them as menus."""
        return tuple(
            parameter for parameter in self.parameters if parameter.choices and parameter.name in self.defaults
        )

    @property
    def ranged_parameters(self) -> tuple[Parameter, ...]:
        """Return the parameters with a range: the page asks for them."""
        return tuple(parameter for parameter in self.parameters if parameter.start is not None)

    def is_required(self, parameter: Parameter, *, budget: bool = False) -> bool:
        """Return whether the number must be given; `budget` is true during calibration."""
        given = parameter.name in self.defaults or parameter.derive is not None
        return not given and not (budget and parameter.budget_share is not None)

    def complete_numbers(self, numbers: Numbers, *, epsilon: float | None = None) -> dict[str, Any]:
        """Return the numbers with defaults filled in for those absent or None; the noise may stay absent."""
        said = {name: value for name, value in numbers.items() if value is not None}
        complete = {**self.defaults, **said}
        for parameter in self.parameters:
            if parameter.name not in complete and parameter.derive is not None:
                complete[parameter.name] = parameter.derive(complete)
            elif parameter.name not in complete and parameter.budget_share is not None and epsilon is not None:
                complete[parameter.name] = parameter.budget_share * epsilon
        return complete

    def calibrated(
        self, numbers: Numbers, *, epsilon: float, delta: float, accountant: Accountant = Accountant.PLD
    ) -> Scheme:
        """Return the scheme with the least noise that costs at most (epsilon, delta), with all other numbers fixed.

        >>> numbers = {"parts": 2, "rate": 0.1, "steps": 10, "unsplit_noise": 2.0}
        >>> SCHEMES["split"].calibrated(numbers, epsilon=3.0, delta=1e-5).events[0][0].event.events[0]
        Gaussian(noise_multiplier=2.0)
        """
        complete = self.complete_numbers(numbers, epsilon=epsilon)

        def at(noise: float) -> Scheme:
            return self.make(**{**complete, "noise": noise})

        try:
            return at(1.0).calibrate_over(at, epsilon=epsilon, delta=delta, accountant=accountant)
        except InvalidInput:
            own = complete.get(UNSPLIT_NOISE.name)
            if own is None or at(MOST_NOISE).epsilon(delta=delta, accountant=accountant) <= epsilon:
                raise
        reason = f"the unsplit part alone costs more than epsilon={epsilon:g}, whatever the noise of the split part"
        invalid("--unsplit-noise", own, reason, "raise it, or the budget")

    def state_claim(self, numbers: Numbers) -> dict[str, str]:
        """Return observer, adjacency and what noise is relative to, for numbers complete except for the noise."""
        return (self.claim if isinstance(self.claim, Claim) else self.claim(numbers)).facts()

    def note_delta(self, numbers: Numbers, delta: float) -> str | None:
        """Return a note if delta is large for the number of units; else None."""
        notes = [
            large_delta_note(delta, numbers[parameter.name], parameter.counts)
            for parameter in self.parameters
            if parameter.counts
        ]
        return next((note for note in notes if note), None)


SCHEMES: dict[str, SchemeFamily] = {}
"""Every registered scheme by name, in the order of the page."""

# Names that the commands use for other things.
TAKEN_SCHEMES = ("h2fdp", "ledger")
# Names that the commands and the page use for every scheme.
TAKEN_PARAMETERS = (
    "accountant against as_json delta epsilon help interval json note noise_multiplier noise_relative_to observer part "
    "scheme solve target token"
).split()

Make = TypeVar("Make", bound=Callable[..., Scheme])


def register_scheme(
    *,
    title: str,
    help: str,
    parameters: tuple[Parameter, ...],
    example: Numbers,
    claim: Claim | Callable[[Numbers], Claim],
    hint: str = "",
    calibrate_help: str = "",
    matched_poisson: Callable[[Numbers], tuple[float, int]] | None = None,
) -> Callable[[Make], Make]:
    """Return a decorator that registers a function of `noise` and other numbers as a scheme.

    Its name in the commands is the function's, with hyphens. `help` is the line of the commands, `calibrate_help` that
    of `calibrate` if it differs; `title` and `hint` (or `help`) are the page's. `claim` states when the epsilon holds.
    """

    def register(make: Make) -> Make:
        name = make.__name__.replace("_", "-")
        family = SchemeFamily(
            name, make, parameters, title, help, example, claim, hint or help, calibrate_help or help, matched_poisson
        )
        check_family(family)
        SCHEMES[name] = family
        return make

    return register


def check_family(family: SchemeFamily) -> None:
    """Raise for a scheme that the commands and the page could not offer as it is declared."""
    if family.name in SCHEMES or family.name in TAKEN_SCHEMES:
        invalid("scheme", family.name, "this name is taken", "give the function another name")
    names = [parameter.name for parameter in family.parameters]
    if names != list(inspect.signature(family.make).parameters) or NOISE.name not in names:
        reason = "must be the keywords of the function in their order, with noise among them"
        invalid("parameters", " ".join(names), reason)
    for parameter in family.parameters:
        if parameter.name in TAKEN_PARAMETERS:
            invalid(
                "parameter",
                parameter.name,
                "the commands and the page use this name for every scheme",
                "give it another name",
            )
        if family.is_required(parameter) and (parameter.start is None or parameter.name not in family.example):
            reason = "a required number needs low, high and start for the page, and a value in the example"
            invalid("parameter", parameter.name, reason)
        if parameter.start is not None and not (0 < (parameter.low or 0) <= parameter.start <= (parameter.high or 0)):
            invalid("parameter", parameter.name, "needs 0 < low <= start <= high")
    # Calibration searches over `noise` and compares schemes by `noise_multiplier`, so the two must be the same number.
    if family.make(**family.complete_numbers(family.example)).noise_multiplier != family.example[NOISE.name]:
        invalid("scheme", family.name, "its noise multiplier must equal `noise`")
    adjacency = family.state_claim(family.complete_numbers(family.example))["adjacency"]
    if adjacency not in list(ev.Adjacency):
        invalid("claim.adjacency", adjacency, f"must be one of {', '.join(ev.Adjacency)}")


NOISE = Parameter("noise", "Noise multiplier z = sigma / sensitivity.", "Noise multiplier z", 0.2, 50, 1.0)
STEPS = Parameter("steps", "Number of noisy steps.", "Steps", 1, 1_000_000, 1000, whole=True)
RATE = Parameter("rate", "Probability of taking part in a step.", "Rate", 1e-6, 1, 0.1)
UNSPLIT_NOISE = Parameter("unsplit_noise", "Noise multiplier of the part that is not split.")

CLIP_NORM = "the clip norm"
UNSEEN_DRAWS = "anyone who does not see who takes part in which step; not a server that draws them"
HIDDEN = Claim(UNSEEN_DRAWS, "add_remove", CLIP_NORM)
OPEN = Claim("anyone, also who knows who took part", "add_remove", f"{CLIP_NORM} (adjacency replace: two clip norms)")
