"""A server and its clients: everybody receives the models that the server publishes."""

from dataclasses import dataclass
from functools import cached_property

from sightline.topology.channel import Channel, Steady, client_name

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
