"""All pairs of a ledger by classes of participants, and the path by which a release reached an observer."""

import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sightline import accounting
from sightline.accounting import Accountant
from sightline.ledger.flow import Composition
from sightline.ledger.ledger import Ledger
from sightline.ledger.release import Parties, parties


@dataclass(frozen=True, eq=False)
class LedgerPairs:
    """What every class of participants can learn of every other, as the ledger has it.

    `compositions[n][i]` is what a subject of class n has to answer for against an observer of class i that is not
    itself; None where a class of one would observe itself.
    """

    classes: tuple[tuple[str, ...], ...]
    compositions: tuple[tuple[Composition | None, ...], ...]

    @cached_property
    def class_of(self) -> dict[str, int]:
        """Name -> class."""
        return {name: number for number, names in enumerate(self.classes) for name in names}

    def of(self, subject: str, observer: str) -> Composition | None:
        """The composition of one pair of names; None for a name against itself."""
        if subject == observer:
            return None
        return self.compositions[self.class_of[subject]][self.class_of[observer]]

    def epsilon(self, delta: float, *, accountant: Accountant = Accountant.PLD) -> NDArray[np.float64]:
        """(classes, classes): epsilon of every pair, NaN where there is none; equal compositions are accounted once."""
        return np.array(
            [
                [math.nan if one is None else accounting.epsilon(one, delta, accountant=accountant) for one in row]
                for row in self.compositions
            ]
        )

    def releases(self) -> NDArray[np.int64]:
        """(classes, classes): how many releases count."""
        return np.array([[0 if one is None else one.total() for one in row] for row in self.compositions])


def ledger_pairs(ledger: Ledger, names: Iterable[str]) -> LedgerPairs:
    """Every pair of the named participants, at the cost of one flow per class of observers."""
    classes = group_alike(ledger, names)
    rows: list[list[Composition | None]] = [[] for _ in classes]
    for observers in classes:
        view = ledger.view(observers[0])
        for row, subjects in zip(rows, classes, strict=True):
            other = next((name for name in subjects if name != observers[0]), None)
            row.append(None if other is None else view.composition(other))
    return LedgerPairs(tuple(classes), tuple(tuple(row) for row in rows))


def group_alike(ledger: Ledger, names: Iterable[str]) -> list[tuple[str, ...]]:
    """Names that are subjects, audience or knowers of the sampling of the same releases, in the order given."""
    sets: set[Parties] = set()
    for release in ledger:
        sets |= {release.subjects, release.audience, release.coins_known_to}
    places: dict[str, list[int]] = {name: [] for name in names}
    for number, some in enumerate(sets):
        for name in places.keys() & some:
            places[name].append(number)
    found: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for name, numbers in places.items():
        found[tuple(numbers)].append(name)
    return [tuple(some) for some in found.values()]


@dataclass(frozen=True)
class Route:
    """Releases of one publisher that count between a subject and an observer, and how the last of them travelled."""

    source: str
    releases: int
    last: int
    """The round of the last one that gets through."""
    path: tuple[str, ...]
    """Publishers on the way, the first is the source, the last one's value is seen by the observer."""


def next_hops(ledger: Ledger, observer: str | Iterable[str]) -> dict[int, int | None]:
    """Release -> the next release on its shortest way to the observer, or coalition; None where it is seen itself."""
    observers = parties(observer)
    hops: dict[int, int | None] = {release.id: None for release in ledger if observers & release.audience}
    waiting = deque(sorted(hops))
    while waiting:
        later = waiting.popleft()
        for earlier in ledger[later].inputs:
            if earlier not in hops:
                hops[earlier] = later
                waiting.append(earlier)
    return hops


def trace_routes(ledger: Ledger, subject: str, hops: dict[int, int | None]) -> list[Route]:
    """What of a subject reaches the observer of `hops`, by publisher."""
    counted: Counter[str] = Counter()
    latest: dict[str, int] = {}
    for id in hops:
        release = ledger[id]
        if subject in release.subjects:
            counted[release.source] += 1
            latest[release.source] = max(id, latest.get(release.source, -1))
    return [
        Route(source, times, ledger[latest[source]].time, trace_publishers(ledger, latest[source], hops))
        for source, times in sorted(counted.items())
    ]


def trace_publishers(ledger: Ledger, id: int, hops: dict[int, int | None]) -> tuple[str, ...]:
    """The publishers on the way of a release, repetitions left out."""
    path: list[str] = []
    here: int | None = id
    while here is not None:
        if not path or path[-1] != ledger[here].source:
            path.append(ledger[here].source)
        here = hops[here]
    return tuple(path)
