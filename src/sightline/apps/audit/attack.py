"""What an observer of a run sees of the canaries, and the lower bounds on epsilon that attacks on it prove."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor
from typing_extensions import override

from sightline.apps.audit.canaries import round_sign
from sightline.engine.build import BuiltExperiment
from sightline.engine.execution import Compute, LiveExecution
from sightline.engine.round import TrainingRound
from sightline.ledger import Ledger, Parties, Release
from sightline.mechanisms import (
    COUNTED,
    ModelChoice,
    NoisedBy,
    Public,
    ReleaseContext,
    ReleaseValues,
    Schedules,
    Updates,
    active_places,
    trim_sources,
)
from sightline.mechanisms.correlated_noise import build_stream
from sightline.mechanisms.updates import ClientOutput
from sightline.randomness import EVERYONE, Streams
from sightline.topology import Channel, client_name

Matrix = NDArray[np.float64]
Seen = tuple[int, str]
"""(round, publisher)."""


def take_turns(built: BuiltExperiment) -> bool:
    """Return whether clients take turns, so that each is in publicly known rounds only."""
    return any(active_places(sampler, 1) is not None for sampler in built.samplers.values())


def gram_matrix(built: BuiltExperiment, rounds: int) -> Matrix:
    """Return C^T C over `rounds` rounds; consecutive noise streams are independent of each other."""
    if built.experiment.privacy.noise != "correlated":
        return np.eye(rounds)
    cohorts, workload = (
        built.algorithm.facts.cohorts(built.experiment),
        partial(built.algorithm.facts.workload, built.settings),
    )
    strategy = build_stream(built.experiment, cohorts, workload).strategy
    column = np.zeros(max(rounds, strategy.steps))
    column[: len(strategy.coefficients)] = strategy.coefficients
    gram = np.zeros((rounds, rounds))
    for first in range(0, rounds, strategy.steps):
        size = min(strategy.steps, rounds - first)
        lags = np.subtract.outer(np.arange(size), np.arange(size))
        matrix = np.where(lags >= 0, column[np.abs(lags)], 0.0)
        gram[first : first + size, first : first + size] = matrix.T @ matrix
    return gram


def turn_weights(built: BuiltExperiment, client: int, seen: Sequence[Seen]) -> Matrix:
    """Return (turns, values): one row per turn of the client, with the weight of every value in it."""
    rows = []
    for publisher in dict.fromkeys(source for _, source in seen):
        channel = gathering_channel(built, client, publisher)
        if channel is None:
            continue
        places = [index for index, (_, source) in enumerate(seen) if source == publisher]
        places.sort(key=lambda index: seen[index][0])
        gram, member = gram_matrix(built, len(places)), channel.members.index(client)
        for step, index in enumerate(places):
            active = active_places(built.sampler_of(channel), seen[index][0])
            if active is None or member in active:
                row = np.zeros(len(seen))
                row[places] = gram[step]
                rows.append(row)
    return np.array(rows).reshape(len(rows), len(seen))


def gathering_channel(built: BuiltExperiment, client: int, publisher: str) -> Channel | None:
    """Return the channel through which a client enters what `publisher` publishes, or None."""
    topology = built.topology
    if publisher == topology.top.name:
        return next((channel for channel in topology.gathering_channels if client in channel.members), None)
    own = (channel for channel in (*topology.channels, *topology.gathering_channels) if channel.name == publisher)
    return next((channel for channel in own if client in channel.members), None)


Key = tuple[int, int, int, str]
"""Round, number of the training call, part of it, publisher."""

SHOWN = 1 << 20
"""Number that stands for the training call of shown values: after all calls of the round."""

Reading = Callable[[str, Tensor, int], Tensor | None]
"""(publisher, value, round) -> the numbers that the attack reads; None for values that it ignores."""


@dataclass(eq=False)
class Observer:
    """The values that one observer sees in one run."""

    observer: str
    read: Reading
    turning: bool = True
    """Whether canaries change sign every round."""
    seen: dict[Key, Tensor] = field(default_factory=dict)
    _open: dict[str, bool] = field(default_factory=dict)
    _known: tuple[int, int] = (0, 0)

    def note(self, ledger: Ledger, context: ReleaseContext, part: int, source: str, value: Tensor) -> None:
        """Record a value if the observer is in the audience of the release by which its source sent it."""
        reading = self.read(source, value, context.time)
        if reading is not None and self._sees(ledger, context.next_id, source):
            turned = round_sign(context.time) if self.turning else 1.0
            # The sign of the round is taken out again: over all rounds a canary adds up, and reused noise cancels.
            self.seen[context.time, context.use, part, source] = turned * reading

    def note_shown(self, time: int, number: int, source: str, audience: Parties, value: Tensor) -> None:
        """Record a value that was computed from releases and shown to `audience`."""
        reading = self.read(source, value, time) if self.observer in audience else None
        if reading is not None:
            self.seen[time, SHOWN, number, source] = (round_sign(time) if self.turning else 1.0) * reading

    def _sees(self, ledger: Ledger, first: int, source: str) -> bool:
        """Return whether the observer is in the audience of the source's first release of this context."""
        # Judge each release by its own audience: an edge may speak to its devices and to the cloud in one round.
        if self._known != (first, len(ledger)):
            self._known, self._open = (first, len(ledger)), {}
            sent: dict[str, int] = {}
            for index in range(first, len(ledger)):
                release = ledger[index]
                # A node of a graph gathers its own message and passes it on to its neighbours.
                if sent.setdefault(release.source, index) == index or sent[release.source] in release.inputs:
                    self._open[release.source] = (
                        self._open.get(release.source, False) or self.observer in release.audience
                    )
        return self._open.get(source, False)


class ObservedNodes:
    """Members that do their part of the mechanism themselves and are observed when they send.

    To a trusted server they send their value without clipping: clipping there is the server's promise, and it is
    attacked.
    """

    steadfast = True

    def __init__(self, built: BuiltExperiment, ledger: Ledger, watch: Observer) -> None:
        self._mechanism = built.mechanism
        self._ledger, self._watch = ledger, watch

    def request_outputs(self, updates: Updates, context: ReleaseContext) -> Iterator[ClientOutput]:
        """Yield what the members send, and record it."""
        mechanism = self._mechanism.at(context.channel)
        # Clipping there is the server's part, and skipping it at the client shows whether the server does it.
        if mechanism.noised_by is NoisedBy.SERVER:
            yield from (ClientOutput(member, update) for member, update in updates.train_members())
            return
        for left in mechanism.client_outputs(updates, context):
            self._watch.note(self._ledger, context, updates.at.part, client_name(left.member), left.value)
            yield left

    def request_choices(self, ballot: ModelChoice, context: ReleaseContext) -> dict[int, int]:
        """Return no choices: choices are made where the data are."""
        return {}


class ObservedExecution(LiveExecution):
    """The execution of a real run, observed."""

    def __init__(self, watch: Observer, ledger: Ledger, worker: Any, secret: Streams, schedules: Schedules) -> None:
        super().__init__(worker, secret, schedules)
        self._watch, self._ledger = watch, ledger

    @override
    def compute_values(self, updates: Updates, context: ReleaseContext, compute: Compute) -> ReleaseValues:
        outcome = super().compute_values(updates, context, compute)
        for member, value in outcome.values.items():
            source = context.channel.name if member == EVERYONE else client_name(member)
            self._watch.note(self._ledger, context, updates.at.part, source, value)
        return outcome

    @override
    def collect_choices(self, ballot: ModelChoice, context: ReleaseContext) -> dict[int, int]:
        worker: Any = self.worker
        # Without nodes the engine draws the choices itself, by the file's own mechanism.
        witness, worker.nodes = worker.nodes, None
        choices = super().collect_choices(ballot, context)
        worker.nodes = witness
        for member, choice in choices.items():
            value_sent = torch.full((worker.dimension,), float(choice == 0))
            self._watch.note(self._ledger, context, 0, client_name(member), value_sent)
        return choices


class ObservedRound(TrainingRound):
    """A round that also records values which are shown again."""

    def __init__(self, watch: Observer, *where: Any) -> None:
        super().__init__(*where)
        self._watch, self._shown = watch, 0

    @override
    def _record_shown(self, shown: Sequence[tuple[Public, Channel, Parties, str]]) -> Sequence[Release]:
        made = super()._record_shown(shown)
        for value, channel, audience, _ in shown:
            if value.value is COUNTED:  # never sent
                continue
            self._watch.note_shown(self.time, self._shown, channel.name, audience, value.value)
            self._shown += 1
        return made


def watched_run(built: BuiltExperiment, watch: Observer, worker: Any, *, rounds: int, secret: Streams) -> None:
    """Run `rounds` rounds of the engine with the mechanism, samplers and algorithm of the experiment."""
    ledger, schedules = Ledger(participants=built.participants), Schedules(secret)
    worker.nodes = ObservedNodes(built, ledger, watch)
    execution = ObservedExecution(watch, ledger, worker, secret, schedules)
    state: Any = built.algorithm.init(Public(built.start), built.clients, built.settings)
    memories: Any = {}
    for time in range(1, rounds + 1):
        if built.algorithm.facts.finished(state):
            break
        built = built.as_found(state)
        r = ObservedRound(watch, built, ledger, execution, time, memories)
        after = built.algorithm.round(state, r, built.settings)
        # As in the engine's loop: sources are reduced to their frontier after every round.
        state = trim_sources(after, ledger)
        memories = r.memories
    worker.close()


def bound_proportions(true: int, false: int, trials: int, *, confidence: float) -> tuple[float, float]:
    """Return (lower bound on the rate behind `true`, upper bound on the rate behind `false`), holding jointly.

    Reference: Clopper and Pearson 1934, one-sided, with half of the allowed error on each side.
    """
    # Two rates are bounded, each with half of the error, so that both hold together.
    error = (1 - confidence) / 2
    lower = float(stats.beta.ppf(error, true, trials - true + 1)) if true else 0.0
    upper = float(stats.beta.ppf(1 - error, false + 1, trials - false)) if false < trials else 1.0
    return lower, upper


def epsilon_of_rates(hit: float, alarm: float, delta: float) -> float:
    """Return the least epsilon at which a test can have P(yes | in) >= hit and P(yes | out) <= alarm.

    P(S) <= e^epsilon Q(S) + delta for "yes" and, with the worlds exchanged, for "no"; 0 if neither gives a bound.

    >>> round(epsilon_of_rates(0.75, 0.25, 0.0), 4)
    1.0986
    """
    return max(0.0, _log_ratio(hit - delta, alarm), _log_ratio(1 - alarm - delta, 1 - hit))


def _log_ratio(above: float, below: float) -> float:
    if above <= 0:
        return -math.inf
    return math.inf if below <= 0 else math.log(above / below)


def two_worlds_lower(true: int, false: int, trials: int, *, delta: float, confidence: float) -> float:
    """Return a lower bound on epsilon from `trials` runs with and `trials` without the subject, for a fixed test.

    >>> round(two_worlds_lower(900, 100, 1000, delta=0.0, confidence=0.95), 2)
    1.99
    """
    return epsilon_of_rates(*bound_proportions(true, false, trials, confidence=confidence), delta)


def one_run_lower(canaries: int, guesses: int, right: int, *, delta: float, confidence: float) -> float:
    """Return a lower bound on epsilon from one run: canaries in with probability 1/2, `right` of `guesses` true.

    Nothing is assumed about the mechanism: the canaries may share noise and sampling.

    >>> round(one_run_lower(1000, 100, 100, delta=0.0, confidence=0.95), 2)
    3.49
    """
    low, high = 0.0, 1.0
    error = 1 - confidence
    if bound_surprise(canaries, guesses, right, epsilon=low, delta=delta) > error:
        return 0.0
    # The probability bound increases with epsilon: double while epsilon is refuted, up to a cap, then bisect.
    while bound_surprise(canaries, guesses, right, epsilon=high, delta=delta) <= error and high < 64:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        if bound_surprise(canaries, guesses, right, epsilon=middle, delta=delta) <= error:
            low = middle
        else:
            high = middle
    return low


def bound_surprise(canaries: int, guesses: int, right: int, *, epsilon: float, delta: float) -> float:
    r"""Return an upper bound on the probability of at least `right` right guesses under (epsilon, delta)-privacy.

    P[W >= v] <= beta + 2 m delta max_i (P[v - i <= B < v] / i), B ~ Binomial(r, e^epsilon / (1 + e^epsilon)).
    Reference: Steinke, Nasr and Jagielski 2023, "Privacy auditing with one (1) training run", Theorem 5.2.
    """
    chance = 1 / (1 + math.exp(-epsilon))
    beta = float(stats.binom.sf(right - 1, guesses, chance))
    if delta == 0:
        return beta
    below = stats.binom.pmf(range(right - 1, -1, -1), guesses, chance).cumsum()
    steepest = max((float(mass) / (index + 1) for index, mass in enumerate(below)), default=0.0)
    return min(1.0, beta + 2 * canaries * delta * steepest)


Runs = NDArray[np.float64]
"""(runs, values seen, numbers read of each value)."""
Score = Callable[[Runs], NDArray[np.float64]]

THRESHOLDS = 64
LEANINGS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Candidate shifts of a canary in standard deviations of the noise; each is tried."""
LITTLE = 1e-6
"""Ridge added to the covariance of a discriminant: noise that was used twice cancels down to it."""


@dataclass(frozen=True, eq=False)
class Attack:
    """A score with a threshold: "in" if the score is at least the threshold."""

    name: str
    score: Score
    threshold: float

    def says_in(self, runs: Runs) -> int:
        """Return in how many of the runs the attack says that the subject is in."""
        return int((self.score(runs) >= self.threshold).sum())


@dataclass(frozen=True, eq=False)
class MarkedValues:
    """What the attacker knows about the numbers that it reads."""

    carries: NDArray[np.bool_]
    """By value: whether the subject itself is in it."""
    tells: NDArray[np.bool_]
    """(values, numbers): which of them can tell something about the subject, also if computed from others."""
    shared: tuple[float, ...] = ()
    """For the last numbers of each value: the factor by which each moves with whichever other number moves."""
    turns: NDArray[np.float64] | None = None
    """(turns, values): if subjects take turns, how much of every value belongs to each turn (`turns.turn_weights`)."""


def fit_attack(inside: Runs, outside: Runs, marks: MarkedValues, *, delta: float, confidence: float) -> Attack:
    """Return the best attack on tuning runs, which are used for nothing else."""
    best, most = Attack("sum", lambda runs: runs.sum(axis=(1, 2)), 0.0), -1.0
    for name, score in candidate_scores(inside, outside, marks):
        yes, no = score(inside), score(outside)
        # Thresholds at quantiles of both worlds: evenly spaced ones would miss the tails of skewed scores.
        levels = np.quantile(np.concatenate([yes, no]), np.linspace(0, 1, THRESHOLDS))
        for level in np.unique(levels):
            counts = int((yes >= level).sum()), int((no >= level).sum())
            lower = two_worlds_lower(*counts, min(len(yes), len(no)), delta=delta, confidence=confidence)
            if lower > most:
                best, most = Attack(name, score, float(level)), lower
    return best


def candidate_scores(inside: Runs, outside: Runs, marks: MarkedValues) -> Iterator[tuple[str, Score]]:
    """Yield the candidate scores that may tell the worlds apart."""
    scale, carries = outside.std(axis=0), marks.carries
    # Values without noise have no spread; dividing by 1 keeps them finite and perfectly telling.
    scale[scale <= 1e-12 * max(1e-300, float(scale.max(initial=0.0)))] = 1.0
    yield "sum", lambda runs: (runs / scale)[:, carries].sum(axis=(1, 2))
    yield "first", lambda runs: (runs / scale)[:, carries, 0].sum(axis=1)
    for leaning in LEANINGS:
        yield f"mixture {leaning:g}", _mixture_score(scale, marks, leaning)
    if marks.turns is not None and len(marks.turns):
        yield from turn_scores(outside, marks.turns)
    if carries.sum() > 1:
        yield "spread", lambda runs: (runs / scale)[:, carries, 0].std(axis=1)
    for name, columns in {"discriminant": np.ones_like(marks.tells), "own discriminant": marks.tells}.items():
        # A discriminant with more numbers than a quarter of the runs would fit the noise.
        if 0 < 4 * int(columns.sum()) <= len(outside):
            yield name, _discriminant_score((inside / scale)[:, columns], (outside / scale)[:, columns], scale, columns)


def turn_scores(outside: Runs, turns: NDArray[np.float64]) -> Iterator[tuple[str, Score]]:
    """Yield the likelihood ratio over the subject's turns: of all together, and of each drawn or not."""
    spread = np.maximum((outside[:, :, 0] @ turns.T).std(axis=0), 1e-300)
    yield "turns", lambda runs: (runs[:, :, 0] @ turns.T).sum(axis=1)
    for leaning in LEANINGS:
        yield f"drawn turns {leaning:g}", _drawn_score(turns / spread[:, None], leaning)


def _drawn_score(turns: NDArray[np.float64], leaning: float) -> Score:
    def score(runs: Runs) -> NDArray[np.float64]:
        # Clipped to +-700, since exp overflows above 709.
        standing = np.clip((runs[:, :, 0] @ turns.T) * leaning - leaning**2 / 2, -700, 700)
        return np.asarray(np.log1p(np.exp(standing)).sum(axis=1))

    return score


def _mixture_score(scale: NDArray[np.float64], marks: MarkedValues, leaning: float) -> Score:
    """Return the log-likelihood ratio if one random number per value, or none, stands out with the shared ones."""
    together = np.array(marks.shared) * leaning
    own = scale.shape[1] - len(together)

    def score(runs: Runs) -> NDArray[np.float64]:
        values = (runs / scale)[:, marks.carries]
        alone = values[..., :own] * leaning - leaning**2 / 2
        shared = (values[..., own:] * together - together**2 / 2).sum(axis=2, keepdims=True)
        standing = np.clip(alone + shared, -700, 700)
        return np.asarray(np.log1p(np.exp(standing).mean(axis=2)).sum(axis=1))

    return score


def _discriminant_score(
    yes: NDArray[np.float64], no: NDArray[np.float64], scale: NDArray[np.float64], columns: NDArray[np.bool_]
) -> Score:
    """Return Fisher's linear discriminant of some of the numbers: it finds sums in which reused noise cancels."""
    spread = np.cov(no, rowvar=False).reshape(no.shape[1], no.shape[1])
    spread += LITTLE * np.eye(len(spread))
    weights = np.linalg.solve(spread, yes.mean(axis=0) - no.mean(axis=0))
    return lambda runs: np.asarray((runs / scale)[:, columns] @ weights)
