"""A channel: one party that gathers updates from its members and publishes to its audience."""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol


@dataclass(frozen=True)
class Channel:
    """A server, an edge server, a group master: whoever sums what its members send."""

    name: str
    members: tuple[int, ...]
    """The clients that may take part."""
    audience: frozenset[str]
    """Who sees what it publishes."""
    rate: float | None = None
    """Its own participation rate, where it differs from the experiment's."""
    noise_factor: float = 1.0
    """Its noise multiplier over the experiment's."""
    clip_factor: float = 1.0
    """Its clip norm over the experiment's."""
    trusted: bool = False
    """Whether its owner is handed un-noised updates and adds the noise, where trust decides who does."""
    through: frozenset[str] = frozenset()
    """The trusted parties that un-noised updates pass on their way to the owner."""

    @cached_property
    def subjects(self) -> frozenset[str]:
        """The members by their names in the ledger: one set for all rounds, a million names are not made twice."""
        return frozenset(client_name(member) for member in self.members)

    @cached_property
    def _named(self) -> dict[tuple[int, ...], frozenset[str]]:
        return {}

    def name_places(self, places: tuple[int, ...]) -> frozenset[str]:
        """The members at some places by their names: one set for every turn of a group."""
        if places not in self._named:
            self._named[places] = frozenset(client_name(self.members[place]) for place in places)
        return self._named[places]


@dataclass(frozen=True)
class Line:
    """A line of sight: an observer, and the subjects that do not count against it (itself, or whom it may see)."""

    observer: str
    exempt: frozenset[str] = frozenset()


class Topology(Protocol):
    """Who talks to whom, who sees what, who is trusted."""

    @property
    def channels(self) -> tuple[Channel, ...]:
        """Every channel, in a fixed order."""

    @property
    def top(self) -> Channel:
        """Who publishes what all clients work on together."""

    @property
    def gathers(self) -> tuple[Channel, ...]:
        """The channels through which a round of all clients reaches the top; the top itself where it gathers alone."""

    @property
    def trusted(self) -> tuple[str, ...]:
        """Who is handed un-noised values."""

    @property
    def uplinks(self) -> tuple[tuple[str, ...], ...]:
        """The nodes that send on what they gathered, level by level to the top; none where the top gathers itself."""

    @property
    def observers(self) -> dict[str, str]:
        """The kinds of untrusted observers, each with one that stands for all of its kind."""

    @property
    def lines(self) -> dict[str, tuple[Line, ...]]:
        """Every kind's lines of sight: the guarantee of a kind is the worst over its lines."""

    @property
    def period(self) -> int:
        """Rounds from one exchange between channels to the next."""

    @property
    def steady(self) -> bool:
        """Whether the members of every channel stay the same for the whole run."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know to trust the guarantee."""

    @property
    def compares_channels(self) -> bool:
        """Whether personal models are also judged channel by channel: how unequally groups are served."""

    def trusted_clause(self, names: str) -> str:
        """Who is trusted, as the beginning of a sentence that goes on with what they receive; `names`: all."""

    def channels_at(self, time: int) -> tuple[Channel, ...]:
        """The channels that are at work in a round."""


class Steady:
    """What most topologies have in common: channels never change, and observers of one kind are all alike."""

    period = 1
    steady = True
    notes: tuple[str, ...] = ()
    compares_channels = False

    def trusted_clause(self, names: str) -> str:
        """The one server."""
        return "The server is trusted: its part is to receive"

    @property
    def channels(self) -> tuple[Channel, ...]:
        """Every channel, in a fixed order."""
        raise NotImplementedError

    @property
    def top(self) -> Channel:
        """The first channel."""
        return self.channels[0]

    @property
    def gathers(self) -> tuple[Channel, ...]:
        """The top gathers by itself."""
        return (self.top,)

    @property
    def uplinks(self) -> tuple[tuple[str, ...], ...]:
        """Nobody stands between."""
        return ()

    @property
    def observers(self) -> dict[str, str]:
        """The kinds of untrusted observers, each with one that stands for all of its kind."""
        raise NotImplementedError

    @property
    def lines(self) -> dict[str, tuple[Line, ...]]:
        """One line a kind: its observers see the same."""
        return {kind: (Line(name),) for kind, name in self.observers.items()}

    def channels_at(self, time: int) -> tuple[Channel, ...]:
        """All of them, always."""
        return self.channels


def participants_of(topology: Topology, clients: int) -> frozenset[str]:
    """Everybody who has a name: the clients, whoever gathers, sends on or is trusted, and all who observe."""
    channels = (*topology.channels, *topology.gathers, topology.top)
    found = {client_name(number) for number in range(clients)}
    found.update(topology.trusted, *topology.uplinks, (channel.name for channel in channels))
    found.update(*(channel.audience | channel.through for channel in channels))
    found.update(line.observer for lines in topology.lines.values() for line in lines)
    return next((channel.audience for channel in channels if channel.audience == found), frozenset(found))


def client_name(number: int) -> str:
    """The name by which a client stands in the ledger."""
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
        """One: the server, whose models are seen by every client, the public, and itself."""
        members = tuple(range(self.clients))
        return (Channel(SERVER, members, frozenset((*map(client_name, members), PUBLIC, SERVER))),)

    @property
    def trusted(self) -> tuple[str, ...]:
        """Who is handed un-noised values."""
        return (SERVER,) if self.server_trusted else ()

    @property
    def observers(self) -> dict[str, str]:
        """The kinds of untrusted observers, each with one that stands for all of its kind (their views are equal)."""
        kinds = {"other clients": client_name(0), "public": PUBLIC}
        return kinds if self.server_trusted else {"server": SERVER} | kinds
