"""Cohorts and updates that algorithms cannot read, and one training shared by the parts of a cohort."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from sightline.errors import Refused
from sightline.mechanisms.samplers import Cohort
from sightline.mechanisms.updates import SharedTraining, Updates
from sightline.plugins import BrokenLaw
from sightline.topology import Channel


def refuse_look(*_: Any) -> NoReturn:
    """Refuse a look at a hidden cohort, with one line that does not depend on it."""
    seen = (
        "members and size of the cohort cannot be read, because epsilon relies on their being hidden; pass the cohort "
        'to r.train and the updates to r.release_mean unchanged, or use sampling.clients.scheme = "full"'
    )
    raise BrokenLaw("an algorithm does not read a hidden cohort", seen)


class Sealed:
    """What an algorithm of another package gets in place of something that tells who was drawn.

    Guarantees: every attribute, comparison, iteration and printed form is refused, always with the same line. The
    round opens it. Python cannot keep malicious code from doing the same.
    """

    def __init__(self, inside: Any, possible: frozenset[int], draws: Sequence[Any]) -> None:
        object.__setattr__(self, "_inside", inside)
        object.__setattr__(self, "_possible", possible)  # all who could have been drawn
        object.__setattr__(self, "_draws", tuple(draws))

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, name) if name.startswith("_") else refuse_look()

    def __bool__(self) -> bool:
        return True

    __len__ = __iter__ = __contains__ = __getitem__ = __repr__ = __eq__ = __hash__ = __reduce__ = refuse_look


class SealedCohort(Sealed, Cohort):
    """A cohort whose members only the round may know."""


class SealedUpdates(Sealed, Updates):
    """The updates of such a cohort."""


def open_sealed(sealed: Sealed) -> tuple[Any, frozenset[int], tuple[Any, ...]]:
    """Return the content, all clients that could have been drawn, and the draws. Only the round may call this."""
    return sealed._inside, sealed._possible, sealed._draws


TOGETHER_FLOATS = 1 << 27
"""Above this many numbers (512 MB) the end vectors of a whole cohort are not kept; parts are trained one by one."""


def share_training(updates: Updates, channels: Sequence[Channel]) -> list[tuple[Updates, Channel]]:
    """Return the updates of each channel's members, bit for bit as if each channel had been trained by itself.

    Guarantees: no client's update is in two parts, so no noise is used twice; every part has its own noise.
    """
    if isinstance(updates, SealedUpdates):
        return _share_sealed(updates, channels)
    _check_apart(channels, updates.cohort.members)
    together = updates.worker.nodes is None and len(updates.cohort.members) * updates.worker.dimension
    shared = SharedTraining(updates) if together and together <= TOGETHER_FLOATS else None
    return [(_channel_part(updates, shared, channel, index + 1), channel) for index, channel in enumerate(channels)]


def _share_sealed(updates: SealedUpdates, channels: Sequence[Channel]) -> list[tuple[Updates, Channel]]:
    """Share sealed updates between channels; a refusal does not depend on who was drawn."""
    inside, possible, draws = open_sealed(updates)
    _check_apart(channels, possible)
    parts = share_training(inside, channels)
    return [(SealedUpdates(part, possible & set(channel.members), draws), channel) for part, channel in parts]


def _check_apart(channels: Sequence[Channel], members: Iterable[int]) -> None:
    taken: set[int] = set()
    for channel in channels:
        if taken & set(channel.members):
            raise Refused(
                f"channel={channel.name}: shares a member with another channel; train for each channel separately"
            )
        taken |= set(channel.members)
    if set(members) - taken:
        raise Refused("cohort: some members are in none of the channels; give a channel for each member")


def _channel_part(updates: Updates, shared: SharedTraining | None, channel: Channel, number: int) -> Updates:
    own = frozenset(channel.members)
    members = tuple(member for member in updates.cohort.members if member in own)
    starts = {member: updates.starts[member] for member in members}
    indices = [index for index, member in enumerate(updates.cohort.members) if member in own]
    task = updates.task.select_clients(indices)
    at = replace(updates.at, part=number)
    eligible = frozenset[int]().union(*(updates.behind.get(n, updates.eligible) for n in channel.members))
    return replace(updates, cohort=Cohort(members), starts=starts, shared=shared, task=task, at=at, eligible=eligible)
