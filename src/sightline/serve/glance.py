"""A run at a glance: what the list shows, read in a few small questions however long the run is."""

import math
import sqlite3
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from sightline.engine.record import DATABASE, RunRecord, replace_nonfinite
from sightline.errors import SightlineError
from sightline.report.run import STRANGE

Signature = tuple[tuple[int, int], ...]

QUIET = 60
"""A run that says it is running and wrote nothing for so many seconds is said to be silent."""


@dataclass(frozen=True)
class Glance:
    """The list's row. `epsilon` is what the last round that knew it wrote; `since` counts releases made after it."""

    run: str
    name: str
    status: str
    round: int
    planned: int
    accuracy: float | None
    epsilon: float | None
    since: int
    releases: int
    delta: float | None
    unit: str
    algorithm: str
    source: str
    topology: str
    seed: int | None
    created: str
    seconds: float
    pace: float
    """Seconds of the last round."""
    wrote: float
    """When the database was last written, in seconds since 1970."""

    @property
    def left(self) -> float | None:
        """About how many seconds are left."""
        running = self.status == "running" and self.pace > 0
        return self.pace * (self.planned - self.round) if running else None

    @property
    def silent(self) -> float | None:
        """For how long a running run has written nothing; None when that is not worth a word."""
        quiet = time.time() - self.wrote
        return quiet if self.status == "running" and quiet > max(QUIET, 5 * self.pace) else None

    def plain(self) -> dict[str, Any]:
        """As JSON; null is infinite or unknown."""
        found: dict[str, Any] = replace_nonfinite(asdict(self) | {"left": self.left, "silent": self.silent})
        return found


def database_signature(directory: Path) -> Signature:
    """Changes whenever the database does."""
    found = []
    for name in (DATABASE, f"{DATABASE}-wal"):
        try:
            about = (directory / name).stat()
            found.append((about.st_mtime_ns, about.st_size))
        except FileNotFoundError:
            found.append((0, 0))
    return tuple(found)


class Glances:
    """Glances that are remembered until the run writes again."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[Signature, Glance | None]] = {}
        self._lock = Lock()

    def of(self, id: str, directory: Path) -> Glance | None:
        """The glance of a run; None while, or because, it cannot be read."""
        now = database_signature(directory)
        with self._lock:
            held = self._held.get(id)
        if held is not None and held[0] == now:
            return held[1]
        glance = glance_at(id, directory)
        with self._lock:
            self._held[id] = (now, glance)
        return glance


def glance_at(id: str, directory: Path) -> Glance | None:
    """Read a glance; None of a run that has not begun, is being written, or is damaged in whatever way."""
    try:
        return read_glance(id, directory)
    except (SightlineError, OSError, sqlite3.Error, *STRANGE):
        return None


def read_glance(id: str, directory: Path) -> Glance:
    """Read a glance; whatever is wrong with the run raises."""
    with RunRecord.open_to_read(directory) as record:
        return _read_record(id, directory, record)


def _read_record(id: str, directory: Path, record: RunRecord) -> Glance:
    facts, last, known = record.facts, record.last_round() or {}, record.last_with("epsilon") or {}
    spent = [math.inf if value is None else float(value) for value in (known.get("epsilon") or {}).values()]
    number = int(last.get("round") or 0)
    private = facts.get("unit") not in (None, "none")
    return Glance(
        run=id,
        name=str(facts.get("name") or directory.name),
        status=str(facts.get("status") or "unknown"),
        round=number,
        planned=int(facts.get("rounds_planned") or 0),
        accuracy=record.latest_metric("test_accuracy"),
        epsilon=(max(spent) if spent else None) if private else math.inf,
        since=record.pages.count_since(int(known.get("round") or 0)),
        releases=record.pages.count_releases(),
        delta=None if facts.get("delta") is None else float(facts["delta"]),
        unit=str(facts.get("unit") or "none"),
        algorithm=str(facts.get("algorithm") or ""),
        source=str(facts.get("source") or ""),
        topology=str(facts.get("topology") or ""),
        seed=None if facts.get("seed") is None else int(facts["seed"]),
        created=str(facts.get("created") or ""),
        seconds=float(facts.get("seconds") or 0.0),
        pace=float(last.get("seconds") or 0.0),
        wrote=max(moment for moment, _ in database_signature(directory)) / 1e9,
    )
