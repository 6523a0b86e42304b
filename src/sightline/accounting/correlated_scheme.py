"""The scheme `correlated`: a stream of noise that cancels over rounds, for the commands and the calculator's page."""

import math
from dataclasses import dataclass, replace
from typing import Any

from sightline.accounting.schemes import (
    CLIP_NORM,
    NOISE,
    OPEN,
    STEPS,
    UNSEEN_DRAWS,
    Claim,
    Numbers,
    Parameter,
    Picture,
    Scheme,
    check_count,
    register_scheme,
)
from sightline.accounting.strategies import (
    STRATEGIES,
    Strategy,
    charge_stream,
    charge_turns,
    column_norm,
    compute_errors,
    compute_sensitivity,
    count_uses,
    error_rows,
    invert_strategy,
    make_strategy,
    measure_gain,
)
from sightline.errors import refuse
from sightline.events import Event, Gaussian

ROW_NOISE = replace(
    NOISE,
    help="Standard deviation sigma of the independent rows z, in clip norms; Z of the stream is sigma / sensitivity.",
    label="Noise sigma, in clip norms",
    start=2.5,
)
SEPARATION = Parameter("separation", "Rounds between uses of a subject, B.", "Rounds apart", 2, 1000, 10, whole=True)
TURNS_TAKEN = Parameter(
    "uses",
    "Uses of a subject at most, K (default: all its turns).",
    "Uses of a subject",
    1,
    10_000,
    10,
    whole=True,
    derive=lambda n: -(-n["steps"] // n["separation"]),
)
STRATEGY = Parameter("strategy", "Cut square root, optimised bands, or two buffers.", "Strategy", choices=STRATEGIES)
BANDS = Parameter("bands", "Coefficients of bsr or band (default: the separation).", whole=True)
TURN_RATE = Parameter(
    "rate", "Probability of being drawn in a turn, hidden; 1: turns are public.", "Rate in a turn", 1e-6, 1, 1
)


@dataclass(frozen=True)
class CorrelatedStream(Scheme):
    """Noise correlated over the steps; `noise_multiplier` is the standard deviation of the rows of z in clip norms."""

    strategy: Strategy
    separation: int
    uses: int
    rate: float

    def with_noise(self, noise_multiplier: float) -> "CorrelatedStream":
        """Return the same stream with another noise."""
        turns = {"separation": self.separation, "uses": self.uses}
        events = stream_events(self.strategy, noise=noise_multiplier, rate=self.rate, **turns)
        return replace(self, noise_multiplier=noise_multiplier, events=events)

    def list_facts(self, *, delta: float) -> dict[str, Any]:
        """Return the sensitivity, errors of prefix sums for rows of variance 1, and the gain over independent noise."""
        ((event, _),) = self.events
        mean, largest = compute_errors(self.strategy)
        known: dict[str, Any] = {"noise_std": self.noise_multiplier}
        if isinstance(event, Gaussian):
            moved = compute_sensitivity(self.strategy, separation=self.separation, uses=self.uses)
            known |= {"sensitivity": moved, "stream_multiplier": event.noise_multiplier}
        else:
            known |= {"sensitivity_of_a_turn": column_norm(self.strategy), "turns": self.uses}
        known |= {"mean_squared_error": mean, "max_squared_error": largest, "gain": self.measure_gain()}
        return known | {"strategy": self.strategy.name} | self.list_coefficients()

    def measure_gain(self) -> float:
        """Return the root mean squared error of independent noise at equal epsilon, over that of the stream."""
        return measure_gain(self.strategy, separation=self.separation, uses=self.uses, hidden=self.rate < 1)

    def list_pictures(self) -> tuple[Picture, ...]:
        """Return the strategy, and the error of the running sums beside that of independent noise at equal epsilon."""
        taken = self.strategy.coefficients
        given = invert_strategy(self.strategy)[: len(taken)]
        drawn = {"strategy C": taken, "noise C^-1 of one row": tuple(map(float, given))}
        lags = tuple(float(lag) for lag in range(len(taken)))
        rows = error_rows(self.strategy)
        alone = self.measure_gain() * math.sqrt(2 * float(rows.mean()) / (len(rows) + 1))
        times = tuple(float(time) for time in range(1, len(rows) + 1))
        errors = {
            "correlated": tuple(self.noise_multiplier * math.sqrt(row) for row in rows),
            "independent": tuple(self.noise_multiplier * alone * math.sqrt(time) for time in times),
        }
        return (
            Picture("strategy", "Strategy, by rounds that have passed", "rounds later", "coefficient", lags, drawn),
            Picture("error", "Noise in the sum of all rounds so far, at equal epsilon", "round", "rms", times, errors),
        )

    def list_coefficients(self) -> dict[str, Any]:
        """Return the bands, or the buffers in their place."""
        if self.strategy.bands is not None:
            return {"bands": self.strategy.bands}
        return {"weights": list(self.strategy.weights), "decays": list(self.strategy.decays)}


def stream_events(
    strategy: Strategy, *, noise: float, separation: int, uses: int, rate: float
) -> tuple[tuple[Event, int], ...]:
    """Return one Gaussian for the whole stream; with hidden draws inside groups, one sampled release per turn."""
    if rate == 1:
        return ((charge_stream(strategy, noise=noise, separation=separation, uses=uses), 1),)
    event, turns = charge_turns(strategy, noise=noise, groups=separation, rate=rate)
    # A hidden draw cannot promise fewer uses: participation is not known, so every turn is charged.
    if uses < turns:
        reason = f"hidden draws may take a subject in every one of the {turns} turns of its group"
        refuse("uses", uses, reason, f"give {turns}: all turns are charged")
    return ((event, turns),)


def claim_stream(numbers: Numbers) -> Claim:
    """Return the claim of a stream: turns are public, draws inside a turn are hidden."""
    relative_to = f"{CLIP_NORM}, for one row of z before rows are correlated"
    return Claim(OPEN.observer if numbers["rate"] == 1 else UNSEEN_DRAWS, "add_remove", relative_to)


@register_scheme(
    title="Correlated: noise that cancels over rounds",
    help="Noise is correlated over the steps; each subject is used at most K times, at least B steps apart.",
    hint="Each step's noise takes back part of the noise before; everybody takes turns, which are public.",
    parameters=(ROW_NOISE, replace(STEPS, high=10_000, start=100), SEPARATION, TURNS_TAKEN, STRATEGY, BANDS, TURN_RATE),
    example={"noise": 2.5, "steps": 100, "separation": 10, "uses": 10},
    claim=claim_stream,
)
def correlated(
    *,
    noise: float,
    steps: int,
    separation: int,
    uses: int,
    strategy: str = "bsr",
    bands: int | None = None,
    rate: float = 1.0,
) -> Scheme:
    """Return one stream of `steps` sums with noise C^-1 z; `noise` is the deviation of the rows of z, in clip norms.

    With a `rate` below 1 there are `separation` public groups that take turns, and each member of the active one is
    drawn with this probability, hidden; all turns of a group are charged, and fewer `uses` are refused.

    >>> round(correlated(noise=2.5, steps=100, separation=10, uses=10).epsilon(delta=1e-5), 4)
    8.1567
    >>> round(correlated(noise=2.5, steps=100, separation=10, uses=10, rate=0.5).epsilon(delta=1e-5), 2)
    4.33
    """
    steps, turns = check_count("steps", steps), check_count("uses", uses)
    chosen = make_strategy(strategy, steps=steps, separation=separation, uses=turns, bands=bands)
    turns = count_uses(steps, separation, turns)
    events = stream_events(chosen, noise=noise, separation=separation, uses=turns, rate=rate)
    return CorrelatedStream("correlated", noise, events, chosen, separation, turns, rate)
