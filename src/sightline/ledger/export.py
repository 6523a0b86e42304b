"""A ledger outside its run: as one JSON file that can be accounted again, and page by page for timelines."""

import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sightline.errors import InvalidInput, invalid
from sightline.formatting import read_text
from sightline.ledger.ledger import Ledger
from sightline.ledger.release import read_parties, release_from, write_parties
from sightline.ledger.store import GENESIS, chain_hash, read_body

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
        invalid("participants", type(participants).__name__, "is one text", 'e.g. "client-0..23, server"')
    releases = (release_from(row, place) for place, row in enumerate(plain["releases"]))
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
        found = self._connection.execute(f"{COLUMNS} WHERE id >= ? ORDER BY id LIMIT ?", (start, count)).fetchall()
        return [self._checked_row(*row) for row in found]

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
        found = self._connection.execute(query, (end, text, count)).fetchone()[0]
        return 0 if found is None else int(found)

    def count_matches(self, text: str) -> int:
        """Return the number of releases that contain the text."""
        query = "SELECT count(*) FROM release WHERE instr(lower(body), lower(?))"
        return int(self._connection.execute(query, (text,)).fetchone()[0])

    def first_of(self, time: int) -> int:
        """Return the number of the first release of a round or a later one; past the last if there is none."""
        found = self._connection.execute("SELECT min(id) FROM release WHERE time >= ?", (time,)).fetchone()[0]
        return self.count_releases() if found is None else int(found)

    def count_releases(self) -> int:
        """Return the number of releases; they are numbered from zero."""
        found = self._connection.execute("SELECT max(id) FROM release").fetchone()[0]
        return 0 if found is None else int(found) + 1

    def count_since(self, time: int) -> int:
        """Return the number of releases made after a round."""
        return int(self._connection.execute("SELECT count(*) FROM release WHERE time > ?", (time,)).fetchone()[0])

    def by_time(self, width: int) -> dict[int, int]:
        """Return the number of releases per span of `width` rounds."""
        query = "SELECT time / ?, count(*) FROM release GROUP BY 1 ORDER BY 1"
        return dict(self._connection.execute(query, (width,)).fetchall())

    def last_time(self) -> int:
        """Return the round of the last release."""
        found = self._connection.execute("SELECT time FROM release ORDER BY id DESC LIMIT 1").fetchone()
        return 0 if found is None else int(found[0])

    def _checked_row(self, id: int, time: int, body: str, hash: str) -> Row:
        before = self._connection.execute("SELECT hash FROM release WHERE id = ?", (id - 1,)).fetchone()
        head = GENESIS if id == 0 else before[0] if before else ""
        plain = read_body(body, id)
        return Row(id, time, plain, hash, plain.get("time") == time and chain_hash(head, body) == hash)
