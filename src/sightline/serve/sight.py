"""Who can learn how much of whom: every class of participants against every other, from the ledger alone."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from sightline.ledger import Composition, LedgerPairs, ledger_pairs, written
from sightline.ledger.classes import alike
from sightline.report import Run

MOST = 64
"""More different classes than these are not set against each other at once; each can still be asked for."""
WORK = 6_000_000
"""At most so many releases times classes."""


@dataclass(frozen=True)
class Class:
    """Participants that stand in the same sets everywhere."""

    names: tuple[str, ...]
    subject: bool
    observer: bool
    trusted: bool

    @cached_property
    def words(self) -> str:
        """The names, short."""
        return written(frozenset(self.names))


@dataclass(frozen=True, eq=False)
class Sight:
    """The classes of a run, and where they are few enough, every pair of them."""

    run: Run
    classes: tuple[Class, ...]
    pairs: LedgerPairs | None

    @property
    def subjects(self) -> list[int]:
        """The classes about which something was released."""
        return [place for place, one in enumerate(self.classes) if one.subject]

    @property
    def observers(self) -> list[int]:
        """The classes that saw something."""
        return [place for place, one in enumerate(self.classes) if one.observer]

    def composition(self, subject: int, observer: int) -> Composition | None:
        """What a subject answers for against an observer of the class, not itself; None where there is no other."""
        if self.pairs is not None:
            return self.pairs.compositions[subject][observer]
        seen = self.classes[observer].names[0]
        other = next((name for name in self.classes[subject].names if name != seen), None)
        return None if other is None else self.run.ledger.view(seen).composition(other)

    def epsilon(self, subject: int, observer: int) -> float | None:
        """Epsilon of a pair of classes; None where a class of one would observe itself."""
        composed = self.composition(subject, observer)
        return None if composed is None else epsilon_of(self.run, composed)

    def class_of(self, name: str) -> int | None:
        """The class of a participant."""
        return next((place for place, one in enumerate(self.classes) if name in one.names), None)


def sight(run: Run) -> Sight:
    """The classes of a run's participants, subjects and observers alike."""
    subjects, observers = (
        _union(release.subjects for release in run.ledger),
        _union(release.audience for release in run.ledger),
    )
    trusted = frozenset(run.trusted)
    names = sorted(subjects | observers, key=_natural)
    found = [
        Class(some, some[0] in subjects, some[0] in observers, not trusted.isdisjoint(some))
        for some in alike(run.ledger, names)
    ]
    few = len(found) <= MOST and len(found) * len(run.ledger) <= WORK
    return Sight(run, tuple(found), ledger_pairs(run.ledger, names) if few else None)


def epsilon_of(run: Run, composed: Composition) -> float:
    """Epsilon of what a pair adds up to; nothing seen is zero, and no guarantee is infinite."""
    return run.epsilon_of(frozenset(composed.items())) if composed else 0.0


def worst(values: Iterable[float | None]) -> float:
    """The largest finite one: what the darkest cell stands for."""
    return max((value for value in values if value is not None and math.isfinite(value)), default=0.0)


def named(sight: Sight, text: str, most: int = 24) -> Sequence[str]:
    """Participants whose name is the text, or else holds it."""
    wanted = text.strip().lower()
    if not wanted:
        return ()
    names = [name for one in sight.classes for name in one.names]
    exact = [name for name in names if name.lower() == wanted]
    return exact or [name for name in names if wanted in name.lower()][:most]


def _union(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset[str]().union(*set(sets))


def _natural(name: str) -> tuple[str, int]:
    kind, _, number = name.rpartition("-")
    return (kind, int(number)) if kind and number.isdigit() else (name, -1)
