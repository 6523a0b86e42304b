"""Who is in which group, and when: memberships that hold from one interval to the next change."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sightline.errors import invalid
from sightline.topology.groups_structures import Group

MOST = 10**8
"""Workers that can be counted one by one."""


@dataclass(frozen=True)
class Era:
    """Memberships that hold from the interval `since` (counted from 1) on."""

    since: int
    groups: tuple[Group, ...]


@dataclass(frozen=True)
class Schedule:
    """The memberships of `workers` workers over time, and what is special about single groups.

    Guarantees: the first era begins with interval 1, later ones in increasing order; every era has the same number of
    groups (a group may be empty for a while); every member is a worker, listed once.
    """

    workers: int
    eras: tuple[Era, ...]
    rates: tuple[float, ...] | None = None
    noise_factors: tuple[float, ...] | None = None
    clip_factors: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.workers < 1:
            invalid("workers", self.workers, "there is at least one worker")
        if self.workers > MOST:
            invalid("workers", self.workers, f"at most {MOST:,} workers can be counted")
        if not self.eras or self.eras[0].since != 1:
            invalid("schedule.from", self.eras[0].since if self.eras else "nothing", "memberships begin in interval 1")
        for before, after in pairwise(self.eras):
            if after.since <= before.since:
                invalid("schedule.from", after.since, f"comes after {before.since}", "list the changes in order")
            if len(after.groups) != len(before.groups):
                law = f"every entry lists all {len(before.groups)} groups"
                invalid("schedule.groups", len(after.groups), law, "an empty list is a group without members")
        for era in self.eras:
            self._check_era(era)
        self._check_factors()

    def _check_era(self, era: Era) -> None:
        if not any(era.groups):
            invalid("groups", "[]", "there is at least one group with a member")
        for number, group in enumerate(era.groups):
            wrong = [n for n in group if not 0 <= n < self.workers]
            if wrong:
                invalid(f"groups[{number}]", wrong[0], f"workers are numbered 0 to {self.workers - 1}")
            if len(set(group)) != len(group):
                invalid(f"groups[{number}]", list(group), "a worker is listed once")

    def _check_factors(self) -> None:
        for name, most in (("rates", 1.0), ("noise_factors", 1e6), ("clip_factors", 1e6)):
            given: tuple[float, ...] | None = getattr(self, name)
            if given is not None and len(given) != self.count:
                invalid(name, list(given), f"one number for each of the {self.count} groups")
            for value in given or ():
                if not 0 < value <= most:
                    invalid(name, value, f"lies in (0, {most:g}]")

    @property
    def count(self) -> int:
        """How many groups there are."""
        return len(self.eras[0].groups)

    def era_of(self, interval: int) -> Era:
        """The memberships of an interval."""
        return next(era for era in reversed(self.eras) if era.since <= interval)

    @cached_property
    def membership(self) -> NDArray[np.bool_]:
        """(eras, workers, groups): who is in what."""
        found = np.zeros((len(self.eras), self.workers, self.count), dtype=bool)
        for place, era in enumerate(self.eras):
            for number, group in enumerate(era.groups):
                found[place, list(group), number] = True
        return found

    @cached_property
    def classes(self) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Workers whose memberships are equal at all times are one class: (classes, eras, groups), worker -> class."""
        rows = self.membership.transpose(1, 0, 2).reshape(self.workers, -1)
        packed = np.packbits(rows, axis=1)
        _, first, inverse = np.unique(packed, axis=0, return_index=True, return_inverse=True)
        order = np.argsort(first)
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        shape = (len(order), len(self.eras), self.count)
        return rows[first[order]].reshape(shape), place[inverse.reshape(-1)]

    def classes_together(self) -> NDArray[np.bool_]:
        """(classes, classes): whether two classes share a group in every era. Whoever was ever outside is outside."""
        kinds, _ = self.classes
        together = np.ones((len(kinds), len(kinds)), dtype=bool)
        for era in range(len(self.eras)):
            member = kinds[:, era, :].astype(np.float32)
            together &= (member @ member.T) > 0
        return together


def constant_schedule(workers: int, groups: Sequence[Group]) -> Schedule:
    """Memberships that never change."""
    return Schedule(workers, (Era(1, tuple(groups)),))
