"""What a run leaves behind: one SQLite file with facts, a row a round, the ledger, and a journal that vouches for all.

`facts` say once what was run; a round's row is written after its releases, its model and its checkpoint are safe. Facts
and rows are written together with the journal's entry of them, in one transaction.
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
WHOSE = "runs are for their owner only; ask whoever made it"


FACTS = "SELECT name, value FROM fact ORDER BY name"
ROUNDS = (
    "SELECT r.round, r.body, j.body, j.hash, p.hash FROM round r "
    "LEFT JOIN journal j ON j.number = (SELECT max(number) FROM journal WHERE kind = 'round' AND round = r.round) "
    "LEFT JOIN journal p ON p.number = j.number - 1 WHERE r.round > ? ORDER BY r.round"
)
"""Every round with the journal's entry of it, and the hash of the entry before that."""


class RunRecord:
    """The database of one run directory. Who opens it closes it: `with RunRecord.look(directory) as record`."""

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
        """A new database in an existing, empty run directory."""
        return cls(connect_to_write(directory / DATABASE), directory)

    @classmethod
    def open(cls, directory: Path | str) -> "RunRecord":
        """The database of a run that was made earlier."""
        return cls._open_existing(directory, connect_to_write)

    @classmethod
    def open_to_read(cls, directory: Path | str) -> "RunRecord":
        """The database of a run, to read only: nothing is written, also when another process is at work in it."""
        return cls._open_existing(directory, connect_to_read)

    @classmethod
    def _open_existing(cls, directory: Path | str, connected: Callable[[Path], sqlite3.Connection]) -> "RunRecord":
        path = Path(directory) / DATABASE
        try:
            if not path.is_file():
                invalid("run", directory, f"no {DATABASE} in it", "give the folder that sightline run printed")
            return cls(connected(path), Path(directory), writes=connected is connect_to_write)
        except OSError as error:
            invalid("run", directory, f"{DATABASE} cannot be read ({error.strerror})", WHOSE)
        except (sqlite3.DatabaseError, UnicodeDecodeError, MemoryError) as error:
            invalid("run", directory, f"{DATABASE} cannot be read ({error or type(error).__name__})")

    @contextmanager
    def _as_written(self) -> Iterator[None]:
        """Say in one line that the database holds what no run writes; trouble of the disk passes as it is."""
        try:
            yield
        except (sqlite3.DatabaseError, ValueError, TypeError, KeyError, RecursionError, MemoryError) as error:
            if not of_the_file(error):
                raise
            invalid("run", self.directory, f"{DATABASE} holds what no run writes ({type(error).__name__}: {error})")

    def close(self) -> None:
        """Let go of the database."""
        self._connection.close()

    def ledger(self) -> Ledger:
        """The ledger of the run, its hash chain checked, whole in memory; what is appended to it is kept here."""
        return Ledger.whole(self.store, participants=self.participants)

    def ledger_at_work(self, participants: Parties) -> Ledger:
        """The same for a run that goes on: what is long past stays on disk, so memory does not grow with rounds."""
        return Ledger.open_stored(self.store, participants=participants)

    @property
    def participants(self) -> Parties:
        """Everybody who may be asked about. Runs once did not write it: there, all whom their facts name."""
        facts = self.facts
        with self._as_written():
            told = facts.get("participants")
            return read_parties(told) if isinstance(told, str) else _named_in(facts)

    def add_earlier(self, runs: Sequence[tuple[Mapping[str, Any], Ledger]], unknown: str) -> None:
        """Keep a copy of the ledgers of the runs that this one starts from, and the facts that say whose they are."""
        with transaction(self._connection):
            self._connection.execute(
                "CREATE TABLE IF NOT EXISTS earlier "
                "(run INTEGER, id INTEGER, body TEXT NOT NULL, PRIMARY KEY (run, id))"
            )
            self._connection.execute("DELETE FROM earlier")
            kept = []
            for number, (facts, ledger) in enumerate(runs):
                head, rows = GENESIS, []
                for release in ledger:
                    body = release.body()
                    head = chain_hash(head, body)
                    rows.append((number, release.id, body))
                self._connection.executemany("INSERT INTO earlier VALUES (?, ?, ?)", rows)
                kept.append(dict(facts) | {"copied": head})
            self._remember({"started_from": {"runs": kept, "unknown": unknown}})

    def earlier_runs(self) -> Iterator[tuple[dict[str, Any], Ledger]]:
        """The runs that this one started from, the last one first: their facts and ledgers, as they were copied."""
        told = self.facts.get("started_from") or {"runs": []}
        with self._as_written():
            for number, facts in enumerate(told["runs"]):
                query = "SELECT id, body FROM earlier WHERE run = ? ORDER BY id"
                head, releases = GENESIS, []
                for id, body in self._connection.execute(query, (number,)):
                    head = chain_hash(head, body)
                    releases.append(release_of(body, id))
                if head != facts["copied"]:
                    law = f"the ledger that it keeps of {facts['run_dir']} is not the one it copied"
                    raise LedgerDamaged(f"run={self.directory}: {law}; {EDITED}")
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
        """Write an entry of the journal that stands for a file, or for a moment of the run."""
        with transaction(self._connection):
            self._adopt()
            self.journal.append(kind, body, round=round)

    def end(self, body: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        """Write how the run ended, and the facts that say so."""
        with transaction(self._connection):
            self._remember(facts)
            self.journal.append(EntryKind.END, body)

    def _adopt(self) -> None:
        """Let the journal begin with what a run wrote before there were journals."""
        query = "SELECT 1 FROM round UNION ALL SELECT 1 FROM fact LIMIT 1"
        if self.journal or self._connection.execute(query).fetchone() is None:
            return
        last = self._connection.execute("SELECT coalesce(max(round), 0) FROM round").fetchone()[0]
        rounds = _digest(self._connection.execute("SELECT round, body FROM round ORDER BY round"))
        self.journal.append(EntryKind.ADOPT, {"rounds": rounds, "last": last})
        self.journal.append(EntryKind.FACTS, {"facts": _digest(self._connection.execute(FACTS))})

    @property
    def facts(self) -> dict[str, Any]:
        """Everything that was remembered, when it is what the journal vouches for."""
        with self._as_written(), self._still():
            rows = self._connection.execute(FACTS).fetchall()
            known = self.journal.last(EntryKind.FACTS)
            if known and known[0].body["facts"] != _digest(rows):
                raise LedgerDamaged(f"run={self.directory}: facts in {DATABASE} are not those of its journal; {EDITED}")
            return {str(name): json.loads(value) for name, value in rows}

    @contextmanager
    def _still(self) -> Iterator[None]:
        """Several questions about one moment, also while another process writes."""
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def verify(self) -> None:
        """Check facts, rounds and the ledger's length against the journal, and the journal against its own chain.

        A run that was begun before there were journals has nothing to check but its ledger.
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
            if not self.store.vouches_for(last.body["releases"], last.body["ledger"]):
                law = "its journal knows of releases that the ledger does not hold; rows were cut or edited"
                raise LedgerDamaged(f"run={self.directory}: {law}")
            if not self.journal.last(EntryKind.FACTS) and self._connection.execute(FACTS).fetchone() is not None:
                raise LedgerDamaged(f"run={self.directory}: its journal knows of no facts; {EDITED}")
            old = adopted.body["last"] if adopted else 0
            query = "SELECT round, body FROM round WHERE round <= ? ORDER BY round"
            if adopted and _digest(self._connection.execute(query, (old,))) != adopted.body["rounds"]:
                raise LedgerDamaged(f"run={self.directory}: rounds up to {old} are not what they were; {EDITED}")
            found = {
                number for (number,) in self._connection.execute("SELECT round FROM round WHERE round > ?", (old,))
            }
            if found != set(rows):
                number = min(found ^ set(rows))
                raise LedgerDamaged(f"run={self.directory}: round={number} is in {DATABASE} or in its journal only")
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
        """The metrics of all finished rounds after a round, in order, each checked against its entry of the journal."""
        with self._as_written(), self._still():
            old = self.journal.last(EntryKind.ADOPT)
            before = int(old[0].body["last"]) if old else 0 if self.journal else None
            query = ROUNDS if self.journal.exists else "SELECT round, body, NULL, NULL, NULL FROM round WHERE round > ?"
            rows = []
            for number, body, entry, claimed, head in self._connection.execute(query, (after,)):
                if before is not None and number > before and not _borne_out(number, body, entry, claimed, head):
                    law = f"what {DATABASE} says of it is not what its journal vouches for"
                    raise LedgerDamaged(f"run={self.directory}, round={number}: {law}; {EDITED}")
                rows.append({"round": number} | dict(json.loads(body)))
            return rows

    def has_round(self, number: int) -> bool:
        """Whether the metrics of a round are written."""
        return self._connection.execute("SELECT 1 FROM round WHERE round = ?", (number,)).fetchone() is not None

    def total(self, metric: str) -> float:
        """A metric's sum over all rounds, without reading them into memory."""
        query = "SELECT total(json_extract(body, ?)) FROM round"
        return float(self._connection.execute(query, (f'$."{metric}"',)).fetchone()[0])

    def last_with(self, metric: str) -> dict[str, Any] | None:
        """The metrics of the last round that knew that one."""
        query = "SELECT round, body FROM round WHERE json_extract(body, ?) IS NOT NULL ORDER BY round DESC LIMIT 1"
        row = self._connection.execute(query, (f'$."{metric}"',)).fetchone()
        return None if row is None else {"round": row[0]} | json.loads(row[1])

    def last_round(self) -> dict[str, Any] | None:
        """The metrics of the last finished round."""
        with self._as_written():
            row = self._connection.execute("SELECT round, body FROM round ORDER BY round DESC LIMIT 1").fetchone()
            return None if row is None else {"round": row[0]} | dict(json.loads(row[1]))

    def latest_metric(self, metric: str) -> float | None:
        """The latest known value of a metric."""
        row = self.last_with(metric)
        return None if row is None else float(row[metric])


def _named_in(facts: Mapping[str, Any]) -> Parties:
    """The clients, the trusted and the observers of a run that has no list of its participants."""
    clients, lines = int(facts.get("clients") or 0), dict(facts.get("lines") or {}).values()
    found = read_parties(f"client-0..{clients - 1}") if clients > 0 else NOBODY
    names = [*(facts.get("trusted") or []), *dict(facts.get("observers") or {}).values()]
    names += [line[0] for some in lines for line in some]
    return found | {str(name) for name in names}


def replace_nonfinite(value: Any) -> Any:
    """The value with every infinity and NaN in it replaced by None: JSON has no word for them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: replace_nonfinite(part) for name, part in value.items()}
    return [replace_nonfinite(part) for part in value] if isinstance(value, list | tuple) else value


def _borne_out(number: int, body: str, entry: str | None, claimed: str, head: str | None) -> bool:
    """Whether an entry of the journal, a link of its chain, names this very row."""
    if entry is None or chain_entry(head or GENESIS, EntryKind.ROUND, number, entry) != claimed:
        return False
    return bool(json.loads(entry)["row"] == digest_of(body))


def _digest(rows: Iterable[tuple[Any, ...]]) -> str:
    """The digest of rows of a table."""
    return digest_of(*(str(cell) for row in rows for cell in row))


def _dump_json(value: Any) -> str:
    return json.dumps(replace_nonfinite(value), allow_nan=False)
