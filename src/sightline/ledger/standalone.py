"""Ledgers outside a run: of one repeated step, as a JSON file, and page by page for timelines."""

import json
import math
import sqlite3
import weakref
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sightline.accounting import epsilon
from sightline.accounting.accountant import check_delta
from sightline.errors import BudgetExhausted, InvalidInput, invalid, refuse
from sightline.events import Adjacency, Clear, Event, Unit
from sightline.formatting import read_text
from sightline.ledger.ledger import Ledger
from sightline.ledger.release import NOBODY, Release, read_parties, release_from, write_parties
from sightline.ledger.store import (
    GENESIS,
    SqliteStore,
    chain_hash,
    close_on_error,
    connect_to_read,
    connect_to_write,
    read_body,
)

PUBLIC = "public"


@dataclass(frozen=True)
class StepKind:
    """Who is protected, who computes the step, and its name; everyone sees the result.

    With `handed_over` the computing party is shown everything without noise and knows who was drawn: each step is two
    rows, and against that party epsilon is infinite.
    """

    subject: str
    unit: Unit
    source: str
    what: str
    handed_over: bool = False

    def releases(self, time: int, event: Event, number: int) -> tuple[Release, ...]:
        """Return the rows of one step, of which the first gets this number in the ledger."""
        sent = Release(
            time, self.subject, frozenset({self.subject}), self.unit, Adjacency.ADD_REMOVE, Clear(),
            frozenset({self.source}), what="sent without noise to who computes the step",
        )  # fmt: skip
        before = (number - 1,) if number else ()
        shown = Release(
            time, self.source, frozenset({self.subject}), self.unit, Adjacency.ADD_REMOVE, event, frozenset({PUBLIC}),
            inputs=before, coins_known_to=frozenset({self.source}) if self.handed_over else NOBODY, what=self.what,
        )  # fmt: skip
        return (sent, shown) if self.handed_over else (shown,)


class StepLedger:
    """Steps of one event, each on disk before it is taken, within a budget.

    Guarantees: `charge` returns only after the rows of the step are durable, and raises `BudgetExhausted`, with nothing
    written, if they would take epsilon at `delta` above `budget`. A file that already has rows is continued: they
    count, and only the same event may follow them, because a budget checked along the way holds for steps that were
    fixed beforehand (`accounting.GaussianFilter` is for others). Without a path the ledger is in memory only.

    >>> from sightline.events import Gaussian
    >>> with StepLedger(None, StepKind("samples", Unit.SAMPLE, "trainer", "mean"), delta=1e-5, budget=3.0) as steps:
    ...     steps.begin(Gaussian(5.0))
    ...     [steps.charge() for _ in range(9)][-1], round(steps.epsilon(), 3)
    (9, 2.445)
    """

    def __init__(self, path: Path | str | None, kind: StepKind, *, delta: float, budget: float | None = None) -> None:
        check_delta(delta)
        if budget is not None and not (budget > 0 and math.isfinite(budget)):
            invalid("epsilon", budget, "a budget must be positive and finite")
        self.kind, self.delta, self.budget = kind, delta, budget
        self.event: Event | None = None
        self._fitting = 0
        self._close = weakref.finalize(self, _nothing)
        people = (kind.subject, kind.source, PUBLIC)
        if path is None:
            self.ledger = Ledger(participants=people)
        else:
            connection = connect_to_write(Path(path))
            with close_on_error(connection):
                self.ledger = Ledger.open_stored(SqliteStore(connection), participants=people)
                self._read_event(path)
            self._close = weakref.finalize(self, connection.close)

    def _read_event(self, path: Path | str) -> None:
        """Find the event of the steps in the file. Raises unless all rows are steps of this kind, in order."""
        # The loop runs to the end even after a strange row: an unfinished query would keep the file locked.
        strange: list[int] = []
        for index, row in enumerate(self.ledger):
            number, part = divmod(index, self._width)
            self.event = self.event or (row.event if part == self._width - 1 else None)
            steps = self.kind.releases(number + 1, self.event or Clear(), number * self._width)
            strange += [index] if row.body() != steps[part].body() and not strange else []
        if strange or len(self.ledger) % self._width:
            invalid("ledger", path, f"row {strange[0] if strange else len(self.ledger)} is not a step of this kind",
                    "begin a new file")  # fmt: skip

    @property
    def _width(self) -> int:
        return 2 if self.kind.handed_over else 1

    @property
    def steps(self) -> int:
        """Return the number of charged steps, including those of earlier users of the file."""
        return len(self.ledger) // self._width

    def begin(self, event: Event, *, planned: int = 0) -> None:
        """Set the event of the steps. Raises if the file has steps of another event.

        If `planned` steps are within the budget, later checks up to that number are skipped.
        """
        if self.event not in (None, event):
            reason = f"the ledger has {self.steps} steps of {self.event}, and all steps of a ledger must be equal"
            refuse("event", event, reason, "use the same batches and noise, or begin a new ledger")
        self.event = event
        if planned and self._is_within(planned):
            self._fitting = planned

    def _is_within(self, steps: int) -> bool:
        if self.budget is None or self.event is None:
            return self.budget is None
        return epsilon({self.event: steps}, self.delta) <= self.budget

    def fits_another(self) -> bool:
        """Return whether one more step is within the budget."""
        following = self.steps + 1
        if following > self._fitting and self._is_within(following):
            self._fitting = following
        return following <= self._fitting

    def charge(self) -> int:
        """Record the next step durably and return its number, from 1. Raises `BudgetExhausted` beyond the budget."""
        if self.event is None or not self._close.alive:
            invalid("ledger", self.kind.source, "no step is open", "call begin first")
        if not self.fits_another():
            spent = epsilon({self.event: self.steps + 1}, self.delta)
            raise BudgetExhausted(
                f"epsilon={self.budget:g}: step {self.steps + 1} would cost {spent:.4g} at delta={self.delta:g}; "
                "stopped before it"
            )
        self.ledger.append(self.kind.releases(self.steps + 1, self.event, len(self.ledger)))
        return self.steps

    def epsilon(self, *, delta: float | None = None) -> float:
        """Return the epsilon spent so far, against anyone who sees all steps."""
        return self.ledger.epsilon(self.kind.subject, PUBLIC, self.delta if delta is None else delta)

    def close(self) -> None:
        """Close the file; no step can follow."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _nothing() -> None:
    """Close a ledger in memory: nothing to do."""


def read_ledger(path: Path | str) -> Ledger:
    """Return the ledger in a file that a loop or a run wrote, all in memory, after checking its hash chain."""
    if not Path(path).is_file():
        invalid("ledger", path, "no such file")
    with closing(connect_to_read(Path(path))) as connection:
        return Ledger.whole(SqliteStore(connection))


SCHEMA = "sightline-ledger/1"


def export_ledger(ledger: Ledger) -> dict[str, Any]:
    """Return the plain form `{"schema", "participants", "releases": [...]}`; ids of releases are positions."""
    return {
        "schema": SCHEMA,
        "participants": write_parties(ledger.participants),
        "releases": [json.loads(release.body()) for release in ledger],
    }


def read_export(path: Path | str) -> Ledger:
    """Return the ledger of an exported file. Raises for anything malformed.

    A file without participants (an older form) knows the names in its releases.
    """
    try:
        plain = json.loads(read_text(path))
    except FileNotFoundError:
        invalid("ledger", path, "no such file", "write one with sightline report RUN_DIR --ledger FILE.json")
    except (OSError, ValueError, RecursionError) as error:
        invalid("ledger", path, f"cannot be read as JSON ({type(error).__name__})")
    if not isinstance(plain, dict) or plain.get("schema") != SCHEMA or not isinstance(plain.get("releases"), list):
        raise InvalidInput(f"ledger={path}: not a {SCHEMA} file")
    participants = plain.get("participants", "")
    if not isinstance(participants, str):
        invalid("participants", type(participants).__name__, "must be a text", 'e.g. "client-0..23, server"')
    releases = (release_from(row, index) for index, row in enumerate(plain["releases"]))
    return Ledger(releases, participants=read_parties(participants))


COLUMNS = "SELECT id, time, body, hash FROM release"


@dataclass(frozen=True)
class Row:
    """One release as it is stored; `whole` tells whether its hash follows from the row before."""

    id: int
    time: int
    plain: dict[str, Any]
    hash: str
    whole: bool


class Pages:
    """The table `release` of a run's database, read in parts; the cost of a page does not grow with its number."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def rows(self, start: int, count: int) -> list[Row]:
        """Return `count` releases from number `start` on, each checked against the hash of the one before."""
        result = self._connection.execute(f"{COLUMNS} WHERE id >= ? ORDER BY id LIMIT ?", (start, count)).fetchall()
        return [self._checked_row(*row) for row in result]

    def matching_rows(self, text: str, start: int, count: int) -> list[Row]:
        """Return releases from number `start` on whose stored form contains the text."""
        query = f"{COLUMNS} WHERE id >= ? AND instr(lower(body), lower(?)) ORDER BY id LIMIT ?"
        return [self._checked_row(*row) for row in self._connection.execute(query, (start, text, count)).fetchall()]

    def matching_before(self, text: str, end: int, count: int) -> int:
        """Return the start of the page of `count` matches that ends right before number `end`."""
        query = (
            "SELECT min(id) FROM (SELECT id FROM release WHERE id < ? AND instr(lower(body), lower(?)) "
            "ORDER BY id DESC LIMIT ?)"
        )
        result = self._connection.execute(query, (end, text, count)).fetchone()[0]
        return 0 if result is None else int(result)

    def count_matches(self, text: str) -> int:
        """Return the number of releases that contain the text."""
        query = "SELECT count(*) FROM release WHERE instr(lower(body), lower(?))"
        return int(self._connection.execute(query, (text,)).fetchone()[0])

    def first_of(self, time: int) -> int:
        """Return the number of the first release of a round or a later one; past the last if there is none."""
        result = self._connection.execute("SELECT min(id) FROM release WHERE time >= ?", (time,)).fetchone()[0]
        return self.count_releases() if result is None else int(result)

    def count_releases(self) -> int:
        """Return the number of releases; they are numbered from zero."""
        result = self._connection.execute("SELECT max(id) FROM release").fetchone()[0]
        return 0 if result is None else int(result) + 1

    def count_since(self, time: int) -> int:
        """Return the number of releases made after a round."""
        return int(self._connection.execute("SELECT count(*) FROM release WHERE time > ?", (time,)).fetchone()[0])

    def by_time(self, width: int) -> dict[int, int]:
        """Return the number of releases per span of `width` rounds."""
        query = "SELECT time / ?, count(*) FROM release GROUP BY 1 ORDER BY 1"
        return dict(self._connection.execute(query, (width,)).fetchall())

    def last_time(self) -> int:
        """Return the round of the last release."""
        result = self._connection.execute("SELECT time FROM release ORDER BY id DESC LIMIT 1").fetchone()
        return 0 if result is None else int(result[0])

    def _checked_row(self, id: int, time: int, body: str, hash: str) -> Row:
        before = self._connection.execute("SELECT hash FROM release WHERE id = ?", (id - 1,)).fetchone()
        head = GENESIS if id == 0 else before[0] if before else ""
        plain = read_body(body, id)
        return Row(id, time, plain, hash, plain.get("time") == time and chain_hash(head, body) == hash)
