"""Clusters: one server, one model per cluster, and clients that see the models of their clusters."""

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

KEYS = ["count", "candidates"]


@dataclass(frozen=True)
class Clusters(Steady):
    """One server that keeps a model per cluster, gathers from all clients, and is trusted with raw updates or not.

    Until clusters are known all clients are in one. What a cluster publishes is seen by the server, the public and its
    members at that time; `alike` numbers clients so that equal numbers have been in equal clusters at all times and
    therefore have equal views.
    """

    steady = False

    clients: int
    count: int | None
    """Number of clusters; None if the algorithm determines it."""
    server_trusted: bool
    cluster_of: tuple[int, ...] = ()
    alike: tuple[int, ...] = ()

    def as_found(self, cluster_of: Sequence[int], alike: Sequence[int]) -> "Clusters":
        """Return the same topology with the current memberships."""
        return replace(self, cluster_of=tuple(cluster_of), alike=tuple(alike))

    @property
    def channels(self) -> tuple[Channel, ...]:
        """Return the one channel: the server, which alone sees what clients send."""
        return (Channel(SERVER, tuple(range(self.clients)), frozenset({SERVER})),)

    @property
    def trusted(self) -> tuple[str, ...]:
        """Return the parties that receive un-noised values."""
        return (SERVER,) if self.server_trusted else ()

    @property
    def observers(self) -> dict[str, str]:
        """Return each kind with its first observer; views differ, see `lines`."""
        return {kind: lines[0].observer if lines else client_name(0) for kind, lines in self.lines.items()}

    @cached_property
    def lines(self) -> dict[str, tuple[Line, ...]]:
        """Return the lines of sight by classes of clients with equal views."""
        now = self.cluster_of or (0,) * self.clients
        past: dict[int, list[int]] = {}
        for client, number in enumerate(self.alike or (0,) * self.clients):
            past.setdefault(number, []).append(client)
        # Two clients per class stand for all: the first observes the others, the second observes the first. The work
        # per round grows with the classes, not with the clients.
        observers = [client for some in past.values() for client in some[:2]]
        names = [client_name(client) for client in range(self.clients)]
        mates = {cluster: frozenset(n for n, c in zip(names, now, strict=True) if c == cluster) for cluster in set(now)}
        everyone = frozenset(names)
        same = (Line(names[n], (everyone - mates[now[n]]) | {names[n]}) for n in observers)
        others = (Line(names[n], mates[now[n]]) for n in observers)
        result = {SAME: _with_subjects(same, self.clients), ELSEWHERE: _with_subjects(others, self.clients)}
        result |= {"public": (Line(PUBLIC),)}
        return result if self.server_trusted else {"server": (Line(SERVER),)} | result


def _with_subjects(lines: Any, clients: int) -> tuple[Line, ...]:
    # A line without subjects would report an epsilon of 0.
    return tuple(line for line in lines if len(line.exempt) < clients)


def cluster_channel(server: Channel, members: Sequence[int]) -> Channel:
    """Return the server's channel for one cluster: it gathers from the members and publishes to them and the public."""
    # The model counts as sent to all members, also absent ones: an upper bound that keeps equal clusters equal views.
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
    """Return the clusters of `[topology]`: count = 4, or "auto" over `candidates`."""
    for key, value in settings.items():
        if key not in KEYS:
            invalid(f"topology.{key}", value, 'unknown setting of kind = "clusters"', did_you_mean(key, KEYS))
    read_candidates(settings, clients)  # validates them
    return Clusters(clients, cluster_count(settings, clients), place == "server")


def read_candidates(settings: Mapping[str, Any], clients: int) -> tuple[int, ...]:
    """Return the numbers of clusters that `count = "auto"` tries, the set S of eq. (11); empty for the default."""
    given = settings.get("candidates", [])
    if given and settings.get("count", AUTO) != AUTO:
        invalid("topology.candidates", given, f"count = {settings['count']} is given", "remove one of the two")
    whole = isinstance(given, list) and all(isinstance(n, int) and not isinstance(n, bool) for n in given)
    if not whole or any(not 2 <= n <= clients for n in given):
        invalid("topology.candidates", given, f"must be a list of whole numbers from 2 to {clients}", "e.g. [2, 3, 4]")
    return tuple(dict.fromkeys(given))


def cluster_count(settings: Mapping[str, Any], clients: int) -> int | None:
    """Return the number of clusters in the experiment file; None for "auto"."""
    value = settings.get("count", AUTO)
    if value == AUTO:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        invalid("topology.count", value, 'must be a whole number >= 1, or "auto"')
    if value > clients:
        invalid("topology.count", value, f"there are only {clients} clients", f"give at most {clients}")
    return value
