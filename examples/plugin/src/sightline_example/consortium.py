"""A star whose models stay among its members."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sightline.errors import invalid
from sightline.topology import SERVER, Channel, Steady, TopologyPlugin, client_name


@dataclass(frozen=True)
class Consortium(Steady):
    """`clients` clients around one server; nobody else ever sees a model."""

    clients: int
    server_trusted: bool

    @cached_property
    def channels(self) -> tuple[Channel, ...]:
        """One: the server, whose models are seen by every client and itself."""
        members = tuple(range(self.clients))
        return (Channel(SERVER, members, frozenset((*map(client_name, members), SERVER))),)

    @property
    def trusted(self) -> tuple[str, ...]:
        """The server, where it adds the noise."""
        return (SERVER,) if self.server_trusted else ()

    @property
    def observers(self) -> dict[str, str]:
        """The other clients, and the server unless it is trusted."""
        kinds = {"other clients": client_name(0)}
        return kinds if self.server_trusted else {"server": SERVER} | kinds


def build_consortium(
    settings: Mapping[str, Any], *, clients: int, place: str, labels: Any = None, streams: Any = None
) -> Consortium:
    """A consortium has no settings of its own."""
    for key, value in settings.items():
        invalid(f"topology.{key}", value, "a consortium has no such setting", "remove it")
    return Consortium(clients, place == "server")


TOPOLOGY = TopologyPlugin(build_consortium, like="star")
