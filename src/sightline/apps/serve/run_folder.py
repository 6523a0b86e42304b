"""The runs folder: its runs, a summary of each, and whole runs kept in memory and updated as they grow."""

import math
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import Any, TypeVar

from sightline.apps.report import RunView
from sightline.apps.report.run_view import STRANGE, read_settings_text, runs_below
from sightline.engine import CONFIG
from sightline.engine.record import DATABASE, RunRecord, replace_nonfinite
from sightline.errors import SightlineError, invalid
from sightline.formatting import metric_named
from sightline.ledger import GENESIS, Ledger

READ = (DATABASE, f"{DATABASE}-wal", CONFIG)
"""The files of a run that pages are made from."""


class NotThere(Exception):
    """There is no run or page of that name."""


@dataclass(frozen=True)
class RunFolder:
    """The runs of one folder, by their path inside it."""

    folder: Path

    @cached_property
    def _real(self) -> Path:
        return self.folder.resolve()

    def ids(self) -> Iterator[str]:
        """Yield the name of every run: its path inside the folder, with slashes. Unprintable names are skipped."""
        if self.folder.is_dir():
            for directory in runs_below(self.folder):
                id = directory.relative_to(self.folder).as_posix()
                if id.isprintable():
                    yield id

    def directory(self, id: str) -> Path:
        """Return the folder of a run; raise NotThere if the name leads out of the runs folder, by dots or by links."""
        # Names come from addresses. Checked as text and again after links are resolved, for every file that a page
        # reads.
        parts = PurePosixPath(id).parts
        if not id or id.startswith("/") or "\\" in id or "\0" in id or ".." in parts:
            raise NotThere(id)
        directory = self.folder.joinpath(*parts)
        try:
            inside = [(directory / name).resolve().is_relative_to(self._real) for name in READ]
            there = (directory / DATABASE).is_file()
            if not all(inside) or not (there or (directory / DATABASE).is_dir()):
                raise NotThere(id)
        except (OSError, RuntimeError, ValueError):
            # Name too long, circular links, or a lone surrogate.
            raise NotThere(id) from None
        if not there:
            invalid("run", id, f"its {DATABASE} is a folder, not a file", "restore it from a copy")
        return directory


Signature = tuple[tuple[int, int], ...]

QUIET = 60
"""Seconds without a write after which a running run is reported as silent."""


@dataclass(frozen=True)
class Glance:
    """The summary of a run. `epsilon` is the last one that a round recorded; `since` counts the releases after it."""

    run: str
    name: str
    status: str
    round: int
    planned: int
    accuracy: float | None
    metric: str
    reached: float | None
    """The latest value of `metric`."""
    epsilon: float | None
    since: int
    releases: int
    delta: float | None
    unit: str
    adjacency: str
    algorithm: str
    source: str
    topology: str
    seed: int | None
    created: str
    seconds: float
    round_seconds: float
    """Seconds of the last round."""
    wrote: float
    """When the database was last written, in seconds since 1970."""

    @property
    def left(self) -> float | None:
        """The estimated seconds left."""
        running = self.status == "running" and self.round_seconds > 0
        return self.round_seconds * (self.planned - self.round) if running else None

    @property
    def silent(self) -> float | None:
        """Seconds since a running run last wrote; None if it is not silent."""
        quiet = time.time() - self.wrote
        # A long round writes nothing for a while; only several times its length is suspicious.
        return quiet if self.status == "running" and quiet > max(QUIET, 5 * self.round_seconds) else None

    def plain(self) -> dict[str, Any]:
        """Return the summary as JSON; null is infinite or unknown."""
        facts: dict[str, Any] = replace_nonfinite(asdict(self) | {"left": self.left, "silent": self.silent})
        return facts


def database_signature(directory: Path) -> Signature:
    """Return a value that changes whenever the database does."""
    states = []
    # In write-ahead mode new rows are only in the log until a checkpoint moves them.
    for name in (DATABASE, f"{DATABASE}-wal"):
        try:
            about = (directory / name).stat()
            states.append((about.st_mtime_ns, about.st_size))
        except FileNotFoundError:
            states.append((0, 0))
    return tuple(states)


class Glances:
    """Summaries, cached until the run writes again."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[Signature, Glance | None]] = {}
        self._lock = Lock()

    def of(self, id: str, directory: Path) -> Glance | None:
        """Return the summary of a run; None if it cannot be read (now)."""
        now = database_signature(directory)
        with self._lock:
            held = self._held.get(id)
        if held is not None and held[0] == now:
            return held[1]
        # Read outside the lock: a slow disk must not block the other pages. At worst two threads read the same summary.
        glance = glance_at(id, directory)
        with self._lock:
            self._held[id] = (now, glance)
        return glance


def glance_at(id: str, directory: Path) -> Glance | None:
    """Read a summary; return None for a run that has not begun, is being written, or is damaged."""
    try:
        return read_glance(id, directory)
    except (SightlineError, OSError, sqlite3.Error, *STRANGE):
        return None


def read_glance(id: str, directory: Path) -> Glance:
    """Read a summary; raise if the run cannot be read."""
    with RunRecord.open_to_read(directory) as record:
        return _read_record(id, directory, record)


def _read_record(id: str, directory: Path, record: RunRecord) -> Glance:
    facts, last, known = record.facts, record.last_round() or {}, record.last_with("epsilon") or {}
    spent = [math.inf if value is None else float(value) for value in (known.get("epsilon") or {}).values()]
    number, metric = int(last.get("round") or 0), metric_named(facts.get("metric"))
    private = facts.get("unit") not in (None, "none")
    return Glance(
        run=id,
        name=str(facts.get("name") or directory.name),
        status=str(facts.get("status") or "unknown"),
        round=number,
        planned=int(facts.get("rounds_planned") or 0),
        accuracy=record.latest_metric("test_accuracy"),
        metric=metric.name,
        reached=record.latest_metric(metric.test_key),
        epsilon=(max(spent) if spent else None) if private else math.inf,
        since=record.pages.count_since(int(known.get("round") or 0)),
        releases=record.pages.count_releases(),
        delta=None if facts.get("delta") is None else float(facts["delta"]),
        unit=str(facts.get("unit") or "none"),
        adjacency=str(facts.get("adjacency") or ""),
        algorithm=str(facts.get("algorithm") or ""),
        source=str(facts.get("source") or ""),
        topology=str(facts.get("topology") or ""),
        seed=None if facts.get("seed") is None else int(facts["seed"]),
        created=str(facts.get("created") or ""),
        seconds=float(facts.get("seconds") or 0.0),
        round_seconds=float(last.get("seconds") or 0.0),
        wrote=max(moment for moment, _ in database_signature(directory)) / 1e9,
    )


Value = TypeVar("Value")

HELD = 8
"""The most runs kept in memory."""


class Made:
    """Results computed from a run, cached until the run moves on."""

    def __init__(self) -> None:
        self._held: dict[Hashable, Any] = {}

    def once(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return the result of that key; compute it if it is missing."""
        if key not in self._held:
            self._held[key] = make()
        value: Value = self._held[key]
        return value

    def has(self, key: Hashable) -> bool:
        """Return whether there is a result of that key."""
        return key in self._held


@dataclass
class _Entry:
    lock: Lock = field(default_factory=Lock)
    seen: Signature = ()
    ledger: Ledger = field(default_factory=Ledger)
    head: str = GENESIS
    rounds: list[dict[str, Any]] = field(default_factory=list)
    run: RunView | None = None
    made: Made = field(default_factory=Made)


class LiveRuns:
    """The runs that were requested last."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Path, _Entry] = OrderedDict()
        self._lock = Lock()

    @contextmanager
    def held(self, directory: Path) -> Iterator[tuple[RunView, Made]]:
        """Yield the run as it is now, locked while it is read, and a cache of results computed from it."""
        entry = self._entry_of(directory)
        with entry.lock:
            now = database_signature(directory)
            if entry.run is None or entry.seen != now:
                _refresh_entry(entry, directory)
                entry.seen, entry.made = now, Made()
            if entry.run is not None:
                yield entry.run, entry.made

    def knows(self, directory: Path) -> bool:
        """Return whether the run is in memory."""
        with self._lock:
            entry = self._entries.get(directory)
        return entry is not None and entry.run is not None

    def _entry_of(self, directory: Path) -> _Entry:
        with self._lock:
            entry = self._entries.setdefault(directory, _Entry())
            self._entries.move_to_end(directory)
            # The least recently requested run goes first; a long ledger takes much memory.
            while len(self._entries) > HELD:
                self._entries.popitem(last=False)
            return entry


def _refresh_entry(entry: _Entry, directory: Path) -> None:
    """Read what was added, or everything if the run was started again."""
    with RunRecord.open_to_read(directory) as record:
        # The remembered head is not in the chain: the run was started again, so read it from the start.
        if not record.store.vouches_for(len(entry.ledger), entry.head):
            entry.ledger, entry.head, entry.rounds = Ledger(), GENESIS, []
        # The whole journal once. Later rows are checked against the hash before them, so a live run is not read every
        # second.
        if not entry.rounds:
            record.verify()
        entry.ledger.register(record.participants)
        done = entry.rounds[-1]["round"] if entry.rounds else 0
        facts = record.facts
        # Rounds before releases, as in RunView.read: a release that is made in between must not go uncounted.
        entry.rounds = entry.rounds + record.rounds(after=done)
        entry.ledger.append(record.store.read(len(entry.ledger), entry.head))
        entry.head = record.store.hash_of(len(entry.ledger) - 1)
        settings = read_settings_text(directory)
        entry.run = RunView(directory, facts, entry.rounds, entry.ledger, entry.head, settings)
