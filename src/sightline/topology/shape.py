"""The laws of a topology that somebody else brings: nobody who sees something is forgotten or trusted in silence."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sightline.errors import invalid, refuse
from sightline.topology.channel import PUBLIC, Channel, Topology, client_name, participants_of

LIKE = ("", "star")
FIRST_ROUNDS = range(1, 9)
WAY_OUT = "sightline.testing.check_topology tells its author more"


@dataclass(frozen=True)
class TopologyPlugin:
    """A topology of another package."""

    build: Callable[..., Topology]
    """(settings, *, clients, place, labels, streams) -> the topology."""
    like: str = ""
    """"star": algorithms that run on a star run on this too; its shape is checked. Else an algorithm must name it."""


def check_shape(kind: str, topology: Topology, *, clients: int, place: str, like: str = "") -> None:
    """Refuse a topology under which somebody would see more than any of its lines of sight says.

    Guarantees: every channel has members who exist, once each; a party that gathers, or is sent what was gathered, is in
    the audience of it; only parties that are handed un-noised updates are trusted, and all of these are; where clients
    add the noise nobody is; an observer that sees something and is not trusted is covered by a line, against every
    subject but itself, and the observer of every line sees something; a topology that is `like` a star has the shape of
    one. Who talks to whom in truth, only its author knows.
    """
    if like not in LIKE:
        invalid("topology.kind", kind, f"it says that it is like {like!r}", 'use like = "star", or leave it away')
    for law in _broken_laws(topology, clients, place, like):
        refuse("topology.kind", kind, f"breaks a law of topologies: {law}", WAY_OUT)


def _broken_laws(topology: Topology, clients: int, place: str, like: str) -> Iterator[str]:
    channels = _every_channel(topology)
    for channel in channels:
        if len(set(channel.members)) < len(channel.members) or not set(channel.members) <= set(range(clients)):
            yield f"the members of {channel.name} are clients, each of them once"
        if channel.name in {client_name(n) for n in channel.members}:
            yield f"{channel.name} gathers from itself"
        if channel.name == PUBLIC:
            yield f"{PUBLIC} is an outsider, and does not gather"
        if channel.name not in channel.audience:
            yield f"{channel.name} gathers and sees what it publishes, so it is in its own audience"
        if any(other.name == channel.name and other.members != channel.members for other in channels):
            yield f"two channels of one name, {channel.name}, have the same members"
        if channel.noise_factor <= 0 or channel.clip_factor <= 0:
            yield f"noise and clip factor of {channel.name} are positive"
    if place not in ("server", "edge") and (topology.trusted or any(channel.trusted for channel in channels)):
        yield f'where = "{place}" trusts nobody, and it trusts {", ".join(topology.trusted) or "a channel"}'
    if not topology.steady or any(set(topology.channels_at(time)) - set(topology.channels) for time in FIRST_ROUNDS):
        yield "channels and their members stay the same for the whole run"
    if not topology.lines or not all(topology.lines.values()):
        yield "it has lines of sight, and at least one of every kind"
    yield from _false_trust(topology, channels)
    yield from _unseen_observers(topology, channels, clients)
    yield from _blind_observers(topology, channels, clients)
    if like == "star" and not _is_star(topology, clients):
        yield "like a star: one channel that gathers from all clients, always, and nobody between"


def _every_channel(topology: Topology) -> list[Channel]:
    """All that differ: one party may gather for two audiences."""
    return list(dict.fromkeys((*topology.channels, *topology.gathers, topology.top)))


def _false_trust(topology: Topology, channels: list[Channel]) -> Iterator[str]:
    """Trust that is not declared, or in a party that is handed nothing: it would have no line of sight."""
    handed = frozenset[str]().union(*(channel.through for channel in channels))
    handed |= {channel.name for channel in channels if channel.trusted}
    for name in sorted(handed - set(topology.trusted)):
        yield f"{name} is handed un-noised updates, and it does not say that {name} is trusted"
    for name in sorted(set(topology.trusted) - handed - {channel.name for channel in channels}):
        yield f"it trusts {name}, to whom nothing is handed"


def _blind_observers(topology: Topology, channels: list[Channel], clients: int) -> Iterator[str]:
    """Parties that the ledger would charge with nothing, and lines whose epsilon would be 0 for that reason."""
    known = {client_name(number) for number in range(clients)}
    names = participants_of(topology, clients) - known
    for name in sorted(name for name in names if re.fullmatch(r"client-\d+", name)):
        yield f"{name} is not one of its {clients} clients"
    above = {topology.top.name}.union(*topology.uplinks) - set(topology.trusted)
    for channel in topology.gathers:
        if topology.top.name not in channel.audience | set(topology.trusted):
            yield f"{topology.top.name} is sent what {channel.name} gathers, so it is in the audience of it"
    for name in sorted(name for name in above if not _view_of(name, channels)):
        yield f"{name} sends on what was gathered, and is in no audience"
    kinds = {kind: {line.observer for line in lines} for kind, lines in topology.lines.items()}
    if set(topology.observers) != set(kinds) or any(topology.observers[kind] not in kinds[kind] for kind in kinds):
        yield "every kind of observers has lines, and is named by the observer of one of them"
    for kind, observers in kinds.items():
        for name in sorted(name for name in observers if not _view_of(name, channels)):
            yield f"{name} of {kind!r} is in no audience: its epsilon would be 0"


def _unseen_observers(topology: Topology, channels: list[Channel], clients: int) -> Iterator[str]:
    """Whoever is not trusted and sees channels which no line's observer sees together."""
    views: dict[frozenset[str], list[str]] = {}
    for name in sorted(participants_of(topology, clients) - set(topology.trusted)):
        views.setdefault(_view_of(name, channels), []).append(name)
    lines = [(line, _view_of(line.observer, channels)) for some in topology.lines.values() for line in some]
    for view, who in views.items():
        covering = [line for line, seen in lines if view <= seen]
        if view and not covering:
            yield f"{who[0]} sees {', '.join(sorted(view))}, and no line of sight does"
            continue
        exempt = frozenset.intersection(*(line.exempt for line in covering)) if covering else frozenset()
        for subject in sorted(exempt):
            if any(observer != subject for observer in who):
                yield f"{next(o for o in who if o != subject)} sees {subject}, who is exempt from every such line"


def _view_of(name: str, channels: list[Channel]) -> frozenset[str]:
    """The channels of which somebody sees what they publish, or what is sent to them; two of a name are two."""
    return frozenset(
        f"{c.name} ({place})" if any(other.name == c.name for other in channels[:place]) else c.name
        for place, c in enumerate(channels)
        if name in c.audience or name in c.through
    )


def _is_star(topology: Topology, clients: int) -> bool:
    alone = topology.channels == topology.gathers == (topology.top,) and not topology.uplinks and topology.steady
    plain = (topology.top.rate, topology.top.noise_factor, topology.top.clip_factor) == (None, 1.0, 1.0)
    return alone and plain and topology.top.members == tuple(range(clients))
