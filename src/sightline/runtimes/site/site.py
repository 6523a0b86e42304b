"""A real site: it answers the planned calls of approved experiments, each once, and stores every answer first."""

import fcntl
import hashlib
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from sightline import accounting
from sightline.config import Experiment
from sightline.errors import InvalidInput, Refused, SightlineError, invalid, one_line, printable
from sightline.events import Clear
from sightline.ledger import Ledger, SqliteStore, connect_to_write
from sightline.randomness import Streams, write_secret
from sightline.runtimes.remote.client_executor import ClientSide, Result
from sightline.runtimes.remote.message import NodeTask, WireMessage, experiment_digest, read_site_question
from sightline.runtimes.remote.monitor import Metric, labelled, metric
from sightline.runtimes.site import approval as approving
from sightline.runtimes.site import state as stored_state
from sightline.runtimes.site.approval import APPROVALS, Approval, Approvals
from sightline.runtimes.site.budget import ENDINGS, LifetimeBudget
from sightline.runtimes.site.planned_calls import PlannedCall
from sightline.runtimes.site.policy import (
    POLICY,
    SitePolicy,
    check_signature,
    federation_of,
    kind_of,
    read_data,
    read_policy,
)
from sightline.runtimes.site.process import run_within
from sightline.runtimes.site.state import RunStore
from sightline.topology import PUBLIC, SERVER, client_name

LOG = logging.getLogger("sightline.site")
EARLIER_STORE = "shelf.secret"
HELLO = "hello"
LONGEST_REFUSAL = 1000
OUTCOMES = ("answered", "repeated", "refused")
"""An answer on blank examples counts as answered: whether the data failed is nobody else's business."""
CLOSED = "this site is closed; its log says why"
"""What a server is told of the owner's own mistakes: their text may hold paths, commands and values of site.toml."""
PAUSE_SECONDS = 0.02
"""Time between two attempts to lock a busy site."""
StillWaits = Callable[[bool], bool]
"""Whether the caller of a question still waits; called with True once its turn has come."""


class Site:
    """One client that trusts only its own folder: site.toml, the data, and `state/`.

    Guarantees: only calls in the plan of an approved experiment are answered, each once, in increasing order, in one
    run; everything but public vectors is the site's own copy; the cost of the whole experiment is reserved before its
    first answer; an answer is in the site's own ledger before its value exists; noise and sampling draws come from the
    operating system and are never used for two different values; the same question gets the same answer.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.counts = Counter[str](dict.fromkeys(OUTCOMES, 0))
        """Questions since this process started, by outcome."""
        self._open(read_policy(folder))

    def _open(self, policy: SitePolicy) -> None:
        """Open the site under a policy; on failure the site keeps its current policy and state."""
        data = read_data(self.folder, policy)
        if policy.unit == "sample" and not policy.allow_large_delta:
            accounting.refuse_large_delta(f"{POLICY}: delta", policy.delta, len(data.train), "examples")
        state = stored_state.prepare_state(self.folder)
        if (state / EARLIER_STORE).exists():
            reason = "it was written by an earlier version, which charged every answer separately"
            invalid("state", state, reason, "keep it for its ledger; start a new state with the remaining budget")
        root, budget = Streams.from_operating_system(state / stored_state.ROOT), LifetimeBudget(state, policy)
        self._root, self.budget, self.approvals, self._state = root, budget, Approvals(state), state
        self._built = lru_cache(maxsize=2)(self._build_side)
        self.policy, self.data, self._data_digest = policy, data, approving.data_digest(data)
        self._checked = False

    def _reopen(self, policy: SitePolicy) -> None:
        """Open the site under a changed policy; if that fails, keep the old one."""
        try:
            LifetimeBudget(self._state, policy).check()
            self._open(policy)
        except Refused as error:
            # The text is about the owner's file, so the server must not see it: only Refused is sent back.
            raise InvalidInput(str(error)) from None

    def draw_up(self, experiment: Experiment, *, signature: str | None = None) -> Approval:
        """Return what approving an experiment would mean; nothing is approved yet."""
        digest = experiment_digest(experiment)
        signed_by = check_signature(self.policy, digest, signature)
        id = self.approvals.next_id(digest)
        return approving.draw_up_approval(experiment, self.policy, self.data, id=id, signed_by=signed_by)

    def describe(self, approval: Approval) -> list[str]:
        """Return the lines that explain an approval to the owner."""
        return approving.describe_approval(approval, self.policy, self.budget.share_with(approval.composition))

    def approve(self, approval: Approval) -> Approval:
        """Reserve the cost of the experiment and store the approval; raise BudgetExhausted if it does not fit."""
        with self._hold_lock():
            self._check_files()
            approval = replace(approval, id=self.approvals.next_id(approval.digest))
            # Reserve first: a crash in between leaves a reservation without an approval, which wastes budget but cannot
            # exceed it.
            self.budget.reserve(approval.id, approving.read_approved(approval).name, approval.composition)
            self.approvals.put(approval)
        return approval

    def revoke(self, id: str) -> bool:
        """End an approval; return False if it had ended before.

        Its reservation stays spent and nothing more is answered. This does not wait for an answer in progress: that
        answer does not leave either.
        """
        self.require_known(id)
        return self._end(id, "revoked")

    def require_known(self, id: str) -> None:
        """Raise InvalidInput when no approval has this name."""
        if id not in {approval.id for approval in self.approvals.all()}:
            invalid("APPROVAL", id, "is not approved here", "sightline site status lists the approvals")

    def _end(self, id: str, how: str) -> bool:
        ended, path = self.budget.end(id, how), self.approvals.ended_path(id)
        # A second record, written last: if the first one is replaced by an older copy, the two disagree.
        if not path.exists():
            write_secret(path, f"{how}\n".encode())
        return ended

    def check(self) -> None:
        """Raise if a file of the state was lost or restored from a copy; do nothing while an answer is computed."""
        with suppress(BlockingIOError), self._hold_lock(wait=False):
            self._check_files()

    def progress(self, approval: Approval) -> tuple[int, int]:
        """Return how many answers of an approval have left, and how many can still be asked for."""
        record, store = self.budget.record(), self._store(approval.id)
        last = store.last
        # Counted answers have left; one that was begun and not counted can still be asked for.
        left = {call.position: _answer_name(approval, call) in record.counted for call in approval.calls}
        waiting = [index for index, counted in left.items() if index > last or (index == last and not counted)]
        gone, more = sum(left.values()), len(waiting)
        if approval.kinds:
            gone = sum(what.startswith(f"answer {approval.id} ") for what in record.counted)
            again = store.begun and f"answer {approval.id} {last[0]}.{last[1]}" not in record.counted
            more = len(approval.whole_list) - store.begun.total() + bool(again)
        return gone, 0 if approval.id in record.ended else more

    def describe_run(self, approval: Approval) -> dict[str, Any]:
        """Return an approval's experiment, how far its run is, and when the site last wrote an answer to it."""
        store, (answered, left) = self._store(approval.id), self.progress(approval)
        if approval.id in self.budget.record().ended:
            progress = "ended"
        else:
            progress = "not begun" if store.run is None else "running" if left else "all answered"
        last = store.written() if answered else None
        shown = None if last is None else f"{last.astimezone():%Y-%m-%d %H:%M}"
        return {"experiment": approving.read_approved(approval).name, "progress": progress, "last_answer": shown}

    def health(self) -> dict[str, str]:
        """Return whether the site would answer: its policy can be read, and its state is the newest."""
        try:
            read_policy(self.folder)
            self.budget.check()
        except SightlineError as error:
            LOG.warning("closed: %s", error)
            # The reason may hold paths and values of site.toml, and every user of the machine can ask.
            return {"status": "closed", "why": "the site's log says it"}
        return {"status": "ok"}

    def metrics(self) -> list[Metric]:
        """Return what Prometheus may know: counts of questions, and how much of the budget approvals reserve."""
        # All of it follows from the questions and the approved plans, nothing from the examples.
        status, approvals, ended = self.budget.status(), self.approvals.all(), self.budget.record().ended
        left = sum(self.progress(approval)[1] for approval in approvals)
        states = Counter({"open": 0} | dict.fromkeys(ENDINGS, 0))
        states.update(ended.get(approval.id, "open") for approval in approvals)
        budget, gauge = "site_budget", "gauge"
        return [
            labelled("site_questions_total", "counter", "Questions since the start.", "outcome", self.counts),
            metric(f"{budget}_epsilon", gauge, "Budget for life.", status.epsilon),
            metric(f"{budget}_delta", gauge, "Delta of the budget.", status.delta),
            metric(f"{budget}_reserved_epsilon", gauge, "Epsilon of all reservations.", status.spent),
            metric(f"{budget}_reserved_ratio", gauge, "Reserved share of the budget; shares add up.", status.used),
            labelled("site_approvals", gauge, "Approvals by state.", "state", states),
            metric("site_calls_left", gauge, "Calls of approved experiments that can still be asked.", left),
        ]

    def handed_over(self) -> int:
        """Return how many answers left without noise, for a server that the policy trusted at the time."""
        with self._read_ledger() as ledger:
            return sum(release.event == Clear() for release in ledger)

    def answer(self, message: WireMessage, still_waits: StillWaits = lambda held: True) -> WireMessage:
        """Return the answer to a question, or in one line why there is none.

        Guarantees: raises no Exception, whatever the message holds. A question for which nothing is approved does not
        wait for an answer that is being computed. A refusal names only what the message or the approved experiment
        breaks, and nothing else of the owner's files. The question is dropped when `still_waits` returns False.
        """
        try:
            with _about_message():
                message = read_site_question(message)
            if message.fields.get("call") == HELLO:
                return self.hello()
            # A changed policy is opened and checked under the lock.
            if read_policy(self.folder) == self.policy:
                # Check first, so that a lost approval is reported as lost and not as never given.
                if not self._checked:
                    self.check()
                self._find_approval(message.fields.get("digest", ""), message.fields.get("run", ""))
            with self._hold_lock(still_waits):
                answer = self._answer_call(message)
            return message.reply(self.policy.client, answer.fields, answer.arrays)
        except SightlineError as error:
            why = printable(str(error), most=LONGEST_REFUSAL)
            self._log_outcome(message, "refused", why=why)
            return WireMessage({"refused": why if isinstance(error, Refused) else CLOSED})
        except Exception as error:
            # The text of an unexpected error may hold data: only its type leaves, the text stays in the site's log.
            LOG.exception("a question could not be answered")
            self._log_outcome(message, "refused", why=type(error).__name__)
            return WireMessage({"refused": f"{type(error).__name__}; the site's log says more"})

    def hello(self) -> WireMessage:
        """Return the public facts of the site: its client number, and the size and kind of its data."""
        train, policy = self.data.train, self.policy
        shape = [int(size) for size in train.x.shape[1:]]
        facts = {"client": policy.client, "examples": len(train), "shape": shape, "kind": str(kind_of(train))}
        return WireMessage(facts | {"classes": policy.classes, "vocabulary": policy.vocabulary})

    def spent(self) -> float:
        """Return the epsilon of all reservations so far, over all approved experiments, as the filter counts it."""
        return self.budget.status().spent

    def _answer_call(self, message: WireMessage) -> WireMessage:
        fields = message.fields
        # The order of the checks below: approval and reservation first, then the call, then its vectors. Nothing is
        # computed for a question that is not in an approved plan.
        # The current policy counts, also for what was approved under an earlier one.
        policy = read_policy(self.folder)
        if policy != self.policy:
            self._reopen(policy)
        if not self._checked:
            self._check_files()
        approval, store = self._find_approval(str(fields.get("digest", "")), str(fields.get("run", "")))
        mark = self.budget.require(approval.id, approval.composition)
        with _about_message():
            call, kind = approval.find_call(message)
        side = self._built(approval.id)
        dimension = side.built.model.parameters
        with _about_message():
            vectors = call.vectors_of(message.arrays, dimension=dimension, largest=self.policy.largest_start)
            task = call.task_of(vectors, self.policy.client)
        asked = _question_hash(approval, call, vectors, kind)
        name = _answer_name(approval, call)
        # The same question gets the stored answer. Fresh noise on the same value, or the same noise on a changed value,
        # would each reveal more than the ledger charges.
        before = store.answer_to(call.position, asked)
        if before is not None:
            self._let_go(approval, name)
            self._log_outcome(message, "repeated", approval=approval.id)
            return before
        store.refuse_passed(call.position, asked)
        if kind is not None:
            store.refuse_spent(kind, approval.kinds[kind].times, asked)
        if self.budget.was_counted(name):
            stored_state.refuse_missing_answers(APPROVALS)
        memory = "" if task.memory is None else task.memory.name
        # Noise and sampling are keyed by the question and the data, under a root from the operating system: after a
        # crash the same question draws the same noise, and no other value ever does.
        draws = hashlib.sha256(f"{approval.id} {asked} {self._data_digest}".encode()).digest()
        side = ClientSide(side.built, Streams.from_seed(side.built.experiment.seed), Streams(self._root.root + draws))
        begun = time.monotonic()
        # The order must not change: ledger, value, stored answer, counter, and only then the answer leaves.
        clear = self._record_answer(approval, store, call, kind, task, side, str(fields.get("run", "")), asked, mark)
        result = self._compute_output(side, task, approval, *store.kept(memory))
        # Whether an update was finite depends on the data: reveal it only where the update itself is handed over.
        answer = WireMessage({"rejected": result.rejected and clear}, {"value": result.value.numpy()})
        store.put_answer(call.position, asked, answer, memory, result)
        self._wait_from(begun)
        self._let_go(approval, name)
        self._log_outcome(message, "answered", approval=approval.id)
        return answer

    def _log_outcome(self, message: WireMessage, outcome: str, **more: str) -> None:
        """Write one line about a question, and count it."""
        # No duration, which depends on the data: administrators send logs to other machines.
        named = {
            name: message.fields[name] for name in ("call", "round", "use", "part", "run") if name in message.fields
        }
        fields = {"event": "answer", "outcome": outcome, "client": self.policy.client} | named | more
        at = f"round {named['round']}: " if type(named.get("round")) is int else ""
        level = logging.WARNING if outcome == "refused" else logging.INFO
        why = f": {more['why']}" if "why" in more else ""
        LOG.log(level, "%s%s%s", at, outcome, why, extra={"fields": fields})
        self.counts[outcome] += 1

    def _let_go(self, approval: Approval, name: str) -> None:
        """Count an answer, as the last step before it leaves; raise if the owner has forbidden it meanwhile."""
        if read_policy(self.folder) != self.policy:
            raise Refused(f"{POLICY}: it was changed while the answer was computed; ask again")
        # Not counted yet: the answer is new, or a crash came between storing and counting it.
        if not self.budget.was_counted(name):
            self.budget.advance(name, approval=approval.id)
        else:
            self.budget.require(approval.id, approval.composition)

    def _wait_from(self, begun: float) -> None:
        """Sleep until `answer_seconds` after `begun`."""
        # A fixed response time hides how long the computation took, which depends on the data.
        if self.policy.answer_seconds is not None:
            time.sleep(max(0.0, begun + self.policy.answer_seconds - time.monotonic()))

    def _find_approval(self, digest: str, run: str) -> tuple[Approval, RunStore]:
        """Return the approval that the run is bound to, or the first unbound one; raise Refused if there is none."""
        approvals = self.approvals.of(digest)
        if not approvals:
            reason = "no experiment with this digest is approved here"
            raise Refused(one_line("digest", digest[:16], reason, "ask the site's owner to approve it"))
        stores = [self._store(approval.id) for approval in approvals]
        bound, ended = [store.run for store in stores], self.budget.record().ended
        free = [index for index, other in enumerate(bound) if other is None]
        free = [index for index in free if approvals[index].id not in ended] or free
        if run not in bound and not free:
            reason = "the approval is bound to another run"
            raise Refused(one_line("run", run[:16], reason, "every run needs its own approval"))
        index = bound.index(run) if run in bound else free[0]
        if approvals[index].data != self._data_digest:
            raise Refused("data: the site's data have changed since the approval; approve the experiment again")
        return approvals[index], stores[index]

    def _store(self, id: str) -> RunStore:
        return RunStore(self._state / APPROVALS / f"{id}.secret")

    def _check_files(self) -> None:
        """Raise if a file of the state contradicts the others; then nothing is answered or approved."""
        approvals, ended = self.approvals.all(), self.approvals.ended()
        stored_state.check_unit(approvals, self.policy)
        stored_state.check_pinned(self.budget, self.policy, self._root.fingerprint)
        record = self.budget.record()
        stored_state.check_reservations(approvals, ended, record)
        stores = {approval.id: self._store(approval.id) for approval in approvals}
        with self._read_ledger() as ledger:
            joints = {release.joint for release in ledger}
        stored_state.check_answers({id: store.read().fields for id, store in stores.items()}, record, joints)
        for id, store in stores.items():
            store.check_ledger(sum(joint.startswith(f"{id}, ") for joint in joints))
        self._checked = True

    def _record_answer(
        self, approval: Approval, store: RunStore, call: PlannedCall, kind: int | None, task: NodeTask,
        side: ClientSide, run: str, asked: str, mark: tuple[int, str],
    ) -> bool:  # fmt: skip
        """Write the claims of the answer to the site's own ledger; return whether it leaves without noise."""
        name = f"{approval.id}, {call.round}.{call.use}"
        memory, noised = store.kept("" if task.memory is None else task.memory.name)
        updates = side.updates_for(task, memory, noised=noised)
        with self._read_ledger() as ledger:
            rows = [release for release in ledger if release.joint.startswith(f"{approval.id}, ")]
            recorded = len({release.joint for release in rows})
            store.check_ledger(recorded)
            context = side.release_context(task, next_id=len(ledger))
            claims = approving.own_claims(task, updates, context, side.mechanism(approval.noise, context))
            if kind is not None:
                self._check_counted(approval, {row.joint for row in rows})
            made = Counter(one.event for one in (*(row for row in rows if row.joint != name), *claims))
            # Beside the counts of kinds: what leaves in any order stays within what was reserved, event by event.
            if kind is not None and made - Counter(approval.composition):
                raise Refused(f"call={name}: it reveals more than was approved")
            if store.read().fields.get("asked") != asked:
                store.begin(run, call.position, asked, recorded=recorded, mark=mark, kind=kind)
            # After a crash the claim may be in the ledger already: the same call is charged once.
            if not ledger.knows_joint(name):
                ledger.append([replace(release, joint=name) for release in claims])
        return any(release.event == Clear() for release in claims)

    def _check_counted(self, approval: Approval, joints: set[str]) -> None:
        """Raise if the ledger lacks an answer that was counted: it and the run's file are an old copy of both."""
        # In a fixed order the counted position itself refuses a second answer; in any order the positions are free.
        known = {f"answer {joint.replace(', ', ' ', 1)}" for joint in joints}
        counted = {what for what in self.budget.record().counted if what.startswith(f"answer {approval.id} ")}
        if counted - known:
            stored_state.refuse_missing_answers(APPROVALS)

    def _compute_output(
        self, side: ClientSide, task: NodeTask, approval: Approval, kept: Tensor | None, noised: bool
    ) -> Result:
        """Return the result of a task, or, if the computation fails, its result on blank examples.

        A refusal would reveal that the computation failed on these data. If blank examples fail too, end the approval
        and raise Refused, so that later questions do not reveal it either.
        """
        begun = time.monotonic()
        try:
            return self._compute_with(side, task, approval, kept, noised)
        except Exception:
            LOG.exception("an answer could not be computed; the site answers as if its examples were blank")
        try:
            return replace(self._compute_with(self._blank_side(side), task, approval, None, True), kept=None)
        except Exception:
            LOG.exception("nor on blank examples: no answer, it stays charged, and approval %s ends", approval.id)
        self._end(approval.id, "failed")
        self._wait_from(begun)
        raise Refused(one_line("approval", approval.id, ENDINGS["failed"], "the site's log says why"))

    def _compute_with(
        self, side: ClientSide, task: NodeTask, approval: Approval, kept: Tensor | None, noised: bool
    ) -> Result:
        context = side.release_context(task)
        updates = side.updates_for(task, kept, noised=noised)
        work = partial(side.compute_task, task, updates, context, side.mechanism(approval.noise, context))
        return run_within(self._seconds_to_compute(), work)

    def _seconds_to_compute(self) -> float:
        """Return the time limit of one attempt; two attempts fit into the fixed response time."""
        whole = self.policy.answer_seconds
        return self.policy.largest_seconds if whole is None else min(self.policy.largest_seconds, 0.4 * whole)

    def _blank_side(self, side: ClientSide) -> ClientSide:
        """Return a client side with the same streams over blank examples."""
        blank = self.data.train
        empty = replace(self.data, train=replace(blank, x=np.zeros_like(blank.x), y=np.zeros_like(blank.y)))
        facts = {"classes": self.policy.classes, "vocabulary": self.policy.vocabulary}
        federation = federation_of(empty, self.policy.client, len(side.built.clients), **facts)
        return side.with_built(replace(side.built, federation=federation))

    def _build_side(self, id: str) -> ClientSide:
        """Build the experiment of an approval over this site's data."""
        (approval,) = (approval for approval in self.approvals.all() if approval.id == id)
        built = approving.check_approval(approval, self.policy, self.data)
        return ClientSide(built, Streams.from_seed(0), Streams.from_seed(0))

    @contextmanager
    def _read_ledger(self) -> Iterator[Ledger]:
        """Open the ledger of everything that has left the site."""
        with closing(connect_to_write(self._state / stored_state.BUDGET)) as connection:
            participants = {client_name(self.policy.client), SERVER, PUBLIC}
            yield Ledger.open_stored(SqliteStore(connection), participants=participants)

    @contextmanager
    def _hold_lock(self, still_waits: StillWaits = lambda held: True, *, wait: bool = True) -> Iterator[None]:
        """Lock the site against other processes; without `wait` raise BlockingIOError if it is busy."""
        handle = os.open(self._state / "site.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            while not (held := _try_lock(handle)) and wait and still_waits(False):
                time.sleep(PAUSE_SECONDS)
            if not held and not wait:
                raise BlockingIOError
            if not held or not still_waits(True):
                raise Refused("question: its caller hung up before its turn came")
            yield
        finally:
            os.close(handle)


def answer_from(folder: Path, message: WireMessage) -> WireMessage:
    """Return the answer of the site in a folder, or that it is closed if it cannot be opened."""
    try:
        return Site(folder).answer(message)
    except SightlineError as error:
        LOG.warning("refused: %s", error)
        return WireMessage({"refused": CLOSED})


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _about_message() -> Iterator[None]:
    """Turn InvalidInput about a message into Refused: only the text of a refusal is sent back."""
    try:
        yield
    except InvalidInput as error:
        raise Refused(str(error)) from None


def _answer_name(approval: Approval, call: PlannedCall) -> str:
    """Return the name under which the budget counts an answer."""
    return f"answer {approval.id} {call.round}.{call.use}"


def _question_hash(approval: Approval, call: PlannedCall, vectors: Mapping[str, Tensor], kind: int | None) -> str:
    """Return the hash of a question: the call, its vectors and, where calls come in any order, its numbers."""
    named = [approval.id, call.kind, *call.position, call.part]
    named += [] if kind is None else [kind, sorted(call.terms.items())]
    digest = hashlib.sha256(json.dumps(named).encode())
    for name, vector in sorted(vectors.items()):
        array = vector.numpy()
        digest.update(f"{name} {array.dtype} {array.shape} ".encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
