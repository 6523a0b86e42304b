"""Clusters: one server, one model per cluster, and clients that see the models of the clusters they have been in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from sightline.errors import did_you_mean, invalid
from sightline.randomness import Streams
from sightline.topology.channel import PUBLIC, SERVER, Channel, Line, Steady, client_name
from sightline.topology.groups import Labels

SAME = "clients of the same cluster"
ELSEWHERE = "clients of other clusters"
AUTO = "auto"

KEYS = ["count"]


@dataclass(frozen=True)
class Clusters(Steady):
    """Everybody sends to one server, which keeps a model per cluster and is trusted with raw updates or not.

    Until clusters are known everybody is in one. What a cluster publishes is seen by the server, the public and those
    who are in it then; `alike` numbers clients so that equal numbers have been in equal clusters at all times and
    therefore have equal views.
    """

    steady = False

    clients: int
    count: int | None
    """How many clusters; None where the algorithm finds out."""
    server_trusted: bool
    cluster_of: tuple[int, ...] = ()
    alike: tuple[int, ...] = ()

    def as_found(self, cluster_of: Sequence[int], alike: Sequence[int]) -> "Clusters":
        """The same topology with everybody where they are now."""
        return replace(self, cluster_of=tuple(cluster_of), alike=tuple(alike))

    @property
    def channels(self) -> tuple[Channel, ...]:
        """One: the server, to which clients send and which alone sees what they send."""
        return (Channel(SERVER, tuple(range(self.clients)), frozenset({SERVER})),)

    @property
    def trusted(self) -> tuple[str, ...]:
        """Who is handed un-noised values."""
        return (SERVER,) if self.server_trusted else ()

    @property
    def observers(self) -> dict[str, str]:
        """Each kind with the first of its observers; views differ, see `lines`."""
        return {kind: lines[0].observer if lines else client_name(0) for kind, lines in self.lines.items()}

    @cached_property
    def lines(self) -> dict[str, tuple[Line, ...]]:
        """Lines of sight by clients with equal views: the first of them observes, the second observes the first."""
        now = self.cluster_of or (0,) * self.clients
        past: dict[int, list[int]] = {}
        for client, number in enumerate(self.alike or (0,) * self.clients):
            past.setdefault(number, []).append(client)
        observers = [client for some in past.values() for client in some[:2]]
        names = [client_name(client) for client in range(self.clients)]
        mates = {cluster: frozenset(n for n, c in zip(names, now, strict=True) if c == cluster) for cluster in set(now)}
        everyone = frozenset(names)
        same = (Line(names[n], (everyone - mates[now[n]]) | {names[n]}) for n in observers)
        others = (Line(names[n], mates[now[n]]) for n in observers)
        found = {SAME: _with_subjects(same, self.clients), ELSEWHERE: _with_subjects(others, self.clients)}
        found |= {"public": (Line(PUBLIC),)}
        return found if self.server_trusted else {"server": (Line(SERVER),)} | found


def _with_subjects(lines: Any, clients: int) -> tuple[Line, ...]:
    return tuple(line for line in lines if len(line.exempt) < clients)


def cluster_channel(server: Channel, members: Sequence[int]) -> Channel:
    """The server gathering from the members of one cluster, and publishing to them and to the public."""
    audience = frozenset((*map(client_name, members), PUBLIC, server.name))
    return replace(server, members=tuple(members), audience=audience)


def build_clusters(
    settings: Mapping[str, Any],
    *,
    clients: int,
    place: str,
    labels: Labels | None = None,
    streams: Streams | None = None,
) -> Clusters:
    """`[topology]` of an experiment file: count = 4, or "auto"."""
    for key, value in settings.items():
        if key not in KEYS:
            invalid(f"topology.{key}", value, "clusters have no such setting", did_you_mean(key, KEYS))
    return Clusters(clients, cluster_count(settings, clients), place == "server")


def cluster_count(settings: Mapping[str, Any], clients: int) -> int | None:
    """The number of clusters that the experiment file gives; None for "auto"."""
    value = settings.get("count", AUTO)
    if value == AUTO:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        invalid("topology.count", value, "is a whole number from 1", 'or "auto"')
    if value > clients:
        invalid("topology.count", value, f"there are {clients} clients", f"at most {clients}")
    return value
