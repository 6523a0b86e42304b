"""The ledger: every release in order, what reached whom, and the epsilon of any line of sight."""

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Protocol, TypeVar

from typing_extensions import override

from sightline import accounting
from sightline import formatting as shown
from sightline.accounting import Accountant, Headroom
from sightline.errors import Refused, invalid
from sightline.events import Adjacency, Unit, scale_noise
from sightline.ledger.flow import Composition, View
from sightline.ledger.release import (
    NOBODY,
    Draw,
    Parties,
    Release,
    frame_row,
    overview_table,
    parties,
    read_parties,
    refuse_unknown,
)
from sightline.ledger.store import SqliteStore
from sightline.topology import Line

# A stored ledger keeps at least this many of its last releases in memory, and at most twice as many.
RECENT = 2048


class Releases(Sequence[Release]):
    """Releases held in memory: for plans, and for runs that are read as a whole."""

    def __init__(self) -> None:
        self._held: list[Release] = []

    def __len__(self) -> int:
        return len(self._held)

    def __getitem__(self, index: Any) -> Any:
        return self._held[index]

    def __iter__(self) -> Iterator[Release]:
        return self.since(0)

    def since(self, start: int) -> Iterator[Release]:
        """Return the releases from number `start` on."""
        return iter(self._held[start:])

    def add(self, releases: Sequence[Release]) -> None:
        """Append releases."""
        self._held.extend(releases)

    @property
    def crowded(self) -> bool:
        """Return whether more releases are in memory than needed."""
        return False

    def let_go(self) -> None:
        """Drop what can be read again; does nothing without a store."""


class StoredReleases(Releases):
    """Releases of a store: the last ones in memory, the others read back on demand and checked against their hashes."""

    def __init__(self, store: SqliteStore) -> None:
        super().__init__()
        self._store = store
        self._gone = 0
        self._fetched = lru_cache(RECENT)(store.read_release)

    def __len__(self) -> int:
        return self._gone + len(self._held)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = index + len(self) if index < 0 else index
        if not 0 <= number < len(self):
            raise IndexError(f"release={index}: there are only {len(self)} releases")
        return self._held[number - self._gone] if number >= self._gone else self._fetched(number)

    def since(self, start: int) -> Iterator[Release]:
        """Return the releases from number `start` on, reading those not in memory one by one."""
        if start < self._gone:
            yield from self._store.stream_releases(start, self._store.hash_of(start - 1), stop=self._gone)
        yield from self._held[max(0, start - self._gone) :]

    @property
    @override
    def crowded(self) -> bool:
        return len(self._held) >= 2 * RECENT

    def let_go(self) -> None:
        """Keep only the last releases in memory; the store has all."""
        self._gone += len(self._held[:-RECENT])
        del self._held[:-RECENT]


Part = TypeVar("Part", bound=Hashable)

# Parts of releases (names, sets, events) that are shared between releases; the table is cleared beyond this.
PARTS = 4096


class Store(Protocol):
    """Durable storage for releases."""

    def append(self, releases: Sequence[Release]) -> None:
        """Make the releases durable in one transaction, or raise and keep none."""


class Ledger:
    """Every release of a run, in order.

    `participants` are all known names, whether or not a release speaks of them: a participant that never took part is a
    subject with epsilon 0. Without them only the names in subjects, audiences and `coins_known_to` are known.

    Guarantees: `append` returns only after the store has made the releases durable; a release that would mix units or
    adjacencies is refused, and so is one whose draw was used before; nothing is ever changed or removed; a question
    about an unknown name raises.
    """

    def __init__(
        self, releases: Iterable[Release] = (), *, store: Store | None = None, participants: Iterable[str] = NOBODY
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
        # The last round in which something was drawn, and its draws.
        self._draws: tuple[int, frozenset[Draw]] = (-1, frozenset())
        for release in releases:
            self._take_in((self._number_release(release, len(self)),))

    @classmethod
    def open_stored(cls, store: SqliteStore, *, participants: Iterable[str] = NOBODY) -> "Ledger":
        """Return the ledger of a store after checking its hash chain, for active runs of any length.

        Only the last releases and all counts are in memory; it reads from the store as long as it lives.
        """
        return cls._read_store(store, StoredReleases(store), participants)

    @classmethod
    def whole(cls, store: SqliteStore, *, participants: Iterable[str] = NOBODY) -> "Ledger":
        """Return the ledger of a store after checking its hash chain, all in memory: the store may be closed."""
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
        """Record releases durably, before their values are used, and return them with their ids."""
        # One call claims everything that belongs together (all groups of an epoch): one budget check, one transaction,
        # then the values. Otherwise a budget could stop a run between two groups whose first value is already charged.
        numbered = tuple(self._number_release(release, len(self) + index) for index, release in enumerate(releases))
        draws = self._check_draws(releases)
        self._take_in(numbered, self._store)
        self._draws = draws
        return numbered

    def _check_draws(self, releases: Sequence[Release]) -> tuple[int, frozenset[Draw]]:
        """Return the draws of the last round including these. Raises for one already used or of another round."""
        last, used = self._draws
        for release in releases:
            draw = release.draw
            if draw is None:
                continue
            if draw.round != release.time or draw.round < last or (draw.round == last and draw in used):
                reason = "a draw hides one release of its own round: this one was used before or belongs to another"
                raise Refused(f"draw={draw}: {reason}; draw again for every release")
            last, used = draw.round, (used if draw.round == last else frozenset()) | {draw}
        return last, used

    def _take_in(self, numbered: Sequence[Release], store: Store | None = None) -> None:
        """Check the releases, let the store write them, then hold them."""
        # Order matters: a refused release must leave no trace, and a failed write must leave memory as it was.
        joint = self._check_joint_order(numbered)
        if store is not None:
            store.append(numbered)
        self._joint |= joint
        self._kind = self._kind or next(((first.unit, first.adjacency) for first in numbered), None)
        self._releases.add(numbered)
        if self._releases.crowded:
            # Views read the releases before they are dropped, so that nothing has to be read back for them.
            for view in self._views.values():
                view.update()
            self._releases.let_go()

    def _number_release(self, release: Release, id: int) -> Release:
        """Return the release with its id."""
        # Equal parts are kept once: at 10^5 rounds separate copies took more than 1 GB.
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
        """Return the last release of every joint name. Raises if a release may not be in this ledger."""
        joint: dict[str, Release] = {}
        for release in releases:
            check_kind(self._kind or (releases[0].unit, releases[0].adjacency), release)
            if release.joint:
                check_joint(joint.get(release.joint) or self._joint.get(release.joint), release)
                joint[release.joint] = release
        return joint

    def knows_joint(self, joint: str) -> bool:
        """Return whether a release of that joint name is in the ledger."""
        return joint in self._joint

    @property
    def participants(self) -> Parties:
        """Return every name that may be asked about: the registered ones, and all names in releases except sources."""
        named = self._names()
        return self._registered if named <= self._registered else self._registered | named

    def _names(self) -> set[str]:
        """Return the names in subjects, audiences and `coins_known_to`, reading only new releases."""
        # Sources are left out: `clients` may be a source, and is not a participant.
        sets: set[Parties] = set()
        for release in self._releases.since(self._named_upto):
            sets |= {release.subjects, release.audience, release.coins_known_to}
        self._named.update(*sets)
        self._named_upto = len(self)
        return self._named

    def register(self, participants: Iterable[str]) -> None:
        """Add participants that were not given at first."""
        self._registered |= frozenset(participants)

    def has_participant(self, name: str) -> bool:
        """Return whether the name belongs to a participant."""
        return name in self._registered or name in self._names()

    def _check_subject(self, subject: str) -> None:
        if not self.has_participant(subject):
            if len(read_parties(str(subject))) > 1:
                invalid(
                    "subject",
                    subject,
                    "epsilon is computed for one subject at a time",
                    "ask for each participant by itself",
                )
            refuse_unknown("subject", subject, self.participants)

    def _observers(self, observer: str | Iterable[str], planned: Sequence[Release] = ()) -> Parties:
        """Return the observers: a name, a coalition as a set, or written as `client-0..3, public`.

        Raises for unknown names.
        """
        result: set[str] = set()
        for name in parties(observer):
            result |= {name} if self.has_participant(name) else read_parties(str(name))
        if not result:
            invalid("observer", "missing", "an observer is needed", "name a participant")
        for name in sorted(result):
            if not self.has_participant(name) and not any(name in release.audience for release in planned):
                refuse_unknown("observer", name, self.participants)
        return frozenset(result)

    def view(self, observer: str | Iterable[str]) -> View:
        """Return the view of an observer or a coalition (a set, or written as `client-0..3, public`)."""
        return self._view(self._observers(observer))

    def _view(self, observers: Parties) -> View:
        if observers not in self._views:
            self._views[observers] = View(self._releases, observers, self._check_subject)
        return self._views[observers].update()

    def passing_view(self, observer: str | Iterable[str]) -> View:
        """Return a view that is not kept, for asking about many observers one after the other."""
        return View(self._releases, self._observers(observer), self._check_subject).update()

    def composition(self, subject: str, observer: str | Iterable[str]) -> Composition:
        """Return the multiset of events by which `observer` can learn about `subject`."""
        return self.view(observer).composition(subject)

    def epsilon(
        self, subject: str, observer: str | Iterable[str], delta: float, *, accountant: Accountant = Accountant.PLD
    ) -> float:
        """Return an upper bound on what `observer` can learn about `subject` at `delta`; infinite without noise.

        A coalition is a set of names, or written as `client-7, public`. Raises for an unknown name.
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
        """Return the largest epsilon over all subjects outside `exempt` against `observer`; 0 if nothing reaches it.

        With `planned`, the epsilon as if those releases were appended next.
        """
        result = self.view_with(planned, observer).compositions(exempt)
        return max((accounting.epsilon(dict(items), delta, accountant=accountant) for items in result), default=0.0)

    def view_with(self, planned: Sequence[Release], observer: str | Iterable[str]) -> View:
        """Return the view of an observer as if `planned` were appended next."""
        view = self._view(self._observers(observer, planned))
        if not planned:
            return view
        return view.preview_with([release.with_id(len(self) + index) for index, release in enumerate(planned)])

    def fits_budget(self, lines: Iterable[Line], room: Headroom, *, planned: Sequence[Release] = ()) -> bool:
        """Return whether every line of sight is within the budget, as if `planned` were appended next."""
        return all(
            room.fits(dict(items))
            for line in lines
            for items in self.view_with(planned, line.observer).compositions(line.exempt)
        )

    def budget_room(self, limit: float, delta: float, *, accountant: Accountant = Accountant.PLD) -> Headroom:
        """Return the cached headroom of a budget; results for earlier releases are kept."""
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
        """Return the largest epsilon over several lines of sight, each an observer with its exempt subjects."""
        return max(
            (
                self.worst_epsilon(line.observer, delta, accountant=accountant, planned=planned, exempt=line.exempt)
                for line in lines
            ),
            default=0.0,
        )

    def frontier(self, ids: Iterable[int]) -> frozenset[int]:
        """Return the ids without those that others of them were computed from."""
        # Inputs of inputs add no information; dropping them keeps the sets that values carry small.
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

    def to_frame(self) -> Any:
        """Return a pandas DataFrame with one row per release; `event` is the name of its event, `detail` all of it."""
        return shown.make_frame(list(map(frame_row, self)))

    def _repr_html_(self) -> str:
        return shown.html_table(*overview_table(self._releases))

    def __str__(self) -> str:
        return shown.text_table(*overview_table(self._releases))

    def __repr__(self) -> str:
        return f"<Ledger of {shown.format_plural(len(self), 'release')}>"

    def scale_noise(self, factor: float) -> "Ledger":
        """Return the same releases with every Gaussian noise multiplied; calibration searches over the factor."""
        if not (factor > 0 and math.isfinite(factor)):
            raise Refused(f"factor={factor}: must be positive and finite")
        louder = (replace(release, event=scale_noise(release.event, factor)) for release in self)
        return Ledger(louder, participants=self._registered)


def check_kind(kind: tuple[Unit, Adjacency], release: Release) -> None:
    """Raise if a release has another unit or adjacency than the ledger."""
    # Composition adds the losses of one change of the data. Losses of a sample and of a client, or of a zero-out and a
    # replacement, are different changes, and their sum bounds nothing.
    if (release.unit, release.adjacency) != kind:
        raise Refused(
            f"release={release.unit}/{release.adjacency}: this ledger is {kind[0]}/{kind[1]}; "
            "events of different units or adjacencies do not add up, keep one ledger for each"
        )


def check_joint(before: Release | None, release: Release) -> None:
    """Raise unless a release fits the earlier ones of its joint name.

    Releases of one joint name are charged once, so they must be what one event covers: the same event about the same
    subjects, hidden from the same parties, and no two in one round.
    """
    if before is None:
        return
    if (before.event, before.subjects, before.coins_known_to) != (
        release.event,
        release.subjects,
        release.coins_known_to,
    ):
        raise Refused(f"joint={release.joint}: all its releases must have the same event, subjects and sampling")
    # A second release in the same round would be free, because its charge was already made.
    if before.time >= release.time:
        raise Refused(f"joint={release.joint}: round {release.time} would be released twice under one charge")
