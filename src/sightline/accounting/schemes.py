"""The named schemes: what a training run does to a subject, as one frozen value with its privacy cost.

Each scheme is declared once, here: a function of its numbers, registered with the texts of the commands and of the
calculator's page. `sightline account`, `sightline calibrate` and the page are generated from `SCHEMES`.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeVar

from sightline import events as ev
from sightline import formatting as shown
from sightline.accounting.accountant import Accountant, interval, large_delta_note
from sightline.accounting.accountant import delta as delta_of
from sightline.accounting.accountant import epsilon as epsilon_of
from sightline.accounting.calibration import MOST_NOISE, calibrate
from sightline.accounting.certified import BETA, Certificate, certify_balanced
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

    def certificate(self, *, delta: float) -> Certificate:
        """Return epsilon at delta with the evidence it rests on."""
        ((event, epochs),) = self.events
        steps, uses = (event.steps, event.uses) if isinstance(event, ev.Allocation) else (1, 1)
        numbers = (self.noise_multiplier, steps, uses, epochs)
        return cached_certificate(*numbers, delta, self.seed, self.beta)

    def epsilon(self, *, delta: float, accountant: Accountant = Accountant.PLD) -> float:
        """Return an upper bound on epsilon at delta. Raises for the RDP accountant, whose moments are not certified."""
        if Accountant(accountant) is Accountant.RDP:
            reason = "a certificate samples the law of the ratio, not its moments"
            refuse("accountant", accountant, reason, "leave out --accountant rdp or --certified")
        return self.certificate(delta=delta).epsilon

    def interval(self, *, delta: float) -> tuple[float, float]:
        """Return zero and the certified epsilon; the lower end of the block bound may lie above the truth."""
        return 0.0, self.epsilon(delta=delta)

    def list_facts(self, *, delta: float) -> dict[str, Any]:
        """Return whether draws were needed, the chance that they are wrong, their seed and their number."""
        certificate = self.certificate(delta=delta)
        return {name: getattr(certificate, name) for name in ("certified", "beta", "seed", "draws")}

    def with_noise(self, noise_multiplier: float) -> "CertifiedSchedule":
        """Return the same schedule with another noise."""
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
) -> Certificate:
    """Return the certificate of these numbers, cached: it takes seconds and the same seed gives the same result."""
    return certify_balanced(noise=noise, steps=steps, uses=uses, epochs=epochs, delta=delta, seed=seed, beta=beta)


def check_count(name: str, value: int) -> int:
    """Return the value as an int. Raises unless it is a whole number from 1 to MOST_COUNTED."""
    if not (1 <= value <= ev.MOST_COUNTED and int(value) == value):
        invalid(name, value, f"a whole number from 1 to {ev.MOST_COUNTED:.0e}")
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
        reason = "the parameters are the keywords of the function in their order, and noise is among them"
        invalid("parameters", " ".join(names), reason)
    for parameter in family.parameters:
        if parameter.name in TAKEN_PARAMETERS:
            invalid("parameter", parameter.name, "commands and page ask this of every scheme", "give it another name")
        if family.is_required(parameter) and (parameter.start is None or parameter.name not in family.example):
            reason = "a required number has low, high and start for the page, and a value in the example"
            invalid("parameter", parameter.name, reason)
        if parameter.start is not None and not (0 < (parameter.low or 0) <= parameter.start <= (parameter.high or 0)):
            invalid("parameter", parameter.name, "0 < low <= start <= high")
    # Calibration searches over `noise` and compares schemes by `noise_multiplier`, so the two must be the same number.
    if family.make(**family.complete_numbers(family.example)).noise_multiplier != family.example[NOISE.name]:
        invalid("scheme", family.name, "its noise multiplier is `noise`")
    adjacency = family.state_claim(family.complete_numbers(family.example))["adjacency"]
    if adjacency not in list(ev.Adjacency):
        invalid("claim.adjacency", adjacency, f"is one of {', '.join(ev.Adjacency)}")


NOISE = Parameter("noise", "Noise multiplier z = sigma / sensitivity.", "Noise multiplier z", 0.2, 50, 1.0)
STEPS = Parameter("steps", "Number of noisy steps.", "Steps", 1, 1_000_000, 1000, whole=True)
RATE = Parameter("rate", "Probability of taking part in a step.", "Rate", 1e-6, 1, 0.1)
USES = Parameter("uses", "Steps that use each subject, of all steps.", "Uses of each subject", 1, 1e5, 100, whole=True)
EPOCHS = Parameter("epochs", "Repetitions of the schedule.", "Epochs", 1, 1000, 1, whole=True)
PARTS = Parameter("parts", "Disjoint parts of the model.", "Parts of the model", 1, 1000, 4, whole=True)
UNSPLIT_NOISE = Parameter("unsplit_noise", "Noise multiplier of the part that is not split.")
UNSPLIT_FIXED = "--unsplit-noise is fixed, the split part's noise is found."
CHANCE = Parameter("chance", "Probability of checking in at all.", "Chance of checking in", 1e-6, 1, 0.5)
SAMPLES = Parameter("samples", "Examples of the client.", "Examples", 1, 5e4, 8000, whole=True, counts="examples")
BATCH_SIZE = Parameter("batch_size", "Batch size of the later rounds.", "Batch size", 8, 1e4, 32, whole=True)
ROUNDS = Parameter("rounds", "Rounds; the first is a full batch.", "Rounds", 1, 1000, 200, whole=True)
ADJACENCY = Parameter(
    "adjacency", "Which change is hidden.", "Adjacency", choices=tuple(one.value for one in ev.Adjacency)
)
CERTIFIED = Parameter("certified", "Sample the true law: less epsilon, in seconds, with a confidence.", flag=True)
SEED = Parameter("seed", "Seed of the draws of a certificate (default: 0); only with --certified.", whole=True)
CLIP_NOISE = replace(NOISE, help="Noise multiplier z = sigma / clip norm.")
COHORT = Parameter("cohort", "Clients in a cohort.", "Cohort", 1, 1e6, 10, whole=True)
CLIENTS = Parameter("clients", "All clients.", "Clients", 2, 1e9, 100, whole=True, counts="clients")
EVERYONE = Parameter("everyone", "All clients send noise, also who is not drawn: the draws are hidden.", flag=True)
TENTH = "Private choices (default: a tenth of the rounds)."
SELECTIONS = Parameter("selections", TENTH, whole=True, derive=lambda n: n["rounds"] // 10)
CHOICE = Parameter(
    "selection_epsilon", "What one choice costs.", "Epsilon of a choice", 1e-3, 10, 0.1, budget_share=0.03
)
SEGMENT_NOISE = replace(NOISE, help="Noise over 2 eta m G, the largest effect of m steps in the ball G.")
SEGMENT_STEPS = Parameter("steps", "Hidden steps of a segment, m.", "Steps of a segment", 1, 10_000, 5, whole=True)
SEGMENTS = Parameter("segments", "Segments, each released once.", "Segments", 1, 1_000_000, 50, whole=True)
FIRST_STEP = Parameter(
    "first_step", "Effect of the first step with the subject, over the 2 eta G of the others.", "First step", 1e-6, 1, 1
)
CONVEX_NOISE = replace(NOISE, help="Noise over D, what one draw of the subject moves the end by.")
DRAWN_ONCE = replace(CHANCE, help="Probability of being drawn in a segment at all.", label="Chance in a segment")

CLIP_NORM = "the clip norm"
UNSEEN_DRAWS = "anyone who does not see who takes part in which step; not a server that draws them"
HIDDEN = Claim(UNSEEN_DRAWS, "add_remove", CLIP_NORM)
OPEN = Claim("anyone, also who knows who took part", "add_remove", f"{CLIP_NORM} (adjacency replace: two clip norms)")
ENDS = "anyone who sees the released ends and neither draws nor steps"


def claim_split(numbers: Numbers) -> Claim:
    """Return the claim of a split model, which states whether unsplit tensors are counted."""
    own = numbers.get("unsplit_noise")
    rest = "no tensor is left unsplit (a run charges those that are: give --unsplit-noise)"
    if own is not None:
        rest = f"the unsplit tensors' own noise is {own:g} of their clip norm"
        if "noise" in numbers:
            rest += f", which is algorithm.split.unsplit_noise = {own / numbers['noise']:.4g} in a run"
    return Claim(f"{UNSEEN_DRAWS}, nor who trains which part", "add_remove", f"{CLIP_NORM} of a part; {rest}")


def claim_fixed(numbers: Numbers) -> Claim:
    """Return the claim of a cohort of a fixed size."""
    # The observer is another client: one that was not drawn knows it, so the population is n - 1.
    replaced = numbers["adjacency"] == ev.Adjacency.REPLACE
    doubled = f"{CLIP_NORM}; in a run with adjacency replace, z is relative to two clip norms: half of this number"
    observer = "any one other client, who knows whether it was drawn, and anyone outside; not a server that draws them"
    return Claim(observer, numbers["adjacency"], doubled if replaced else CLIP_NORM)


def claim_pooled(numbers: Numbers) -> Claim:
    """Return the claim of client noises that add up: it excludes the gathering server, which sees every message."""
    draws = "neither messages nor draws" if numbers["everyone"] else "no single message"
    other = f"any one other client, who knows its own noise and sees {draws}, and anyone outside"
    server = "not the server that gathers: against it use sightline account gaussian"
    return Claim(f"{other}; {server}", "add_remove", f"{CLIP_NORM}, for the noise of one client")


def claim_segment(numbers: Numbers) -> Claim:
    """Return the claim of segments of steps in a ball."""
    return Claim(ENDS, numbers["adjacency"], "2 eta m G, the most that all m steps of a segment move its end")


DRAW_OF_CONVEX = "D, the most that one draw of the subject moves the end of a segment"


@register_scheme(
    title="Poisson: each with a probability",
    help="Each step uses each subject with a probability, independently.",
    hint="Each step uses each subject with the same probability, independently.",
    parameters=(NOISE, RATE.starting_at(0.01), STEPS),
    example={"noise": 1, "rate": 0.01, "steps": 10_000},
    claim=HIDDEN,
)
def poisson(*, noise: float, rate: float, steps: int) -> Scheme:
    """Return the scheme in which each step uses each subject with probability `rate`, independently."""
    return Scheme("poisson", noise, ((ev.Poisson(rate, ev.Gaussian(noise)), check_count("steps", steps)),))


@register_scheme(
    title="Balanced: exactly k of T steps",
    help="Each subject is used in exactly K of T steps.",
    hint="Each subject is used in exactly k of the steps, a hidden choice.",
    parameters=(NOISE, STEPS, USES, EPOCHS, CERTIFIED, SEED),
    example={"noise": 2, "steps": 1000, "uses": 100},
    claim=HIDDEN,
    matched_poisson=lambda n: (n["uses"] / n["steps"], n["steps"] * n["epochs"]),
)
def balanced(
    *, noise: float, steps: int, uses: int, epochs: int = 1, certified: bool = False, seed: int | None = None
) -> Scheme:
    """Return the scheme that uses each subject in exactly `uses` of `steps` steps, in each of `epochs` epochs.

    The subset is uniformly random and drawn again in every epoch. `certified` samples the true ratio (seconds): less
    epsilon, with a chance of being wrong that is counted in delta. `seed` (default 0) seeds those draws; raises if it
    is given without `certified`.

    >>> round(balanced(noise=2.0, steps=1000, uses=100).epsilon(delta=1e-5), 2)
    8.06
    """
    events = ((ev.Allocation(check_count("steps", steps), uses, ev.Gaussian(noise)), check_count("epochs", epochs)),)
    if seed is not None and not certified:
        invalid("seed", seed, "nothing is drawn without a certificate", "give --certified too, or leave it out")
    return CertifiedSchedule("balanced", noise, events, seed or 0) if certified else Scheme("balanced", noise, events)


@register_scheme(
    title="Split model: one of d parts",
    help="Each subject trains one of D parts of the model.",
    calibrate_help="Each subject trains one of D parts of the model; " + UNSPLIT_FIXED,
    hint="Each subject that takes part trains one of the parts of the model, a hidden choice.",
    parameters=(NOISE, PARTS, RATE, STEPS, UNSPLIT_NOISE),
    example={"noise": 1, "parts": 8, "rate": 0.1, "steps": 1000},
    claim=claim_split,
    matched_poisson=lambda n: (n["rate"], n["steps"]),
)
def split(*, noise: float, parts: int, rate: float, steps: int, unsplit_noise: float | None = None) -> Scheme:
    """Return the scheme in which each subject trains one of `parts` disjoint parts of the model.

    With `unsplit_noise` there is also a common part that every participant trains.
    """
    # One Poisson draw decides on both parts, so their product is sampled, not each part by itself.
    inner: Event = ev.Split(parts, ev.Gaussian(noise))
    if unsplit_noise is not None:
        inner = ev.Product((ev.Gaussian(unsplit_noise), inner))
    return Scheme("split", noise, ((ev.Poisson(rate, inner), check_count("steps", steps)),))


@register_scheme(
    title="Dropout, one mask per subject",
    help="Dropout with probability one half, one mask per subject and release.",
    calibrate_help="Dropout with probability one half; " + UNSPLIT_FIXED,
    hint="Each subject that takes part trains half of the model, a hidden choice.",
    parameters=(NOISE, RATE, STEPS, UNSPLIT_NOISE),
    example={"noise": 1, "rate": 0.1, "steps": 1000},
    claim=claim_split,
    matched_poisson=lambda n: (n["rate"], n["steps"]),
)
def dropout(*, noise: float, rate: float, steps: int, unsplit_noise: float | None = None) -> Scheme:
    """Return dropout with probability one half, one mask per subject and release: a split into two parts."""
    scheme = split(noise=noise, parts=2, rate=rate, steps=steps, unsplit_noise=unsplit_noise)
    return Scheme("dropout", scheme.noise_multiplier, scheme.events)


@register_scheme(
    title="Random check-ins",
    help="Each subject opts in with a probability, then takes part once, at a random step.",
    hint="Each subject opts in with a probability and then takes part once, at a hidden step.",
    parameters=(NOISE, STEPS, CHANCE),
    example={"noise": 1, "steps": 1000, "chance": 0.5},
    claim=HIDDEN,
    matched_poisson=lambda n: (n["chance"] / n["steps"], n["steps"]),
)
def check_ins(*, noise: float, steps: int, chance: float) -> Scheme:
    """Return random check-ins: each subject opts in with probability `chance` and takes part once, at a random step."""
    event = ev.Poisson(chance, ev.Allocation(check_count("steps", steps), 1, ev.Gaussian(noise)))
    return Scheme("check_ins", noise, ((event, 1),))


@register_scheme(
    title="No sampling",
    help="Every step uses every subject.",
    parameters=(NOISE, STEPS),
    example={"noise": 4, "steps": 100},
    claim=OPEN,
)
def gaussian(*, noise: float, steps: int) -> Scheme:
    """Return the scheme in which every step uses every subject: local releases, full participation."""
    return Scheme("gaussian", noise, ((ev.Gaussian(noise), check_count("steps", steps)),))


@register_scheme(
    title="Fixed: exactly m of n clients",
    help="Each step uses a hidden cohort of exactly M of N clients.",
    hint="Each step uses a hidden cohort of a fixed size, drawn without replacement.",
    parameters=(CLIP_NOISE, COHORT, CLIENTS, STEPS.starting_at(100), ADJACENCY),
    example={"noise": 1, "cohort": 10, "clients": 100, "steps": 100},
    claim=claim_fixed,
)
def fixed(*, noise: float, cohort: int, clients: int, steps: int, adjacency: str = "add_remove") -> Scheme:
    """Return the scheme in which each step uses a hidden cohort of exactly `cohort` of `clients` clients.

    `noise` is relative to the clip norm. Under `replace` a client moves the sum by two clip norms, so the noise is half
    as large relative to the sensitivity. Raises for a cohort larger than the population.

    >>> round(fixed(noise=1.0, cohort=10, clients=100, steps=100).epsilon(delta=1e-5), 3)
    18.171
    """
    if not 1 <= check_count("cohort", cohort) <= check_count("clients", clients):
        invalid("cohort", cohort, f"a cohort has 1 to clients={clients} members")
    replaced = ev.Adjacency(adjacency) is ev.Adjacency.REPLACE
    kind, inner = (ev.WithoutReplacement, ev.Gaussian(noise / 2)) if replaced else (ev.FixedCohort, ev.Gaussian(noise))
    # A client that was not drawn knows that the cohort came from the others. As in a run, the population is clients -
    # 1, and a cohort of all of them hides nothing.
    hidden = cohort < clients - 1
    event: Event = kind(cohort, clients - 1, inner) if hidden else inner
    return Scheme("fixed", noise, ((event, check_count("steps", steps)),))


@register_scheme(
    title="Pooled: noise at every client",
    help="Each client that sends adds noise, and only the sum is seen; who sends is drawn openly, with a probability.",
    hint="Each client that sends adds noise of its own; against another client, who sees only the sum.",
    parameters=(CLIP_NOISE, CLIENTS, RATE, STEPS.starting_at(50), EVERYONE),
    example={"noise": 1, "clients": 100, "rate": 0.1, "steps": 50},
    claim=claim_pooled,
)
def pooled(*, noise: float, clients: int, rate: float, steps: int, everyone: bool = False) -> Scheme:
    """Return the scheme of client noises that add up, against another client.

    The noises are those of the drawn clients, with open draws, or of all clients with hidden draws (`everyone`). Raises
    for fewer than two clients.

    >>> round(pooled(noise=1.0, clients=100, rate=0.1, steps=1).epsilon(delta=1e-5), 3)
    1.183
    >>> round(pooled(noise=1.0, clients=100, rate=0.1, steps=50, everyone=True).epsilon(delta=1e-5), 3)
    0.241
    """
    if check_count("clients", clients) < 2:
        invalid("clients", clients, "the observer is one of them, and the subject another", "give at least 2")
    # The observing client knows its own noise, so it does not count.
    if everyone:
        event: Event = ev.Poisson(rate, ev.Pooled(clients - 1, ev.Gaussian(noise)))
    else:
        # Without the observer and the subject there are clients - 2 others whose noises may count.
        event = ev.PooledDraws(rate, clients - 2, ev.Gaussian(noise))
    return Scheme("pooled", noise, ((event, check_count("steps", steps)),))


@register_scheme(
    title="Clustered: a full batch, then small ones",
    help="One full-batch round, small batches in the others, and private choices of a cluster.",
    calibrate_help="One full-batch round, small batches in the others, and private choices of a cluster: "
    "one noise for all.",
    parameters=(NOISE, SAMPLES, BATCH_SIZE, ROUNDS, SELECTIONS, CHOICE),
    example={"noise": 2, "samples": 8000, "batch_size": 32, "rounds": 200, "selection_epsilon": 0.1},
    claim=Claim("anyone; clients draw their batches in secret and add the noise themselves", "add_remove", CLIP_NORM),
)
def clustered(
    *, noise: float, samples: int, batch_size: int, rounds: int, selections: int, selection_epsilon: float
) -> Scheme:
    """Return the releases about an example of a clustered client: a full-batch step, Poisson batches, private choices.

    >>> scheme = clustered(noise=2.0, samples=1000, batch_size=50, rounds=10, selections=1, selection_epsilon=0.1)
    >>> [times for _, times in scheme.events]
    [1, 180, 1]
    """
    batch, rounds = (
        min(check_count("batch_size", batch_size), check_count("samples", samples)),
        check_count("rounds", rounds),
    )
    events: list[tuple[Event, int]] = [(ev.Gaussian(noise), 1)]
    if rounds > 1:
        events.append((ev.Poisson(batch / samples, ev.Gaussian(noise)), (rounds - 1) * -(-samples // batch)))
    if selections:
        events.append((ev.Exponential(selection_epsilon), check_count("selections", selections)))
    return Scheme("clustered", noise, tuple(events))


@register_scheme(
    title="Segments: hidden steps, one release",
    help="Segments of hidden steps in a ball, with Poisson batches; only the end of each is released.",
    hint="Each segment makes hidden steps with Poisson batches, every step scaled onto a ball; its end is released.",
    parameters=(SEGMENT_NOISE, SEGMENT_STEPS, RATE.starting_at(0.05), SEGMENTS, FIRST_STEP, ADJACENCY),
    example={"noise": 1, "steps": 5, "rate": 0.05, "segments": 50},
    claim=claim_segment,
)
def segment(
    *, noise: float, steps: int, rate: float, segments: int, first_step: float = 1.0, adjacency: str = "add_remove"
) -> Scheme:
    """Return `segments` segments of `steps` hidden steps; `noise` is std / (2 eta m G), `first_step` is d1 / 2G.

    >>> scheme = segment(noise=1.0, steps=5, rate=0.05, segments=50)
    >>> round(scheme.epsilon(delta=1e-5), 2)
    5.99
    >>> round(poisson(noise=1.0, rate=1 - 0.95**5, steps=50).epsilon(delta=1e-5), 2)
    11.45
    """
    kind = ev.ReplacedSegment if ev.Adjacency(adjacency) is ev.Adjacency.REPLACE else ev.Segment
    event = kind(check_count("steps", steps), rate, first_step, ev.Gaussian(noise))
    return Scheme("segment", noise, ((event, check_count("segments", segments)),))


@register_scheme(
    title="Convex segments: hidden steps, no clipping",
    help="Segments of hidden steps of a convex, smooth objective with Poisson batches; only the end is released. "
    "For one draw a segment use convex-once.",
    hint="Each segment makes hidden steps of a convex, smooth objective (softmax regression); its end is released.",
    parameters=(CONVEX_NOISE, SEGMENT_STEPS.starting_at(10), RATE, SEGMENTS.starting_at(20)),
    example={"noise": 2, "steps": 10, "rate": 0.1, "segments": 20},
    claim=Claim(ENDS, "add_remove", DRAW_OF_CONVEX),
)
def convex(*, noise: float, steps: int, rate: float, segments: int) -> Scheme:
    """Return `segments` convex segments of `steps` steps, each with its own draw at `rate`; `noise` is std / D.

    >>> round(convex(noise=2.0, steps=10, rate=0.1, segments=1).epsilon(delta=1e-5), 2)
    4.99
    """
    draws = check_count("steps", steps)
    event = ev.ConvexSegment(draws, rate, ev.Gaussian(noise))
    return Scheme("convex", noise, ((event, check_count("segments", segments)),))


@register_scheme(
    title="Convex segments: one draw in each",
    help="Convex segments in each of which a subject is drawn with a probability, and then used in one step.",
    hint="Each segment uses each subject with a probability, in one of its steps; its end is released.",
    parameters=(CONVEX_NOISE, DRAWN_ONCE, SEGMENTS.starting_at(20)),
    example={"noise": 2, "chance": 0.5, "segments": 20},
    claim=Claim(ENDS, "add_remove", DRAW_OF_CONVEX),
)
def convex_once(*, noise: float, chance: float, segments: int) -> Scheme:
    """Return `segments` convex segments with one draw per subject: with `chance` it is used in one step of the segment.

    >>> round(convex_once(noise=1.0, chance=0.2, segments=1).epsilon(delta=1e-5), 3)
    2.447
    """
    # One draw per segment costs less than a binomial number of draws: the draw decides once whether the end moves by D.
    return Scheme("convex_once", noise, ((ev.Poisson(chance, ev.Gaussian(noise)), check_count("segments", segments)),))
