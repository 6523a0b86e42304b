"""A channel: one party that gathers updates from its members and publishes to its audience."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Channel:
    """A server, an edge server, a group master: whoever sums what its members send."""

    name: str
    members: tuple[int, ...]
    """The clients that may take part."""
    audience: frozenset[str]
    """Who sees what it publishes."""

    @property
    def subjects(self) -> frozenset[str]:
        """The members by their names in the ledger."""
        return frozenset(client_name(member) for member in self.members)


class Topology(Protocol):
    """Who talks to whom, who sees what, who is trusted."""

    @property
    def channels(self) -> tuple[Channel, ...]:
        """Every channel, in a fixed order; an algorithm that does not choose uses the first."""

    @property
    def trusted(self) -> tuple[str, ...]:
        """Who is handed un-noised values."""

    @property
    def observers(self) -> dict[str, str]:
        """The kinds of untrusted observers, each with one that stands for all of its kind."""


def client_name(number: int) -> str:
    """The name by which a client stands in the ledger."""
    return f"client-{number}"
