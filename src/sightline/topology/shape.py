"""Checks for plugin topologies: every party that sees a release is an observer, and trust is declared."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sightline.errors import invalid, refuse
from sightline.topology.channel import PUBLIC, Channel, Topology, client_name, participants_of

# Algorithms may treat a plugin as a star only: the other built-in kinds have structure that is not checked here.
LIKE = ("", "star")
# A function of the round cannot be checked for all rounds; a sample finds most mistakes.
FIRST_ROUNDS = range(1, 9)
WAY_OUT = "sightline.testing.check_topology tells its author more"


@dataclass(frozen=True)
class TopologyPlugin:
    """A topology of another package."""

    build: Callable[..., Topology]
    """(settings, *, clients, place, labels, streams) -> the topology."""
    like: str = ""
    """"star": algorithms that run on a star run on this too, and its shape is checked. Otherwise an algorithm must name
    it.
    """


def check_shape(kind: str, topology: Topology, *, clients: int, place: str, like: str = "") -> None:
    """Raise for a topology under which some party would see more than its lines of sight say.

    Guarantees: every channel has existing members, once each; a party that gathers, or is sent what was gathered, is in
    its audience; exactly the parties that receive un-noised updates are trusted; if clients add the noise, no party is;
    an observer that sees something and is not trusted is covered by a line, against every subject but itself, and the
    observer of every line sees something; a topology `like` a star has the shape of one. Whether the declared
    communication is the real one, only its author knows.
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
    """Return all distinct channels: one party may gather for two audiences."""
    return list(dict.fromkeys((*topology.channels, *topology.gathers, topology.top)))


def _false_trust(topology: Topology, channels: list[Channel]) -> Iterator[str]:
    """Yield undeclared trust, and trust in a party that receives nothing."""
    # A trusted party has no line of sight, so trust without a reason would hide an observer.
    handed = frozenset[str]().union(*(channel.through for channel in channels))
    handed |= {channel.name for channel in channels if channel.trusted}
    for name in sorted(handed - set(topology.trusted)):
        yield f"{name} is handed un-noised updates, and it does not say that {name} is trusted"
    for name in sorted(set(topology.trusted) - handed - {channel.name for channel in channels}):
        yield f"it trusts {name}, to whom nothing is handed"


def _blind_observers(topology: Topology, channels: list[Channel], clients: int) -> Iterator[str]:
    """Yield parties that the ledger would charge with nothing, and lines whose epsilon would be 0 for that reason."""
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
    """Yield untrusted parties that see channels which no line's observer sees together."""
    views: dict[frozenset[str], list[str]] = {}
    for name in sorted(participants_of(topology, clients) - set(topology.trusted)):
        views.setdefault(_view_of(name, channels), []).append(name)
    lines = [(line, _view_of(line.observer, channels)) for some in topology.lines.values() for line in some]
    for view, who in views.items():
        covering = [line for line, seen in lines if view <= seen]
        if view and not covering:
            yield f"{who[0]} sees {', '.join(sorted(view))}, and no line of sight does"
            continue
        # A subject exempt from every covering line would be protected by no guarantee against this observer.
        exempt = frozenset.intersection(*(line.exempt for line in covering)) if covering else frozenset()
        for subject in sorted(exempt):
            if any(observer != subject for observer in who):
                yield f"{next(o for o in who if o != subject)} sees {subject}, who is exempt from every such line"


def _view_of(name: str, channels: list[Channel]) -> frozenset[str]:
    """Return the channels whose publications or inputs a party sees; two channels of one name are distinct."""
    return frozenset(
        f"{c.name} ({place})" if any(other.name == c.name for other in channels[:place]) else c.name
        for place, c in enumerate(channels)
        if name in c.audience or name in c.through
    )


def _is_star(topology: Topology, clients: int) -> bool:
    alone = topology.channels == topology.gathers == (topology.top,) and not topology.uplinks and topology.steady
    plain = (topology.top.rate, topology.top.noise_factor, topology.top.clip_factor) == (None, 1.0, 1.0)
    return alone and plain and topology.top.members == tuple(range(clients))
