"""The ledger: every release in order, what reached whom through them, and the epsilon of any line of sight."""

import math
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Protocol, TypeVar

from sightline import accounting
from sightline import formatting as shown
from sightline.accounting import Accountant, Headroom
from sightline.errors import Refused, invalid
from sightline.events import Adjacency, Event, Unit, scale_noise
from sightline.ledger.flow import Composition, View
from sightline.ledger.release import (
    NOBODY,
    Draw,
    Parties,
    Release,
    parties,
    read_parties,
    refuse_unknown,
    write_parties,
)
from sightline.ledger.store import SqliteStore
from sightline.topology import Line

ROWS = 20
"""At most so many kinds of releases are shown; how many were left out is said."""


def overview_table(releases: Collection[Release]) -> str:
    """An HTML table: what was released, by whom, of whom, to whom, by which event, how often and when."""
    kinds: dict[tuple[str, str, Parties, Parties, Event], list[int]] = {}
    for release in releases:
        kind = (release.what, release.source, release.subjects, release.audience, release.event)
        kinds.setdefault(kind, []).append(release.time)
    rows = [
        (
            what,
            source,
            write_parties(subjects) or "nobody",
            write_parties(audience) or "nobody",
            event,
            len(times),
            _time_span(times),
        )
        for (what, source, subjects, audience, event), times in kinds.items()
    ]
    left = f", {len(rows) - ROWS:,} kinds not shown" if len(rows) > ROWS else ""
    first = next(iter(releases), None)
    promise = f", unit {first.unit}, adjacency {first.adjacency}" if first else ""
    header = ("what", "from", "about", "seen by", "event", "times", "rounds")
    return shown.html_table(f"{len(releases):,} releases{promise}{left}", header, rows[:ROWS])


def _time_span(times: list[int]) -> str:
    return str(times[0]) if min(times) == max(times) else f"{min(times)} to {max(times)}"


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


Part = TypeVar("Part", bound=Hashable)

PARTS = 4096
"""So many parts of releases are known again when they come back; then it starts anew."""


class Store(Protocol):
    """Where releases are kept so that they survive a crash."""

    def append(self, releases: Sequence[Release]) -> None:
        """Make the releases durable in one transaction, or raise and keep none."""


class Ledger:
    """Every release of a run, in order.

    `participants` are those who have a name, whether or not a release speaks of them: who never took part is a subject
    of epsilon 0. Without them only the subjects, audiences and knowers of the sampling in releases are known.

    Guarantees: `append` returns only after the store has made the releases durable; a release that would mix units or
    adjacencies is refused, and so is one whose draw was used before; nothing is ever changed or removed; a question
    about a name that nobody has is refused.
    """

    def __init__(
        self,
        releases: Iterable[Release] = (),
        *,
        store: Store | None = None,
        participants: Iterable[str] = NOBODY,
    ) -> None:
        self._registered = frozenset(participants)
        self._named: set[str] = set()
        self._named_upto = 0
        self._releases = Releases()
        self._views: dict[Parties, View] = {}
        self._kind: tuple[Unit, Adjacency] | None = None
        self._joint: dict[str, Release] = {}
        self._store = store
        self._rooms: dict[tuple[float, float, Accountant], Headroom] = {}
        self._parts: dict[Hashable, Hashable] = {}
        self._draws: tuple[int, frozenset[Draw]] = (-1, frozenset())
        """The last round that something was drawn in, and its draws."""
        for release in releases:
            self._take_in((self._number_release(release, len(self)),))

    @classmethod
    def open_stored(cls, store: SqliteStore, *, participants: Iterable[str] = NOBODY) -> "Ledger":
        """The ledger of a store, its hash chain checked. In memory are only the last releases, and counts of all.

        For runs at work, however long. It reads from the store as long as it lives.
        """
        return cls._read_store(store, StoredReleases(store), participants)

    @classmethod
    def whole(cls, store: SqliteStore, *, participants: Iterable[str] = NOBODY) -> "Ledger":
        """The ledger of a store, its hash chain checked, all in memory: it can be read when the store is closed."""
        return cls._read_store(store, Releases(), participants)

    @classmethod
    def _read_store(cls, store: SqliteStore, releases: Releases, participants: Iterable[str]) -> "Ledger":
        ledger = cls(store=store, participants=participants)
        ledger._releases = releases
        for release in store.stream_releases():
            ledger._take_in((release,))
        return ledger

    def __len__(self) -> int:
        return len(self._releases)

    def __iter__(self) -> Iterator[Release]:
        return iter(self._releases)

    def __getitem__(self, id: int) -> Release:
        release: Release = self._releases[id]
        return release

    def append(self, releases: Sequence[Release]) -> tuple[Release, ...]:
        """Record releases, durably, before their values are used; returns them with their ids."""
        numbered = tuple(self._number_release(release, len(self) + place) for place, release in enumerate(releases))
        draws = self._check_draws(releases)
        self._take_in(numbered, self._store)
        self._draws = draws
        return numbered

    def _check_draws(self, releases: Sequence[Release]) -> tuple[int, frozenset[Draw]]:
        """The draws of the last round with these; one that was used before, or belongs to another round, is refused."""
        last, used = self._draws
        for release in releases:
            draw = release.draw
            if draw is None:
                continue
            if draw.round != release.time or draw.round < last or (draw.round == last and draw in used):
                law = "hides who is in one release of its round, and was used before or belongs to another"
                raise Refused(f"draw={draw}: {law}; draw again for every release")
            last, used = draw.round, (used if draw.round == last else frozenset()) | {draw}
        return last, used

    def _take_in(self, numbered: Sequence[Release], store: Store | None = None) -> None:
        """Hold releases that fit, after the store has them."""
        joint = self._check_joint_order(numbered)
        if store is not None:
            store.append(numbered)
        self._joint |= joint
        self._kind = self._kind or next(((first.unit, first.adjacency) for first in numbered), None)
        self._releases.add(numbered)
        if self._releases.crowded:
            for view in self._views.values():
                view.update()
            self._releases.let_go()

    def _number_release(self, release: Release, id: int) -> Release:
        """The release with its place; what it has in common with earlier ones is kept once, so that long runs fit."""
        return replace(
            release,
            source=self._share_part(release.source),
            subjects=self._share_part(release.subjects),
            event=self._share_part(release.event),
            audience=self._share_part(release.audience),
            coins_known_to=self._share_part(release.coins_known_to),
            draw=None,
            what=self._share_part(release.what),
        ).with_id(id)

    def _share_part(self, part: Part) -> Part:
        if len(self._parts) > PARTS:
            self._parts.clear()
        return self._parts.setdefault(part, part)  # type: ignore[return-value]

    def _check_joint_order(self, releases: Sequence[Release]) -> dict[str, Release]:
        """The last release of every joint name among them, when all may be in this ledger."""
        joint: dict[str, Release] = {}
        for release in releases:
            check_kind(self._kind or (releases[0].unit, releases[0].adjacency), release)
            if release.joint:
                check_joint(joint.get(release.joint) or self._joint.get(release.joint), release)
                joint[release.joint] = release
        return joint

    def knows_joint(self, joint: str) -> bool:
        """Whether a release of that joint name is in it."""
        return joint in self._joint

    @property
    def participants(self) -> Parties:
        """Everybody who may be asked about: those that were given, and every name in a release but sources."""
        named = self._names()
        return self._registered if named <= self._registered else self._registered | named

    def _names(self) -> set[str]:
        """Subjects, audiences and those who know the sampling; releases that were added since the last call are read.

        Not sources: `clients` may be one, and is nobody.
        """
        sets: set[Parties] = set()
        for release in self._releases.since(self._named_upto):
            sets |= {release.subjects, release.audience, release.coins_known_to}
        self._named.update(*sets)
        self._named_upto = len(self)
        return self._named

    def register(self, participants: Iterable[str]) -> None:
        """Take in participants of whom it was not told at first."""
        self._registered |= frozenset(participants)

    def has_participant(self, name: str) -> bool:
        """Whether somebody has that name."""
        return name in self._registered or name in self._names()

    def _check_subject(self, subject: str) -> None:
        if not self.has_participant(subject):
            if len(read_parties(str(subject))) > 1:
                invalid("subject", subject, "one participant at a time is a subject", "ask for each of them")
            refuse_unknown("subject", subject, self.participants)

    def _observers(self, observer: str | Iterable[str], planned: Sequence[Release] = ()) -> Parties:
        """Who observes: a name, a coalition given as a set, or one written as `client-0..3, public`; all are known."""
        found: set[str] = set()
        for name in parties(observer):
            found |= {name} if self.has_participant(name) else read_parties(str(name))
        if not found:
            invalid("observer", "nobody", "somebody must be looking", "name a participant")
        for name in sorted(found):
            if not self.has_participant(name) and not any(name in release.audience for release in planned):
                refuse_unknown("observer", name, self.participants)
        return frozenset(found)

    def view(self, observer: str | Iterable[str]) -> View:
        """What reaches an observer, or a coalition: a set, or as in `client-0..3, public`."""
        return self._view(self._observers(observer))

    def _view(self, observers: Parties) -> View:
        if observers not in self._views:
            self._views[observers] = View(self._releases, observers, self._check_subject)
        return self._views[observers].update()

    def passing_view(self, observer: str | Iterable[str]) -> View:
        """The view of an observer that is not kept: for asking many observers one after the other."""
        return View(self._releases, self._observers(observer), self._check_subject).update()

    def composition(self, subject: str, observer: str | Iterable[str]) -> Composition:
        """The events by which `observer` can learn of `subject`."""
        return self.view(observer).composition(subject)

    def epsilon(
        self,
        subject: str,
        observer: str | Iterable[str],
        delta: float,
        *,
        accountant: Accountant = Accountant.PLD,
    ) -> float:
        """Upper bound on what `observer` can learn of `subject`, at `delta`; infinite where something went in clear.

        A coalition is a set of names, or written as in `client-7, public`. A name that nobody has is refused.
        """
        return accounting.epsilon(self.composition(subject, observer), delta, accountant=accountant)

    def worst_epsilon(
        self,
        observer: str | Iterable[str],
        delta: float,
        *,
        accountant: Accountant = Accountant.PLD,
        planned: Sequence[Release] = (),
        exempt: Parties = NOBODY,
    ) -> float:
        """The largest epsilon over all subjects outside `exempt` against `observer`; 0 when nothing reaches it.

        With `planned`, what it would be if those releases were appended next.
        """
        found = self.view_with(planned, observer).compositions(exempt)
        return max((accounting.epsilon(dict(items), delta, accountant=accountant) for items in found), default=0.0)

    def view_with(self, planned: Sequence[Release], observer: str | Iterable[str]) -> View:
        """The view of an observer, as it would be if `planned` were appended next."""
        view = self._view(self._observers(observer, planned))
        if not planned:
            return view
        return view.preview_with([release.with_id(len(self) + place) for place, release in enumerate(planned)])

    def fits_budget(self, lines: Iterable[Line], room: Headroom, *, planned: Sequence[Release] = ()) -> bool:
        """Whether every subject is within the budget along every line of sight, if `planned` were appended next."""
        return all(
            room.fits(dict(items))
            for line in lines
            for items in self.view_with(planned, line.observer).compositions(line.exempt)
        )

    def budget_room(self, limit: float, delta: float, *, accountant: Accountant = Accountant.PLD) -> Headroom:
        """What is known to be within a budget; what was worked out for earlier releases is kept."""
        key = (limit, delta, accountant)
        return self._rooms.setdefault(key, Headroom(limit, delta, accountant=accountant))

    def worst_of(
        self,
        lines: Iterable[Line],
        delta: float,
        *,
        accountant: Accountant = Accountant.PLD,
        planned: Sequence[Release] = (),
    ) -> float:
        """The largest epsilon over several lines of sight, each an observer with the subjects it does not count for."""
        return max(
            (
                self.worst_epsilon(line.observer, delta, accountant=accountant, planned=planned, exempt=line.exempt)
                for line in lines
            ),
            default=0.0,
        )

    def frontier(self, ids: Iterable[int]) -> frozenset[int]:
        """The ids without those that others of them were computed from: they say the same in fewer numbers."""
        ids = frozenset(ids)
        lowest = min(ids, default=0)
        covered: set[int] = set()
        for id in ids:
            waiting = list(self[id].inputs)
            while waiting:
                earlier = waiting.pop()
                if earlier >= lowest and earlier not in covered:
                    covered.add(earlier)
                    waiting += self[earlier].inputs
        return ids - covered

    def _repr_html_(self) -> str:
        return overview_table(self._releases)

    def scale_noise(self, factor: float) -> "Ledger":
        """The same releases with every Gaussian noise multiplied: what calibration searches over."""
        if not (factor > 0 and math.isfinite(factor)):
            raise Refused(f"factor={factor}: noise is scaled by a positive finite number")
        louder = (replace(release, event=scale_noise(release.event, factor)) for release in self)
        return Ledger(louder, participants=self._registered)


def check_kind(kind: tuple[Unit, Adjacency], release: Release) -> None:
    """A ledger has one unit and one adjacency."""
    if (release.unit, release.adjacency) != kind:
        raise Refused(
            f"release={release.unit}/{release.adjacency}: this ledger is {kind[0]}/{kind[1]}; "
            "events of different units or adjacencies do not add up, keep one ledger for each"
        )


def check_joint(before: Release | None, release: Release) -> None:
    """Releases of one joint name are charged once, so they must be what one event covers.

    The same event about the same subjects, hidden from the same parties, and no two of one round: a second release that
    the event does not know of would be free.
    """
    if before is None:
        return
    if (before.event, before.subjects, before.coins_known_to) != (
        release.event,
        release.subjects,
        release.coins_known_to,
    ):
        raise Refused(f"joint={release.joint}: its releases have one event, the same subjects and the same sampling")
    if before.time >= release.time:
        raise Refused(f"joint={release.joint}: round {release.time} would be released twice under one charge")
