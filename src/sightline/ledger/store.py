"""Releases and journal entries on disk: append-only, durable, each row chained to the one before by its hash."""

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from sightline.errors import SightlineError, one_line
from sightline.ledger.release import Release, release_from, release_like

GENESIS = "0" * 64
"""What stands before the first row of the chain."""

LAST = 2**63 - 1
"""No row has a number as large."""


class LedgerDamaged(SightlineError):
    """The ledger on disk, or the journal beside it, was cut, edited or reordered."""

    exit_code = 2


def connect_to_write(path: Path) -> sqlite3.Connection:
    """A connection whose committed rows survive a crash of the process, the system or the power.

    A new database, and with it SQLite's files beside it, is for its owner only.
    """
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    connection = sqlite3.connect(path, isolation_level=None, timeout=10)
    with close_on_error(connection):
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
    return only_tables(connection)


def connect_to_read(path: Path) -> sqlite3.Connection:
    """A connection that cannot write, also while another process does.

    A database without a write-ahead log beside it is open nowhere else; it is read as it lies, so that looking at a
    finished run leaves no file behind and needs no right to write into its folder.
    """
    at_rest = not path.with_name(f"{path.name}-wal").exists()
    address = f"{path.absolute().as_uri()}?mode=ro" + ("&immutable=1" if at_rest else "")
    return only_tables(sqlite3.connect(address, uri=True, isolation_level=None, timeout=10))


def only_tables(connection: sqlite3.Connection) -> sqlite3.Connection:
    """The connection, when its database holds nothing but tables.

    A view would answer in the place of a table, a trigger could drop the rows that are written, and both are words of
    whoever made the file: none of them is ever asked.
    """
    with close_on_error(connection):
        connection.execute("PRAGMA trusted_schema=OFF")
        found = connection.execute("SELECT name FROM sqlite_master WHERE coalesce(rootpage, 0) = 0 LIMIT 1").fetchone()
        if found is not None:
            raise LedgerDamaged(one_line("ledger", found[0], "a view or a trigger, and a ledger has tables only"))
    return connection


@contextmanager
def close_on_error(connection: sqlite3.Connection) -> Iterator[None]:
    """Close a connection that could not be made ready: nobody else will have it in hand to do so."""
    try:
        yield
    except BaseException:
        connection.close()
        raise


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All that is written inside becomes durable together, or none of it."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


class SqliteStore:
    """The table `release` of a run's database: id, time, body, hash."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        connection.execute(
            "CREATE TABLE IF NOT EXISTS release (id INTEGER PRIMARY KEY, time INTEGER NOT NULL, "
            "body TEXT NOT NULL, hash TEXT NOT NULL)"
        )

    def append(self, releases: Sequence[Release]) -> None:
        """Write the releases and their hashes in one transaction."""
        head = self.head()
        rows = []
        for release in releases:
            body = release.body()
            head = chain_hash(head, body)
            rows.append((release.id, release.time, body, head))
        with transaction(self._connection):
            self._connection.executemany("INSERT INTO release VALUES (?, ?, ?, ?)", rows)

    def head(self) -> str:
        """The hash of the last row: it vouches for every row before it."""
        row = self._connection.execute("SELECT hash FROM release ORDER BY id DESC LIMIT 1").fetchone()
        return row[0] if row else GENESIS

    def read(self, start: int = 0, head: str = GENESIS) -> list[Release]:
        """All releases from number `start` on, after checking the chain from the hash `head` of the row before."""
        return list(self.stream_releases(start, head))

    def stream_releases(self, start: int = 0, head: str = GENESIS, *, stop: int = LAST) -> Iterator[Release]:
        """Releases from number `start` up to `stop`, one by one, each after its link of the chain was checked."""
        for place, (id, body, claimed) in enumerate(self._stored_rows(start, stop), start):
            head = chain_hash(head, str(body))
            if id != place or head != claimed:
                raise LedgerDamaged(f"ledger row={id}: the hash chain is broken here; rows were cut, edited or moved")
            yield release_of(body, id)

    def _stored_rows(self, start: int, stop: int) -> Iterator[tuple[int, str, str]]:
        """The rows as they lie; damage that the database itself finds is told, trouble of the disk passes as it is."""
        query = "SELECT id, body, hash FROM release WHERE id >= ? AND id < ? ORDER BY id"
        try:
            yield from self._connection.execute(query, (start, stop))
        except (sqlite3.DatabaseError, UnicodeDecodeError, MemoryError) as error:
            if not of_the_file(error):
                raise
            raise LedgerDamaged(one_line("ledger", "release", f"its table is damaged ({error})")) from None

    def read_release(self, id: int) -> Release:
        """One release, after checking its link of the chain."""
        found = next(self.stream_releases(id, self.hash_of(id - 1), stop=id + 1), None)
        if found is None:
            raise LedgerDamaged(f"ledger row={id}: it was there and is gone; rows were cut")
        return found

    def vouches_for(self, count: int, head: str) -> bool:
        """Whether the first `count` rows end in the hash `head`, as a checkpoint remembers it."""
        return self.hash_of(count - 1) == head

    def has_hash(self, head: str) -> bool:
        """Return whether a row of the chain has this hash."""
        return self._connection.execute("SELECT 1 FROM release WHERE hash = ? LIMIT 1", (head,)).fetchone() is not None

    def hash_of(self, id: int) -> str:
        """The hash of a row; of the one before the first, where the chain begins; empty where there is no such row."""
        if id == -1:
            return GENESIS
        row = self._connection.execute("SELECT hash FROM release WHERE id = ?", (id,)).fetchone()
        return str(row[0]) if row else ""


def of_the_file(error: Exception) -> bool:
    """Whether a failure is of what the file holds, and not of the disk or of others who are at work in it."""
    return not isinstance(error, sqlite3.OperationalError) or "UTF-8" in str(error) or "no such" in str(error)


def read_body(body: str, id: int) -> dict[str, Any]:
    """The plain form of a stored release; what is none, though its hash be right, is refused."""
    try:
        plain = json.loads(body)
    except (ValueError, TypeError, RecursionError):
        plain = None
    if not isinstance(plain, dict):
        raise LedgerDamaged(f"ledger row={id}: holds no release; the file was not written by a run")
    return plain


def release_of(body: str, id: int) -> Release:
    """The release of a stored body."""
    return release_like(body, id) or release_from(read_body(body, id), id)


def chain_hash(head: str, body: str) -> str:
    """The hash of a row over the row before it."""
    return hashlib.sha256((head + "\n" + body).encode()).hexdigest()


EDITED = "rows of run.sqlite were cut, edited or moved"


class EntryKind(StrEnum):
    """What an entry is about. The words are hashed."""

    START = "start"
    RESUME = "resume"
    ADOPT = "adopt"
    """A run that was begun before there was a journal goes on with one."""
    FACTS = "facts"
    CHECKPOINT = "checkpoint"
    ROUND = "round"
    END = "end"


@dataclass(frozen=True)
class Entry:
    """One entry; `round` where it is about one."""

    kind: str
    round: int | None
    body: Mapping[str, Any]


class Journal:
    """The table `journal` of a run's database: number, kind, round, body, hash."""

    def __init__(self, connection: sqlite3.Connection, *, create: bool) -> None:
        self._connection = connection
        if create:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS journal (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, round INTEGER, "
                "body TEXT NOT NULL, hash TEXT NOT NULL)"
            )
            connection.execute("CREATE INDEX IF NOT EXISTS journal_round ON journal (kind, round)")
        query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'journal'"
        self.exists = connection.execute(query).fetchone() is not None
        """Runs that were begun before there was a journal have none until they go on."""

    def append(self, kind: EntryKind, body: Mapping[str, Any], *, round: int | None = None) -> None:
        """Write an entry; whoever calls it holds the transaction that also writes what the entry is about."""
        releases, ledger = self._connection.execute(
            "SELECT coalesce(max(id), -1) + 1, (SELECT hash FROM release ORDER BY id DESC LIMIT 1) FROM release"
        ).fetchone()
        text = json.dumps(dict(body) | {"releases": releases, "ledger": ledger or GENESIS}, sort_keys=True)
        last = self._connection.execute("SELECT number, hash FROM journal ORDER BY number DESC LIMIT 1").fetchone()
        number, head = last or (-1, GENESIS)
        row = (number + 1, str(kind), round, text, chain_entry(head, str(kind), round, text))
        self._connection.execute("INSERT INTO journal VALUES (?, ?, ?, ?, ?)", row)

    def __bool__(self) -> bool:
        return self.exists and self._connection.execute("SELECT 1 FROM journal LIMIT 1").fetchone() is not None

    def entries(self) -> Iterator[Entry]:
        """Every entry in order, each after its link of the chain was checked."""
        head = GENESIS
        if self.exists:
            rows = self._connection.execute("SELECT number, kind, round, body, hash FROM journal ORDER BY number")
            for place, (number, kind, round, body, claimed) in enumerate(rows):
                head = chain_entry(head, kind, round, body)
                if number != place or head != claimed:
                    raise LedgerDamaged(f"journal entry={number}: the hash chain is broken here; {EDITED}")
                yield Entry(kind, round, json.loads(body))

    def last(self, *kinds: EntryKind, most: int | None = 1) -> list[Entry]:
        """The last entries of these kinds (None: all), the newest first, as they lie: `entries` checks the chain."""
        if not self.exists:
            return []
        about = "" if EntryKind.CHECKPOINT in kinds else "AND round IS NULL "  # then the index has them in their order
        query = f"SELECT kind, round, body FROM journal WHERE kind IN ({','.join('?' * len(kinds))}) {about}"
        rows = self._connection.execute(
            query + "ORDER BY number DESC LIMIT ?", (*map(str, kinds), -1 if most is None else most)
        )
        return [Entry(kind, round, json.loads(body)) for kind, round, body in rows]


def chain_entry(head: str, kind: str, round: int | None, body: str) -> str:
    """The hash of an entry over the one before it."""
    return chain_hash(head, f"{kind}\n{round}\n{body}")


def digest_of(*texts: str) -> str:
    """The SHA-256 of texts; where one ends and the next begins is part of it."""
    words = hashlib.sha256()
    for text in texts:
        content = text.encode("utf-8", "surrogatepass")
        words.update(b"%d:" % len(content) + content)
    return words.hexdigest()
