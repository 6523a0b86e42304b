"""A channel: one party that gathers updates from its members and publishes to its audience; the star topology."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from typing_extensions import override


@dataclass(frozen=True)
class Channel:
    """A party that sums what its members send: a server, an edge server, a group master."""

    name: str
    members: tuple[int, ...]
    """The clients that may take part."""
    audience: frozenset[str]
    """The parties that see what it publishes."""
    rate: float | None = None
    """Its own participation rate, if it differs from the experiment's."""
    noise_factor: float = 1.0
    """Its noise multiplier over the experiment's."""
    clip_factor: float = 1.0
    """Its clip norm over the experiment's."""
    trusted: bool = False
    """Whether its owner receives un-noised updates and adds the noise, where trust decides that."""
    through: frozenset[str] = frozenset()
    """The trusted parties that un-noised updates pass on their way to the owner."""
    above: frozenset[str] = frozenset()
    """The servers between it and everyone: a tree's edge has its regions and the cloud above it."""

    @cached_property
    def subjects(self) -> frozenset[str]:
        """Return the members' names in the ledger."""
        # Cached: one set serves all rounds, and a million names are not made twice.
        return frozenset(client_name(member) for member in self.members)

    @cached_property
    def _named(self) -> dict[tuple[int, ...], frozenset[str]]:
        return {}

    def name_places(self, indices: tuple[int, ...]) -> frozenset[str]:
        """Return the names of the members at these indices; cached, one set for every turn of a group."""
        if indices not in self._named:
            self._named[indices] = frozenset(client_name(self.members[index]) for index in indices)
        return self._named[indices]


@dataclass(frozen=True)
class Line:
    """A line of sight: an observer, and the exempt subjects (itself, or those it may see)."""

    observer: str
    exempt: frozenset[str] = frozenset()


class Topology(Protocol):
    """Who talks to whom, who sees what, who is trusted."""

    @property
    def channels(self) -> tuple[Channel, ...]:
        """Return every channel, in a fixed order."""

    @property
    def top(self) -> Channel:
        """Return the channel that publishes the common model of all clients."""

    @property
    def gathering_channels(self) -> tuple[Channel, ...]:
        """Return the channels through which a round of all clients reaches the top; the top itself if alone."""

    @property
    def trusted(self) -> tuple[str, ...]:
        """Return the parties that receive un-noised values."""

    @property
    def uplinks(self) -> tuple[tuple[str, ...], ...]:
        """Return the nodes that send on what they gathered, level by level to the top; empty if there are none."""

    @property
    def observers(self) -> dict[str, str]:
        """Return the kinds of untrusted observers, each with one representative."""

    @property
    def lines(self) -> dict[str, tuple[Line, ...]]:
        """Return the lines of sight of every kind; the guarantee of a kind is the worst over its lines."""

    @property
    def period(self) -> int:
        """Return the rounds from one exchange between channels to the next."""

    @property
    def steady(self) -> bool:
        """Return whether the members of every channel stay the same for the whole run."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what a reader must know to trust the guarantee."""

    @property
    def compares_channels(self) -> bool:
        """Return whether personal models are also evaluated per channel, to show how unequally groups are served."""

    def trusted_clause(self, names: str) -> str:
        """Return who is trusted, as the beginning of a sentence about what they receive; `names` are all of them."""

    def channels_at(self, time: int) -> tuple[Channel, ...]:
        """Return the channels that are active in a round."""


class Steady:
    """Base of topologies whose channels never change and whose observers of one kind are all alike."""

    period = 1
    steady = True
    notes: tuple[str, ...] = ()
    compares_channels = False

    def trusted_clause(self, names: str) -> str:
        """Return a clause for the one server."""
        return "The server is trusted: its part is to receive"

    @property
    def channels(self) -> tuple[Channel, ...]:
        """Return every channel, in a fixed order."""
        raise NotImplementedError

    @property
    def top(self) -> Channel:
        """Return the first channel."""
        return self.channels[0]

    @property
    def gathering_channels(self) -> tuple[Channel, ...]:
        """Return the top, which gathers by itself."""
        return (self.top,)

    @property
    def uplinks(self) -> tuple[tuple[str, ...], ...]:
        """Return no uplinks: nothing stands between clients and server."""
        return ()

    @property
    def observers(self) -> dict[str, str]:
        """Return the kinds of untrusted observers, each with one representative."""
        raise NotImplementedError

    @property
    def lines(self) -> dict[str, tuple[Line, ...]]:
        """Return one line per kind: its observers see the same."""
        return {kind: (Line(name),) for kind, name in self.observers.items()}

    def channels_at(self, time: int) -> tuple[Channel, ...]:
        """Return all channels, in every round."""
        return self.channels


def has_one_server(topology: Topology) -> bool:
    """Return whether one server runs the whole program; elsewhere every party runs its own part."""
    return all(channel.name == topology.top.name for channel in (*topology.channels, *topology.gathering_channels))


def participants_of(topology: Topology, clients: int) -> frozenset[str]:
    """Return every name: clients, parties that gather, send on or are trusted, and all observers."""
    channels = (*topology.channels, *topology.gathering_channels, topology.top)
    result = {client_name(number) for number in range(clients)}
    result.update(topology.trusted, *topology.uplinks, (channel.name for channel in channels))
    result.update(*(channel.audience | channel.through for channel in channels))
    result.update(line.observer for lines in topology.lines.values() for line in lines)
    # Reuse an equal audience if there is one: with a million clients a second set of names would double the memory.
    return next((channel.audience for channel in channels if channel.audience == result), frozenset(result))


def client_name(number: int) -> str:
    """Return the name of a client in the ledger."""
    return f"client-{number}"


SERVER = "server"
PUBLIC = "public"


@dataclass(frozen=True)
class Star(Steady):
    """`clients` clients around one server, which is trusted with raw updates or not."""

    clients: int
    server_trusted: bool

    @cached_property
    def channels(self) -> tuple[Channel, ...]:
        """Return the one channel: the server, whose models are seen by every client, the public, and itself."""
        members = tuple(range(self.clients))
        return (Channel(SERVER, members, frozenset((*map(client_name, members), PUBLIC, SERVER))),)

    @property
    def trusted(self) -> tuple[str, ...]:
        """Return the parties that receive un-noised values."""
        return (SERVER,) if self.server_trusted else ()

    @property
    @override
    def observers(self) -> dict[str, str]:
        kinds = {"other clients": client_name(0), "public": PUBLIC}
        return kinds if self.server_trusted else {"server": SERVER} | kinds


@dataclass(frozen=True)
class TopologyPlugin:
    """A topology of another package."""

    build: Callable[..., Topology]
    """(settings, *, clients, place, labels, streams) -> the topology."""
    like: str = ""
    """"star": algorithms that run on a star run on this too, and its shape is checked. Otherwise an algorithm must name
    it.
    """
