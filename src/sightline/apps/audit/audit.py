"""`audit`: a lower bound on epsilon, by attacks on the mechanism that an experiment file runs."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sightline import engine
from sightline.apps.audit.attack import (
    SHOWN,
    Key,
    MarkedValues,
    Observer,
    Reading,
    Runs,
    fit_attack,
    take_turns,
    turn_weights,
    two_worlds_lower,
)
from sightline.apps.audit.canaries import relays_for
from sightline.apps.audit.canary_setup import AskedPair, CanarySetup, Progress, for_many, for_one, worst_sight
from sightline.apps.audit.many_canaries import (
    ROUNDING,
    TRIALS,
    Finding,
    against_curve,
    against_rates,
    attacks_own_model,
    for_own_model,
    in_one_run,
    score_canaries,
    secret_of,
)
from sightline.apps.audit.trade_off import ClaimedFamily
from sightline.config import Experiment
from sightline.engine.build import BuiltExperiment
from sightline.engine.round import TrainingRound
from sightline.engine.twin_worlds import ComparedExecution, TwinWorlds
from sightline.errors import BudgetExhausted, Refused, invalid
from sightline.ledger import Ledger
from sightline.mechanisms import Public, Schedules
from sightline.randomness import Streams
from sightline.runtimes import Simulator
from sightline.topology import client_name

DROWNED = 0.03
"""Limit of canaries x delta beyond which a one-run bound at 95 % says nothing: it pays delta for every canary."""
SUBJECTS = 4
"""Number of twin worlds that the first round is compared with."""
OTHERS = 3
"""Senders besides the subject that the attack reads, in case noise was used for two of them."""


@dataclass(frozen=True)
class Audit:
    """All findings of an audit. Their confidence is joint: the largest bound holds with it."""

    findings: tuple[Finding, ...]
    confidence: float
    facts: dict[str, Any]

    @property
    def lower(self) -> float:
        """Return the largest lower bound at the audit's delta."""
        return max(finding.lower for finding in self.findings if finding.delta == self.facts["delta"])

    @property
    def upper(self) -> float:
        """Return the claimed epsilon at that delta for the least protected subject."""
        return self.findings[0].upper

    def describe(self) -> dict[str, Any]:
        """Return what `sightline audit --json` prints."""
        return {
            "epsilon_lower": self.lower,
            "epsilon_upper": self.upper,
            "confidence": self.confidence,
            "refuted": self.broken,
            **self.facts,
            "findings": [
                {"method": f.method, "epsilon_lower": f.lower, "epsilon_upper": f.upper, "delta": f.delta, **f.details}
                for f in self.findings
            ],
        }

    @property
    def broken(self) -> bool:
        """Return whether a claim is refuted: epsilon exceeds it, or one example moved a sum by more than C."""
        larger = any(finding.refuted or finding.lower > finding.upper for finding in self.findings)
        return larger or self.unbounded or bool(self.facts.get("twin_worlds_refuted"))

    @property
    def unbounded(self) -> bool:
        """Return whether an example moved a sum of clipped gradients further than the clip norm in the claim."""
        return any((finding.details.get("clip_norms_moved") or 0.0) > 1 + ROUNDING for finding in self.findings)


def audit(
    experiment: Experiment, *, trials: int = 1000, canaries: int = 1000, rounds: int | None = None,
    delta: float | None = None, delta_of_canaries: float | None = None, confidence: float = 0.95, seed: int = 0,
    observer: str | None = None, subject: str | None = None, runs: int = 4,
    progress: Progress = lambda done, all: None,
) -> Audit:  # fmt: skip
    """Attack the mechanism of an experiment file by `trials` runs of each world, and by many canaries in `runs` runs.

    If all that is claimed is Gaussian noise, sampled or not, the claimed trade-off curve is tested on all canaries of
    these runs, and the headline is at `delta`, by default the file's. The older one-run bound pays delta for every
    canary: it is stated at 0.03 / canaries where that is smaller, or at `delta_of_canaries`. Without the curve (or with
    `runs` = 0) the headline is at that delta too.

    Guarantees: the bounds hold jointly with `confidence` over the audit's own draws, those of a curve for noise of any
    size. The audited runs are the engine's own rounds with the file's mechanism, noise, samplers and algorithm on the
    worst input, and the attacks read no data. Before them the first round runs on the file's own data and is compared
    with twin worlds (`engine.twin_worlds`); nothing of it is kept.
    """
    check_numbers(trials=trials, canaries=canaries, rounds=rounds, delta=delta, confidence=confidence, runs=runs)
    built = engine.calibrate_noise(engine.build_experiment(experiment))
    result = audit_built(
        built, trials=trials, canaries=canaries, rounds=rounds,
        delta=delta, delta_of_canaries=delta_of_canaries, confidence=confidence, seed=seed, observer=observer,
        subject=subject, runs=runs, progress=progress,
    )  # fmt: skip
    return replace(result, facts=result.facts | compare_worlds(built, seed=seed))


def compare_worlds(built: BuiltExperiment, *, seed: int) -> dict[str, Any]:
    """Run the first round on the file's own data beside worlds without one of a few subjects; return the findings."""
    if built.federation.elsewhere:
        return {}
    # The audit's own secret streams: nothing drawn here is used by a run.
    public, secret = Streams.from_seed(built.experiment.seed), secret_of(seed, 0, 0)
    worker = Simulator(built, public, secret)
    twins = TwinWorlds(built, Simulator, public, secret, SUBJECTS)
    execution = ComparedExecution(worker, secret, Schedules(secret), twins)
    try:
        r = TrainingRound(built, Ledger(participants=built.participants), execution, 1)
        state = built.algorithm.init(Public(built.start), built.clients, built.settings)
        built.algorithm.round(state, r, built.settings)
    except BudgetExhausted:
        return {}
    except Refused as broken:
        return {"twin_worlds": str(broken), "twin_worlds_refuted": True}
    finally:
        worker.close()
        twins.close()
    return {"twin_worlds": twins.describe(), "twin_worlds_refuted": False}


def check_numbers(
    *, trials: int, canaries: int, rounds: int | None, delta: float | None, confidence: float, runs: int = 0
) -> None:
    """Raise InvalidInput unless the numbers of an audit make sense."""
    counts = (("trials", trials, 20), ("canaries", canaries, 10), ("rounds", rounds or 1, 1), ("runs", runs, 0))
    for name, value, least in counts:
        if value < least:
            invalid(name, value, f"must be at least {least}")
    if delta is not None and not 0 <= delta < 1:
        invalid("delta", delta, "must lie in [0, 1)")
    if not 0 < confidence < 1:
        invalid("confidence", confidence, "must lie between 0 and 1")


def audit_built(
    built: BuiltExperiment, *, trials: int, canaries: int, rounds: int | None = None, delta: float | None = None,
    delta_of_canaries: float | None = None, confidence: float = 0.95, seed: int = 0, observer: str | None = None,
    subject: str | None = None, runs: int = 4, progress: Progress = lambda done, all: None,
) -> Audit:  # fmt: skip
    """Run `audit` on an experiment whose noise is already calibrated."""
    privacy = built.experiment.privacy
    count = min(rounds or min(built.experiment.rounds, 10), built.experiment.rounds)
    pair = AskedPair(observer, subject)
    # The one-run bound adds canaries x delta to its error, so its delta must be small.
    there = min(privacy.delta, DROWNED / canaries) if delta is None else delta
    tested = runs > 0 and attacks_curve(built, rounds=count, delta=there, pair=pair)
    at = privacy.delta if tested and delta is None else there
    there = there if delta_of_canaries is None else delta_of_canaries
    own = for_own_model(built, rounds=count, delta=at, pair=pair) if attacks_own_model(built) else None
    # A union bound: every finding gets an equal share of the error, so the largest bound holds with the confidence.
    each = 1 - (1 - confidence) / (2 + 2 * tested + (own is not None))
    setup = for_one(built, rounds=count, delta=at, pair=pair)
    many = for_many(built, canaries=canaries, rounds=count, delta=there, pair=pair)
    findings = [
        repeat_runs(setup, trials=trials, confidence=each, seed=seed, progress=progress),
        in_one_run(many, confidence=each, seed=seed),
    ]
    if tested:
        pooled = many if there == at else for_many(built, canaries=canaries, rounds=count, delta=at, pair=pair)
        findings += attack_curve(pooled, runs=runs, confidence=each, seed=seed)
    if own is not None:
        finding = repeat_runs(
            own, trials=min(trials, TRIALS), confidence=each, seed=seed, progress=lambda done, all: None
        )
        details = {**finding.details, "rounds": own.rounds, "clip_norms_moved": own.moved}
        findings.append(replace(finding, method="own model", details=details))
    facts = {
        "delta": at, "file_delta": privacy.delta, "file_epsilon": _claimed_epsilon(built, setup, privacy.delta),
        "rounds": count, "rounds_planned": built.experiment.rounds, "unit": privacy.unit,
        "adjacency": privacy.adjacency, "subject": client_name(setup.sight.subject), "observer": setup.sight.observer,
        "trials": trials, "runs": runs * tested, "seed": seed,
    }  # fmt: skip
    return Audit(tuple(findings), confidence, facts)


def attacks_curve(built: BuiltExperiment, *, rounds: int, delta: float, pair: AskedPair) -> bool:
    """Return whether the values that the attack reads follow the claimed curve for some noise, with exact epsilon.

    That is the case for plain Gaussian noise, and in a star for sampled Gaussian noise that the observer sees as
    released. Sums of Gaussians are Gaussian elsewhere too, but what remains of sampling there follows another curve. It
    is not the case for split models or relayed values.
    """
    sight = worst_sight(built, engine.plan_releases(built, rounds=rounds), delta, pair)
    family, experiment = ClaimedFamily(dict(sight.events)), built.experiment
    direct = relays_for(built, sight.subject, sight.observer, sight.upper) is None
    server = built.topology.top.name
    untrusted = any(line.observer == server for lines in built.topology.lines.values() for line in lines)
    released = experiment.topology.kind == "star" and (sight.observer == server or not untrusted)
    return built.splitter is None and direct and family.plain and (released or not family.sampled)


def attack_curve(stage: CanarySetup, *, runs: int, confidence: float, seed: int) -> list[Finding]:
    """Test the claimed curve on the canaries of several runs: by guesses, and by independent scores."""
    family = ClaimedFamily(dict(stage.sight.events))
    scored = score_canaries(stage, runs=runs, seed=seed)
    return [
        against_curve(stage.sight, family, scored, confidence=confidence),
        against_rates(stage.sight, family, scored, confidence=confidence),
    ]


def _claimed_epsilon(built: BuiltExperiment, stage: CanarySetup, delta: float) -> float:
    """Return the file's claim at its own delta for the attacked pair and rounds."""
    if delta == stage.sight.delta:
        return stage.sight.upper
    pair = AskedPair(stage.sight.observer, client_name(stage.sight.subject))
    return worst_sight(built, engine.plan_releases(built, rounds=stage.rounds), delta, pair).upper


def repeat_runs(stage: CanarySetup, *, trials: int, confidence: float, seed: int, progress: Progress) -> Finding:
    """Run with and without the subject; tune the attack on one half of the runs and count on the other."""
    ears = _listened_values(stage)
    worlds: dict[bool, list[Observer]] = {True: [], False: []}
    for number in range(trials):
        # Both worlds have streams of their own: a shared stream would couple the two samples.
        for inside, watches in worlds.items():
            watches.append(stage.run({0: inside}, secret_of(seed, number, int(inside)), ears))
        progress(2 * (number + 1), 2 * trials)
    keys = sorted({key for watches in worlds.values() for watch in watches for key in watch.seen})
    yes, no = (_value_table(worlds[inside], keys) for inside in (True, False))
    marks = _mark_values(stage, keys, yes.shape[2])
    # The test must be fixed before the runs that are counted, or the Clopper-Pearson bound does not hold.
    half = trials // 2
    sight = stage.sight
    attack = fit_attack(yes[:half], no[:half], marks, delta=sight.delta, confidence=confidence)
    left = trials - half
    counts = attack.says_in(yes[half:]), attack.says_in(no[half:])
    lower = two_worlds_lower(*counts, left, delta=sight.delta, confidence=confidence)
    details = {"attack": attack.name, "runs": left, "true_alarms": counts[0], "false_alarms": counts[1]}
    return Finding("repeated", lower, sight.upper, sight.delta, confidence, details)


def _listened_values(stage: CanarySetup) -> Reading:
    """Return the reading that keeps the subject, the channels that gather it, and a few other senders."""
    topology, own = stage.built.topology, _gathering_channels(stage)
    clients = [client_name(n) for n in stage.built.clients if n != stage.sight.subject]
    servers = [
        channel.name for channel in (*topology.channels, *topology.gathering_channels) if channel.name not in own
    ]
    # Further senders would add numbers that only blur a discriminant fitted on the tuning runs.
    deaf = {*clients[OTHERS:], *(servers[OTHERS:] if stage.relays is None else ())}
    return lambda source, value, round: None if source in deaf else stage.reading_of_one(source, value, round)


def _gathering_channels(stage: CanarySetup) -> set[str]:
    """Return the names of the parties that publish values which include the subject."""
    topology, subject = stage.built.topology, stage.sight.subject
    own = {
        channel.name
        for channel in (*topology.channels, *topology.gathering_channels, topology.top)
        if subject in channel.members
    }
    return own | {client_name(subject)}


def _mark_values(stage: CanarySetup, keys: list[Key], numbers: int) -> MarkedValues:
    """Mark the values that include the subject; if none is seen, those computed from them; otherwise all."""
    own = _gathering_channels(stage)
    there = np.array([key[3] in own for key in keys], dtype=bool)
    shown = np.array([key[1] == SHOWN for key in keys], dtype=bool)
    everything = np.ones(len(keys), dtype=bool)
    tells = np.outer(there if there.any() else everything, np.ones(numbers, dtype=bool))
    if not stage.parted:
        tells[:, 1:] = False
    carries = next((some for some in (there & ~shown, there) if some.any()), everything)
    turns = None
    if take_turns(stage.built) and stage.relays is None:
        turns = turn_weights(stage.built, stage.sight.subject, [(key[0], key[3]) for key in keys])
        turns = turns[(turns[:, carries] != 0).any(axis=1)]
    return MarkedValues(carries, tells, stage.shared, turns)


def _value_table(watches: list[Observer], keys: list[Key]) -> Runs:
    width = max((len(value) for watch in watches for value in watch.seen.values()), default=1)
    table = np.zeros((len(watches), len(keys), width))
    for row, watch in enumerate(watches):
        for column, key in enumerate(keys):
            if key in watch.seen:
                table[row, column] = watch.seen[key].numpy()
    return table
