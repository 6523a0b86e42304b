"""Where a ledger has its releases: all in memory, or the last ones in memory and the others where they are stored."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from sightline.ledger.release import Release
from sightline.ledger.store import SqliteStore

RECENT = 2048
"""At least so many of the last releases of a stored ledger are in memory, and at most twice as many."""


class Releases(Sequence[Release]):
    """All in memory: for plans, and for runs that are read to their end."""

    def __init__(self) -> None:
        self._held: list[Release] = []

    def __len__(self) -> int:
        return len(self._held)

    def __getitem__(self, place: Any) -> Any:
        return self._held[place]

    def __iter__(self) -> Iterator[Release]:
        return self.since(0)

    def since(self, start: int) -> Iterator[Release]:
        """The releases from number `start` on."""
        return iter(self._held[start:])

    def add(self, releases: Sequence[Release]) -> None:
        """Put releases at the end."""
        self._held.extend(releases)

    @property
    def crowded(self) -> bool:
        """Whether there are more in memory than there need be."""
        return False

    def let_go(self) -> None:
        """Forget what can be had again."""


class StoredReleases(Releases):
    """The last ones in memory, the others read back from the store when they are asked for, each against its hash."""

    def __init__(self, store: SqliteStore) -> None:
        super().__init__()
        self._store = store
        self._gone = 0
        self._fetched = lru_cache(RECENT)(store.read_release)

    def __len__(self) -> int:
        return self._gone + len(self._held)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        number = place + len(self) if place < 0 else place
        if not 0 <= number < len(self):
            raise IndexError(f"release={place}: there are {len(self)}")
        return self._held[number - self._gone] if number >= self._gone else self._fetched(number)

    def since(self, start: int) -> Iterator[Release]:
        """The releases from number `start` on; those that are not in memory one by one from the store."""
        if start < self._gone:
            yield from self._store.stream_releases(start, self._store.hash_of(start - 1), stop=self._gone)
        yield from self._held[max(0, start - self._gone) :]

    @property
    def crowded(self) -> bool:
        """Whether there are more in memory than there need be."""
        return len(self._held) >= 2 * RECENT

    def let_go(self) -> None:
        """Keep the last ones only; the store has all."""
        self._gone += len(self._held[:-RECENT])
        del self._held[:-RECENT]
