"""What a run leaves behind: one SQLite file with facts, one row a round, and the ledger.

`facts` say once what was run; a round's row is written after its releases, its model and its checkpoint are safe.
"""

import json
import math
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sightline.errors import invalid
from sightline.ledger import NOBODY, Ledger, Pages, Parties, SqliteStore, connect, connect_to_read, read_parties
from sightline.ledger.store import close_on_error, of_the_file

DATABASE = "run.sqlite"


class RunRecord:
    """The database of one run directory. Who opens it closes it: `with RunRecord.look(directory) as record`."""

    def __init__(self, connection: sqlite3.Connection, directory: Path) -> None:
        self._connection = connection
        self.directory = directory
        with close_on_error(connection):
            connection.execute("CREATE TABLE IF NOT EXISTS fact (name TEXT PRIMARY KEY, value TEXT NOT NULL)")
            connection.execute("CREATE TABLE IF NOT EXISTS round (round INTEGER PRIMARY KEY, body TEXT NOT NULL)")
            self.store = SqliteStore(connection)
            self.pages = Pages(connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @classmethod
    def create(cls, directory: Path) -> "RunRecord":
        """A new database in an existing, empty run directory."""
        return cls(connect(directory / DATABASE), directory)

    @classmethod
    def open(cls, directory: Path | str) -> "RunRecord":
        """The database of a run that was made earlier."""
        return cls._found(directory, connect)

    @classmethod
    def look(cls, directory: Path | str) -> "RunRecord":
        """The database of a run, to read only: nothing is written, also when another process is at work in it."""
        return cls._found(directory, connect_to_read)

    @classmethod
    def _found(cls, directory: Path | str, connected: Callable[[Path], sqlite3.Connection]) -> "RunRecord":
        path = Path(directory) / DATABASE
        if not path.is_file():
            invalid("run", directory, f"no {DATABASE} in it", "give the folder that sightline run printed")
        try:
            return cls(connected(path), Path(directory))
        except (sqlite3.DatabaseError, UnicodeDecodeError, MemoryError) as error:
            invalid("run", directory, f"{DATABASE} cannot be read ({error or type(error).__name__})")

    @contextmanager
    def _as_written(self) -> Iterator[None]:
        """Say in one line that the database holds what no run writes; trouble of the disk passes as it is."""
        try:
            yield
        except (sqlite3.DatabaseError, ValueError, TypeError, RecursionError, MemoryError) as error:
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
        return Ledger.stored(self.store, participants=participants)

    @property
    def participants(self) -> Parties:
        """Everybody who may be asked about. Runs once did not write it: there, all whom their facts name."""
        facts = self.facts
        with self._as_written():
            told = facts.get("participants")
            return read_parties(told) if isinstance(told, str) else _named_in(facts)

    def remember(self, facts: Mapping[str, Any]) -> None:
        """Write facts about the run; a fact of the same name is replaced."""
        rows = [(name, _dumps(value)) for name, value in facts.items()]
        self._connection.executemany("INSERT OR REPLACE INTO fact VALUES (?, ?)", rows)

    @property
    def facts(self) -> dict[str, Any]:
        """Everything that was remembered."""
        with self._as_written():
            rows = self._connection.execute("SELECT name, value FROM fact")
            return {str(name): json.loads(value) for name, value in rows}

    def add_round(self, number: int, body: Mapping[str, Any]) -> None:
        """Write the metrics of a finished round."""
        self._connection.execute("INSERT OR REPLACE INTO round VALUES (?, ?)", (number, _dumps(dict(body))))

    def rounds(self, after: int = 0) -> list[dict[str, Any]]:
        """The metrics of all finished rounds after a round, in order."""
        with self._as_written():
            rows = self._connection.execute("SELECT round, body FROM round WHERE round > ? ORDER BY round", (after,))
            return [{"round": number} | dict(json.loads(body)) for number, body in rows]

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

    def latest(self, metric: str) -> float | None:
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


def finite(value: Any) -> Any:
    """The value with every infinity and NaN in it replaced by None: JSON has no word for them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: finite(part) for name, part in value.items()}
    return [finite(part) for part in value] if isinstance(value, list | tuple) else value


def _dumps(value: Any) -> str:
    return json.dumps(finite(value), allow_nan=False)
