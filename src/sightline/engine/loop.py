"""The training loop: plan -> train -> release -> apply -> evaluate -> commit, resumable at any moment."""

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

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
    cluster_facts,
    cluster_notes,
    cluster_row,
    evaluate_models,
    evaluated_kept,
    task_row,
)
from sightline.engine.execution import LiveExecution
from sightline.engine.followed_plan import FollowedPlan, refuse_early_stop
from sightline.engine.metadata import facts_of, notes_of, seen_by
from sightline.engine.plan import follow_plan
from sightline.engine.record import RunRecord
from sightline.engine.release_gate import SeenBefore, StoppedByGate
from sightline.engine.round import TrainingRound
from sightline.engine.run_directory import (
    ENDED,
    MODEL,
    check_free,
    close_to_others,
    disk_told,
    lock_directory,
    own_streams,
    remove_false_start,
    remove_secret,
    removed_if_nothing_was_released,
    write_settings,
)
from sightline.engine.twin_worlds import ComparedExecution, plan_worlds
from sightline.errors import invalid
from sightline.events import Unit
from sightline.ledger import EntryKind, Ledger, LedgerDamaged
from sightline.mechanisms import ClientExecutor, ClientState, NoiseStreams, Public, Schedules
from sightline.randomness import Streams
from sightline.topology import client_name

MakeWorker = Callable[[BuiltExperiment, Streams, Streams], ClientExecutor]
"""(built experiment, public streams, secret streams) -> the executor that trains the clients."""

OnRound = Callable[[Mapping[str, Any]], None]
OnNote = Callable[[str], None]
"""Receives sentences that the user who resumes a run should read."""


def run_loop(
    setting: BuiltExperiment,
    directory: Path,
    make_worker: MakeWorker,
    *,
    resume: bool,
    accept_changes: bool = False,
    verify: int | None = None,
    choose_paths: ChoosePaths = paths_by_rule,
    on_round: OnRound = lambda row: None,
    on_note: OnNote = lambda note: None,
) -> str | None:
    """Train to the end or to the budget; return the reason if the budget stopped the run.

    With `verify` = n, values are computed again without each of n subjects (`twin_worlds`); None: only in the first
    round, for a module of the user's own. `choose_paths` is asked once, when a run begins; a resumed run has recorded
    its paths.

    Guarantees: killed at any moment and resumed, the run ends with the same bits as an uninterrupted one, and no
    release is lost or counted twice. What the run is made of, and every file from which it resumes, matches its
    journal. A run that has ended is not continued.
    """
    kept = nullcontext() if resume else removed_if_nothing_was_released(directory)
    # The lock comes first: it is the first file of a run, and it says whether the run made the directory.
    with lock_directory(directory), disk_told(directory), kept:
        if resume:
            check_data(directory, setting.federation)
            close_to_others(directory)
        else:
            check_free(directory, setting.experiment)
            remove_false_start(directory)
            remember_data(directory, setting.federation)
            write_settings(directory, setting.experiment)
        record = RunRecord.open(directory) if resume else RunRecord.create(directory)
        try:
            # Before anything is drawn or written: a damaged record must not be continued.
            record.verify()
            if record.facts.get("status") in ENDED:
                return _conclude(setting, directory, record, on_note)
            work = TrainingLoop(
                setting, directory, record, make_worker, on_round, on_note,
                accept_changes=accept_changes, verify=verify, choose_paths=choose_paths,
            )  # fmt: skip
            try:
                return work.to_the_end()
            finally:
                work.close()
        finally:
            record.close()


def _conclude(setting: BuiltExperiment, directory: Path, record: RunRecord, on_note: OnNote) -> str | None:
    """Leave a run that has ended as it is; write a missing or damaged model again from the last checkpoint."""
    remove_secret(directory)
    ended, path = record.journal.last(EntryKind.END), directory / MODEL
    if not path.exists() or (ended and file_digest(path) != ended[0].body["model"]):
        known = [entry.body["sha256"] for entry in record.journal.last(EntryKind.CHECKPOINT)]
        found = load_checkpoint(directory, known)
        if found is None:
            law = f"has ended, its {MODEL} is gone or damaged, and so is its {CHECKPOINT}"
            invalid("--resume", directory, law, "bring one of them back")
        save_model(setting, path, found.state, record.store.head())
        on_note(f"run={directory}: its {MODEL} was gone or damaged and is made again from its {CHECKPOINT}")
    on_note(f"run={directory}: has ended before; a run that has ended cannot be continued")
    facts = record.facts
    return str(facts.get("status_reason")) if facts["status"] == "stopped" else None


class TrainingLoop:
    """One run in progress."""

    def __init__(
        self, setting: BuiltExperiment, directory: Path, record: RunRecord, make_worker: MakeWorker, on_round: OnRound,
        on_note: OnNote, *, accept_changes: bool, verify: int | None = None, choose_paths: ChoosePaths = paths_by_rule,
    ) -> None:  # fmt: skip
        self.directory, self.record = directory, record
        self.on_round, self.on_note = on_round, on_note
        self.ledger: Ledger = record.ledger_at_work(setting.participants)
        begun = len(self.ledger) > 0
        setting = settle_paths(record, setting, choose_paths, begun=begun, accept=accept_changes)
        self.setting = setting
        public = Streams.from_seed(setting.experiment.seed)
        from_os = setting.experiment.privacy.noise_source == "os"
        # Only noise, cohorts and other secret draws use the operating system's entropy; initialisation and partitions
        # stay with the seed.
        root = own_streams(directory, record) if from_os else public
        self.memories: Mapping[str, ClientState] = {}
        self.schedules, self.noises = Schedules(root), NoiseStreams(root)
        self.found, self.change = self._go_on(accept_changes)
        self.secret = root.fresh_streams(self.change.since) if self.change.since else root
        self.worker = make_worker(setting, public, self.secret)
        nodes = self.worker.nodes is not None
        self.twins = plan_worlds(setting, make_worker, public, self.secret, verify, nodes=nodes)
        self._compared_to = setting.experiment.rounds if verify else 1
        self.plan = self._follow_plan() if setting.foreign and setting.unit is not Unit.NONE else None
        if self.plan is not None:
            refuse_early_stop(setting.experiment.privacy.stop_at_epsilon, self.plan)

    def close(self) -> None:
        """Release processes and connections."""
        self.worker.close()
        if self.twins is not None:
            self.twins.close()

    def _go_on(self, accept: bool) -> tuple[Checkpoint | None, Change]:
        """Return the checkpoint to resume from and the last accepted change; a new run has neither."""
        if not len(self.ledger) and not self.record.journal.last(EntryKind.START):
            begin_identity(self.record, self.setting)
            return None, Change()
        now, changes = check_identity(self.record, self.setting, accept=accept)
        entries = self.record.journal.last(EntryKind.CHECKPOINT, most=None)
        # Before a damaged checkpoint is set aside for an earlier one: going back must not hide that the ledger was cut.
        check_length(self.directory, len(self.ledger))
        found, wrong = find_checkpoint(self.directory, [entry.body["sha256"] for entry in entries])
        done = 0 if found is None else found.round
        self._check_ledger(found, done)
        change = last_change(self.record)
        # Correlated noise of this round contains z of earlier rounds: other code might not draw the same z again.
        if changes and len(self.ledger) and self.setting.experiment.privacy.noise == "correlated":
            law = f"with {', '.join(changes)} changed, the noise of earlier rounds might not be drawn again as it was"
            invalid("--resume", self.directory, law, "bring back what changed")
        if done < change.round:
            law = f"it is of round {done}, and after round {change.round} other code took over"
            raise CheckpointDamaged(f"checkpoint={self.directory}: {law}; bring a later one back")
        if changes and self._made_since(done):
            change = self._break_with(done, changes)
        if wrong:
            self.on_note(
                f"{wrong}; going on " + (f"from the one before, after round {done}" if done else "from the start")
            )
        if not self.record.journal:
            self.on_note(f"run={self.directory}: begun by a version that kept no hashes; from here on they are kept")
        if changes:
            self.on_note(f"run={self.directory}: goes on after round {done} with changes: {', '.join(changes)}")
        body = now | {"round": change.round, "since": change.since, "accepted": changes, "after": done, "wrong": wrong}
        self.record.note(EntryKind.RESUME, body)
        if found is not None and not entries:
            self.record.note(EntryKind.CHECKPOINT, {"sha256": file_digest(self.directory / CHECKPOINT)}, round=done)
        return found, change

    def _check_ledger(self, found: Checkpoint | None, done: int) -> None:
        """Raise if the ledger lacks rows that the checkpoint knows, or holds others in their place."""
        if found is None:
            return
        if not self.record.store.vouches_for(found.releases, found.head):
            raise CheckpointDamaged(
                f"checkpoint={self.directory}: it remembers releases that the ledger does not hold; rows were cut"
            )
        if any(self.ledger[id].time <= done for id in range(found.releases, len(self.ledger))):
            raise LedgerDamaged(f"ledger={self.directory}: rows of finished rounds were added to it after the last one")

    def _made_since(self, done: int) -> int:
        """Return the last round after `done` with releases in the ledger; 0 if there is none."""
        last = self.ledger[len(self.ledger) - 1].time if len(self.ledger) else 0
        return last if last > done else 0

    def _break_with(self, done: int, changes: list[str]) -> Change:
        """Let the interrupted round be repeated with other noise, because other code computes other values.

        The same noise on two values would cancel out. What was released before stays counted.
        """
        sampling, way_out = self.setting.experiment.sampling, "bring back what changed"
        what = ", ".join(changes)
        if any(sampler is not None and sampler.scheduled for sampler in (sampling.clients, sampling.samples)):
            law = f"with {what} changed, the interrupted round would be made a second time, and a schedule has it once"
            invalid("--resume", self.directory, law, way_out)
        if self._made_since(done) > done + 1:
            law = f"with {what} changed, more than one round would be made a second time"
            invalid("--resume", self.directory, law, way_out)
        self.on_note(
            f"round={done + 1}: was released in part before the change; made again with other noise, both count"
        )
        return Change(done, len(self.ledger))

    def to_the_end(self) -> str | None:
        """Run every remaining round; return the reason if the budget stopped the run."""
        state, done = self._where_it_stands()
        counted = bool(self.setting.experiment.privacy.continue_ledger)
        self.setting = replace(self.setting, earlier=keep_earlier(self.record, self.setting.earlier, counted=counted))
        if self.setting.earlier is not None:
            self.on_note(self.setting.earlier.tell(counted=counted))
        if not self.record.facts.get("created"):
            self.record.remember_metadata({"created": datetime.now(UTC).isoformat(timespec="seconds")})
        about = {"status": "running", "status_reason": "", "workers": getattr(self.worker, "processes", None)}
        real_sites = self.worker.nodes is not None and not self.worker.nodes.steadfast
        self.record.remember_metadata(facts_of(self.setting, real_sites=real_sites) | about)
        reason, ending, rounds = None, "", self.setting.experiment.rounds
        for number in range(done + 1, rounds + 1):
            if self.setting.algorithm.finished(state):
                ending = f"{self.setting.algorithm.ending} in {number - 1} of {rounds} rounds{self._charged_in_full}"
                break
            try:
                state = self._run_round(state, number)
            except StoppedByGate as stop:
                reason = str(stop)
                break
        self._finish_run(state, reason, ending)
        return reason

    def _where_it_stands(self) -> tuple[State, int]:
        found = self.found
        done = 0 if found is None else found.round
        steadfast = self.worker.nodes is None or self.worker.nodes.steadfast
        # The same noise on new answers would cancel out: the difference of two noisy means is the late node's own
        # update. Only the one round that was interrupted can be repeated with other noise.
        if not steadfast and self._made_since(done) > done + 1:
            law = f"it is of round {done}, nodes have seen later rounds, and what they answer now may be something else"
            raise CheckpointDamaged(f"checkpoint={self.directory}: {law}; bring a later one back")
        if self.change.since and steadfast and self.worker.nodes is not None:
            law = "simulated nodes draw the noise that the run began with, and other code goes on with other noise"
            invalid("runtime", "flower", law, "go on with --runtime simulator: the bits are the same")
        if found is None:
            start = Public(self.setting.start)
            return self.setting.algorithm.init(start, self.setting.clients, self.setting.settings), 0
        noised = self.setting.mechanism.keeps_noised
        self.memories = {name: replace(state, noised=noised) for name, state in found.memories.items()}
        self._look_around(found.state)
        if not self.record.has_round(found.round):
            self._report_round(found.state, found.round, found.counts, seconds=0.0)
        return found.state, found.round

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
        if self.twins is not None and number <= self._compared_to:
            execution = ComparedExecution(self.worker, self.secret, self.schedules, self.twins, self.noises)
        where = (self.setting, self.ledger, execution, number, self.memories)
        redone = repeated and self.setting.experiment.privacy.noise == "correlated"  # has rows that no plan has
        r = TrainingRound(*where, repeated=repeated, since=self.change.since, plan=None if redone else self.plan)
        try:
            after = self._ask_algorithm(state, r)
        except (SeenBefore, KeyboardInterrupt):
            raise
        except BaseException:  # released values may have decided on this end too
            if self.plan is not None:
                r.charge_plan(later=self.plan)
            raise
        r.charge_plan(later=self._plan_after(after, number))
        return r, after

    def _ask_algorithm(self, state: State, r: TrainingRound) -> State:
        """Return the state after a round; raise here what the algorithm would raise later when it reads this state."""
        algorithm = self.setting.algorithm
        after = algorithm.round(state, r, self.setting.settings)
        after = {name: Public(value.value, self.ledger.frontier(value.sources)) for name, value in after.items()}
        if self.plan is not None:
            algorithm.finished(after), algorithm.found(after), algorithm.models(after, self.setting.clients)
        return after

    def _follow_plan(self) -> FollowedPlan:
        nodes = self.worker.nodes
        return follow_plan(self.setting, real_nodes=nodes is not None and not nodes.steadfast)

    def _plan_after(self, state: State, number: int) -> FollowedPlan | None:
        """Return the plan if the run ends before its last round, which released values may have decided."""
        # "Epsilon so far" of an adaptive early end is an odometer, not a guarantee. The rest of the plan is charged
        # instead.
        private = self.setting.unit is not Unit.NONE and number < self.setting.experiment.rounds
        return (self.plan or self._follow_plan()) if private and self.setting.algorithm.finished(state) else None

    @property
    def _charged_in_full(self) -> str:
        return "" if self.setting.unit is Unit.NONE else "; epsilon is that of the whole plan"

    def _report_round(self, state: State, number: int, counts: Mapping[str, float], *, seconds: float) -> None:
        self._look_around(state)
        experiment = self.setting.experiment
        last = number == experiment.rounds or self.setting.algorithm.finished(state)
        due = last or number % experiment.evaluate_every == 0
        metrics: dict[str, Any] = task_row(self.setting)
        if due:
            metrics |= self._evaluate_state(state)
        metrics |= cluster_row(self.setting, state)
        if due or accounted_at(number):
            metrics |= {"epsilon": self._spent_epsilon()}
        row = metrics | dict(counts) | {"seconds": seconds}
        if not self.record.has_round(number):  # a round that is done again ends in the same numbers
            self.record.add_round(number, row)
        self.on_round({"round": number} | row)

    def _look_around(self, state: State) -> None:
        """Update clients' clusters for views and report."""
        before, self.setting = self.setting, self.setting.as_found(state)
        if self.setting is not before:
            self.record.remember_metadata(seen_by(self.setting) | cluster_facts(self.setting, state))

    def _evaluate_state(self, state: State) -> Mapping[str, float]:
        """Return metrics of the algorithm's models, or of those that clients keep for themselves."""
        models = self.setting.algorithm.models(state, self.setting.clients)
        kept = self.memories.get(self.setting.algorithm.kept)
        if kept is not None and isinstance(models, Public):
            return evaluated_kept(self.setting, kept.values, models)
        return evaluate_models(self.setting, models)

    def _spent_epsilon(self) -> dict[str, float]:
        delta, accountant = self.setting.experiment.privacy.delta, self.setting.accountant
        return {
            kind: self.ledger.worst_of(lines, delta, accountant=accountant)
            for kind, lines in self.setting.topology.lines.items()
        }

    def _finish_run(self, state: State, reason: str | None, ending: str) -> None:
        path = self.directory / MODEL
        save_model(self.setting, path, state, self.record.store.head())
        found = self.setting.algorithm.found(state)
        asked = self.setting.experiment.topology.settings.get("count")
        rows = self.record.rounds() if found is not None else []
        told = cluster_notes(found, rows, self.ledger, asked if isinstance(asked, int) else None)
        resumed = [
            f"Went on after round {entry.body['after']} with changes: {', '.join(entry.body['accepted'])}."
            for entry in self.record.journal.last(EntryKind.RESUME, most=None)
            if entry.body["accepted"]
        ]
        compared = [self.twins.describe()] if self.twins is not None and self.twins.found.count else []
        notes = [*notes_of(self.setting), *told, *resumed[::-1], *compared]
        facts = cluster_facts(self.setting, state) | {"notes": notes}
        if self.setting.earlier is not None:
            facts["together"] = sum_up(self.setting.earlier, self.record.facts, self.ledger)
        status = "stopped" if reason else "finished"
        facts |= {"status": status, "status_reason": reason or ending, "seconds": self.record.total("seconds")}
        # The noise root is removed only after the end is durable: before, a resumed run still needs it.
        self.record.end({"model": file_digest(path), "status": status}, facts)
        remove_secret(self.directory)


def save_model(setting: BuiltExperiment, path: Path, state: State, head: str) -> None:
    """Write the published model, or every client's own, with the head of the ledger under which it was made."""
    models = setting.algorithm.models(state, setting.clients)
    if isinstance(models, Public):
        tensors = setting.model.named_tensors(models.value.float())
    else:
        tensors = {
            f"{client_name(client)}/{name}": tensor
            for client, model in models.items()
            for name, tensor in setting.model.split(model.value.float()).items()
        } | dict(setting.model.constants)
    save_tensors(path, tensors, {MADE_BY: head})


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
