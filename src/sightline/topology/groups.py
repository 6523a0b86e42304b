"""Overlapping groups: every group has a master and a model of its own; workers in several groups carry between them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from sightline.errors import did_you_mean, invalid
from sightline.topology.channel import Channel, Line, client_name
from sightline.topology.groups_file import read_numbers, read_schedule
from sightline.topology.groups_schedule import Schedule, constant_schedule
from sightline.topology.groups_structures import STRUCTURES, by_labels

EVERYONE = "other workers"
OUT_OF_GROUP = "out-of-group workers"

PUBLIC_LABELS = (
    'Groups follow the labels that workers hold (structure = "labels"): membership is treated as public and is not '
    "covered by the guarantee."
)

KEYS = ["structure", "groups", "period", "file", "label_share", "rates", "noise_factors", "clip_factors"]

Labels = Callable[[float], Sequence[frozenset[int]]]
"""least share -> the labels that each worker holds in more than that share of its examples."""


@dataclass(frozen=True)
class Groups:
    """Workers in groups. Members see every model of their groups; masters gather, and are trusted or not.

    Guarantees: what a group publishes is seen by those who are its members at that time and by its master, and by
    nobody else.
    """

    schedule: Schedule
    period: int
    masters_trusted: bool
    notes: tuple[str, ...] = ()

    @property
    def uplinks(self) -> tuple[tuple[str, ...], ...]:
        """Nobody is above the groups."""
        return ()

    def __post_init__(self) -> None:
        if self.period < 1:
            invalid("topology.period", self.period, "groups exchange every 1, 2, ... epochs")

    @property
    def steady(self) -> bool:
        """Whether memberships never change."""
        return len(self.schedule.eras) == 1

    @property
    def channels(self) -> tuple[Channel, ...]:
        """The groups as they are at first."""
        return self.channels_at(1)

    @property
    def top(self) -> Channel:
        """The first group: nobody is above the groups, and their algorithms name the group they mean."""
        return self.channels[0]

    @property
    def gathers(self) -> tuple[Channel, ...]:
        """The first group."""
        return (self.top,)

    def channels_at(self, time: int) -> tuple[Channel, ...]:
        """The groups that have members in an epoch."""
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
        """Every group's master."""
        return tuple(group_name(number) for number in range(self.schedule.count))

    @property
    def trusted(self) -> tuple[str, ...]:
        """The masters, where they are handed un-noised updates."""
        return self.masters if self.masters_trusted else ()

    @property
    def observers(self) -> dict[str, str]:
        """Each kind with the first of its observers; views differ, see `lines`."""
        return {kind: lines[0].observer for kind, lines in self.lines.items()}

    @cached_property
    def lines(self) -> dict[str, tuple[Line, ...]]:
        """Lines of sight by class of equal memberships: nobody is its own observer, group-mates are not outsiders.

        The first of a class stands for its observers; the second is there for the first as a subject.
        """
        kinds, class_of = self.schedule.classes
        names = np.array([client_name(n) for n in range(self.schedule.workers)])
        together = self.schedule.classes_together()
        everyone, outside = [], []
        for number in range(len(kinds)):
            mates = frozenset(names[together[number][class_of]].tolist())
            for observer in names[np.flatnonzero(class_of == number)[:2]].tolist():
                everyone.append(Line(observer, frozenset({observer})))
                outside.append(Line(observer, mates | {observer}))
        found = {EVERYONE: tuple(everyone)} if self.schedule.workers > 1 else {}
        left = tuple(line for line in outside if len(line.exempt) < self.schedule.workers)
        found |= {OUT_OF_GROUP: left} if left else {}
        return found if self.masters_trusted else found | {"masters": tuple(map(Line, self.masters))}


def group_name(number: int) -> str:
    """The name of a group's master in the ledger."""
    return f"group-{number}"


def build_groups(
    settings: Mapping[str, Any], *, clients: int, server_trusted: bool, labels: Labels | None = None
) -> Groups:
    """`[topology]` of an experiment file: structure, groups, period, file, label_share, rates and factors."""
    for key, value in settings.items():
        if key not in KEYS:
            invalid(f"topology.{key}", value, "groups have no such setting", did_you_mean(key, KEYS))
    schedule = _build_schedule(settings, clients, labels)
    if schedule.workers != clients:
        invalid("topology.file", settings.get("file"), f"is for {schedule.workers} workers, data.clients={clients}")
    schedule = replace(
        schedule,
        rates=read_numbers("rates", settings.get("rates")) or schedule.rates,
        noise_factors=read_numbers("noise_factors", settings.get("noise_factors")) or schedule.noise_factors,
        clip_factors=read_numbers("clip_factors", settings.get("clip_factors")) or schedule.clip_factors,
    )
    notes = (PUBLIC_LABELS,) if settings.get("structure") == "labels" else ()
    return Groups(schedule, _read_count(settings, "period", 1), server_trusted, notes)


def _build_schedule(settings: Mapping[str, Any], clients: int, labels: Labels | None) -> Schedule:
    structure, file = settings.get("structure"), settings.get("file")
    if (structure is None) == (file is None):
        law = "one of structure and file says who is in which group"
        invalid("topology.structure", structure or "missing", law, 'e.g. structure = "ring"')
    if file is not None:
        return read_schedule(file)
    if structure == "labels":
        if labels is None:
            invalid("topology.structure", structure, "nobody's labels are known here", "give a membership file")
        return constant_schedule(clients, by_labels(labels(_read_share(settings)), _read_count(settings, "groups", 1)))
    if str(structure) not in STRUCTURES:
        known = [*STRUCTURES, "labels"]
        invalid("topology.structure", structure, "no such structure", did_you_mean(str(structure), known))
    return constant_schedule(clients, STRUCTURES[str(structure)](clients, _read_count(settings, "groups", 1)))


def _read_share(settings: Mapping[str, Any]) -> float:
    value = settings.get("label_share", 0.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        invalid("topology.label_share", value, "a share lies in [0, 1)", "0 counts every label that is held at all")
    return float(value)


def _read_count(settings: Mapping[str, Any], key: str, otherwise: int) -> int:
    value = settings.get(key, otherwise)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        invalid(f"topology.{key}", value, "is a whole number from 1")
    return value
