"""The record of a run: one SQLite file with facts, one row per round, the ledger, and a journal of hashes for all.

`facts` describe the run once; a round's row is written after its releases, its model and its checkpoint are safe. Facts
and rows are written in one transaction with their journal entry.
"""

import json
import math
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sightline.errors import invalid
from sightline.ledger import (
    GENESIS,
    NOBODY,
    EntryKind,
    Journal,
    Ledger,
    LedgerDamaged,
    Pages,
    Parties,
    SqliteStore,
    connect_to_read,
    connect_to_write,
    digest_of,
    read_parties,
    transaction,
)
from sightline.ledger.store import EDITED, chain_entry, chain_hash, close_on_error, of_the_file, release_of

DATABASE = "run.sqlite"
WHOSE = "runs are for their owner only; ask the owner"


FACTS = "SELECT name, value FROM fact ORDER BY name"
ROUNDS = (
    "SELECT r.round, r.body, j.body, j.hash, p.hash FROM round r "
    "LEFT JOIN journal j ON j.number = (SELECT max(number) FROM journal WHERE kind = 'round' AND round = r.round) "
    "LEFT JOIN journal p ON p.number = j.number - 1 WHERE r.round > ? ORDER BY r.round"
)
"""Every round with its journal entry, and the hash of the entry before that."""


class RunRecord:
    """The database of one run directory. The caller closes it: `with RunRecord.open_to_read(directory) as record`."""

    def __init__(self, connection: sqlite3.Connection, directory: Path, *, writes: bool = True) -> None:
        self._connection = connection
        self.directory = directory
        with close_on_error(connection):
            connection.execute("CREATE TABLE IF NOT EXISTS fact (name TEXT PRIMARY KEY, value TEXT NOT NULL)")
            connection.execute("CREATE TABLE IF NOT EXISTS round (round INTEGER PRIMARY KEY, body TEXT NOT NULL)")
            self.store = SqliteStore(connection)
            self.pages = Pages(connection)
            self.journal = Journal(connection, create=writes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @classmethod
    def create(cls, directory: Path) -> "RunRecord":
        """Create a new database in an existing, empty run directory."""
        return cls(connect_to_write(directory / DATABASE), directory)

    @classmethod
    def open(cls, directory: Path | str) -> "RunRecord":
        """Open the database of an existing run for writing."""
        return cls._open_existing(directory, connect_to_write)

    @classmethod
    def open_to_read(cls, directory: Path | str) -> "RunRecord":
        """Open the database of a run read-only; nothing is written, also while another process works in it."""
        return cls._open_existing(directory, connect_to_read)

    @classmethod
    def _open_existing(cls, directory: Path | str, connected: Callable[[Path], sqlite3.Connection]) -> "RunRecord":
        path = Path(directory) / DATABASE
        try:
            if not path.is_file():
                invalid("run", directory, f"the folder has no {DATABASE}", "give the folder that sightline run printed")
            return cls(connected(path), Path(directory), writes=connected is connect_to_write)
        except OSError as error:
            invalid("run", directory, f"{DATABASE} cannot be read ({error.strerror})", WHOSE)
        except (sqlite3.DatabaseError, UnicodeDecodeError, MemoryError) as error:
            invalid("run", directory, f"{DATABASE} cannot be read ({error or type(error).__name__})")

    @contextmanager
    def _as_written(self) -> Iterator[None]:
        """Turn unexpected database content into one line of error; pass disk errors through."""
        try:
            yield
        except (sqlite3.DatabaseError, ValueError, TypeError, KeyError, RecursionError, MemoryError) as error:
            if not of_the_file(error):
                raise
            invalid("run", self.directory, f"{DATABASE} has invalid contents ({type(error).__name__}: {error})")

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    def ledger(self) -> Ledger:
        """Return the ledger of the run, whole in memory, its hash chain checked; appended releases are stored here."""
        return Ledger.whole(self.store, participants=self.participants)

    def ledger_at_work(self, participants: Parties) -> Ledger:
        """Return the ledger for a run in progress: old releases stay on disk, so memory does not grow with rounds."""
        return Ledger.open_stored(self.store, participants=participants)

    @property
    def participants(self) -> Parties:
        """All parties that can be asked about; for old runs without that list, those named in their facts."""
        facts = self.facts
        with self._as_written():
            told = facts.get("participants")
            return read_parties(told) if isinstance(told, str) else _named_in(facts)

    def add_earlier(self, runs: Sequence[tuple[Mapping[str, Any], Ledger]], unknown: str) -> None:
        """Store a copy of the ledgers from which this run starts, and the facts that say whose they are."""
        with transaction(self._connection):
            self._connection.execute(
                "CREATE TABLE IF NOT EXISTS earlier "
                "(run INTEGER, id INTEGER, body TEXT NOT NULL, PRIMARY KEY (run, id))"
            )
            self._connection.execute("DELETE FROM earlier")
            kept = []
            for number, (facts, ledger) in enumerate(runs):
                # A copy with its own hash chain: the original directory may be moved, resumed or lost later.
                head, rows = GENESIS, []
                for release in ledger:
                    body = release.body()
                    head = chain_hash(head, body)
                    rows.append((number, release.id, body))
                self._connection.executemany("INSERT INTO earlier VALUES (?, ?, ?)", rows)
                kept.append(dict(facts) | {"copied": head})
            self._remember({"started_from": {"runs": kept, "unknown": unknown}})

    def earlier_runs(self) -> Iterator[tuple[dict[str, Any], Ledger]]:
        """Yield facts and ledgers of the runs from which this one started, the last one first."""
        told = self.facts.get("started_from") or {"runs": []}
        with self._as_written():
            for number, facts in enumerate(told["runs"]):
                query = "SELECT id, body FROM earlier WHERE run = ? ORDER BY id"
                head, releases = GENESIS, []
                for id, body in self._connection.execute(query, (number,)):
                    head = chain_hash(head, body)
                    releases.append(release_of(body, id))
                if head != facts["copied"]:
                    reason = f"its copy of the ledger of {facts['run_dir']} changed"
                    raise LedgerDamaged(f"run={self.directory}: {reason}; {EDITED}")
                yield dict(facts), Ledger(releases, participants=read_parties(str(facts["participants"] or "")))

    def remember_metadata(self, facts: Mapping[str, Any]) -> None:
        """Write facts about the run; a fact of the same name is replaced."""
        with transaction(self._connection):
            self._remember(facts)

    def _remember(self, facts: Mapping[str, Any]) -> None:
        self._adopt()
        rows = [(name, _dump_json(value)) for name, value in facts.items()]
        self._connection.executemany("INSERT OR REPLACE INTO fact VALUES (?, ?)", rows)
        self.journal.append(EntryKind.FACTS, {"facts": _digest(self._connection.execute(FACTS))})

    def note(self, kind: EntryKind, body: Mapping[str, Any], *, round: int | None = None) -> None:
        """Write a journal entry for a file or for an event of the run."""
        with transaction(self._connection):
            self._adopt()
            self.journal.append(kind, body, round=round)

    def end(self, body: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        """Write how the run ended, and the facts that say so."""
        with transaction(self._connection):
            self._remember(facts)
            self.journal.append(EntryKind.END, body)

    def _adopt(self) -> None:
        """Begin the journal with the hash of what a run wrote before there were journals."""
        query = "SELECT 1 FROM round UNION ALL SELECT 1 FROM fact LIMIT 1"
        if self.journal or self._connection.execute(query).fetchone() is None:
            return
        last = self._connection.execute("SELECT coalesce(max(round), 0) FROM round").fetchone()[0]
        rounds = _digest(self._connection.execute("SELECT round, body FROM round ORDER BY round"))
        self.journal.append(EntryKind.ADOPT, {"rounds": rounds, "last": last})
        self.journal.append(EntryKind.FACTS, {"facts": _digest(self._connection.execute(FACTS))})

    @property
    def facts(self) -> dict[str, Any]:
        """All facts. Raise `LedgerDamaged` if they do not match the journal."""
        with self._as_written(), self._still():
            rows = self._connection.execute(FACTS).fetchall()
            known = self.journal.last(EntryKind.FACTS)
            if known and known[0].body["facts"] != _digest(rows):
                raise LedgerDamaged(f"run={self.directory}: facts in {DATABASE} do not match the journal; {EDITED}")
            return {str(name): json.loads(value) for name, value in rows}

    @contextmanager
    def _still(self) -> Iterator[None]:
        """Run several queries on one consistent snapshot, also while another process writes."""
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def verify(self) -> None:
        """Check facts, rounds and the ledger's length against the journal, and the journal against its own chain.

        Raise `LedgerDamaged` on a mismatch. A run from before journals has nothing to check but its ledger.
        """
        with self._as_written(), self._still():
            rows: dict[int, str] = {}
            last = adopted = None
            for last in self.journal.entries():
                if last.kind == EntryKind.ROUND and last.round is not None:
                    rows[last.round] = last.body["row"]
                adopted = last if last.kind == EntryKind.ADOPT else adopted
            if last is None:
                return
            # Each entry names the ledger's head at its time, so a cut ledger is noticed without a checkpoint too. There
            # is no key: a user who can write the whole directory can still forge it.
            if not self.store.vouches_for(last.body["releases"], last.body["ledger"]):
                reason = "the ledger lacks releases that the journal lists; rows were deleted or edited"
                raise LedgerDamaged(f"run={self.directory}: {reason}")
            if not self.journal.last(EntryKind.FACTS) and self._connection.execute(FACTS).fetchone() is not None:
                raise LedgerDamaged(f"run={self.directory}: the journal has no facts; {EDITED}")
            old = adopted.body["last"] if adopted else 0
            query = "SELECT round, body FROM round WHERE round <= ? ORDER BY round"
            if adopted and _digest(self._connection.execute(query, (old,))) != adopted.body["rounds"]:
                raise LedgerDamaged(f"run={self.directory}: rounds up to {old} changed; {EDITED}")
            result = {
                number for (number,) in self._connection.execute("SELECT round FROM round WHERE round > ?", (old,))
            }
            if result != set(rows):
                number = min(result ^ set(rows))
                raise LedgerDamaged(
                    f"run={self.directory}: round={number} is in only one of {DATABASE} and its journal"
                )
        self.rounds()
        _ = self.facts

    def add_round(self, number: int, body: Mapping[str, Any]) -> None:
        """Write the metrics of a finished round."""
        text = _dump_json(dict(body))
        with transaction(self._connection):
            self._adopt()
            self._connection.execute("INSERT OR REPLACE INTO round VALUES (?, ?)", (number, text))
            self.journal.append(EntryKind.ROUND, {"row": digest_of(text)}, round=number)

    def rounds(self, after: int = 0) -> list[dict[str, Any]]:
        """Return the metrics of all rounds after a round, in order, each checked against its journal entry."""
        with self._as_written(), self._still():
            old = self.journal.last(EntryKind.ADOPT)
            before = int(old[0].body["last"]) if old else 0 if self.journal else None
            query = ROUNDS if self.journal.exists else "SELECT round, body, NULL, NULL, NULL FROM round WHERE round > ?"
            rows = []
            for number, body, entry, claimed, head in self._connection.execute(query, (after,)):
                if before is not None and number > before and not _borne_out(number, body, entry, claimed, head):
                    reason = f"the row in {DATABASE} does not match the journal"
                    raise LedgerDamaged(f"run={self.directory}, round={number}: {reason}; {EDITED}")
                rows.append({"round": number} | dict(json.loads(body)))
            return rows

    def has_round(self, number: int) -> bool:
        """Return whether the metrics of a round are written."""
        return self._connection.execute("SELECT 1 FROM round WHERE round = ?", (number,)).fetchone() is not None

    def total(self, metric: str) -> float:
        """Return a metric's sum over all rounds, without reading them into memory."""
        query = "SELECT total(json_extract(body, ?)) FROM round"
        return float(self._connection.execute(query, (f'$."{metric}"',)).fetchone()[0])

    def last_with(self, metric: str) -> dict[str, Any] | None:
        """Return the metrics of the last round that has this one; None if no round has it."""
        query = "SELECT round, body FROM round WHERE json_extract(body, ?) IS NOT NULL ORDER BY round DESC LIMIT 1"
        row = self._connection.execute(query, (f'$."{metric}"',)).fetchone()
        return None if row is None else {"round": row[0]} | json.loads(row[1])

    def last_round(self) -> dict[str, Any] | None:
        """Return the metrics of the last finished round; None before the first."""
        with self._as_written():
            row = self._connection.execute("SELECT round, body FROM round ORDER BY round DESC LIMIT 1").fetchone()
            return None if row is None else {"round": row[0]} | dict(json.loads(row[1]))

    def latest_metric(self, metric: str) -> float | None:
        """Return the latest known value of a metric; None if there is none."""
        row = self.last_with(metric)
        return None if row is None else float(row[metric])


def _named_in(facts: Mapping[str, Any]) -> Parties:
    """Return clients, trusted parties and observers of a run that has no list of participants."""
    clients, lines = int(facts.get("clients") or 0), dict(facts.get("lines") or {}).values()
    result = read_parties(f"client-0..{clients - 1}") if clients > 0 else NOBODY
    names = [*(facts.get("trusted") or []), *dict(facts.get("observers") or {}).values()]
    names += [line[0] for some in lines for line in some]
    return result | {str(name) for name in names}


def replace_nonfinite(value: Any) -> Any:
    """Return the value with every infinity and NaN replaced by None: JSON cannot represent them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: replace_nonfinite(part) for name, part in value.items()}
    return [replace_nonfinite(part) for part in value] if isinstance(value, list | tuple) else value


def _borne_out(number: int, body: str, entry: str | None, claimed: str, head: str | None) -> bool:
    """Return whether a journal entry, checked as a link of its chain, matches this row."""
    if entry is None or chain_entry(head or GENESIS, EntryKind.ROUND, number, entry) != claimed:
        return False
    return bool(json.loads(entry)["row"] == digest_of(body))


def _digest(rows: Iterable[tuple[Any, ...]]) -> str:
    """Return the digest of rows of a table."""
    return digest_of(*(str(cell) for row in rows for cell in row))


def _dump_json(value: Any) -> str:
    return json.dumps(replace_nonfinite(value), allow_nan=False)
