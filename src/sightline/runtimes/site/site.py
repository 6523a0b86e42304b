"""A real site: it answers the planned calls of approved experiments, each once, and stores every answer first."""

import fcntl
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from torch import Tensor

from sightline import accounting
from sightline.config import Experiment
from sightline.errors import InvalidInput, Refused, SightlineError, invalid, one_line, printable
from sightline.events import Clear
from sightline.ledger import Ledger, LedgerDamaged, SqliteStore, connect_to_write
from sightline.mechanisms import Mechanism, ReleaseContext
from sightline.randomness import Streams, write_secret
from sightline.runtimes.remote.client_executor import ClientSide, Result
from sightline.runtimes.remote.message import Task, WireMessage, experiment_digest, own_tensor, read_site_question
from sightline.runtimes.site.approval import (
    APPROVALS,
    Approval,
    Approvals,
    check_approval,
    data_digest,
    describe_approval,
    draw_up_approval,
    own_claims,
    read_approved,
)
from sightline.runtimes.site.budget import LifetimeBudget
from sightline.runtimes.site.budget_store import ENDINGS
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
from sightline.runtimes.site.state_check import (
    BUDGET,
    ROOT,
    check_answers,
    check_pinned,
    check_reservations,
    check_unit,
    prepare_state,
)
from sightline.topology import PUBLIC, SERVER, client_name

LOG = logging.getLogger("sightline.site")
EARLIER_STORE = "shelf.secret"
HELLO = "hello"
LONGEST_REFUSAL = 1000
CLOSED = "this site is closed; its log says why"
"""What a server is told of the owner's own mistakes: their text may hold paths, commands and values of site.toml."""
PAUSE_SECONDS = 0.02
"""Between two looks at the lock of a site that is busy."""
Heed = Callable[[bool], bool]
NOISED, UNNOISED = "noised", "unnoised"


@dataclass(frozen=True)
class RunStore:
    """The stored state of one approved run: its progress, the answers of the last round, and the client state.

    Guarantees: the file is replaced atomically, so after a crash it holds the state before a change or after it.
    """

    path: Path

    def read(self) -> WireMessage:
        """Return the stored message, empty before the first question."""
        return WireMessage.from_bytes(self.path.read_bytes()) if self.path.exists() else WireMessage()

    @property
    def run(self) -> str | None:
        """Return the run that the approval is bound to, or None."""
        found = self.read().words.get("run")
        return None if found is None else str(found)

    @property
    def last(self) -> tuple[int, ...]:
        """Return the position of the last call that was begun, or a position before all calls."""
        return tuple(self.read().words.get("last", (0, -1)))

    def begin(self, run: str, place: tuple[int, int], asked: str, *, recorded: int, mark: tuple[int, str]) -> None:
        """Bind the run and mark a call as begun: from now on only this exact question is answered for it.

        `recorded` is the number of this run's answers in the ledger: a call that a crash kept out of it does not count
        as begun. `mark` is the newest mark of the budget: a budget that later does not know it is an older copy.
        """
        found = self.read()
        words = dict(found.words)
        # Only the last round is kept: a resumed run repeats that round, and calls come in increasing order.
        answers = {name: one for name, one in words.get("answers", {}).items() if _round_of(name) == place[0]}
        words |= {"run": run, "last": list(place), "asked": asked, "begun": recorded + 1, "mark": list(mark)}
        arrays = {n: a for n, a in found.arrays.items() if not n.startswith("answer/") or n[7:] in answers}
        write_secret(self.path, WireMessage(words | {"answers": answers}, arrays).to_bytes())

    def put_answer(self, place: tuple[int, int], asked: str, answer: WireMessage, memory: str, result: Result) -> None:
        """Store an answer and the client state that follows from it."""
        found = self.read()
        name = f"{place[0]}.{place[1]}"
        answers = dict(found.words["answers"]) | {name: {"asked": asked, "words": dict(answer.words)}}
        kinds, arrays = (
            dict(found.words.get("kinds", {})),
            dict(found.arrays) | {f"answer/{name}": answer.arrays["value"]},
        )
        if result.kept is not None:
            kinds[memory] = NOISED if result.noised else UNNOISED
            arrays[f"kept/{memory}"] = result.kept.numpy()
        words = dict(found.words) | {"answers": answers, "kinds": kinds}
        write_secret(self.path, WireMessage(words, arrays).to_bytes())

    def answer_to(self, place: tuple[int, int], asked: str) -> WireMessage | None:
        """Return the stored answer to this exact question if it was asked in the last round, or None."""
        found, name = self.read(), f"{place[0]}.{place[1]}"
        one = found.words.get("answers", {}).get(name)
        if one is None or one["asked"] != asked:
            return None
        return WireMessage(one["words"], {"value": found.arrays[f"answer/{name}"]})

    def refuse_passed(self, place: tuple[int, int], asked: str) -> None:
        """Raise Refused for a call that is not after the last one, unless a crash kept that one from its answer."""
        words = self.read().words
        last = self.last
        # Fresh noise for a repeated call would give the server two noisy versions of one value, charged once.
        if place > last or (place == last and words["asked"] == asked):
            return
        at = f"round {place[0]}, use {place[1]}"
        if place == last or f"{place[0]}.{place[1]}" in words["answers"]:
            raise Refused(f"call={at}: answered already, from other vectors; nothing is answered twice")
        raise Refused(f"call={at}: the run is at round {last[0]}, use {last[1]}; calls come in increasing order")

    def kept(self, memory: str) -> tuple[Tensor | None, bool]:
        """Return the client state, and whether it was made from noised values only."""
        found = self.read()
        array = found.arrays.get(f"kept/{memory}")
        return (None, True) if array is None else (own_tensor(array), found.words["kinds"][memory] == NOISED)

    def check_ledger(self, recorded: int) -> None:
        """Raise LedgerDamaged if the ledger has more or fewer answers of the run than were begun."""
        words = self.read().words
        begun = words.get("begun", 0)
        last = ".".join(map(str, words.get("last", ())))
        # A crash between `begin` and the ledger leaves one call begun and not recorded: that state is honest.
        unanswered = begun > 0 and last not in words["answers"]
        if recorded not in ({begun, begun - 1} if unanswered else {begun}):
            raise LedgerDamaged(f"state={BUDGET}: it lacks answers that this site gave; bring the newest one back")


def _round_of(name: str) -> int:
    return int(name.partition(".")[0])


class Site:
    """One client that trusts only its own folder: site.toml, the data, and `state/`.

    Guarantees: only calls in the plan of an approved experiment are answered, each once, in increasing order, in one
    run; everything but public vectors is the site's own copy; the cost of the whole experiment is reserved before its
    first answer; an answer is in the site's own ledger before its value exists; noise and sampling draws come from the
    operating system and are never used for two different values; the same question gets the same answer.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open(read_policy(folder))

    def _open(self, policy: SitePolicy) -> None:
        """Open the site under a policy; on failure the site keeps its current policy and state."""
        data = read_data(self.folder, policy)
        if policy.unit == "sample" and not policy.allow_large_delta:
            accounting.refuse_large_delta(f"{POLICY}: delta", policy.delta, len(data.train), "examples")
        state = prepare_state(self.folder)
        if (state / EARLIER_STORE).exists():
            law = "is of a version that charged every answer by itself"
            invalid("state", state, law, "keep it for its ledger, and begin another with what is left of the budget")
        root, budget = Streams.from_operating_system(state / ROOT), LifetimeBudget(state, policy)
        self._root, self.budget, self.approvals, self._state = root, budget, Approvals(state), state
        self._built = lru_cache(maxsize=2)(self._build_side)
        self.policy, self.data, self._data_digest = policy, data, data_digest(data)
        self._checked = False

    def _reopen(self, policy: SitePolicy) -> None:
        """Open the site under a changed policy; after a slip the one before stays."""
        try:
            LifetimeBudget(self._state, policy).check()
            self._open(policy)
        except Refused as error:  # about the owner's file: not for the server
            raise InvalidInput(str(error)) from None

    def draw_up(self, experiment: Experiment, *, signature: str | None = None) -> Approval:
        """Return what approving an experiment would mean; nothing is approved yet."""
        digest = experiment_digest(experiment)
        signed_by = check_signature(self.policy, digest, signature)
        return draw_up_approval(
            experiment, self.policy, self.data, id=self.approvals.next_id(digest), signed_by=signed_by
        )

    def describe(self, approval: Approval) -> list[str]:
        """Return the lines that explain an approval to the owner."""
        return describe_approval(approval, self.policy, self.budget.share_with(approval.composition))

    def approve(self, approval: Approval) -> Approval:
        """Reserve the cost of the experiment and store the approval; raise BudgetExhausted if it does not fit."""
        with self._hold_lock():
            self._check_files()
            approval = replace(approval, id=self.approvals.next_id(approval.digest))
            # Reserve first: a crash in between leaves a reservation without an approval, which wastes budget but cannot
            # exceed it.
            self.budget.reserve(approval.id, read_approved(approval).name, approval.composition)
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
        record, last = self.budget.record(), self._store(approval.id).last
        # Counted answers have left; one that was begun and not counted can still be asked for.
        left = {call.place: _answer_name(approval, call) in record.counted for call in approval.calls}
        waiting = [place for place, counted in left.items() if place > last or (place == last and not counted)]
        return sum(left.values()), 0 if approval.id in record.ended else len(waiting)

    def handed_over(self) -> int:
        """Return how many answers left without noise, for a server that the policy trusted at the time."""
        with self._read_ledger() as (ledger, _):
            return sum(release.event == Clear() for release in ledger)

    def answer(self, message: WireMessage, heed: Heed = lambda held: True) -> WireMessage:
        """Return the answer to a question, or in one line why there is none.

        Guarantees: raises no Exception, whatever the message holds. A question for which nothing is approved does not
        wait for an answer that is being computed. A refusal says nothing of the owner's files but what the message
        or the approved experiment breaks.

        `heed` is called while the question waits, and with True when its turn has come: False gives the question up.
        """
        try:
            with _about_message():
                message = read_site_question(message)
            if message.words.get("call") == HELLO:
                return self.hello()
            if read_policy(self.folder) == self.policy:  # a changed one is opened under the lock, and checked there
                if not self._checked:  # a lost approval is told as that, not as one that never was
                    self.check()
                self._find_approval(message.words.get("digest", ""), message.words.get("run", ""))
            with self._hold_lock(heed):
                answer = self._answer_call(message)
            return message.reply(self.policy.client, answer.words, answer.arrays)
        except SightlineError as error:
            why = printable(str(error), most=LONGEST_REFUSAL)
            LOG.warning("refused: %s", why)
            return WireMessage({"refused": why if isinstance(error, Refused) else CLOSED})
        except Exception as error:
            # The text of an unexpected error may hold data: only its type leaves, the text stays in the site's log.
            LOG.exception("a question could not be answered")
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
        words = message.words
        # The order of the checks below: approval and reservation first, then the call, then its vectors. Nothing is
        # computed for a question that is not in an approved plan.
        policy = read_policy(self.folder)
        if policy != self.policy:  # the owner's newest word counts, also for what was approved before
            self._reopen(policy)
        if not self._checked:
            self._check_files()
        approval, store = self._find_approval(str(words.get("digest", "")), str(words.get("run", "")))
        mark = self.budget.require(approval.id, approval.composition)
        with _about_message():
            call = approval.find_call(words.get("call"), words.get("round"), words.get("use"), words.get("part", 0))
        side = self._built(approval.id)
        dimension = side.setting.model.parameters
        with _about_message():
            vectors = call.vectors_of(message.arrays, dimension=dimension, largest=self.policy.largest_start)
            task = call.task_of(vectors, self.policy.client)
        asked = _asked(approval, call, vectors)
        name = _answer_name(approval, call)
        # The same question gets the stored answer. Fresh noise on the same value, or the same noise on a changed value,
        # would each reveal more than the ledger charges.
        before = store.answer_to(call.place, asked)
        if before is not None:
            self._let_go(approval, name)
            return before
        store.refuse_passed(call.place, asked)
        if self.budget.was_counted(name):
            raise LedgerDamaged(f"state={APPROVALS}: it lacks answers that this site gave; bring the newest one back")
        memory = "" if task.memory is None else task.memory.name
        # Noise and sampling are keyed by the question and the data, under a root from the operating system: after a
        # crash the same question draws the same noise, and no other value ever does.
        draws = hashlib.sha256(f"{approval.id} {asked} {self._data_digest}".encode()).digest()
        side = ClientSide(
            side.setting, Streams.from_seed(side.setting.experiment.seed), Streams(self._root.root + draws)
        )
        begun = time.monotonic()
        # The order must not change: ledger, value, stored answer, counter, and only then the answer leaves.
        clear = self._record_answer(approval, store, call, task, side, str(words.get("run", "")), asked, mark)
        result = self._compute_output(side, task, approval, *store.kept(memory))
        # Whether an update was finite depends on the data: reveal it only where the update itself is handed over.
        answer = WireMessage({"rejected": result.rejected and clear}, {"value": result.value.numpy()})
        store.put_answer(call.place, asked, answer, memory, result)
        self._wait_from(begun)
        self._let_go(approval, name)
        return answer

    def _let_go(self, approval: Approval, name: str) -> None:
        """Count an answer, as the last step before it leaves; raise when its owner forbade it meanwhile."""
        if read_policy(self.folder) != self.policy:
            raise Refused(f"{POLICY}: it was changed while the answer was computed; ask again")
        if self.budget.was_counted(name):
            self.budget.require(approval.id, approval.composition)
        else:  # new, or a crash came between
            self.budget.advance(name, approval=approval.id)

    def _wait_from(self, begun: float) -> None:
        """Sleep until `answer_seconds` after `begun`."""
        # A fixed response time hides how long the computation took, which depends on the data.
        if self.policy.answer_seconds is not None:
            time.sleep(max(0.0, begun + self.policy.answer_seconds - time.monotonic()))

    def _find_approval(self, digest: str, run: str) -> tuple[Approval, RunStore]:
        """Return the approval that the run is bound to, or the first unbound one; raise Refused if there is none."""
        found = self.approvals.of(digest)
        if not found:
            raise Refused(
                f"digest={digest[:16]}: no experiment of this digest is approved here; the owner may approve it"
            )
        stores = [self._store(approval.id) for approval in found]
        bound, ended = [store.run for store in stores], self.budget.record().ended
        free = [place for place, other in enumerate(bound) if other is None]
        free = [place for place in free if found[place].id not in ended] or free
        if run not in bound and not free:
            raise Refused(
                f"run={run[:16]}: the approval is bound to another run; every run needs an approval of its own"
            )
        place = bound.index(run) if run in bound else free[0]
        if found[place].data != self._data_digest:
            raise Refused("data: not those that the experiment was approved for; approve it again")
        return found[place], stores[place]

    def _store(self, id: str) -> RunStore:
        return RunStore(self._state / APPROVALS / f"{id}.secret")

    def _check_files(self) -> None:
        """Raise if a file of the state contradicts the others; then nothing is answered or approved."""
        approvals, ended = self.approvals.all(), self.approvals.ended()
        check_unit(approvals, self.policy)
        check_pinned(self.budget, self.policy, self._root.fingerprint)
        record = self.budget.record()
        check_reservations(approvals, ended, record)
        stores = {approval.id: self._store(approval.id) for approval in approvals}
        with self._read_ledger() as (ledger, _):
            joints = {one.joint for one in ledger}
        check_answers({id: store.read().words for id, store in stores.items()}, record, joints)
        for id, store in stores.items():
            store.check_ledger(sum(joint.startswith(f"{id}, ") for joint in joints))
        self._checked = True

    def _record_answer(
        self,
        approval: Approval,
        store: RunStore,
        call: PlannedCall,
        task: Task,
        side: ClientSide,
        run: str,
        asked: str,
        mark: tuple[int, str],
    ) -> bool:
        """Write the claims of the answer to the site's own ledger; return whether it leaves without noise."""
        name = f"{approval.id}, {call.round}.{call.use}"
        memory, noised = store.kept("" if task.memory is None else task.memory.name)
        updates = side.updates_for(task, memory, noised=noised)
        with self._read_ledger() as (ledger, _):
            recorded = len({one.joint for one in ledger if one.joint.startswith(f"{approval.id}, ")})
            store.check_ledger(recorded)
            context = side.release_context(task, next_id=len(ledger))
            claims = own_claims(task, updates, context, self._mechanism(side, approval, context))
            if store.read().words.get("asked") != asked:
                store.begin(run, call.place, asked, recorded=recorded, mark=mark)
            # After a crash the claim may be in the ledger already: the same call is charged once.
            if not ledger.knows_joint(name):
                ledger.append([replace(release, joint=name) for release in claims])
        return any(release.event == Clear() for release in claims)

    def _compute_output(
        self, side: ClientSide, task: Task, approval: Approval, kept: Tensor | None, noised: bool
    ) -> Result:
        """Return the value; if it cannot be computed, return the value of the same call on blank examples.

        A failure would tell something about the data, blank examples tell nothing. If they fail too, the approval ends:
        a value without noise must not leave, and a refusal of every question would tell each time whether the data
        failed.
        """
        begun = time.monotonic()
        try:
            return self._compute_with(side, task, approval, kept, noised)
        except Exception:
            LOG.exception("an answer could not be computed; the site answers as if its examples were blank")
        try:
            return replace(self._compute_with(self._blank_side(side), task, approval, None, True), kept=None)
        except Exception:
            LOG.exception(
                "nor on blank examples: nothing is answered, it stays charged, and approval %s ends", approval.id
            )
        self._end(approval.id, "failed")
        self._wait_from(begun)
        raise Refused(one_line("approval", approval.id, ENDINGS["failed"], "the site's log says why"))

    def _compute_with(
        self, side: ClientSide, task: Task, approval: Approval, kept: Tensor | None, noised: bool
    ) -> Result:
        context = side.release_context(task)
        updates = side.updates_for(task, kept, noised=noised)
        work = partial(side.compute_task, task, updates, context, self._mechanism(side, approval, context))
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
        federation = federation_of(empty, self.policy.client, len(side.setting.clients), **facts)
        return side.with_setting(replace(side.setting, federation=federation))

    def _mechanism(self, side: ClientSide, approval: Approval, context: ReleaseContext) -> Mechanism:
        return side.mechanism(approval.noise, context)

    def _build_side(self, id: str) -> ClientSide:
        """Build the experiment of an approval over this site's data."""
        (approval,) = (one for one in self.approvals.all() if one.id == id)
        setting = check_approval(approval, self.policy, self.data)
        return ClientSide(setting, Streams.from_seed(0), Streams.from_seed(0))

    @contextmanager
    def _read_ledger(self) -> Iterator[tuple[Ledger, SqliteStore]]:
        """Open the ledger of everything that has left the site."""
        with closing(connect_to_write(self._state / BUDGET)) as connection:
            store = SqliteStore(connection)
            participants = {client_name(self.policy.client), SERVER, PUBLIC}
            yield Ledger.open_stored(store, participants=participants), store

    @contextmanager
    def _hold_lock(self, heed: Heed = lambda held: True, *, wait: bool = True) -> Iterator[None]:
        """One answer at a time, whatever processes work for this site; without `wait` raise BlockingIOError."""
        handle = os.open(self._state / "site.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            while not (held := _try_lock(handle)) and wait and heed(False):
                time.sleep(PAUSE_SECONDS)
            if not held and not wait:
                raise BlockingIOError
            if not held or not heed(True):
                raise Refused("question: its caller hung up before its turn came")
            yield
        finally:
            os.close(handle)


def answer_from(folder: Path, message: WireMessage) -> WireMessage:
    """Return the answer of the site in a folder, or that it is closed where it cannot be opened."""
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
    """Raise what is wrong with a message as Refused: only such a text is sent back."""
    try:
        yield
    except InvalidInput as error:
        raise Refused(str(error)) from None


def _answer_name(approval: Approval, call: PlannedCall) -> str:
    """Return the name under which the budget counts an answer."""
    return f"answer {approval.id} {call.round}.{call.use}"


def _asked(approval: Approval, call: PlannedCall, vectors: Mapping[str, Tensor]) -> str:
    """Return the hash of a question: the call and its vectors."""
    found = hashlib.sha256(json.dumps([approval.id, call.kind, *call.place, call.part]).encode())
    for name, vector in sorted(vectors.items()):
        array = vector.numpy()
        found.update(f"{name} {array.dtype} {array.shape} ".encode() + np.ascontiguousarray(array).tobytes())
    return found.hexdigest()
