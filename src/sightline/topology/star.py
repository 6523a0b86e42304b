"""A server and its clients: everybody receives the models that the server publishes."""

from dataclasses import dataclass

SERVER = "server"
PUBLIC = "public"


def client_name(number: int) -> str:
    """The name by which a client stands in the ledger."""
    return f"client-{number}"


@dataclass(frozen=True)
class Star:
    """`clients` clients around one server, which is trusted with raw updates or not."""

    clients: int
    server_trusted: bool

    @property
    def names(self) -> tuple[str, ...]:
        """The clients' names, by number."""
        return tuple(client_name(number) for number in range(self.clients))

    @property
    def everyone(self) -> frozenset[str]:
        """Who sees a published model: every client, the public, and the server."""
        return frozenset((*self.names, PUBLIC, SERVER))

    @property
    def trusted(self) -> tuple[str, ...]:
        """Who is handed un-noised values."""
        return (SERVER,) if self.server_trusted else ()

    @property
    def observers(self) -> dict[str, str]:
        """The kinds of untrusted observers, each with one that stands for all of its kind (their views are equal)."""
        kinds = {"other clients": client_name(0), "public": PUBLIC}
        return kinds if self.server_trusted else {"server": SERVER} | kinds
