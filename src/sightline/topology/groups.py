"""Overlapping groups: their structures, memberships over time, and what each worker sees."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.errors import did_you_mean, invalid
from sightline.formatting import read_text
from sightline.randomness import Streams
from sightline.topology.channel import Channel, Line, client_name

Group = tuple[int, ...]


def one_for_all(workers: int) -> tuple[Group, ...]:
    """Return a single group of all workers: ordinary federated averaging."""
    return (tuple(range(workers)),)


def cluster_groups(workers: int, groups: int) -> tuple[Group, ...]:
    """Return disjoint groups of consecutive workers, equal in size up to one.

    >>> cluster_groups(6, 3)
    ((0, 1), (2, 3), (4, 5))
    """
    edges = _shared_edges(workers, groups, "clusters")
    return tuple(tuple(range(low, high)) for low, high in pairwise(edges))


def ring_groups(workers: int, groups: int) -> tuple[Group, ...]:
    """Return group m = workers {m N/M .. (m+1) N/M} mod N: neighbours share exactly one worker (two for a ring of two).

    >>> ring_groups(6, 3)
    ((0, 1, 2), (2, 3, 4), (0, 4, 5))
    """
    edges = _shared_edges(workers, groups, "ring")
    wrapped = (sorted({n % workers for n in range(low, high + 1)}) for low, high in pairwise(edges))
    return tuple(tuple(group) for group in wrapped)


def string_groups(workers: int, groups: int) -> tuple[Group, ...]:
    """Return the ring without the wrap-around.

    >>> string_groups(3, 2)
    ((0, 1), (1, 2))
    """
    edges = _shared_edges(workers, groups, "string")
    return tuple(tuple(range(low, min(high + 1, workers))) for low, high in pairwise(edges))


def by_labels(held: Sequence[frozenset[int]], groups: int) -> tuple[Group, ...]:
    """Return groups by label: a worker that holds label y is in group y mod M.

    >>> by_labels([frozenset({0, 1}), frozenset({2})], 2)
    ((0, 1), (0,))
    """
    # Membership then depends on private labels; the topology carries a note that says so.
    if groups < 1:
        invalid("topology.groups", groups, "at least one group is needed")
    return tuple(
        tuple(n for n, labels in enumerate(held) if any(label % groups == group for label in labels))
        for group in range(groups)
    )


def _shared_edges(workers: int, groups: int, structure: str) -> list[int]:
    if not 1 <= groups <= workers:
        invalid("groups", groups, f"a {structure} of {workers} workers can have 1 to {workers} groups")
    return [group * workers // groups for group in range(groups + 1)]


# Structures that follow from the numbers of workers and groups alone.
STRUCTURES = {
    "global": lambda workers, groups: one_for_all(workers),
    "clusters": cluster_groups,
    "ring": ring_groups,
    "string": string_groups,
}


# More workers cannot be enumerated one by one in memory.
MOST = 10**8


@dataclass(frozen=True)
class Era:
    """Memberships that hold from the interval `since` (counted from 1) on."""

    since: int
    groups: tuple[Group, ...]


@dataclass(frozen=True)
class Memberships:
    """The memberships of `workers` workers over time, and rates and factors of single groups.

    Guarantees: the first era begins with interval 1, later ones in increasing order; every era has the same number of
    groups (a group may be empty for a while); every member is a worker, listed once.
    """

    workers: int
    eras: tuple[Era, ...]
    # Rates are absolute. Noise and clip factors multiply the experiment's values, so that calibration still searches
    # over one number and every event scales with it.
    rates: tuple[float, ...] | None = None
    noise_factors: tuple[float, ...] | None = None
    clip_factors: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.workers < 1:
            invalid("workers", self.workers, "at least one worker is needed")
        if self.workers > MOST:
            invalid("workers", self.workers, f"at most {MOST:,} workers are supported")
        if not self.eras or self.eras[0].since != 1:
            invalid(
                "schedule.from",
                self.eras[0].since if self.eras else "nothing",
                "memberships must begin with interval 1",
            )
        for before, after in pairwise(self.eras):
            if after.since <= before.since:
                invalid("schedule.from", after.since, f"must be later than {before.since}", "list the changes in order")
            if len(after.groups) != len(before.groups):
                reason = f"every entry must list all {len(before.groups)} groups"
                invalid("schedule.groups", len(after.groups), reason, "give an empty list for a group without members")
        for era in self.eras:
            self._check_era(era)
        self._check_factors()

    def _check_era(self, era: Era) -> None:
        if not any(era.groups):
            invalid("groups", "[]", "at least one group needs a member")
        for number, group in enumerate(era.groups):
            wrong = [n for n in group if not 0 <= n < self.workers]
            if wrong:
                invalid(f"groups[{number}]", wrong[0], f"workers are numbered 0 to {self.workers - 1}")
            if len(set(group)) != len(group):
                invalid(f"groups[{number}]", list(group), "a worker is listed twice")

    def _check_factors(self) -> None:
        for name, most in (("rates", 1.0), ("noise_factors", 1e6), ("clip_factors", 1e6)):
            given: tuple[float, ...] | None = getattr(self, name)
            if given is not None and len(given) != self.count:
                invalid(name, list(given), f"must have one number for each of the {self.count} groups")
            for value in given or ():
                if not 0 < value <= most:
                    invalid(name, value, f"must lie in (0, {most:g}]")

    @property
    def count(self) -> int:
        """Return the number of groups."""
        return len(self.eras[0].groups)

    def era_of(self, interval: int) -> Era:
        """Return the memberships of an interval."""
        return next(era for era in reversed(self.eras) if era.since <= interval)

    @cached_property
    def membership(self) -> NDArray[np.bool_]:
        """Return who is in which group, shape (eras, workers, groups)."""
        result = np.zeros((len(self.eras), self.workers, self.count), dtype=bool)
        for index, era in enumerate(self.eras):
            for number, group in enumerate(era.groups):
                result[index, list(group), number] = True
        return result

    @cached_property
    def classes(self) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Return memberships by class, shape (classes, eras, groups), and each worker's class.

        Workers with equal memberships at all times are one class.
        """
        rows = self.membership.transpose(1, 0, 2).reshape(self.workers, -1)
        packed = np.packbits(rows, axis=1)
        _, first, inverse = np.unique(packed, axis=0, return_index=True, return_inverse=True)
        # Number the classes by their first worker, not in the sort order of packed bits.
        order = np.argsort(first)
        index = np.empty_like(order)
        index[order] = np.arange(len(order))
        shape = (len(order), len(self.eras), self.count)
        return rows[first[order]].reshape(shape), index[inverse.reshape(-1)]

    def classes_together(self) -> NDArray[np.bool_]:
        """Return whether two classes share a group in every era, shape (classes, classes)."""
        kinds, _ = self.classes
        # A worker that was outside in any era counts as an outsider, which can only raise epsilon.
        together = np.ones((len(kinds), len(kinds)), dtype=bool)
        for era in range(len(self.eras)):
            member = kinds[:, era, :].astype(np.float32)
            together &= (member @ member.T) > 0
        return together


def constant_memberships(workers: int, groups: Sequence[Group]) -> Memberships:
    """Return memberships that never change."""
    return Memberships(workers, (Era(1, tuple(groups)),))


FILE_KEYS = ["workers", "groups", "schedule", "rates", "noise_factors", "clip_factors"]
EXAMPLE = 'e.g. {"workers": 3, "groups": [[0, 1], [1, 2]]}'


def read_memberships(path: Path | str) -> Memberships:
    """Return the schedule of a membership file. Raises with one line for anything malformed."""
    try:
        plain = json.loads(read_text(path))
    except FileNotFoundError:
        invalid("membership", path, "no such file", EXAMPLE)
    except (OSError, ValueError, RecursionError) as error:
        invalid("membership", path, f"cannot be read as JSON ({type(error).__name__})", EXAMPLE)
    return memberships_from(plain)


def memberships_from(plain: Any) -> Memberships:
    """Return the schedule of a plain dictionary. Raises for unknown keys and malformed values."""
    if not isinstance(plain, dict) or not {"workers", "groups"} <= set(plain):
        invalid("membership", type(plain).__name__, 'must be an object with "workers" and "groups"', EXAMPLE)
    for key in plain:
        if key not in FILE_KEYS:
            invalid(f"membership.{key}", plain[key], "unknown key", did_you_mean(key, FILE_KEYS))
    return Memberships(
        _read_whole("workers", plain["workers"]),
        (
            Era(1, _read_groups(plain["groups"])),
            *(_read_era(entry) for entry in _read_list("schedule", plain.get("schedule", []))),
        ),
        rates=read_numbers("rates", plain.get("rates")),
        noise_factors=read_numbers("noise_factors", plain.get("noise_factors")),
        clip_factors=read_numbers("clip_factors", plain.get("clip_factors")),
    )


def read_numbers(name: str, value: Any) -> tuple[float, ...] | None:
    """Return a list of numbers as floats; None stays None. Raises for anything else."""
    if value is None:
        return None
    result = _read_list(name, value)
    if any(isinstance(v, bool) or not isinstance(v, int | float) for v in result):
        invalid(name, value, "must be a list of numbers, one for each group")
    try:
        return tuple(float(v) for v in result)
    except OverflowError:
        invalid(name, value, "contains a number that is too large")


def _read_era(entry: Any) -> Era:
    if not isinstance(entry, dict) or set(entry) != {"from", "groups"}:
        invalid(
            "schedule", entry, 'must be an object with "from" and "groups"', 'e.g. {"from": 3, "groups": [[0], [1, 2]]}'
        )
    return Era(_read_whole("schedule.from", entry["from"]), _read_groups(entry["groups"]))


def _read_groups(value: Any) -> tuple[Group, ...]:
    return tuple(
        tuple(sorted(_read_whole("groups", n) for n in _read_list("groups", group)))
        for group in _read_list("groups", value)
    )


def _read_list(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        invalid(name, value, "must be a list", EXAMPLE)
    return value


def _read_whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        invalid(name, value, "must be a whole number", EXAMPLE)
    return value


EVERYONE = "other workers"
OUT_OF_GROUP = "out-of-group workers"

PUBLIC_LABELS = (
    'Groups follow the labels that workers hold (structure = "labels"): membership is treated as public and is not '
    "covered by the guarantee."
)

KEYS = ["structure", "groups", "period", "file", "label_share", "rates", "noise_factors", "clip_factors"]

Labels = Callable[[float], Sequence[frozenset[int]]]
"""Maps a least share to the labels that each worker holds in more than that share of its examples."""


@dataclass(frozen=True)
class Groups:
    """Workers in groups. Members see every model of their groups; masters gather, and are trusted or not.

    Guarantees: what a group publishes is seen by its members at that time and by its master, and by no one else.
    """

    schedule: Memberships
    period: int
    masters_trusted: bool
    notes: tuple[str, ...] = ()

    compares_channels = True

    def trusted_clause(self, names: str) -> str:
        """Return a clause for all masters together."""
        return "The groups' masters are trusted: they receive"

    @property
    def uplinks(self) -> tuple[tuple[str, ...], ...]:
        """Return no uplinks: there is no server above the groups."""
        return ()

    def __post_init__(self) -> None:
        if self.period < 1:
            invalid("topology.period", self.period, "must be a whole number of epochs >= 1")

    @property
    def steady(self) -> bool:
        """Return whether memberships never change."""
        return len(self.schedule.eras) == 1

    @property
    def channels(self) -> tuple[Channel, ...]:
        """Return the groups of the first epoch."""
        return self.channels_at(1)

    @property
    def top(self) -> Channel:
        """Return the first group: nothing is above the groups, and their algorithms name the group they mean."""
        return self.channels[0]

    @property
    def gathering_channels(self) -> tuple[Channel, ...]:
        """Return the first group."""
        return (self.top,)

    def channels_at(self, time: int) -> tuple[Channel, ...]:
        """Return the groups that have members in an epoch."""
        return self._of_era[self.schedule.era_of((time - 1) // self.period + 1).since]

    @cached_property
    def _of_era(self) -> dict[int, tuple[Channel, ...]]:
        return {
            era.since: tuple(self._make_channel(number, group) for number, group in enumerate(era.groups) if group)
            for era in self.schedule.eras
        }

    def _make_channel(self, number: int, members: tuple[int, ...]) -> Channel:
        plan = self.schedule
        name = group_name(number)
        return Channel(
            name,
            members,
            frozenset((*map(client_name, members), name)),
            rate=plan.rates[number] if plan.rates else None,
            noise_factor=plan.noise_factors[number] if plan.noise_factors else 1.0,
            clip_factor=plan.clip_factors[number] if plan.clip_factors else 1.0,
        )

    @property
    def masters(self) -> tuple[str, ...]:
        """Return the master of every group."""
        return tuple(group_name(number) for number in range(self.schedule.count))

    @property
    def trusted(self) -> tuple[str, ...]:
        """Return the masters if they receive un-noised updates."""
        return self.masters if self.masters_trusted else ()

    @property
    def observers(self) -> dict[str, str]:
        """Return each kind with its first observer; views differ, see `lines`."""
        return {kind: lines[0].observer for kind, lines in self.lines.items()}

    @cached_property
    def lines(self) -> dict[str, tuple[Line, ...]]:
        """Return the lines of sight by class of equal memberships."""
        # A worker is not its own observer, and group mates are not outsiders. The first member of a class stands for
        # all its observers; the second is needed because the first is exempt from its own line.
        kinds, class_of = self.schedule.classes
        names = np.array([client_name(n) for n in range(self.schedule.workers)])
        together = self.schedule.classes_together()
        everyone, outside = [], []
        for number in range(len(kinds)):
            mates = frozenset(names[together[number][class_of]].tolist())
            for observer in names[np.flatnonzero(class_of == number)[:2]].tolist():
                everyone.append(Line(observer, frozenset({observer})))
                outside.append(Line(observer, mates | {observer}))
        result = {EVERYONE: tuple(everyone)} if self.schedule.workers > 1 else {}
        # A line that exempts every worker has no subject; its epsilon of 0 would say nothing.
        left = tuple(line for line in outside if len(line.exempt) < self.schedule.workers)
        result |= {OUT_OF_GROUP: left} if left else {}
        return result if self.masters_trusted else result | {"masters": tuple(map(Line, self.masters))}


def group_name(number: int) -> str:
    """Return the name of a group's master in the ledger."""
    return f"group-{number}"


def build_groups(
    settings: Mapping[str, Any],
    *,
    clients: int,
    place: str,
    labels: Labels | None = None,
    streams: Streams | None = None,
) -> Groups:
    """Return the groups of `[topology]`: structure, groups, period, file, label_share, rates and factors."""
    for key, value in settings.items():
        if key not in KEYS:
            invalid(f"topology.{key}", value, 'unknown setting of kind = "groups"', did_you_mean(key, KEYS))
    schedule = _build_memberships(settings, clients, labels)
    if schedule.workers != clients:
        invalid("topology.file", settings.get("file"), f"is for {schedule.workers} workers, but data.clients={clients}")
    schedule = replace(
        schedule,
        rates=read_numbers("rates", settings.get("rates")) or schedule.rates,
        noise_factors=read_numbers("noise_factors", settings.get("noise_factors")) or schedule.noise_factors,
        clip_factors=read_numbers("clip_factors", settings.get("clip_factors")) or schedule.clip_factors,
    )
    notes = (PUBLIC_LABELS,) if settings.get("structure") == "labels" else ()
    return Groups(schedule, _read_count(settings, "period", 1), place == "server", notes)


def _build_memberships(settings: Mapping[str, Any], clients: int, labels: Labels | None) -> Memberships:
    structure, file = settings.get("structure"), settings.get("file")
    if (structure is None) == (file is None):
        reason = "give exactly one of structure and file"
        invalid("topology.structure", structure or "missing", reason, 'e.g. structure = "ring"')
    if file is not None:
        return read_memberships(file)
    if structure == "labels":
        if labels is None:
            invalid("topology.structure", structure, "no labels are known here", "give a membership file")
        return constant_memberships(
            clients, by_labels(labels(_read_share(settings)), _read_count(settings, "groups", 1))
        )
    if str(structure) not in STRUCTURES:
        known = [*STRUCTURES, "labels"]
        invalid("topology.structure", structure, "unknown structure", did_you_mean(str(structure), known))
    return constant_memberships(clients, STRUCTURES[str(structure)](clients, _read_count(settings, "groups", 1)))


def _read_share(settings: Mapping[str, Any]) -> float:
    value = settings.get("label_share", 0.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        invalid(
            "topology.label_share",
            value,
            "a share must lie in [0, 1)",
            "use 0 to count every label that a worker holds",
        )
    return float(value)


def _read_count(settings: Mapping[str, Any], key: str, otherwise: int) -> int:
    value = settings.get(key, otherwise)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        invalid(f"topology.{key}", value, "must be a whole number >= 1")
    return value
