"""A site's lifetime privacy budget: durable reservations, and a counter that detects an older copy of the state.

Every change gives the state a number, one higher than the last, and a head, a hash that no other state has. The order
of writes is fixed: first the state, durably; then the counter; then the effect (a reservation is returned, an answer is
sent). After a crash the state is therefore level with the counter or one ahead, and nothing has left under the new
number: the counter is brought up and the site goes on. A state that is behind the counter, or that has another head at
the counter's number, is an old or a second copy, and it refuses: another copy has answered in its place.
"""

import fcntl
import hashlib
import json
import math
import os
import secrets
import shlex
import sqlite3
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from typing_extensions import override

from sightline.accounting import Composition, GaussianBound, GaussianFilter
from sightline.accounting.filters import add_bounds
from sightline.errors import BudgetExhausted, Refused, SightlineError, invalid, one_line, printable
from sightline.events import to_json
from sightline.ledger import GENESIS, LedgerDamaged, connect_to_write
from sightline.ledger.store import transaction
from sightline.randomness import sync_folder
from sightline.runtimes.site.policy import POLICY, SitePolicy

LIFETIME = "lifetime.sqlite"
PATIENCE = 30.0
"""Time limit of a witness command, in seconds."""
RESTORE = "restore the newest state/ as a whole; without it this site stays closed"
Marks = Mapping[int, str]
"""Number -> head of the newest changes of a state."""


class StateBehind(SightlineError):
    """The state is older than the counter, or a second copy: answering would spend the same budget twice."""

    exit_code = 2


class StateCounter(ABC):
    """A number outside the state that only grows; `name` is its path or command."""

    name: str

    @abstractmethod
    def confirm(self, marks: Marks, *, new: bool) -> None:
        """Bring the counter up to the newest mark; raise StateBehind unless its old value is among the marks.

        `new` means that the state has never been counted, so the counter may be missing.
        """

    def hold(self) -> AbstractContextManager[None]:
        """Prevent every other process from changing the counter in this context."""
        return nullcontext()


class FileCounter(StateCounter):
    """A counter in a file outside the state folder, preferably on another disk or host."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, str(path)

    @override
    def confirm(self, marks: Marks, *, new: bool) -> None:
        newest = max(marks)
        held = self._read_mark()
        # A lost counter closes the site: what was spent since its last value is unknown.
        if held is None and not new:
            reason = "the file is missing, but this state has been counted before"
            way_out = f"restore the newest counter file, or the counter or witness key that {POLICY} had"
            raise StateBehind(one_line("counter", self.path, reason, way_out))
        if held is not None:
            check_mark(marks, *held, name=str(self.path))
        if held is None or held[0] < newest:
            try:
                self._write_mark(f"{newest} {marks[newest]}\n")
            except OSError as error:
                _refuse_counter(self.path, f"cannot be written ({type(error).__name__})")

    @override
    def hold(self) -> AbstractContextManager[None]:
        # The lock lies beside the counter, so that copies of the state in other folders wait too.
        return hold_lock(self.path.with_name(f"{self.path.name}.lock"))

    def _write_mark(self, text: str) -> None:
        """Write the mark atomically and durably."""
        # A random name with O_EXCL and O_NOFOLLOW: no other user can have put a link there beforehand.
        temporary = self.path.with_name(f"{self.path.name}.{secrets.token_hex(8)}.tmp")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(handle, "w", encoding="ascii") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(self.path.parent)

    def _read_mark(self) -> tuple[int, str] | None:
        try:
            number, head = self.path.read_text(encoding="ascii").split()
            return int(number), head
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            _refuse_counter(self.path, f"cannot be read ({type(error).__name__})")


class WitnessCounter(StateCounter):
    """A counter kept by a command of the owner: `COMMAND NUMBER HEAD` prints the largest NUMBER it was ever given.

    A witness that also prints the first HEAD of that number can tell apart two copies that go on at the same time. It
    serialises its own calls, so nothing is locked here.
    """

    def __init__(self, command: str, folder: Path) -> None:
        self.command, self.name, self.folder = command, command, folder

    @override
    def confirm(self, marks: Marks, *, new: bool) -> None:
        newest = max(marks)
        printed = self._ask(str(newest), marks[newest]).split()
        try:
            number = int(printed[0])
        except (IndexError, ValueError):
            _refuse_counter(self.command, "the witness printed no number", name="witness")
        check_mark(marks, number, printed[1] if len(printed) > 1 else None, name=self.command)

    def _ask(self, number: str, head: str) -> str:
        try:
            command = [*shlex.split(self.command), number, head]
            done = subprocess.run(
                command, cwd=self.folder, capture_output=True, text=True, timeout=PATIENCE, check=True,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            _refuse_counter(self.command, f"the witness failed ({type(error).__name__})", name="witness")
        return done.stdout


def check_mark(marks: Marks, number: int, head: str | None, *, name: str) -> None:
    """Raise StateBehind unless the counter's mark is among the state's; without a head, compare the numbers only."""
    newest = max(marks)
    if number > newest:
        reason = f"the counter is at {number} and this state at {newest}: the state is an old copy"
        raise StateBehind(one_line("counter", name, reason, RESTORE))
    if head is not None and marks.get(number) != head:
        reason = f"this state does not contain change {number}: another copy of the state was used"
        raise StateBehind(one_line("counter", name, reason, "continue with that copy only"))


def _refuse_counter(value: object, reason: str, *, name: str = "counter") -> NoReturn:
    raise StateBehind(one_line(name, value, reason, "the site answers nothing until it works again"))


def counter_of(policy: SitePolicy, state: Path) -> StateCounter:
    """Return the counter that the policy names, or the default: `NAME.counter` beside the site's folder NAME.

    A path is relative to the site's folder. It must lie outside the state folder: restoring one must not restore the
    other.
    """
    if policy.counter is not None and policy.witness is not None:
        invalid(f"{POLICY}: witness", policy.witness, "a site has a counter file or a witness, not both")
    if policy.witness is not None:
        return WitnessCounter(policy.witness, state.parent)
    folder = state.parent.resolve()
    path = (folder / (policy.counter or f"../{folder.name}.counter")).resolve()
    if state.resolve() in path.parents:
        invalid(f"{POLICY}: counter", path, "a counter inside the state folder is rolled back with it")
    if not path.parent.is_dir():
        invalid(f"{POLICY}: counter", path, "its folder does not exist", "make it, for the site's user only")
    if not os.access(path.parent, os.W_OK):
        reason, way_out = "the site's user cannot write in its folder", f"name another file as counter in {POLICY}"
        invalid(f"{POLICY}: counter", path, reason, way_out)
    return FileCounter(path)


REMEMBERED = 64
"""Number of newest marks kept in the state. An honest counter is at most one behind."""
ENDINGS = {
    "revoked": "the owner of the site revoked it",
    "failed": "an answer could not be computed here, on blank examples either",
}
"""The ways in which an approval ends before its run does. Each is a mark with the approval's id: an old copy shows."""


@dataclass(frozen=True)
class Reservation:
    """The most that an approved experiment may cost over its whole length."""

    approval: str
    label: str
    mu: float
    d0: float

    @property
    def bound(self) -> GaussianBound:
        """Return the cost as the filter sees it."""
        return GaussianBound(self.mu, self.d0)


@dataclass(frozen=True)
class LifetimeRecord:
    """The part of the budget's state that is compared with the other files of the site."""

    events: Mapping[str, str]
    """Approval -> digest of the events reserved for it."""
    counted: frozenset[str]
    """Names of the counted changes."""
    marks: Marks

    @property
    def ended(self) -> Mapping[str, str]:
        """Return approval -> how it ended, one of ENDINGS."""
        changes = (what.partition(" ") for what in self.counted)
        return {approval: how for how, _, approval in changes if how in ENDINGS}


class BudgetStore:
    """The tables of a lifetime budget in an open SQLite database."""

    def __init__(self, connection: sqlite3.Connection, budget: GaussianFilter) -> None:
        self._connection = connection
        with transaction(connection):
            for table in TABLES:
                connection.execute(f"CREATE TABLE IF NOT EXISTS {table}")
            if not self.marks():
                connection.execute("INSERT INTO mark VALUES (0, ?)", (GENESIS,))
            fixed = (budget.epsilon, budget.delta, budget.failures)
            connection.execute("INSERT OR IGNORE INTO budget VALUES (1, ?, ?, ?, 0)", fixed)
        held = connection.execute("SELECT epsilon, delta, failures FROM budget").fetchone()
        # The filter's proof holds for a budget that is fixed beforehand; raising it later would depend on earlier
        # results.
        if held != fixed:
            reason = f"the lifetime budget was fixed at epsilon={held[0]:g}, delta={held[1]:g} and cannot change"
            way_out = "put the old values back"
            invalid(f"{POLICY}: epsilon", f"{budget.epsilon:g}, delta={budget.delta:g}", reason, way_out)

    def pin(self, name: str, value: str) -> str:
        """Store a fact for the life of the state; return the stored value, which is the first one ever given."""
        with transaction(self._connection):
            self._connection.execute("INSERT OR IGNORE INTO pinned VALUES (?, ?)", (name, value))
        return str(self._connection.execute("SELECT value FROM pinned WHERE name = ?", (name,)).fetchone()[0])

    def marks(self) -> Marks:
        """Return the newest marks."""
        return dict(self._connection.execute("SELECT number, head FROM mark"))

    def number(self) -> int:
        """Return the number of the newest mark."""
        return max(self.marks())

    def is_counted(self) -> bool:
        """Return whether a counter has ever confirmed this state."""
        return bool(self._connection.execute("SELECT counted FROM budget").fetchone()[0])

    def set_counted(self) -> None:
        """Record that a counter outside knows this state."""
        if not self.is_counted():
            self._connection.execute("UPDATE budget SET counted = 1")

    def reservations(self) -> tuple[Reservation, ...]:
        """Return all reservations, oldest first."""
        rows = self._connection.execute("SELECT approval, label, mu, d0 FROM reservation ORDER BY number")
        return tuple(Reservation(*row) for row in rows)

    def find_reservation(self, approval: str) -> tuple[Reservation, str] | None:
        """Return the reservation of an approval and the digest of its events, or None."""
        columns = "approval, label, mu, d0, events"
        row = self._connection.execute(f"SELECT {columns} FROM reservation WHERE approval = ?", (approval,)).fetchone()
        return None if row is None else (Reservation(*row[:4]), row[4])

    def record(self) -> LifetimeRecord:
        """Return the facts that the other files of the state are compared with."""
        events = dict(self._connection.execute("SELECT approval, events FROM reservation"))
        counted = frozenset(row[0] for row in self._connection.execute("SELECT what FROM counted"))
        return LifetimeRecord(events, counted, self.marks())

    def refuse_ended(self, approval: str) -> None:
        """Raise Refused if the approval has ended."""
        for how, reason in ENDINGS.items():
            if self.was_counted(f"{how} {approval}"):
                raise Refused(one_line("approval", approval, reason, "nothing more is answered"))

    def add_reservation(self, made: Reservation, events: str) -> None:
        """Write a reservation and its mark in one transaction."""
        row = (made.approval, made.label, made.mu, made.d0, events)
        with transaction(self._connection):
            number = self._insert_mark(repr(row))
            self._connection.execute("INSERT INTO reservation VALUES (?, ?, ?, ?, ?, ?)", (number, *row))

    def add_mark(self, what: str) -> int:
        """Write a mark and its name; return its number."""
        with transaction(self._connection):
            self._connection.execute("INSERT OR IGNORE INTO counted VALUES (?)", (what,))
            return self._insert_mark(what)

    def was_counted(self, what: str) -> bool:
        """Return whether a mark of this name was ever written."""
        return self._connection.execute("SELECT 1 FROM counted WHERE what = ?", (what,)).fetchone() is not None

    def _insert_mark(self, what: str) -> int:
        """Insert the next mark; its head hashes the last head, the change and fresh random bytes."""
        marks = self.marks()
        number = max(marks) + 1
        # The random bytes tell two copies of a state apart that went on to the same number with the same change.
        head = hashlib.sha256(f"{marks[number - 1]}{what}".encode() + os.urandom(16)).hexdigest()
        self._connection.execute("INSERT INTO mark VALUES (?, ?)", (number, head))
        self._connection.execute("DELETE FROM mark WHERE number <= ?", (number - REMEMBERED,))
        return number


TABLES = (
    "mark (number INTEGER PRIMARY KEY, head TEXT NOT NULL)",
    "counted (what TEXT PRIMARY KEY)",
    "pinned (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "budget (id INTEGER PRIMARY KEY, epsilon REAL NOT NULL, delta REAL NOT NULL, failures REAL NOT NULL, "
    "counted INTEGER NOT NULL)",
    "reservation (number INTEGER PRIMARY KEY, approval TEXT NOT NULL UNIQUE, label TEXT NOT NULL, mu REAL NOT NULL, "
    "d0 REAL NOT NULL, events TEXT NOT NULL)",
)


def events_digest(composition: Composition) -> str:
    """Return a digest that is equal for equal compositions, whatever their order."""
    rows = sorted(json.dumps([to_json(event), int(times)], sort_keys=True) for event, times in composition.items())
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()


@dataclass(frozen=True)
class BudgetStatus:
    """A site's budget and how much of it is reserved."""

    epsilon: float
    delta: float
    spent: float
    """The epsilon at delta of all reservations, as if they had been fixed beforehand."""
    used: float
    """The reserved share of the filter's limits."""
    reservations: tuple[Reservation, ...]
    mu_left: float
    """A Gaussian release with noise multiplier 1 / mu_left or more still fits."""
    d0_left: float
    epsilon_left: float
    """An experiment of Gaussian releases that alone costs this epsilon at delta still fits. Epsilons do not add up;
    the shares `used` do."""
    number: int
    """Number of changes of the state so far."""
    counter: str
    """The file or command outside the state folder that detects an old copy."""


class LifetimeBudget:
    """A Gaussian filter (accounting-proofs.md) over the approved experiments of a site, durable in its state folder.

    Guarantees: a reservation is on disk, and counted, before it is returned; all reservations together stay within the
    policy's (epsilon, delta), even if approvals depend on earlier results; an approval is reserved once; a state behind
    the counter reserves and answers nothing; an ended approval keeps its reservation and counts no more answers.
    """

    def __init__(self, state: Path, policy: SitePolicy) -> None:
        self.state, self.filter = state, GaussianFilter(policy.epsilon, policy.delta)
        self._counter = counter_of(policy, state)
        if not state.is_dir():
            state.mkdir(mode=0o700, exist_ok=True)
            sync_folder(state.parent)

    def reserve(self, approval: str, label: str, composition: Composition) -> Reservation:
        """Reserve the cost of an experiment over its whole length; raise BudgetExhausted if it does not fit.

        An approval that is already reserved gets the same reservation again; with other events it raises InvalidInput.
        """
        events = events_digest(composition)
        # Pricing is slow and cached: do it before the lock is taken.
        self.filter.price(composition)
        with self._open_state() as store:
            held = store.find_reservation(approval)
            if held is not None:
                if held[1] != events:
                    reason = "this approval was reserved for other events"
                    invalid("approval", approval, reason, "approve the changed experiment again")
                return held[0]
            spent = [reservation.bound for reservation in store.reservations()]
            bound = self.filter.price(composition, spent)
            if bound is None:
                raise BudgetExhausted(self._explain_refusal(composition, spent))
            made = Reservation(approval, printable(label, most=200), bound.mu, bound.d0)
            store.add_reservation(made, events)
            self._confirm_counter(store)
            return made

    def require(self, approval: str, composition: Composition) -> tuple[int, str]:
        """Return the newest mark; raise unless the approval has a live reservation for these events."""
        with self._open_state() as store:
            held = store.find_reservation(approval)
            if held is None or held[1] != events_digest(composition):
                reason = f"holds no reservation of approval {approval}"
                raise LedgerDamaged(one_line("state", LIFETIME, reason, RESTORE))
            store.refuse_ended(approval)
            return store.number(), store.marks()[store.number()]

    def end(self, approval: str, how: str) -> bool:
        """End an approval for good, in one of the ways of ENDINGS; return False if it has ended before.

        Guarantees: once this returns, `advance` counts no answer of it. Its reservation stays.
        """
        with self._open_state() as store:
            if approval in store.record().ended:
                return False
            store.add_mark(f"{how} {approval}")
            self._confirm_counter(store)
            return True

    def advance(self, what: str, *, approval: str | None = None) -> int:
        """Count one more change, such as an answer that is about to leave, and return its number.

        A caller with state of its own writes that state first, with `check() + 1`, then advances, then sends the
        answer. Raise Refused if the approval has ended.
        """
        with self._open_state() as store:
            if approval is not None:
                store.refuse_ended(approval)
            number = store.add_mark(what)
            self._confirm_counter(store)
            return number

    def check(self) -> int:
        """Return the state's number; raise StateBehind if it is an old or a second copy."""
        with self._open_state() as store:
            return store.number()

    def pin(self, name: str, value: str) -> str:
        """Return the value that a fact of the site has for life; the first one that is given is kept."""
        with self._open_state() as store:
            return store.pin(name, value)

    def record(self) -> LifetimeRecord:
        """Return the facts that the other files of the state are compared with."""
        with self._open_state() as store:
            return store.record()

    def share_with(self, composition: Composition) -> tuple[float, float]:
        """Return the reserved share of the budget, and the share with one more experiment; above 1 does not fit."""
        spent = [reservation.bound for reservation in self.status().reservations]
        bound = self.filter.price(composition, spent) or self.filter.price(composition)
        used = self.filter.used_share(spent)
        return used, math.inf if bound is None else self.filter.used_share([*spent, bound])

    def was_counted(self, what: str) -> bool:
        """Return whether a change of this name was counted, whatever the other files of the state say."""
        with self._open_state() as store:
            return store.was_counted(what)

    def status(self) -> BudgetStatus:
        """Return what is reserved and what is left."""
        with self._open_state() as store:
            reservations, number = store.reservations(), store.number()
        bounds = [reservation.bound for reservation in reservations]
        mu_squared, d0 = add_bounds(bounds)
        whole = self.filter
        # Round down a little: a release of exactly mu_left must still fit despite rounding.
        mu_left = math.sqrt(max(whole.most_mu**2 - mu_squared, 0.0)) * (1 - 1e-9)
        return BudgetStatus(
            epsilon=whole.epsilon,
            delta=whole.delta,
            spent=whole.spent_epsilon(bounds),
            used=whole.used_share(bounds),
            reservations=reservations,
            mu_left=mu_left,
            d0_left=max(whole.most_d0 - d0, 0.0),
            epsilon_left=whole.spent_epsilon([GaussianBound(mu_left)]),
            number=number,
            counter=self._counter.name,
        )

    def _explain_refusal(self, composition: Composition, spent: list[GaussianBound]) -> str:
        alone = self.filter.price(composition)
        cost = "more than the whole budget" if alone is None else f"{self.filter.used_share([alone]):.3g} of the budget"
        reason = f"the experiment costs {cost}, and {self.filter.used_share(spent):.3g} of it is reserved already"
        at = f"{self.filter.epsilon:g} at delta={self.filter.delta:g}"
        return one_line("epsilon", at, reason, "use more noise or fewer rounds")

    def _confirm_counter(self, store: BudgetStore) -> None:
        self._counter.confirm(store.marks(), new=not store.is_counted())
        store.set_counted()

    @contextmanager
    def _open_state(self) -> Iterator[BudgetStore]:
        """Open the state, checked and level with the counter, for one process at a time."""
        with ExitStack() as stack:
            stack.enter_context(hold_lock(self.state / "lifetime.lock"))
            stack.enter_context(self._counter.hold())
            try:
                connection = stack.enter_context(closing(connect_to_write(self.state / LIFETIME)))
                store = BudgetStore(connection, self.filter)
                if not store.number():
                    # The name of a new database must survive a crash before anything is counted in it.
                    sync_folder(self.state)
                self._confirm_counter(store)
                yield store
            except sqlite3.DatabaseError as error:
                raise LedgerDamaged(one_line("state", LIFETIME, f"cannot be read ({error})")) from None


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold a file lock for one process at a time; it is released when the process ends."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        invalid("lock", path, f"cannot be opened ({type(error).__name__})", "run as a user who can write there")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
