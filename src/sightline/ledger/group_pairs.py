"""Privacy between all pairs of participants: by classes of a ledger, or of planned overlapping groups."""

import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sightline import accounting
from sightline.accounting import Accountant
from sightline.errors import invalid
from sightline.events import Event
from sightline.ledger.flow import Composition
from sightline.ledger.ledger import Ledger
from sightline.ledger.release import Parties, parties
from sightline.topology import Memberships


@dataclass(frozen=True, eq=False)
class LedgerPairs:
    """What every class of participants can learn about every other, according to the ledger.

    `compositions[n][i]` is charged to a subject of class n against another participant of class i; None if a class of
    one would observe itself.
    """

    classes: tuple[tuple[str, ...], ...]
    compositions: tuple[tuple[Composition | None, ...], ...]

    @cached_property
    def class_of(self) -> dict[str, int]:
        """Return the class number of every name."""
        return {name: number for number, names in enumerate(self.classes) for name in names}

    def of(self, subject: str, observer: str) -> Composition | None:
        """Return the composition of one pair of names; None for a name against itself."""
        if subject == observer:
            return None
        return self.compositions[self.class_of[subject]][self.class_of[observer]]

    def epsilon(self, delta: float, *, accountant: Accountant = Accountant.PLD) -> NDArray[np.float64]:
        """Return epsilon of every pair, shape (classes, classes); NaN where there is no pair."""
        return np.array(
            [
                [math.nan if one is None else accounting.epsilon(one, delta, accountant=accountant) for one in row]
                for row in self.compositions
            ]
        )

    def releases(self) -> NDArray[np.int64]:
        """Return the number of charged releases of every pair, shape (classes, classes)."""
        return np.array([[0 if one is None else one.total() for one in row] for row in self.compositions])


def ledger_pairs(ledger: Ledger, names: Iterable[str]) -> LedgerPairs:
    """Return every pair of the named participants, at the cost of one flow per class of observers."""
    classes = group_alike(ledger, names)
    rows: list[list[Composition | None]] = [[] for _ in classes]
    for observers in classes:
        view = ledger.view(observers[0])
        for row, subjects in zip(rows, classes, strict=True):
            other = next((name for name in subjects if name != observers[0]), None)
            row.append(None if other is None else view.composition(other))
    return LedgerPairs(tuple(classes), tuple(tuple(row) for row in rows))


def group_alike(ledger: Ledger, names: Iterable[str]) -> list[tuple[str, ...]]:
    """Return the names grouped into classes that no release distinguishes, in the order given."""
    # Names in the same subjects, audiences and `coins_known_to` of all releases have equal views and equal charges, so
    # one of them stands for the class.
    sets: set[Parties] = set()
    for release in ledger:
        sets |= {release.subjects, release.audience, release.coins_known_to}
    numbers_of: dict[str, list[int]] = {name: [] for name in names}
    for number, some in enumerate(sets):
        for name in numbers_of.keys() & some:
            numbers_of[name].append(number)
    result: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for name, numbers in numbers_of.items():
        result[tuple(numbers)].append(name)
    return [tuple(some) for some in result.values()]


@dataclass(frozen=True)
class Route:
    """Releases of one publisher charged between a subject and an observer, and the path of the last of them."""

    source: str
    releases: int
    last: int
    """The round of the last one that gets through."""
    path: tuple[str, ...]
    """Publishers on the way: the first is the source, the value of the last is seen by the observer."""


def next_hops(ledger: Ledger, observer: str | Iterable[str]) -> dict[int, int | None]:
    """Return for each release the next one on its shortest way to the observer or coalition; None if seen directly."""
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
    """Return the routes from a subject to the observer of `hops`, by publisher."""
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
    """Return the publishers on the way of a release, without repetitions."""
    path: list[str] = []
    here: int | None = id
    while here is not None:
        if not path or path[-1] != ledger[here].source:
            path.append(ledger[here].source)
        here = hops[here]
    return tuple(path)


Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# Subject classes handled at once; bounds the memory of the count arrays.
ROWS = 512


class Rhythm(StrEnum):
    """When groups release: at every epoch (DP-OGL), or once at the end of an interval (DP-OGL+)."""

    EPOCH = "epoch"
    INTERVAL = "interval"


class Threat(StrEnum):
    """Who is curious: every other worker (threat model 1), or only those outside one's groups (threat model 2)."""

    EVERYONE = "everyone"
    OUT_OF_GROUP = "out-of-group"


@dataclass(frozen=True)
class GroupPlan:
    """A planned run of DP-OGL or DP-OGL+ in which models of the epochs 1 .. `epochs` are seen.

    Guarantees: the releases of every pair are those that the ledger of such a run has after `epochs - 1` rounds.
    """

    schedule: Memberships
    period: int
    epochs: int
    events: tuple[Event, ...]
    """The event of one release of each group."""
    rhythm: Rhythm = Rhythm.EPOCH

    def __post_init__(self) -> None:
        if self.period < 1:
            invalid("period", self.period, "must be a whole number of epochs >= 1")
        if self.epochs < 1:
            invalid("epochs", self.epochs, "must be >= 1")
        if len(self.events) != self.schedule.count:
            invalid("events", len(self.events), f"must have one for each of the {self.schedule.count} groups")

    @property
    def intervals(self) -> int:
        """Return the number of intervals that have begun."""
        return -(-(self.epochs - 1) // self.period)

    @cached_property
    def made(self) -> Ints:
        """Return made[k]: releases of a group in the intervals 1 .. k."""
        epochs = np.minimum(np.arange(self.intervals + 1) * self.period, self.epochs - 1)
        return epochs // self.period if self.rhythm is Rhythm.INTERVAL else epochs

    @cached_property
    def spans(self) -> list[tuple[int, int]]:
        """Return the first and last interval of every era that begins in time."""
        begins = [era.since for era in self.schedule.eras] + [self.intervals + 1]
        return [(low, min(high - 1, self.intervals)) for low, high in pairwise(begins) if low <= self.intervals]


def last_intervals(plan: GroupPlan) -> Ints:
    """Return the last interval of each group that reaches an observer of another group in an era.

    Shape (eras x groups, groups).
    """
    count = plan.schedule.count
    member = plan.schedule.membership.astype(np.float32)
    reach = np.zeros((len(plan.spans) * count, count), dtype=bool)
    last = np.zeros(reach.shape, dtype=np.int64)
    # Backwards in time: what reaches a group in interval k comes from itself and from every group that shares a worker
    # with it at the beginning of that interval.
    for era in range(len(plan.spans) - 1, -1, -1):
        low, high = plan.spans[era]
        near = (member[era].T @ member[era] > 0) | np.eye(count, dtype=bool)
        points = np.arange(count)
        reach[era * count + points, points] = True
        for interval in range(high, low - 1, -1):
            last[reach & (last == 0)] = interval
            wider = (reach.astype(np.float32) @ near.astype(np.float32)) > 0
            settled = bool((wider == reach).all())
            reach = wider
            if settled:
                break
    return last


class Pairs:
    """Charged releases between classes of workers: a count for each pair of classes and each event."""

    def __init__(self, plan: GroupPlan) -> None:
        self.plan = plan
        self.kinds, self.class_of = plan.schedule.classes
        self.sizes = np.bincount(self.class_of, minlength=len(self.kinds))
        self.events = tuple(dict.fromkeys(plan.events))
        self._seen = self._seen_by(last_intervals(plan))

    def __len__(self) -> int:
        return len(self.kinds)

    def _seen_by(self, last: Ints) -> NDArray[np.float32]:
        """Return the number of releases of a group in an era that reach a class, shape (eras, groups, observers)."""
        eras, count = len(self.plan.spans), self.plan.schedule.count
        latest = np.zeros((len(self), count), dtype=np.int64)
        for point in range(eras * count):
            sees = self.kinds[:, point // count, point % count]
            latest[sees] = np.maximum(latest[sees], last[point])
        result = np.zeros((eras, count, len(self)), dtype=np.float32)
        for era, (low, high) in enumerate(self.plan.spans):
            upto = np.clip(latest.T, low - 1, high)
            result[era] = self.plan.made[upto] - self.plan.made[low - 1]
        return result

    def release_counts(self, rows: slice) -> Ints:
        """Return releases of each event for some classes of subjects, shape (events, subjects, observers)."""
        eras = len(self.plan.spans)
        member = self.kinds[rows, :eras].astype(np.float32)
        result = np.zeros((len(self.events), len(member), len(self)))
        for index, event in enumerate(self.events):
            mine = [m for m, other in enumerate(self.plan.events) if other == event]
            for era in range(eras):
                result[index] += member[:, era, mine] @ self._seen[era, mine]
        return result.round().astype(np.int64)

    def subject_chunks(self) -> Iterator[slice]:
        """Yield slices over all subject classes."""
        for low in range(0, len(self), ROWS):
            yield slice(low, min(low + ROWS, len(self)))

    def allowed_pairs(self, threat: Threat, rows: slice) -> Bools:
        """Return the pairs that a threat model covers, shape (subjects, observers)."""
        result = np.ones((len(range(*rows.indices(len(self)))), len(self)), dtype=bool)
        if threat is Threat.OUT_OF_GROUP:
            result = ~self._together[rows]
        for index, kind in enumerate(range(*rows.indices(len(self)))):
            # A worker does not observe itself: within a class there is a pair only if it has two members.
            result[index, kind] &= self.sizes[kind] > 1
        return result

    @cached_property
    def _together(self) -> Bools:
        return self.plan.schedule.classes_together()


def planned_pairs(plan: GroupPlan) -> Pairs:
    """Return the pairs of a planned run.

    >>> from sightline.events import Gaussian
    >>> from sightline.topology import constant_memberships
    >>> example = GroupPlan(constant_memberships(3, ((0, 1), (1, 2))), 2, 4, (Gaussian(1.0),) * 2)
    >>> planned_pairs(example).release_counts(slice(None))[0].tolist()
    [[3, 3, 2], [5, 6, 5], [2, 3, 3]]
    """
    return Pairs(plan)


Floats = NDArray[np.float64]

# Keys up to this are looked up in a table, larger ones by sorting.
TABLE = 20_000_000


@dataclass(frozen=True)
class Costing:
    """The parameters that turn counts into epsilon."""

    delta: float
    accountant: Accountant = Accountant.PLD

    def of(self, pairs: Pairs, counts: Ints) -> float:
        """Return epsilon of one vector of counts."""
        held = {event: int(times) for event, times in zip(pairs.events, counts, strict=True) if times}
        return accounting.epsilon(held, self.delta, accountant=self.accountant)


def epsilon_matrix(pairs: Pairs, threat: Threat, costing: Costing) -> tuple[Floats, Ints]:
    """Return epsilon and the number of releases, shape (classes, classes); NaN outside the threat model."""
    epsilon = np.full((len(pairs), len(pairs)), np.nan)
    releases = np.zeros(epsilon.shape, dtype=np.int64)
    known: dict[int, float] = {}
    for rows in pairs.subject_chunks():
        counts = pairs.release_counts(rows)
        result = _evaluate_counts(pairs, counts, costing, known)
        epsilon[rows] = np.where(pairs.allowed_pairs(threat, rows), result, np.nan)
        releases[rows] = counts.sum(0)
    return epsilon, releases


def worst_by_class(pairs: Pairs, threat: Threat, costing: Costing) -> Floats:
    """Return the epsilon of the worst observer per class of subjects; NaN if there is none."""
    known: dict[int, float] = {}
    worst = np.full(len(pairs), np.nan)
    for rows in pairs.subject_chunks():
        counts, allowed = pairs.release_counts(rows), pairs.allowed_pairs(threat, rows)
        anybody = allowed.any(1)
        # Epsilon grows with the count: only the largest of each row is needed.
        if len(pairs.events) == 1:
            counts = np.where(allowed, counts[0], 0).max(1)[None, :, None]
            result = _evaluate_counts(pairs, counts, costing, known)[:, 0]
        else:
            result = np.where(allowed, _evaluate_counts(pairs, counts, costing, known), -np.inf).max(1)
        worst[rows] = np.where(anybody, result, np.nan)
    return worst


def _evaluate_counts(pairs: Pairs, counts: Ints, costing: Costing, known: dict[int, float]) -> Floats:
    """Return epsilon of every vector of counts; equal vectors share a key and are accounted once."""
    base = int(pairs.plan.made[-1]) * pairs.plan.schedule.count + 1
    # Counts become digits of one int64 key; an overflow would merge different compositions and could understate
    # epsilon.
    if base ** len(pairs.events) > 2**62:
        reason = "there are too many combinations of events and epochs to tabulate"
        invalid("events", len(pairs.events), reason, "use fewer different rates and noise factors")
    keys = np.zeros(counts.shape[1:], dtype=np.int64)
    for some in counts:
        keys = keys * base + some
    return map_keys(keys, lambda key: costing.of(pairs, counts_of_key(key, base, len(pairs.events))), known)


def counts_of_key(key: int, base: int, digits: int) -> Ints:
    """Return the counts behind a key.

    >>> counts_of_key(5 * 10 + 7, 10, 2).tolist()
    [5, 7]
    """
    return np.array([key // base ** (digits - 1 - index) % base for index in range(digits)], dtype=np.int64)


def map_keys(keys: Ints, value: Callable[[int], float], known: dict[int, float]) -> Floats:
    """Return `value` of every key, calling it once per distinct key."""
    largest = int(keys.max(initial=0))
    if largest < TABLE:
        present = np.zeros(largest + 1, dtype=bool)
        present[keys] = True
        different = np.flatnonzero(present)
    else:
        different = np.unique(keys)
    for key in different.tolist():
        if key not in known:
            known[key] = value(key)
    values = np.array([known[key] for key in different.tolist()])
    return (
        values[np.searchsorted(different, keys)]
        if largest >= TABLE
        else _lookup_table(different, values, largest)[keys]
    )


def _lookup_table(different: Ints, values: Floats, largest: int) -> Floats:
    table = np.zeros(largest + 1)
    table[different] = values
    return table
