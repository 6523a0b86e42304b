"""The journal of a run: what was written beside the ledger, each entry hashed over the one before.

The chain of the ledger vouches for releases alone. The journal vouches for the rest: what the run is made of (settings,
data, code, packages), every checkpoint, every round's metrics, every change of a fact. Each entry names the ledger's
head as it then was, so that the two chains cannot be put together from two runs.
"""

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sightline.ledger.store import GENESIS, LedgerDamaged, chain_hash

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
