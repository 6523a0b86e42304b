"""The training loop: plan -> train -> release -> apply -> evaluate -> commit, resumable at any moment."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from sightline.algorithms import State
from sightline.engine.build import BuiltExperiment
from sightline.engine.checkpoint import (
    CHECKPOINT,
    Change,
    Checkpoint,
    CheckpointDamaged,
    ChoosePaths,
    begin_identity,
    check_data,
    check_identity,
    check_length,
    file_digest,
    find_checkpoint,
    last_change,
    load_checkpoint,
    paths_by_rule,
    remember_data,
    save_checkpoint,
    save_tensors,
    settle_paths,
)
from sightline.engine.earlier_runs import MADE_BY, keep_earlier, sum_up
from sightline.engine.evaluation import (
    OwnMetrics,
    best_metric,
    cluster_facts,
    cluster_notes,
    cluster_row,
    evaluate_models,
    evaluate_validation,
    evaluated_kept,
    task_row,
)
from sightline.engine.execution import LiveExecution
from sightline.engine.metadata import collect_facts, notes_of, observer_facts
from sightline.engine.more_rounds import ADDED, reopen_run
from sightline.engine.plan import follow_plan
from sightline.engine.record import RunRecord
from sightline.engine.release_gate import FollowedPlan, SeenBefore, StoppedByGate, refuse_early_stop
from sightline.engine.round import TrainingRound, check_models
from sightline.engine.run_directory import (
    BEST,
    ENDED,
    MODEL,
    check_free,
    close_to_others,
    lock_directory,
    own_streams,
    remove_false_start,
    remove_secret,
    removed_if_nothing_was_released,
    report_disk_errors,
    write_settings,
)
from sightline.engine.twin_worlds import ComparedExecution, plan_worlds
from sightline.errors import invalid
from sightline.events import Unit
from sightline.ledger import EntryKind, Ledger, LedgerDamaged
from sightline.mechanisms import ClientExecutor, ClientState, NoiseStreams, Public, Schedules, trim_sources
from sightline.randomness import Streams
from sightline.topology import client_name

MakeWorker = Callable[[BuiltExperiment, Streams, Streams], ClientExecutor]
"""(built experiment, public streams, secret streams) -> the executor that trains the clients."""

OnRound = Callable[[Mapping[str, Any]], None]
OnNote = Callable[[str], None]
"""Receives sentences that the user who resumes a run should read."""
Tensors = dict[str, Tensor]


def run_loop(
    built: BuiltExperiment,
    directory: Path,
    make_worker: MakeWorker,
    *,
    resume: bool,
    before: BuiltExperiment | None = None,
    accept_changes: bool = False,
    verify: int | None = None,
    choose_paths: ChoosePaths = paths_by_rule,
    metrics: OwnMetrics | None = None,
    on_models: Callable[[Callable[[], Tensors]], None] = lambda tensors: None,
    on_round: OnRound = lambda row: None,
    on_note: OnNote = lambda note: None,
) -> str | None:
    """Train to the end or to the budget; return the reason if the budget stopped the run.

    With `verify` = n, values are computed again without each of n subjects (`twin_worlds`); None: only in the first
    round, for a module of the user's own. `choose_paths` is asked once, when a run begins; a resumed run has recorded
    its paths. `metrics` are the user's own. `on_models` receives, once, a function that returns the tensors of the
    models after the last finished round.

    Guarantees: killed at any moment and resumed, the run ends with the same bits as an uninterrupted one, and no
    release is lost or counted twice. What the run is made of, and every file from which it resumes, matches its
    journal. A run that has ended is not continued, unless `before`, the experiment with the rounds that it made, says
    that `built` has more of them.
    """
    kept = nullcontext() if resume else removed_if_nothing_was_released(directory)
    # The lock comes first: it is the first file of a run, and it says whether the run made the directory.
    with lock_directory(directory), report_disk_errors(directory), kept:
        if resume:
            check_data(directory, built.federation)
            close_to_others(directory)
        else:
            check_free(directory, built.experiment)
            remove_false_start(directory)
            remember_data(directory, built.federation)
            write_settings(directory, built.experiment)
        record = RunRecord.open(directory) if resume else RunRecord.create(directory)
        try:
            # Before anything is drawn or written: a damaged record must not be continued.
            record.verify()
            if before is not None:
                reopen_run(record, before, built, accept=accept_changes, on_note=on_note)
            if record.facts.get("status") in ENDED:
                return _conclude(built, directory, record, on_note)
            work = TrainingLoop(
                built, directory, record, make_worker, on_round, on_note,
                accept_changes=accept_changes, verify=verify, choose_paths=choose_paths, metrics=metrics,
            )  # fmt: skip
            on_models(work.published_tensors)
            try:
                return work.run_to_end()
            finally:
                work.close()
        finally:
            record.close()


def _conclude(built: BuiltExperiment, directory: Path, record: RunRecord, on_note: OnNote) -> str | None:
    """Leave a run that has ended as it is; write a missing or damaged model again from the last checkpoint."""
    remove_secret(directory)
    ended, path = record.journal.last(EntryKind.END), directory / MODEL
    if not path.exists() or (ended and file_digest(path) != ended[0].body["model"]):
        known = [entry.body["sha256"] for entry in record.journal.last(EntryKind.CHECKPOINT)]
        result = load_checkpoint(directory, known)
        if result is None:
            reason = f"the run has ended, but {MODEL} and {CHECKPOINT} are missing or damaged"
            invalid("--resume", directory, reason, "restore one of them from a backup")
        save_model(built, path, result.state, record.store.head())
        on_note(f"run={directory}: {MODEL} was missing or damaged and is written again from {CHECKPOINT}")
    on_note(f"run={directory}: the run has ended and is left unchanged; --rounds +20 would add rounds")
    facts = record.facts
    return str(facts.get("status_reason")) if facts["status"] == "stopped" else None


class TrainingLoop:
    """One run in progress."""

    def __init__(
        self, built: BuiltExperiment, directory: Path, record: RunRecord, make_worker: MakeWorker, on_round: OnRound,
        on_note: OnNote, *, accept_changes: bool, verify: int | None = None, choose_paths: ChoosePaths = paths_by_rule,
        metrics: OwnMetrics | None = None,
    ) -> None:  # fmt: skip
        self.directory, self.record = directory, record
        self.metrics = metrics or OwnMetrics()
        self.state: State = {}
        self.on_round, self.on_note = on_round, on_note
        self.ledger: Ledger = record.ledger_at_work(built.participants)
        begun = len(self.ledger) > 0
        built = settle_paths(record, built, choose_paths, begun=begun, accept=accept_changes)
        self.built, self.best_by = built, best_metric(built, self.metrics.functions)
        public = Streams.from_seed(built.experiment.seed)
        from_os = built.experiment.privacy.noise_source == "os"
        # Only noise, cohorts and other secret draws use the operating system's entropy; initialisation and partitions
        # stay with the seed.
        root = own_streams(directory, record) if from_os else public
        self.memories: Mapping[str, ClientState] = {}
        self.schedules, self.noises = Schedules(root), NoiseStreams(root)
        self.resumed_from, self.change = self._resume(accept_changes)
        self.secret = root.fresh_streams(self.change.since) if self.change.since else root
        self.worker = make_worker(built, public, self.secret)
        nodes = self.worker.nodes is not None
        self.twins = plan_worlds(built, make_worker, public, self.secret, verify, nodes=nodes)
        self._compared_rounds = built.experiment.rounds if verify else 1
        self.plan = self._follow_plan() if built.foreign and built.unit is not Unit.NONE else None
        if self.plan is not None:
            refuse_early_stop(built.experiment.privacy.stop_at_epsilon, self.plan)

    def close(self) -> None:
        """Release processes and connections."""
        self.worker.close()
        if self.twins is not None:
            self.twins.close()

    def _resume(self, accept: bool) -> tuple[Checkpoint | None, Change]:
        """Return the checkpoint to resume from and the last accepted change; a new run has neither."""
        if not len(self.ledger) and not self.record.journal.last(EntryKind.START):
            begin_identity(self.record, self.built)
            return None, Change()
        now, changes = check_identity(self.record, self.built, accept=accept)
        entries = self.record.journal.last(EntryKind.CHECKPOINT, most=None)
        # Before a damaged checkpoint is set aside for an earlier one: going back must not hide that the ledger was cut.
        check_length(self.directory, len(self.ledger))
        result, wrong = find_checkpoint(self.directory, [entry.body["sha256"] for entry in entries])
        done = 0 if result is None else result.round
        self._check_ledger(result, done)
        change = last_change(self.record)
        # Correlated noise of this round contains z of earlier rounds: other code might not draw the same z again.
        if changes and len(self.ledger) and self.built.experiment.privacy.noise == "correlated":
            reason = f"{', '.join(changes)} changed, so the noise of earlier rounds cannot be repeated"
            invalid("--resume", self.directory, reason, "undo the change")
        if done < change.round:
            reason = (
                f"the checkpoint is from round {done}, but code changed after round {change.round}; "
                "the noise of the rounds in between cannot be repeated"
            )
            raise CheckpointDamaged(f"checkpoint={self.directory}: {reason}; restore a later one from a backup")
        if changes and self._last_released_round(done):
            change = self._repeat_with_other_noise(done, changes)
        if wrong:
            self.on_note(
                f"{wrong}; going on " + (f"from the one before, after round {done}" if done else "from the start")
            )
        if not self.record.journal:
            self.on_note(f"run={self.directory}: begun by a version that stored no hashes; they are stored from now on")
        if changes:
            self.on_note(f"run={self.directory}: continues after round {done} with changes: {', '.join(changes)}")
        body = now | {"round": change.round, "since": change.since, "accepted": changes, "after": done, "wrong": wrong}
        self.record.note(EntryKind.RESUME, body)
        if result is not None and not entries:
            self.record.note(EntryKind.CHECKPOINT, {"sha256": file_digest(self.directory / CHECKPOINT)}, round=done)
        return result, change

    def _check_ledger(self, checkpoint: Checkpoint | None, done: int) -> None:
        """Raise if the ledger lacks rows that the checkpoint knows, or holds others in their place."""
        if checkpoint is None:
            return
        if not self.record.store.vouches_for(checkpoint.releases, checkpoint.head):
            raise CheckpointDamaged(
                f"checkpoint={self.directory}: it lists releases that the ledger lacks; rows were deleted"
            )
        if any(self.ledger[id].time <= done for id in range(checkpoint.releases, len(self.ledger))):
            raise LedgerDamaged(f"ledger={self.directory}: rows of finished rounds were added after the last round")

    def _last_released_round(self, done: int) -> int:
        """Return the last round after `done` with releases in the ledger; 0 if there is none."""
        last = self.ledger[len(self.ledger) - 1].time if len(self.ledger) else 0
        return last if last > done else 0

    def _repeat_with_other_noise(self, done: int, changes: list[str]) -> Change:
        """Let the interrupted round be repeated with other noise, because other code computes other values.

        The same noise on two values would cancel out. What was released before stays counted.
        """
        sampling, way_out = self.built.experiment.sampling, "undo the change"
        what = ", ".join(changes)
        if any(sampler is not None and sampler.scheduled for sampler in (sampling.clients, sampling.samples)):
            reason = f"{what} changed, so the interrupted round would run twice, but a schedule has it once"
            invalid("--resume", self.directory, reason, way_out)
        if self._last_released_round(done) > done + 1:
            reason = f"{what} changed, so more than one round would run twice"
            invalid("--resume", self.directory, reason, way_out)
        self.on_note(
            f"round={done + 1}: was released in part before the change; made again with other noise, both count"
        )
        return Change(done, len(self.ledger))

    def run_to_end(self) -> str | None:
        """Run every remaining round; return the reason if the budget stopped the run."""
        state, done = self._restore_state()
        self.state = state
        counted = bool(self.built.experiment.privacy.continue_ledger)
        self.built = replace(self.built, earlier=keep_earlier(self.record, self.built.earlier, counted=counted))
        if self.built.earlier is not None:
            self.on_note(self.built.earlier.tell(counted=counted))
        if not self.record.facts.get("created"):
            self.record.remember_metadata({"created": datetime.now(UTC).isoformat(timespec="seconds")})
        about = {"status": "running", "status_reason": "", "workers": getattr(self.worker, "processes", None)}
        real_sites = self.worker.nodes is not None and not self.worker.nodes.steadfast
        facts = collect_facts(self.built, real_sites=real_sites).to_stored()
        if self.record.facts.get(ADDED):
            facts |= {"target_epsilon": None}  # it was the target of fewer rounds
        self.record.remember_metadata(facts | self._name_metrics(facts["metrics"]) | about)
        reason, ending, rounds = None, "", self.built.experiment.rounds
        for number in range(done + 1, rounds + 1):
            if self.built.algorithm.facts.finished(state):
                why = self.built.algorithm.facts.ending
                ending = f"{why} in {number - 1} of {rounds} rounds{self._charged_in_full}"
                break
            try:
                state = self._run_round(state, number)
            except StoppedByGate as stop:
                reason = str(stop)
                break
        self._finish_run(state, reason, ending)
        return reason

    def _name_metrics(self, task: Sequence[str]) -> dict[str, Any]:
        """Return the names of all metrics for the facts; note those of a resumed run that were not passed again."""
        own = list(self.metrics.functions)
        gone = [name for name in self.record.facts.get("metrics", []) if name not in (*task, *own)]
        if gone:
            self.on_note(f"metrics={', '.join(gone)}: not passed again, so the rounds from here on lack them")
        return {"metrics": [*task, *gone, *own]}

    def _restore_state(self) -> tuple[State, int]:
        result = self.resumed_from
        done = 0 if result is None else result.round
        steadfast = self.worker.nodes is None or self.worker.nodes.steadfast
        # The same noise on new answers would cancel out: the difference of two noisy means is the late node's own
        # update. Only the one round that was interrupted can be repeated with other noise.
        if not steadfast and self._last_released_round(done) > done + 1:
            reason = f"the checkpoint is from round {done}, but nodes saw later rounds and may answer differently now"
            raise CheckpointDamaged(f"checkpoint={self.directory}: {reason}; restore a later one from a backup")
        if self.change.since and steadfast and self.worker.nodes is not None:
            reason = "simulated nodes must repeat the run's noise, but changed code draws new noise"
            invalid("runtime", "flower", reason, "resume with --runtime simulator, which gives the same result")
        if result is None:
            start = Public(self.built.start)
            return self.built.algorithm.init(start, self.built.clients, self.built.settings), 0
        noised = self.built.mechanism.facts.keeps_noised
        self.memories = {name: replace(state, noised=noised) for name, state in result.memories.items()}
        self._update_clusters(result.state)
        if not self.record.has_round(result.round):
            self._report_round(result.state, result.round, result.counts, seconds=0.0)
        return result.state, result.round

    def _run_round(self, state: State, number: int) -> State:
        begun = time.perf_counter()
        try:
            r, state = self._commit_round(state, number)
        # Real nodes have seen values of the interrupted attempt. Repeat the round with streams named by the length of
        # the ledger; the releases of both attempts count.
        except SeenBefore:
            r, state = self._commit_round(state, number, repeated=True)
        self.memories = r.memories
        head = self.record.store.head()
        checkpoint = Checkpoint(number, state, len(self.ledger), head, r.counts, self.memories)
        # The order must not change: releases are durable in the ledger, then the checkpoint, then the row of metrics. A
        # crash between two of them is repaired by doing the later ones again.
        save_checkpoint(self.directory, checkpoint, partial(self._vouch_for, number))
        self._report_round(state, number, r.counts, seconds=time.perf_counter() - begun)
        return state

    def _vouch_for(self, number: int, digest: str) -> None:
        self.record.note(EntryKind.CHECKPOINT, {"sha256": digest}, round=number)

    def _commit_round(self, state: State, number: int, *, repeated: bool = False) -> tuple[TrainingRound, State]:
        execution = LiveExecution(self.worker, self.secret, self.schedules, self.noises)
        if self.twins is not None and number <= self._compared_rounds:
            execution = ComparedExecution(self.worker, self.secret, self.schedules, self.twins, self.noises)
        where = (self.built, self.ledger, execution, number, self.memories)
        redone = repeated and self.built.experiment.privacy.noise == "correlated"  # has rows that no plan has
        r = TrainingRound(*where, repeated=repeated, since=self.change.since, plan=None if redone else self.plan)
        try:
            after = self._settle_state(self.built.algorithm.round(state, r, self.built.settings))
        except (SeenBefore, KeyboardInterrupt):
            raise
        except BaseException:  # released values may have decided on this end too
            if self.plan is not None:
                r.charge_plan(later=self.plan)
            raise
        r.charge_plan(later=self._plan_after(after, number))
        return r, after

    def _settle_state(self, after: State) -> State:
        """Return the state after a round, with the fewest sources.

        Raise here what a plugin would raise later when it reads this state.
        """
        algorithm = self.built.algorithm
        after = trim_sources(after, self.ledger)
        if self.plan is not None:
            algorithm.facts.finished(after)
            algorithm.facts.clusters(after)
            check_models(self.built, after)
        return after

    def _follow_plan(self) -> FollowedPlan:
        nodes = self.worker.nodes
        return follow_plan(self.built, real_nodes=nodes is not None and not nodes.steadfast)

    def _plan_after(self, state: State, number: int) -> FollowedPlan | None:
        """Return the plan if the run ends before its last round, which released values may have decided."""
        # "Epsilon so far" of an adaptive early end is an odometer, not a guarantee. The rest of the plan is charged
        # instead.
        private = self.built.unit is not Unit.NONE and number < self.built.experiment.rounds
        return (self.plan or self._follow_plan()) if private and self.built.algorithm.facts.finished(state) else None

    @property
    def _charged_in_full(self) -> str:
        return "" if self.built.unit is Unit.NONE else "; epsilon is that of the whole plan"

    def _report_round(self, state: State, number: int, counts: Mapping[str, float], *, seconds: float) -> None:
        self._update_clusters(state)
        self.state = state
        experiment = self.built.experiment
        last = number == experiment.rounds or self.built.algorithm.facts.finished(state)
        due = last or number % experiment.evaluate_every == 0
        metrics: dict[str, Any] = task_row(self.built)
        if due:
            metrics |= self._evaluate_state(state)
            # Before the row: a crash in between repeats both.
            self._keep_best(state, number, metrics)
        metrics |= cluster_row(self.built, state)
        if due or accounted_at(number):
            metrics |= {"epsilon": self._spent_epsilon()}
        row = metrics | dict(counts) | {"seconds": seconds}
        if not self.record.has_round(number):  # a round that is done again ends in the same numbers
            self.record.add_round(number, row)
        self.on_round({"round": number} | row)

    def _update_clusters(self, state: State) -> None:
        """Update clients' clusters for views and report."""
        before, self.built = self.built, self.built.as_found(state)
        if self.built is not before:
            self.record.remember_metadata(observer_facts(self.built).to_stored() | cluster_facts(self.built, state))

    def _evaluate_state(self, state: State) -> Mapping[str, float]:
        """Return metrics of the algorithm's models, or of those that clients keep for themselves."""
        models = self.built.algorithm.models(state, self.built.clients)
        kept = self.memories.get(self.built.algorithm.facts.kept)
        if kept is not None and isinstance(models, Public):
            return (
                evaluated_kept(self.built, kept.values, models)
                | evaluate_validation(self.built, models, kept.values)
                | self.metrics.evaluate(self.built, models, kept.values)
            )
        return (
            evaluate_models(self.built, models)
            | evaluate_validation(self.built, models)
            | self.metrics.evaluate(self.built, models)
        )

    def _keep_best(self, state: State, number: int, row: Mapping[str, Any]) -> None:
        """Write the model of this round if it is better than that of every round before."""
        if self.best_by is None:
            return
        value, best = row[self.best_by.test_key], self.record.facts.get("best")
        sign = 1 if self.best_by.higher else -1
        if not math.isfinite(value) or (best is not None and sign * value <= sign * best["value"]):
            return
        save_model(self.built, self.directory / BEST, state, self.record.store.head())
        self.record.remember_metadata({"best": {"round": number, "metric": self.best_by.name, "value": value}})

    def published_tensors(self) -> Tensors:
        """Return the models after the last finished round by name, as `model.safetensors` would hold them."""
        # Clones: a caller who changes them must not change the run.
        return {name: tensor.clone() for name, tensor in model_tensors(self.built, self.state).items()}

    def _spent_epsilon(self) -> dict[str, float]:
        delta, accountant = self.built.experiment.privacy.delta, self.built.accountant
        return {
            kind: self.ledger.worst_of(lines, delta, accountant=accountant)
            for kind, lines in self.built.topology.lines.items()
        }

    def _describe_added(self) -> list[str]:
        added, rounds = int(self.record.facts.get(ADDED) or 0), self.built.experiment.rounds
        if not added:
            return []
        planned, target = rounds - added, self.built.experiment.privacy.epsilon
        note = f"Planned for {planned} rounds; {added} were added with the same noise"
        if self.built.unit is not Unit.NONE:
            note += f", and epsilon counts all {rounds}"
        # config.toml keeps the target, and a reader of it must not take it for the guarantee.
        return [note + ("." if target is None else f": privacy.epsilon = {target:g} was for {planned}.")]

    def _finish_run(self, state: State, reason: str | None, ending: str) -> None:
        path = self.directory / MODEL
        save_model(self.built, path, state, self.record.store.head())
        result = self.built.algorithm.facts.clusters(state)
        asked = self.built.experiment.topology.settings.get("count")
        rows = self.record.rounds() if result is not None else []
        told = cluster_notes(result, rows, self.ledger, asked if isinstance(asked, int) else None)
        resumed = [
            f"Went on after round {entry.body['after']} with changes: {', '.join(entry.body['accepted'])}."
            for entry in self.record.journal.last(EntryKind.RESUME, most=None)
            if entry.body["accepted"]
        ]
        compared = [self.twins.describe()] if self.twins is not None and self.twins.comparisons.count else []
        notes = [*notes_of(self.built), *told, *self._describe_added(), *resumed[::-1], *compared]
        facts = cluster_facts(self.built, state) | {"notes": notes}
        if self.built.earlier is not None:
            facts["together"] = sum_up(self.built.earlier, self.record.facts, self.ledger)
        status = "stopped" if reason else "finished"
        facts |= {"status": status, "status_reason": reason or ending, "seconds": self.record.total("seconds")}
        # The noise root is removed only after the end is durable: before, a resumed run still needs it.
        self.record.end({"model": file_digest(path), "status": status}, facts)
        remove_secret(self.directory)


def save_model(built: BuiltExperiment, path: Path, state: State, head: str) -> None:
    """Write the published model, or every client's own, with the head of the ledger under which it was made."""
    save_tensors(path, model_tensors(built, state), {MADE_BY: head})


def model_tensors(built: BuiltExperiment, state: State) -> Tensors:
    """Return the published model, or every client's own, as named tensors."""
    models = built.algorithm.models(state, built.clients)
    if isinstance(models, Public):
        return built.model.named_tensors(models.value.float())
    return {
        f"{client_name(client)}/{name}": tensor
        for client, model in models.items()
        for name, tensor in built.model.split(model.value.float()).items()
    } | dict(built.model.constants)


def accounted_at(number: int) -> bool:
    """Return whether epsilon is computed after a round: always below 1000, later at three digits and zeros.

    It is for display only. The ledger holds every release, a budget is checked before each, and the report accounts for
    all.

    >>> [number for number in (7, 999, 1005, 1010, 20000, 20010) if accounted_at(number)]
    [7, 999, 1010, 20000]
    """
    # It depends on the round's number alone, so a resumed run writes the same rows. A row without epsilon has none: it
    # never repeats an older, smaller one.
    return number % int(10 ** max(0, len(str(number)) - 3)) == 0
