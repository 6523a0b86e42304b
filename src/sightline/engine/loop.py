"""The loop: plan -> train -> release -> apply -> evaluate -> commit."""

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sightline.algorithms import State
from sightline.config import to_toml
from sightline.engine.checkpoint import Checkpoint, CheckpointDamaged, load_checkpoint, save_checkpoint, save_tensors
from sightline.engine.clusters import cluster_facts, cluster_notes, cluster_row
from sightline.engine.directory import (
    CONFIG,
    MODEL,
    SECRET,
    disk_told,
    locked,
    own_streams,
    remember_data,
    removed_if_nothing_was_released,
    same_data,
)
from sightline.engine.door import SeenBefore
from sightline.engine.evaluation import evaluated, evaluated_kept
from sightline.engine.facts import facts_of, notes_of, seen_by
from sightline.engine.record import RunRecord
from sightline.engine.round import LiveRound
from sightline.engine.setting import Setting
from sightline.errors import BudgetExhausted
from sightline.ledger import Ledger, LedgerDamaged
from sightline.mechanisms import Public, Schedules, Shelf, Worker
from sightline.randomness import Streams
from sightline.topology import client_name

MakeWorker = Callable[[Setting, Streams, Streams], Worker]
"""(setting, public streams, secret streams) -> whoever trains the clients."""

OnRound = Callable[[Mapping[str, Any]], None]


def run(
    setting: Setting, directory: Path, make_worker: MakeWorker, *, resume: bool, on_round: OnRound = lambda row: None
) -> str | None:
    """Train to the end, or to the budget; returns the reason when the budget stopped it.

    Guarantees: killed at any moment and resumed, the run ends with the bits that an unbroken one would have had, and
    no release is lost or counted twice.
    """
    kept = nullcontext() if resume else removed_if_nothing_was_released(directory)
    with locked(directory), disk_told(directory), kept:
        if resume:
            same_data(directory, setting.federation)
        else:
            remember_data(directory, setting.federation)
            (directory / SECRET).unlink(missing_ok=True)  # a new run never has the noise of another
            (directory / CONFIG).write_text(to_toml(setting.experiment), encoding="utf-8")
        record = RunRecord.open(directory) if resume else RunRecord.create(directory)
        try:
            work = Run(setting, directory, record, make_worker, on_round)
            try:
                return work.to_the_end()
            finally:
                work.worker.close()
        finally:
            record.close()


class Run:
    """One run at work."""

    def __init__(
        self, setting: Setting, directory: Path, record: RunRecord, make_worker: MakeWorker, on_round: OnRound
    ) -> None:
        self.setting, self.directory, self.record, self.on_round = setting, directory, record, on_round
        self.ledger: Ledger = record.ledger_at_work(setting.participants)
        public = Streams.from_seed(setting.experiment.seed)
        from_os = setting.experiment.privacy.noise_source == "os"
        self.secret = own_streams(directory, record) if from_os else public
        self.worker = make_worker(setting, public, self.secret)
        self.memories: Mapping[str, Shelf] = {}
        self.schedules = Schedules(self.secret)

    def to_the_end(self) -> str | None:
        """Every round that is left."""
        state, done = self._where_it_stands()
        if not self.record.facts.get("created"):
            self.record.remember({"created": datetime.now(UTC).isoformat(timespec="seconds")})
        self.record.remember(facts_of(self.setting) | {"status": "running", "status_reason": ""})
        reason, ending, rounds = None, "", self.setting.experiment.rounds
        for number in range(done + 1, rounds + 1):
            if self.setting.algorithm.finished(state):
                ending = f"{self.setting.algorithm.ending} in {number - 1} of {rounds} rounds"
                break
            try:
                state = self._round(state, number)
            except BudgetExhausted as stop:
                reason = str(stop)
                break
        self._finish(state, reason, ending)
        return reason

    def _where_it_stands(self) -> tuple[State, int]:
        found = load_checkpoint(self.directory)
        if found is None:
            start = Public(self.setting.start)
            return self.setting.algorithm.init(start, self.setting.clients, self.setting.settings), 0
        if not self.record.store.vouches_for(found.releases, found.head):
            raise CheckpointDamaged(
                f"checkpoint={self.directory}: it remembers releases that the ledger does not hold; rows were cut"
            )
        if any(self.ledger[id].time <= found.round for id in range(found.releases, len(self.ledger))):
            raise LedgerDamaged(f"ledger={self.directory}: rows of finished rounds were added to it after the last one")
        self.memories = found.memories
        self._look_around(found.state)
        if not self.record.has_round(found.round):
            self._report_round(found.state, found.round, found.counts, seconds=0.0)
        return found.state, found.round

    def _round(self, state: State, number: int) -> State:
        begun = time.perf_counter()
        try:
            r, after = self._done(state, number)
        except SeenBefore:
            r, after = self._done(state, number, anew=True)
        state = {name: Public(value.value, self.ledger.frontier(value.sources)) for name, value in after.items()}
        self.memories = r.memories
        head = self.record.store.head()
        checkpoint = Checkpoint(number, state, len(self.ledger), head, r.counts, self.memories)
        save_checkpoint(self.directory, checkpoint)
        self._report_round(state, number, r.counts, seconds=time.perf_counter() - begun)
        return state

    def _done(self, state: State, number: int, *, anew: bool = False) -> tuple[LiveRound, State]:
        where = (self.setting, self.ledger, self.worker, self.secret, number, self.memories, self.schedules)
        r = LiveRound(*where, anew=anew)
        return r, self.setting.algorithm.round(state, r, self.setting.settings)

    def _report_round(self, state: State, number: int, counts: Mapping[str, float], *, seconds: float) -> None:
        self._look_around(state)
        experiment = self.setting.experiment
        last = number == experiment.rounds or self.setting.algorithm.finished(state)
        due = last or number % experiment.evaluate_every == 0
        metrics: dict[str, Any] = {}
        if due:
            metrics = dict(self._evaluated(state))
        metrics |= cluster_row(self.setting, state)
        if due or accounted_at(number):
            metrics |= {"epsilon": self._spent()}
        row = metrics | dict(counts) | {"seconds": seconds}
        self.record.add_round(number, row)
        self.on_round({"round": number} | row)

    def _look_around(self, state: State) -> None:
        """Where everybody is now, for lines of sight and report."""
        before, self.setting = self.setting, self.setting.as_found(state)
        if self.setting is not before:
            self.record.remember(seen_by(self.setting) | cluster_facts(self.setting, state))

    def _evaluated(self, state: State) -> Mapping[str, float]:
        """How good the algorithm's models are, or those that the clients keep for themselves."""
        models = self.setting.algorithm.models(state, self.setting.clients)
        kept = self.memories.get(self.setting.algorithm.kept)
        if kept is not None and isinstance(models, Public):
            return evaluated_kept(self.setting, kept.values, models)
        return evaluated(self.setting, models)

    def _spent(self) -> dict[str, float]:
        delta, accountant = self.setting.experiment.privacy.delta, self.setting.accountant
        return {
            kind: self.ledger.worst_of(lines, delta, accountant=accountant)
            for kind, lines in self.setting.topology.lines.items()
        }

    def _finish(self, state: State, reason: str | None, ending: str) -> None:
        models = self.setting.algorithm.models(state, self.setting.clients)
        if isinstance(models, Public):
            tensors = self.setting.model.named_tensors(models.value.float())
        else:
            tensors = {
                f"{client_name(client)}/{name}": tensor
                for client, model in models.items()
                for name, tensor in self.setting.model.split(model.value.float()).items()
            } | dict(self.setting.model.constants)
        save_tensors(self.directory / MODEL, tensors)
        found = self.setting.algorithm.found(state)
        asked = self.setting.experiment.topology.settings.get("count")
        rows = self.record.rounds() if found is not None else []
        told = cluster_notes(found, rows, self.ledger, asked if isinstance(asked, int) else None)
        self.record.remember(cluster_facts(self.setting, state) | {"notes": [*notes_of(self.setting), *told]})
        status = "stopped" if reason else "finished"
        seconds = self.record.total("seconds")
        self.record.remember({"status": status, "status_reason": reason or ending, "seconds": seconds})


def accounted_at(number: int) -> bool:
    """Whether epsilon is worked out after a round: always at first, later where the number has three digits and zeros.

    It is for the eye. The ledger holds every release, a budget is checked before each, and the report accounts for all.

    >>> [number for number in (7, 999, 1005, 1010, 20000, 20010) if accounted_at(number)]
    [7, 999, 1010, 20000]
    """
    return number % int(10 ** max(0, len(str(number)) - 3)) == 0
