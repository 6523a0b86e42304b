"""The SQLite tables of a site's lifetime budget: the budget, the marks of its changes, and the reservations."""

import hashlib
import json
import os
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass

from sightline.accounting import Composition, GaussianBound, GaussianFilter
from sightline.errors import Refused, invalid, one_line
from sightline.events import to_json
from sightline.ledger import GENESIS
from sightline.ledger.store import transaction
from sightline.runtimes.site.policy import POLICY

REMEMBERED = 64
"""Number of newest marks kept in the state. An honest counter is at most one behind."""
ENDINGS = {
    "revoked": "the owner of the site revoked it",
    "failed": "an answer could not be computed here, on blank examples either",
}
"""The ways in which an approval ends before its run does. Each is a mark with the approval's id: an old copy shows."""

Marks = Mapping[int, str]
"""Number -> head of the newest changes of a state."""


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
        words = (what.partition(" ") for what in self.counted)
        return {approval: how for how, _, approval in words if how in ENDINGS}


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
            law = f"a budget for life is fixed beforehand, and here it is epsilon={held[0]:g}, delta={held[1]:g}"
            invalid(f"{POLICY}: epsilon", f"{budget.epsilon:g}, delta={budget.delta:g}", law, "put the old values back")

    def pin(self, name: str, value: str) -> str:
        """Write a fact that holds for the life of the state, unless it is written; return the one that is."""
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
        for how, law in ENDINGS.items():
            if self.was_counted(f"{how} {approval}"):
                raise Refused(one_line("approval", approval, law, "nothing more is answered"))

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
