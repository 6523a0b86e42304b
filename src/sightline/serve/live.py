"""Whole runs, kept in memory and grown as they grow on disk: each round and release is read, and checked, once."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from sightline.engine.record import RunRecord
from sightline.ledger import GENESIS, Ledger
from sightline.report import RunView
from sightline.report.run import read_settings_text
from sightline.serve.glance import Signature, database_signature

Value = TypeVar("Value")

HELD = 8
"""So many runs are kept in memory."""


class Made:
    """What was made of a run, kept until the run moves on."""

    def __init__(self) -> None:
        self._held: dict[Hashable, Any] = {}

    def once(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """What was made under that key, or make it."""
        if key not in self._held:
            self._held[key] = make()
        found: Value = self._held[key]
        return found

    def has(self, key: Hashable) -> bool:
        """Whether something was made under that key."""
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
    """The runs that were asked for last."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Path, _Entry] = OrderedDict()
        self._lock = Lock()

    @contextmanager
    def held(self, directory: Path) -> Iterator[tuple[RunView, Made]]:
        """The run as it is now, held still while it is read, and room for what is made of it until it moves on."""
        entry = self._entry_of(directory)
        with entry.lock:
            now = database_signature(directory)
            if entry.run is None or entry.seen != now:
                _refresh_entry(entry, directory)
                entry.seen, entry.made = now, Made()
            if entry.run is not None:
                yield entry.run, entry.made

    def knows(self, directory: Path) -> bool:
        """Whether the run is in memory already."""
        with self._lock:
            entry = self._entries.get(directory)
        return entry is not None and entry.run is not None

    def _entry_of(self, directory: Path) -> _Entry:
        with self._lock:
            entry = self._entries.setdefault(directory, _Entry())
            self._entries.move_to_end(directory)
            while len(self._entries) > HELD:
                self._entries.popitem(last=False)
            return entry


def _refresh_entry(entry: _Entry, directory: Path) -> None:
    """Read what was added; everything, where the run was made anew."""
    with RunRecord.open_to_read(directory) as record:
        if not record.store.vouches_for(len(entry.ledger), entry.head):
            entry.ledger, entry.head, entry.rounds = Ledger(), GENESIS, []
        if not entry.rounds:
            record.verify()
        entry.ledger.register(record.participants)
        done = entry.rounds[-1]["round"] if entry.rounds else 0
        facts = record.facts
        # Rounds before releases, as Run.read does: a release that is made in between must not go uncounted.
        entry.rounds = entry.rounds + record.rounds(after=done)
        entry.ledger.append(record.store.read(len(entry.ledger), entry.head))
        entry.head = record.store.hash_of(len(entry.ledger) - 1)
        settings = read_settings_text(directory)
        entry.run = RunView(directory, facts, entry.rounds, entry.ledger, entry.head, settings)
