"""The flow of information: which releases reached an observer, and what they charge to each subject."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Protocol

from sightline.events import Event, against_coalition, against_outsider, with_known_coins
from sightline.ledger.release import NOBODY, Parties, Release
from sightline.topology import PUBLIC

# An observer that takes part in nothing.
OUTSIDER = frozenset({PUBLIC})
# Numbers per integer of a bit set.
PAGE = 1024


class BitSet:
    """A set of numbers that only grows, with one bit per number.

    >>> marks = BitSet()
    >>> marks.add(5000)
    >>> 5000 in marks, 4999 in marks
    (True, False)
    """

    def __init__(self) -> None:
        self._pages: dict[int, int] = {}

    def __contains__(self, number: int) -> bool:
        return bool(self._pages.get(number // PAGE, 0) >> number % PAGE & 1)

    def add(self, number: int) -> None:
        """Add a number."""
        self._pages[number // PAGE] = self._pages.get(number // PAGE, 0) | 1 << number % PAGE


Composition = Counter[Event]


class Seen(Protocol):
    """The releases as a view reads them."""

    def __len__(self) -> int: ...

    def __getitem__(self, id: int) -> Release: ...

    def since(self, start: int) -> Iterable[Release]:
        """Return the releases from number `start` on."""


class ChainedReleases:
    """A ledger's releases followed by some that are not in it yet, without copying."""

    def __init__(self, first: Seen, then: Sequence[Release]) -> None:
        self._first, self._then = first, then

    def __len__(self) -> int:
        return len(self._first) + len(self._then)

    def __getitem__(self, id: int) -> Release:
        start = len(self._first)
        return self._first[id] if id < start else self._then[id - start]

    def since(self, start: int) -> Iterable[Release]:
        """Return the releases from number `start` on."""
        return chain(self._first.since(start), self._then[max(0, start - len(self._first)) :])


class View:
    """Everything that reaches one observer, or a coalition (the union of its members' views); grows with the ledger."""

    def __init__(self, releases: Seen, observers: Parties, check_subject: Callable[[str], None] | None = None) -> None:
        self._releases = releases
        self.observers = observers
        self._check_subject = check_subject
        self.reached = BitSet()
        self._read = 0
        self._charges: Counter[tuple[Parties, Event]] = Counter()
        self._joint: set[tuple[str, Parties, Event]] = set()
        # The view that this one previews.
        self._before: View | None = None

    def update(self) -> "View":
        """Process the releases added since the last call."""
        if self._read == len(self._releases):
            return self
        for release in self._releases.since(self._read):
            if self.observers & release.audience:
                self._reaches_observer(release)
        self._read = len(self._releases)
        return self

    def preview_with(self, added: Sequence[Release]) -> "View":
        """Return the view as it would be if `added` were appended next; this view does not change."""
        future = View(ChainedReleases(self._releases, added), self.observers, self._check_subject)
        future._read = self._read
        future._charges = self._charges.copy()
        future._before = self
        return future.update()

    def _reaches_observer(self, release: Release) -> None:
        waiting = [release]
        # A release that reaches the observer brings everything it was computed from. Each release is charged once, and
        # one bit remembers it, so a view stays small however long the run.
        while waiting:
            reached = waiting.pop()
            if not self._has_seen(reached.id):
                self.reached.add(reached.id)
                self._charge_subjects(reached)
                waiting += [self._releases[earlier] for earlier in reached.inputs]

    def _has_seen(self, id: int) -> bool:
        return id in self.reached or (self._before is not None and id in self._before.reached)

    def _knows_draws(self, key: tuple[str, Parties, Event]) -> bool:
        return key in self._joint or (self._before is not None and key in self._before._joint)

    def _charge_subjects(self, release: Release) -> None:
        # An observer that knows the random draws is charged the event without amplification. A coalition may know
        # noises and draws of its members, an outsider knows none.
        known = bool(self.observers & release.coins_known_to)
        event = with_known_coins(release.event) if known else release.event
        if len(self.observers) > 1:
            event = against_coalition(event, len(self.observers & release.subjects), len(self.observers))
        elif self.observers == OUTSIDER:
            event = against_outsider(event)
        key = (release.joint, release.subjects, event)
        # Releases of one joint name (an epoch of a schedule) are charged together, with the first of them.
        if not release.subjects or (release.joint and self._knows_draws(key)):
            return
        if release.joint:
            self._joint.add(key)
        self._charges[release.subjects, event] += 1

    def composition(self, subject: str) -> Composition:
        """Return the multiset of events charged to `subject` in this view. Raises for an unknown subject."""
        total: Composition = Counter()
        for (subjects, event), times in self._charges.items():
            if subject in subjects:
                total[event] += times
        if not total and self._check_subject is not None:
            self._check_subject(subject)
        return total

    def by_subject(self, exempt: Parties = NOBODY) -> dict[str, Composition]:
        """Return the composition of every subject outside `exempt` about whom anything was seen."""
        result: defaultdict[str, Composition] = defaultdict(Counter)
        for (charged, event), times in self._charges.items():
            for name in charged - exempt:
                result[name][event] += times
        return dict(result)

    def compositions_of(self, subjects: Parties) -> dict[str, Composition]:
        """Return the composition of each subject, in one pass over the charges. Raises for an unknown subject."""
        result: dict[str, Composition] = {name: Counter() for name in subjects}
        for (charged, event), times in self._charges.items():
            for name in subjects & charged:
                result[name][event] += times
        for name, composition in result.items():
            if not composition and self._check_subject is not None:
                self._check_subject(name)
        return result

    def compositions(self, exempt: Parties = NOBODY) -> dict[frozenset[tuple[Event, int]], str]:
        """Return every distinct composition of subjects outside `exempt`, with one such subject each."""
        charged: dict[Parties, list[tuple[Event, int]]] = defaultdict(list)
        for (subjects, event), times in self._charges.items():
            charged[subjects].append((event, times))
        result: dict[frozenset[tuple[Event, int]], str] = {}
        for holders, subject in _subject_atoms(charged, exempt):
            total: Composition = Counter()
            for subjects in holders:
                for event, times in charged[subjects]:
                    total[event] += times
            key = frozenset(total.items())
            result[key] = min(subject, result.get(key, subject))
        return result


def _subject_atoms(groups: Iterable[Parties], exempt: Parties = NOBODY) -> list[tuple[tuple[Parties, ...], str]]:
    """Return (sets, one member) for each class of subjects outside `exempt` that are in exactly the same sets."""
    groups = list(groups)
    if len(groups) == 1 and not exempt:
        return [((groups[0],), min(groups[0]))]
    membership: dict[str, list[Parties]] = defaultdict(list)
    for group in groups:
        for name in group - exempt:
            membership[name].append(group)
    atoms: dict[tuple[Parties, ...], str] = {}
    for name, holders in membership.items():
        key = tuple(holders)
        atoms[key] = min(name, atoms.get(key, name))
    return list(atoms.items())
