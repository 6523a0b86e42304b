"""Releases and journal entries on disk: append-only, durable, each row chained to the one before by its hash.

The chain shows rows that were cut, edited or moved. It has no key: an attacker who may write the whole directory can
forge it, and restoring a whole older directory cannot be noticed from inside.
"""

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

# The hash before the first row of the chain.
GENESIS = "0" * 64

# An upper bound on row numbers.
LAST = 2**63 - 1


class LedgerDamaged(SightlineError):
    """The ledger on disk, or the journal beside it, was cut, edited or reordered."""

    exit_code = 2


def connect_to_write(path: Path) -> sqlite3.Connection:
    """Return a connection whose committed rows survive a crash of the process, the system or the power."""
    # Created here with owner-only rights; SQLite gives its files beside the database the same rights.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    connection = sqlite3.connect(path, isolation_level=None, timeout=10)
    with close_on_error(connection):
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
    return only_tables(connection)


def connect_to_read(path: Path) -> sqlite3.Connection:
    """Return a connection that cannot write, also while another process writes."""
    # Without a write-ahead log the database is not open anywhere. Reading it as immutable leaves no file behind and
    # needs no right to write into its folder.
    at_rest = not path.with_name(f"{path.name}-wal").exists()
    address = f"{path.absolute().as_uri()}?mode=ro" + ("&immutable=1" if at_rest else "")
    return only_tables(sqlite3.connect(address, uri=True, isolation_level=None, timeout=10))


def only_tables(connection: sqlite3.Connection) -> sqlite3.Connection:
    """Return the connection. Raises `LedgerDamaged` if its database holds a view or a trigger."""
    with close_on_error(connection):
        # A view would answer in place of a table and a trigger could drop rows that are written; both are code of
        # whatever made the file, so neither is ever run.
        connection.execute("PRAGMA trusted_schema=OFF")
        result = connection.execute("SELECT name FROM sqlite_master WHERE coalesce(rootpage, 0) = 0 LIMIT 1").fetchone()
        if result is not None:
            raise LedgerDamaged(one_line("ledger", result[0], "is a view or a trigger, and a ledger has only tables"))
    return connection


@contextmanager
def close_on_error(connection: sqlite3.Connection) -> Iterator[None]:
    """Close a connection that could not be made ready: the caller never gets it."""
    try:
        yield
    except BaseException:
        connection.close()
        raise


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Make everything written inside durable together, or none of it."""
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
        """Return the hash of the last row: it vouches for every row before it."""
        row = self._connection.execute("SELECT hash FROM release ORDER BY id DESC LIMIT 1").fetchone()
        return row[0] if row else GENESIS

    def read(self, start: int = 0, head: str = GENESIS) -> list[Release]:
        """Return all releases from number `start` on, checking the chain from the hash `head` of the row before."""
        return list(self.stream_releases(start, head))

    def stream_releases(self, start: int = 0, head: str = GENESIS, *, stop: int = LAST) -> Iterator[Release]:
        """Yield releases from `start` up to `stop`, each after its link is checked. Raises `LedgerDamaged`."""
        for index, (id, body, claimed) in enumerate(self._stored_rows(start, stop), start):
            head = chain_hash(head, str(body))
            if id != index or head != claimed:
                raise LedgerDamaged(f"ledger row={id}: the hash chain is broken here; rows were cut, edited or moved")
            yield release_of(body, id)

    def _stored_rows(self, start: int, stop: int) -> Iterator[tuple[int, str, str]]:
        """Yield the rows unchecked. Raises `LedgerDamaged` for damage that SQLite finds; disk errors pass through."""
        query = "SELECT id, body, hash FROM release WHERE id >= ? AND id < ? ORDER BY id"
        try:
            yield from self._connection.execute(query, (start, stop))
        except (sqlite3.DatabaseError, UnicodeDecodeError, MemoryError) as error:
            if not of_the_file(error):
                raise
            raise LedgerDamaged(one_line("ledger", "release", f"its table is damaged ({error})")) from None

    def read_release(self, id: int) -> Release:
        """Return one release after checking its link of the chain. Raises `LedgerDamaged` if it is missing."""
        result = next(self.stream_releases(id, self.hash_of(id - 1), stop=id + 1), None)
        if result is None:
            raise LedgerDamaged(f"ledger row={id}: this row is missing; rows were cut")
        return result

    def vouches_for(self, count: int, head: str) -> bool:
        """Return whether the first `count` rows end in the hash `head` that a checkpoint remembers."""
        return self.hash_of(count - 1) == head

    def has_hash(self, head: str) -> bool:
        """Return whether a row of the chain has this hash."""
        return self._connection.execute("SELECT 1 FROM release WHERE hash = ? LIMIT 1", (head,)).fetchone() is not None

    def hash_of(self, id: int) -> str:
        """Return the hash of a row; GENESIS for row -1, empty for a missing row."""
        if id == -1:
            return GENESIS
        row = self._connection.execute("SELECT hash FROM release WHERE id = ?", (id,)).fetchone()
        return str(row[0]) if row else ""


def of_the_file(error: Exception) -> bool:
    """Return whether an error is about the file's content, not about the disk or a concurrent process."""
    return not isinstance(error, sqlite3.OperationalError) or "UTF-8" in str(error) or "no such" in str(error)


def read_body(body: str, id: int) -> dict[str, Any]:
    """Return the plain form of a stored release. Raises `LedgerDamaged` for anything else, even with a correct hash."""
    try:
        plain = json.loads(body)
    except (ValueError, TypeError, RecursionError):
        plain = None
    if not isinstance(plain, dict):
        raise LedgerDamaged(f"ledger row={id}: is not a release; the file was not written by a run")
    return plain


def release_of(body: str, id: int) -> Release:
    """Return the release of a stored body."""
    return release_like(body, id) or release_from(read_body(body, id), id)


def chain_hash(head: str, body: str) -> str:
    """Return the hash of a row over the row before it."""
    return hashlib.sha256((head + "\n" + body).encode()).hexdigest()


EDITED = "rows of run.sqlite were cut, edited or moved"


class EntryKind(StrEnum):
    """What a journal entry is about. The values are hashed."""

    START = "start"
    RESUME = "resume"
    ADOPT = "adopt"
    """A run that was started before there was a journal continues with one."""
    FACTS = "facts"
    CHECKPOINT = "checkpoint"
    ROUND = "round"
    END = "end"


@dataclass(frozen=True)
class Entry:
    """One journal entry; `round` is set if it is about a round."""

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
        # Runs started before there was a journal have none until they continue.
        self.exists = connection.execute(query).fetchone() is not None

    def append(self, kind: EntryKind, body: Mapping[str, Any], *, round: int | None = None) -> None:
        """Write an entry; the caller holds the transaction that also writes what the entry is about."""
        # Each entry names the ledger's head at that time, so a ledger that was cut is noticed without a checkpoint too.
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
        """Yield every entry in order, each after its link is checked. Raises `LedgerDamaged`."""
        head = GENESIS
        if self.exists:
            rows = self._connection.execute("SELECT number, kind, round, body, hash FROM journal ORDER BY number")
            for index, (number, kind, round, body, claimed) in enumerate(rows):
                head = chain_entry(head, kind, round, body)
                if number != index or head != claimed:
                    raise LedgerDamaged(f"journal entry={number}: the hash chain is broken here; {EDITED}")
                yield Entry(kind, round, json.loads(body))

    def last(self, *kinds: EntryKind, most: int | None = 1) -> list[Entry]:
        """Return the last entries of these kinds (`most` None: all), newest first, without checking the chain."""
        if not self.exists:
            return []
        # Without checkpoints the index returns the entries in order.
        about = "" if EntryKind.CHECKPOINT in kinds else "AND round IS NULL "
        query = f"SELECT kind, round, body FROM journal WHERE kind IN ({','.join('?' * len(kinds))}) {about}"
        rows = self._connection.execute(
            query + "ORDER BY number DESC LIMIT ?", (*map(str, kinds), -1 if most is None else most)
        )
        return [Entry(kind, round, json.loads(body)) for kind, round, body in rows]


def chain_entry(head: str, kind: str, round: int | None, body: str) -> str:
    """Return the hash of an entry over the one before it."""
    return chain_hash(head, f"{kind}\n{round}\n{body}")


def digest_of(*texts: str) -> str:
    """Return the SHA-256 of texts; their boundaries are part of it."""
    digest = hashlib.sha256()
    for text in texts:
        content = text.encode("utf-8", "surrogatepass")
        digest.update(b"%d:" % len(content) + content)
    return digest.hexdigest()
