"""Who can learn how much of whom: classes of participants against each other, from the ledger alone."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from sightline.apps.report import RunView
from sightline.ledger import Composition, write_parties
from sightline.ledger.pairs import group_alike

MOST = 200
"""So many classes are set against each other at once; of more, a window is shown."""
WORK = 800_000
"""At most so many releases times observers are walked for a window."""
LEAST = 12
"""A window is never smaller, however long the run is."""


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
        return write_parties(frozenset(self.names))

    def other_than(self, name: str) -> str | None:
        """A member that is not of that name."""
        return next((one for one in self.names[:2] if one != name), None)


@dataclass(frozen=True, eq=False)
class PairClasses:
    """The classes of a run; pairs of them are worked out when they are asked for, and then kept."""

    run: RunView
    classes: tuple[Class, ...]
    _known: dict[tuple[int, int], float | None] = field(default_factory=dict)

    @cached_property
    def subjects(self) -> list[int]:
        """The classes about which something was released."""
        return [place for place, one in enumerate(self.classes) if one.subject]

    @cached_property
    def observers(self) -> list[int]:
        """The classes that saw something."""
        return [place for place, one in enumerate(self.classes) if one.observer]

    @cached_property
    def _class_of(self) -> dict[str, int]:
        return {name: place for place, one in enumerate(self.classes) for name in one.names}

    def class_of(self, name: str) -> int | None:
        """The class of a participant."""
        return self._class_of.get(name)

    @property
    def width(self) -> int:
        """How many classes a window sets against each other."""
        return min(MOST, max(LEAST, WORK // max(1, len(self.run.ledger))))

    def epsilon(self, subject: int, observer: int) -> float | None:
        """Epsilon of a pair of classes; None where a class of one would observe itself."""
        return self.column([subject], observer)[0]

    def column(self, subjects: Sequence[int], observer: int) -> list[float | None]:
        """What somebody of the observer's class can learn of others in each of the subjects' classes."""
        missing = [n for n in subjects if (n, observer) not in self._known]
        if missing:
            self._work_out(missing, observer)
        return [self._known[n, observer] for n in subjects]

    def _work_out(self, subjects: Sequence[int], observer: int) -> None:
        seen = self.classes[observer].names[0]
        others = {n: self.classes[n].other_than(seen) for n in subjects}
        found = self.run.ledger.passing_view(seen).compositions_of(frozenset(filter(None, others.values())))
        for n, other in others.items():
            self._known[n, observer] = None if other is None else epsilon_of(self.run, found[other])


def pair_classes(run: RunView) -> PairClasses:
    """The classes of a run's participants, subjects and observers alike."""
    subjects, observers = (
        _union_of(release.subjects for release in run.ledger),
        _union_of(release.audience for release in run.ledger),
    )
    trusted = frozenset(run.trusted)
    names = sorted(subjects | observers | run.ledger.participants, key=_natural_key)
    found = [
        Class(some, some[0] in subjects, some[0] in observers, not trusted.isdisjoint(some))
        for some in group_alike(run.ledger, names)
    ]
    return PairClasses(run, tuple(found))


def epsilon_of(run: RunView, composed: Composition) -> float:
    """Epsilon of what a pair adds up to; nothing seen is zero, and no guarantee is infinite."""
    return run.epsilon_of(frozenset(composed.items())) if composed else 0.0


def find_named(sight: PairClasses, text: str, most: int = 24) -> Sequence[str]:
    """Participants whose name is the text, or else holds it."""
    wanted = text.strip().lower()
    if not wanted:
        return ()
    names = [name for one in sight.classes for name in one.names]
    exact = [name for name in names if name.lower() == wanted]
    return exact or [name for name in names if wanted in name.lower()][:most]


def _union_of(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset[str]().union(*set(sets))


def _natural_key(name: str) -> tuple[str, int]:
    kind, _, number = name.rpartition("-")
    return (kind, int(number)) if kind and number.isdigit() else (name, -1)
