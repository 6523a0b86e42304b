"""The built-in schemes, from Poisson sampling to noise that is correlated over rounds."""

import math
from dataclasses import dataclass, replace
from typing import Any

from typing_extensions import override

from sightline import events as ev
from sightline.accounting.schemes import (
    CLIP_NORM,
    HIDDEN,
    NOISE,
    OPEN,
    RATE,
    STEPS,
    UNSEEN_DRAWS,
    UNSPLIT_NOISE,
    CertifiedSchedule,
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
from sightline.errors import invalid, refuse
from sightline.events import Event, Gaussian

USES = Parameter("uses", "Steps that use each subject, of all steps.", "Uses of each subject", 1, 1e5, 100, whole=True)
EPOCHS = Parameter("epochs", "Repetitions of the schedule.", "Epochs", 1, 1000, 1, whole=True)
PARTS = Parameter("parts", "Disjoint parts of the model.", "Parts of the model", 1, 1000, 4, whole=True)
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
        invalid("seed", seed, "only applies with --certified", "give --certified too, or remove it")
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
        invalid("cohort", cohort, f"a cohort must have 1 to clients={clients} members")
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
        invalid("clients", clients, "the observer and the subject are two different clients", "give at least 2")
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

    @override
    def with_noise(self, noise_multiplier: float) -> "CorrelatedStream":
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
        reason = f"with hidden draws a subject may take part in all {turns} turns of its group"
        refuse("uses", uses, reason, f"give {turns}: every turn is charged")
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
