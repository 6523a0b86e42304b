"""Attacks with many canaries in one run or several, also on a user's own module, and the bounds that follow."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor
from typing_extensions import override

from sightline import engine
from sightline.accounting.calibration import TradeOff
from sightline.apps.audit.attack import (
    SHOWN,
    THRESHOLDS,
    Key,
    MarkedValues,
    Observer,
    Reading,
    Runs,
    Score,
    bound_proportions,
    candidate_scores,
    one_run_lower,
    take_turns,
    turn_weights,
    watched_run,
)
from sightline.apps.audit.canary_setup import PLAIN_STEPS, STILL, AskedPair, AttackedPair, CanarySetup, worst_sight
from sightline.apps.audit.trade_off import ClaimedFamily, guesses_refute, least_factor, rates_refute
from sightline.data import Client, Federation, Kind, Shard
from sightline.engine.build import BuiltExperiment
from sightline.events import Unit
from sightline.mechanisms import NoisedValue
from sightline.mechanisms.updates import RemoteNodes
from sightline.models import FlatModel, probe_inputs, probe_targets
from sightline.randomness import Purpose, Streams
from sightline.runtimes import Simulator
from sightline.topology import client_name
from sightline.training import clipped_gradient_sum
from sightline.training.dispatch import worker_for

SHARES = (0.125, 0.25, 0.5, 1.0)
"""Shares of the canaries that are guessed; each is tried, and the error is split between them."""
GUESSED = ((0.03125, 0.03125), (0.0625, 0.0625), (0.125, 0.125), (0.0625, 0.0), (0.5, 0.5))
"""Shares of canaries guessed to be in and to be out when a curve is tested; the error is split."""
FEWEST = 5
"""Least number of canaries in, and out, on which an attack is chosen."""
LIKELY = 0.9
"""Confidence with which a score is chosen; no claim depends on it."""
NORMAL_MEDIAN = 0.6745
"""Median of the absolute value of a standard normal variable."""


@dataclass(frozen=True)
class Finding:
    """The result of one method: epsilon is at least `lower` with the stated confidence, where `upper` is claimed."""

    method: str
    lower: float
    upper: float
    delta: float
    confidence: float
    details: dict[str, Any]
    refuted: bool = False
    """Whether the claim is refuted by more than these two numbers: its whole curve was tested."""


def secret_of(seed: int, number: int, world: int) -> Streams:
    """Return the streams of one run of an audit; every run has its own."""
    return Streams.from_seed(Streams.from_seed(seed).key(Purpose.AUDIT, round=number, use=world))


@dataclass(frozen=True, eq=False)
class CanaryRun:
    """One run in which every canary was in with probability 1/2."""

    slots: list[int]
    inside: NDArray[np.bool_]
    """By slot: whether the canary was in."""
    mine: dict[str, list[int]]
    """Client -> its canaries."""
    watch: Observer


def run_canaries(stage: CanarySetup, *, seed: int, number: int) -> CanaryRun:
    """Run once, with streams keyed by the number of the run."""
    rng = secret_of(seed, number, 0).rng(Purpose.AUDIT)
    slots = [slot for own in stage.holders.values() for slot in own]
    # Bernoulli(1/2) draws: the bounds of one run rest on them and on nothing else.
    inside = rng.random(len(slots)) < 0.5
    mine = {client_name(client): list(own) for client, own in stage.holders.items()}
    watch = stage.run(
        dict(zip(slots, inside.tolist(), strict=True)),
        secret_of(seed, number, 1),
        lambda publisher, value, round: stage.reading(value, mine.get(publisher, slots)),
    )
    return CanaryRun(slots, inside, mine, watch)


def in_one_run(stage: CanarySetup, *, confidence: float, seed: int) -> Finding:
    """Include every canary with probability 1/2 in one run and guess about those that stand out most.

    The numbers of guesses are fixed beforehand, half "in" and half "out"; the others are abstained from.
    """
    run = run_canaries(stage, seed=seed, number=-1)
    slots, inside = run.slots, dict(zip(run.slots, run.inside.tolist(), strict=True))
    score = _canary_evidence(run.watch, run.mine, slots, stage)
    order = np.argsort(-score, kind="stable")
    best = 0.0
    details: dict[str, Any] = {}
    for share in SHARES:
        # At most half of the canaries on each side, so that no canary is guessed twice; a single one is abstained from.
        half = min(max(1, round(share * len(slots) / 2)), len(slots) // 2)
        right = sum(inside[slots[index]] for index in order[:half])
        right += sum(not inside[slots[index]] for index in order[len(slots) - half :])
        each = 1 - (1 - confidence) / len(SHARES)
        lower = one_run_lower(len(slots), 2 * half, right, delta=stage.sight.delta, confidence=each)
        if not details or lower > best:
            best, details = lower, {"canaries": len(slots), "guesses": 2 * half, "right": right}
    return Finding("canaries", best, stage.sight.upper, stage.sight.delta, confidence, details)


def _canary_evidence(
    watch: Observer, mine: dict[str, list[int]], slots: list[int], stage: CanarySetup
) -> NDArray[np.float64]:
    """Return how much each canary stands out: in what its client sent if that is seen, else in its channels.

    Shown values are computed from the others and are read only if the others are not seen.
    """
    index_of = {slot: index for index, slot in enumerate(slots)}
    sent, said = np.zeros(len(slots)), np.zeros(len(slots))
    if take_turns(stage.built) and not any(key[3] in mine for key in watch.seen):
        run = CanaryRun(slots, np.zeros(len(slots), dtype=bool), mine, watch)
        return np.asarray(tabulate_canaries(run, stage).sum(axis=(1, 2)))
    # Shown values repeat the noise of earlier ones: adding both would count the same evidence twice.
    direct = any(key[1] != SHOWN for key in watch.seen)
    gathered = _canaries_by_channel(stage, slots)
    leaning = 1 / max(stage.built.multipliers.values(), default=1.0)
    for (_, use, _, publisher), values in watch.seen.items():
        if use == SHOWN and direct:
            continue
        if publisher in mine:
            sent[[index_of[slot] for slot in mine[publisher]]] += _combine_evidence(values.numpy(), leaning)
        else:
            said += _combine_evidence(values.numpy(), leaning) * gathered.get(publisher, 1.0)
    return np.where(sent != 0, sent, said)


def _canaries_by_channel(stage: CanarySetup, slots: list[int]) -> dict[str, NDArray[np.float64]]:
    """Return channel -> 1 for every canary of its members and 0 for others, about which it tells nothing."""
    topology = stage.built.topology
    by_channel = dict[str, NDArray[np.float64]]()
    for channel in (*topology.channels, *topology.gathering_channels, topology.top):
        own = {slot for client in channel.members for slot in stage.holders.get(client, ())}
        by_channel[channel.name] = np.array([float(slot in own) for slot in slots])
    return by_channel


def _combine_evidence(values: NDArray[np.float64], leaning: float) -> NDArray[np.float64]:
    """Return for each canary its one number, or the log-likelihood ratio if any one of its numbers may move."""
    if values.shape[1] == 1:
        return values[:, 0]
    scale = float(np.median(np.abs(values))) / NORMAL_MEDIAN or 1.0
    standing = np.clip(values / scale * leaning - leaning**2 / 2, -700, 700)
    return np.asarray(np.log(np.exp(standing).mean(axis=1)))


def tabulate_canaries(run: CanaryRun, stage: CanarySetup) -> Runs:
    """Return (canaries, values, numbers): what was seen of each in what its client sent, or else in its channels."""
    index_of = {slot: index for index, slot in enumerate(run.slots)}
    seen = run.watch.seen
    direct = {key: value for key, value in seen.items() if key[1] != SHOWN} or seen
    sent = {key: value for key, value in direct.items() if key[3] in run.mine}
    gathered = _canaries_by_channel(stage, run.slots)
    columns: dict[tuple[int, int, int, str], Runs] = {}
    for (time, use, part, publisher), values in (sent or direct).items():
        name = (time, use, part, "" if publisher in run.mine else publisher)
        column = columns.setdefault(name, np.zeros((len(run.slots), values.shape[1])))
        if publisher in run.mine:
            column[[index_of[slot] for slot in run.mine[publisher]]] = values.numpy()
        else:
            column += values.numpy() * np.reshape(gathered.get(publisher, 1.0), (-1, 1))
    if not columns:
        return np.zeros((len(run.slots), 0, 1))
    table = np.stack([columns[name] for name in sorted(columns)], axis=1)
    turned = take_turns(stage.built) and not sent and table.shape[2] == 1
    return by_turns(stage, run.slots, table, sorted(columns)) if turned else table


def by_turns(stage: CanarySetup, slots: list[int], table: Runs, columns: Sequence[Key]) -> Runs:
    """Return (canaries, turns, 1): what the rounds tell about each turn of a canary, 0 where it has fewer turns."""
    seen = [(time, publisher) for time, _, _, publisher in columns]
    client_of = {slot: client for client, own in stage.holders.items() for slot in own}
    weights = [turn_weights(stage.built, client_of[slot], seen) for slot in slots]
    turned = np.zeros((len(slots), max(len(rows) for rows in weights), 1))
    for index, rows in enumerate(weights):
        turned[index, : len(rows), 0] = rows @ table[index, :, 0]
    return turned


@dataclass(frozen=True, eq=False)
class ScoredCanaries:
    """Canaries of several runs with a score and a threshold that were chosen on other runs."""

    score: NDArray[np.float64]
    inside: NDArray[np.bool_]
    threshold: float
    attack: str
    runs: int

    @property
    def enough(self) -> bool:
        """Return whether there are canaries both in and out."""
        return bool(self.inside.any()) and not bool(self.inside.all())


def score_canaries(stage: CanarySetup, *, runs: int, seed: int) -> ScoredCanaries:
    """Run the scored audits, after a few held-out runs on which the attack is tuned."""
    # Tuning runs come first and are never scored: a score chosen on the counted runs would be biased.
    first = max(1, runs // 4)
    tables, bits = [], []
    for number in range(first + runs):
        run = run_canaries(stage, seed=seed, number=-2 - number)
        tables.append(tabulate_canaries(run, stage))
        bits.append(run.inside)
    known, present = np.concatenate(tables[:first]), np.concatenate(bits[:first])
    table, inside = np.concatenate(tables[first:]), np.concatenate(bits[first:])
    if min(present.sum(), (~present).sum()) < FEWEST or not table.shape[1]:
        return ScoredCanaries(np.zeros(0), np.zeros(0, dtype=bool), 0.0, "none", runs)
    name, score, threshold = choose_score(known[present], known[~present])
    return ScoredCanaries(score(table), inside, threshold, name, runs)


def choose_score(inside: Runs, outside: Runs) -> tuple[str, Score, float]:
    """Return the score and threshold that tell best who was in."""
    every = np.ones(inside.shape[1], dtype=bool)
    marks = MarkedValues(every, np.zeros(inside.shape[1:], dtype=bool))
    candidates: list[tuple[float, str, Score, float]] = []
    for name, score in candidate_scores(inside, outside, marks):
        yes, no = score(inside), score(outside)
        for level in np.unique(np.quantile(np.concatenate([yes, no]), np.linspace(0, 1, THRESHOLDS))):
            hits = bound_proportions(int((yes >= level).sum()), 0, len(yes), confidence=LIKELY)[0]
            alarms = bound_proportions(0, int((no >= level).sum()), len(no), confidence=LIKELY)[1]
            # The distance of two unit Gaussians with these rates.
            candidates.append((float(stats.norm.ppf(hits) - stats.norm.ppf(alarms)), name, score, float(level)))
    _, name, score, threshold = max(candidates, key=lambda one: one[0])
    return name, score, threshold


def against_curve(sight: AttackedPair, family: ClaimedFamily, scored: ScoredCanaries, *, confidence: float) -> Finding:
    """Test the claimed curve by guesses about the canaries that stand out most; canaries may be dependent."""
    count, error = len(scored.score), (1 - confidence) / len(GUESSED)
    order = np.argsort(-scored.score, kind="stable")
    # Each number of guesses is fixed beforehand and gets an equal share of the error.
    best, refuted, details = float("inf"), False, {"canaries": count, "runs": scored.runs, "guesses": 0, "right": 0}
    for top, bottom in GUESSED if scored.enough else ():
        ins, outs = (min(round(share * count), count // 2) for share in (top, bottom))
        right = int(scored.inside[order[:ins]].sum() + (~scored.inside[order[count - outs :]]).sum())

        def refutes(curve: TradeOff, guesses: int = ins + outs, right: int = right) -> bool:
            return guesses_refute(curve, count, guesses, right, error=error)

        factor, refuted = least_factor(family, refutes), refuted or family.refuted_by(refutes)
        if factor < best:
            best, details = factor, {**details, "guesses": ins + outs, "right": right}
    finding = Finding("curve", 0.0, sight.upper, sight.delta, confidence, details, refuted)
    return _with_bound(finding, family, best, scored)


def against_rates(sight: AttackedPair, family: ClaimedFamily, scored: ScoredCanaries, *, confidence: float) -> Finding:
    """Test the claimed curve by the rates of one test; canaries' scores must be independent of each other."""
    yes = scored.score >= scored.threshold
    ins, hits = int(scored.inside.sum()), int((yes & scored.inside).sum())
    outs, alarms = len(yes) - ins, int((yes & ~scored.inside).sum())
    factor, refuted = float("inf"), False
    if scored.enough:
        most = bound_proportions(0, alarms, outs, confidence=confidence)[1]
        least = bound_proportions(hits, 0, ins, confidence=confidence)[0]
        refutes = partial(rates_refute, hits=least, alarms=most)
        factor, refuted = least_factor(family, refutes), family.refuted_by(refutes)
    details = {"canaries": len(yes), "runs": scored.runs, "true_alarms": hits, "of": ins, "false_alarms": alarms}
    finding = Finding("scores", 0.0, sight.upper, sight.delta, confidence, details, refuted)
    return _with_bound(finding, family, factor, scored)


def _with_bound(finding: Finding, family: ClaimedFamily, factor: float, scored: ScoredCanaries) -> Finding:
    """Add the lower bound that follows when `factor` times the claimed noise, and everything above, is refuted."""
    lower = family.epsilon(factor, finding.delta) if factor < float("inf") else 0.0
    below = round(factor, 4) if factor < float("inf") else None
    return replace(finding, lower=lower, details=finding.details | {"attack": scored.attack, "noise_below": below})


ROUNDS = 2
TRIALS = 100
"""Upper limit: a module that mixes examples moves sums far, and is slow compared with the audit's own network."""
TOGETHER = 64
"""Ordinary examples beside a canary when it is chosen."""
SCALES = (1.0, 10.0, 100.0, 1000.0)
LABELS = 4
ROUNDING = 1e-3
"""Tolerance of a sum, relative to the clip norm."""


def attacks_own_model(built: BuiltExperiment) -> bool:
    """Return whether the file names a user's own module or loss whose examples are clipped separately."""
    steps, model = built.mechanism.facts.noised_value is NoisedValue.GRADIENT, built.experiment.model
    own = ":" in model.name or model.loss is not None
    return own and built.unit is Unit.SAMPLE and steps and built.splitter is None


@dataclass(frozen=True, eq=False)
class OwnModelStage(CanarySetup):
    """The file's own model with one canary, and the direction in which the canary moves a sum of gradients."""

    direction: Tensor | None = None
    canary: Shard | None = None
    """The example that replaces the subject's last one, or is absent: these batches are add/remove."""
    moved: float | None = None
    """Clip norms by which the canary moved a sum without noise; None if the module draws at random."""

    @property
    @override
    def turning(self) -> bool:
        # The user's own model cannot be flipped.
        return False

    @override
    def run(self, inside: Mapping[int, bool], secret: Streams, read: Reading) -> Observer:
        subject, present, sizes = self.sight.subject, inside[0], self.built.federation.sizes.tolist()
        canary: Shard = self.canary  # type: ignore[assignment]
        clients = [replace(client, train=_first_examples(client.train, 0)) for client in self.built.federation.clients]
        ordinary = self.built.federation.clients[subject].train
        clients[subject] = replace(
            clients[subject],
            train=_join_shards(_first_examples(ordinary, len(ordinary) - 1), _first_examples(canary, int(present))),
        )
        built = replace(self.built, federation=replace(self.built.federation, clients=tuple(clients)))
        watch = Observer(self.sight.observer, read, turning=False)
        watched_run(built, watch, OwnModelClients(built, secret, sizes), rounds=self.rounds, secret=secret)
        return watch

    @override
    def reading_of_one(self, source: str, value: Tensor, round: int) -> Tensor:
        # How far a released vector goes in the canary's direction, and in one that shows only the noise.
        direction: Tensor = self.direction  # type: ignore[assignment]
        beside = direction.roll(1) - direction * (direction @ direction.roll(1))
        return -torch.stack([value.double() @ direction, value.double() @ beside])


class OwnModelClients(Simulator):
    """Simulator in which the subject may have one example less than publicly known, and the others have none."""

    nodes: RemoteNodes | None = None  # type: ignore[assignment]

    def __init__(self, built: BuiltExperiment, secret: Streams, sizes: Sequence[int]) -> None:
        super().__init__(built, secret, secret, sizes=sizes)


def for_own_model(built: BuiltExperiment, *, rounds: int, delta: float, pair: AskedPair) -> OwnModelStage:
    """Return the set-up of the file's own model with one canary."""
    rounds = min(rounds, ROUNDS)
    sight = worst_sight(built, engine.plan_releases(built, rounds=rounds), delta, pair)
    local = PLAIN_STEPS | {"learning_rate": STILL / built.experiment.privacy.clip_norm, "augment": None}
    still = built.experiment.model_copy(update={"local": built.experiment.local.model_copy(update=local)})
    quiet = engine.build_experiment(still, federation=ordinary_examples(built))
    if built.multipliers:
        quiet = quiet.with_noise(built.multipliers)
    quiet = replace(quiet, topology=built.topology, samplers=built.samplers)
    canary, direction, moved = choose_canary(quiet, sight.subject)
    return OwnModelStage(
        quiet, sight, rounds, {sight.subject: (0,)}, (0, 1), direction=direction, canary=canary, moved=moved
    )


def ordinary_examples(built: BuiltExperiment) -> Federation:
    """Return made-up examples, as many as each client has, all different."""
    clients = []
    for number, real in enumerate(built.federation.clients):
        train = _draw_examples(built.model, len(real.train), seed=number + 1)
        clients.append(Client(train, _first_examples(train, 1), real.cluster))
    like = built.federation
    return Federation("canaries", tuple(clients), clients[0].test, like.classes, like.kind, like.vocabulary)


def choose_canary(built: BuiltExperiment, subject: int) -> tuple[Shard, Tensor, float | None]:
    """Return the outlier that moves a clipped sum furthest, its direction, and the length in clip norms."""
    model, clip_norm = built.model, built.experiment.privacy.clip_norm
    beside = _first_examples(built.federation.clients[subject].train, TOGETHER)

    def total(shard: Shard) -> Tensor:
        rng = np.random.default_rng(0)
        return clipped_gradient_sum(model, built.start, shard.x, shard.y, clip_norm=clip_norm, rng=rng).double()

    without = total(beside)
    moves = [(total(_join_shards(beside, one)) - without, one) for one in _make_outliers(model)]
    furthest, canary = max(moves, key=lambda move: float(move[0].norm()))
    length = float(furthest.norm())
    direction = furthest / length if length else torch.eye(1, model.parameters, dtype=torch.double)[0]
    # With dropout two sums differ without the canary too, so the distance alone proves nothing.
    return canary, direction, None if worker_for(model).dropout else round(length / clip_norm, 6)


def _make_outliers(model: FlatModel) -> Iterator[Shard]:
    """Yield examples of several scales and labels."""
    for seed, scale in enumerate(SCALES):
        x = probe_inputs(model, 1, seed=1000 + seed)
        x = x if model.kind is Kind.TEXT else scale * x
        for y in probe_targets(model.task, model.classes, min(max(model.classes, 2), LABELS)).numpy():
            yield Shard(x.numpy(), y[None] if np.ndim(y) else np.array([y]))


def _draw_examples(model: FlatModel, count: int, *, seed: int) -> Shard:
    return Shard(probe_inputs(model, count, seed=seed).numpy(), probe_targets(model.task, model.classes, count).numpy())


def _first_examples(shard: Shard, count: int) -> Shard:
    return shard.take(slice(count))


def _join_shards(first: Shard, second: Shard) -> Shard:
    return Shard(np.concatenate([first.x, second.x]), np.concatenate([first.y, second.y]))
