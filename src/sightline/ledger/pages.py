"""A ledger on disk, a page at a time: what a timeline of any length needs, without reading all of it."""

import sqlite3
from dataclasses import dataclass
from typing import Any

from sightline.ledger.store import GENESIS, chain_hash, read_body

COLUMNS = "SELECT id, time, body, hash FROM release"


@dataclass(frozen=True)
class Row:
    """One release as it is stored; `whole` is whether its hash follows from the row before."""

    id: int
    time: int
    plain: dict[str, Any]
    hash: str
    whole: bool


class Pages:
    """The table `release` of a run's database, read in parts. The cost of a page does not grow with its number."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def rows(self, start: int, count: int) -> list[Row]:
        """`count` releases from number `start` on, each checked against the hash of the one before."""
        found = self._connection.execute(f"{COLUMNS} WHERE id >= ? ORDER BY id LIMIT ?", (start, count)).fetchall()
        return [self._checked_row(*row) for row in found]

    def matching_rows(self, text: str, start: int, count: int) -> list[Row]:
        """Releases from number `start` on in whose stored form the text occurs."""
        query = f"{COLUMNS} WHERE id >= ? AND instr(lower(body), lower(?)) ORDER BY id LIMIT ?"
        return [self._checked_row(*row) for row in self._connection.execute(query, (start, text, count)).fetchall()]

    def matching_before(self, text: str, end: int, count: int) -> int:
        """The number at which a page of `count` matches starts that ends right before number `end`."""
        query = (
            "SELECT min(id) FROM (SELECT id FROM release WHERE id < ? AND instr(lower(body), lower(?)) "
            "ORDER BY id DESC LIMIT ?)"
        )
        found = self._connection.execute(query, (end, text, count)).fetchone()[0]
        return 0 if found is None else int(found)

    def count_matches(self, text: str) -> int:
        """In how many releases the text occurs."""
        query = "SELECT count(*) FROM release WHERE instr(lower(body), lower(?))"
        return int(self._connection.execute(query, (text,)).fetchone()[0])

    def first_of(self, time: int) -> int:
        """The number of the first release of a round or a later one; past the last where there is none."""
        found = self._connection.execute("SELECT min(id) FROM release WHERE time >= ?", (time,)).fetchone()[0]
        return self.count_releases() if found is None else int(found)

    def count_releases(self) -> int:
        """How many releases there are: they are numbered from zero."""
        found = self._connection.execute("SELECT max(id) FROM release").fetchone()[0]
        return 0 if found is None else int(found) + 1

    def count_since(self, time: int) -> int:
        """How many releases were made after a round."""
        return int(self._connection.execute("SELECT count(*) FROM release WHERE time > ?", (time,)).fetchone()[0])

    def by_time(self, width: int) -> dict[int, int]:
        """Releases in spans of `width` rounds, by the number of the span."""
        query = "SELECT time / ?, count(*) FROM release GROUP BY 1 ORDER BY 1"
        return dict(self._connection.execute(query, (width,)).fetchall())

    def last_time(self) -> int:
        """The round of the last release."""
        found = self._connection.execute("SELECT time FROM release ORDER BY id DESC LIMIT 1").fetchone()
        return 0 if found is None else int(found[0])

    def _checked_row(self, id: int, time: int, body: str, hash: str) -> Row:
        before = self._connection.execute("SELECT hash FROM release WHERE id = ?", (id - 1,)).fetchone()
        head = GENESIS if id == 0 else before[0] if before else ""
        plain = read_body(body, id)
        return Row(id, time, plain, hash, plain.get("time") == time and chain_hash(head, body) == hash)
