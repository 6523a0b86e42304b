"""A tree: devices below edge servers, edges below regions, the cloud on top; each server is trusted or not."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from sightline.errors import invalid, refuse
from sightline.topology.channel import PUBLIC, Channel, Line, Steady, client_name

CLOUD = "cloud"

SAME = "devices of the same subnet"
ELSEWHERE = "devices elsewhere"
UNTRUSTED = "untrusted edges"


class Noise(StrEnum):
    """Who adds the noise."""

    BY_TRUST = "edge"
    DEVICES = "client"
    CLOUD = "server"
    NOBODY = "none"


@dataclass(frozen=True)
class Node:
    """A server: an edge with devices of its own, or a region with servers below it."""

    name: str
    trusted: bool = False
    members: tuple[int, ...] = ()
    below: tuple["Node", ...] = ()

    def all(self) -> Iterator["Node"]:
        """This server and every one below it."""
        yield self
        for node in self.below:
            yield from node.all()

    def devices(self) -> tuple[int, ...]:
        """Every device below it."""
        return (*self.members, *(n for node in self.below for n in node.devices()))


@dataclass(frozen=True)
class Tree(Steady):
    """Servers between the devices and the cloud. Noise is added where trust ends on the way up.

    Guarantees: with noise by trust nothing un-noised reaches a server that is not trusted, or one above it: an edge
    that is not trusted gets from every device a value with the device's own noise; a chain of trusted servers sums in
    the clear, and its last one noises what it sends up. What an edge sends back to its own devices between global
    rounds is noised by that edge, whoever is above it.
    """

    below: tuple[Node, ...]
    noise: Noise
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.noise is Noise.CLOUD:
            for node in self.nodes:
                if not node.trusted:
                    law = f"{node.name} is not trusted and would see clean updates on their way to the cloud"
                    refuse("privacy.where", "server", law, 'use where = "edge", or trusted = 1.0')

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Every server below the cloud."""
        return tuple(found for node in self.below for found in node.all())

    @cached_property
    def edges(self) -> tuple[Node, ...]:
        """The servers that have devices of their own."""
        return tuple(node for node in self.nodes if node.members)

    @cached_property
    def parent(self) -> dict[str, Node | None]:
        """Server -> the one above it; None is the cloud."""
        return {node.name: None for node in self.below} | {
            under.name: node for node in self.nodes for under in node.below
        }

    @cached_property
    def members(self) -> tuple[int, ...]:
        """Every device."""
        return tuple(sorted(n for edge in self.edges for n in edge.members))

    def servers_above(self, node: Node) -> tuple[str, ...]:
        """The names of the servers above a server, the cloud last."""
        up = self.parent[node.name]
        return (CLOUD,) if up is None else (up.name, *self.servers_above(up))

    def _receives_clear(self, node: Node) -> bool:
        """Whether a server is handed un-noised values that reach it through trusted servers only."""
        return self.noise is Noise.CLOUD or (self.noise is Noise.BY_TRUST and node.trusted)

    def noise_point(self, edge: Node) -> Node:
        """The last server of the chain of trusted ones that begins with the edge: where its devices' sum is noised."""
        up = self.parent[edge.name]
        return self.noise_point(up) if up is not None and edge.trusted and up.trusted else edge

    @cached_property
    def channels(self) -> tuple[Channel, ...]:
        """The edges, each with its own devices as members and audience."""
        return tuple(
            Channel(edge.name, edge.members, frozenset((edge.name, *map(client_name, edge.members))),
                    trusted=self._receives_clear(edge))
            for edge in self.edges
        )  # fmt: skip

    @cached_property
    def top(self) -> Channel:
        """The cloud, whose models everybody sees."""
        names = tuple(node.name for node in self.nodes)
        everybody = frozenset((CLOUD, PUBLIC, *names, *map(client_name, self.members)))
        trusted = self.noise is Noise.CLOUD
        return Channel(
            CLOUD, self.members, everybody, trusted=trusted, through=frozenset(names) if trusted else frozenset()
        )

    @cached_property
    def gathers(self) -> tuple[Channel, ...]:
        """Where a global round is noised: the ends of trust, or the edges whose devices noise by themselves."""
        if self.noise is Noise.CLOUD:
            return (self.top,)
        points: dict[str, list[Node]] = {}
        by_name = {node.name: node for node in self.nodes}
        for edge in self.edges:
            point = self.noise_point(edge) if self._receives_clear(edge) else edge
            points.setdefault(point.name, []).append(edge)
        return tuple(self._gathering_channel(by_name[name], edges) for name, edges in points.items())

    def _gathering_channel(self, point: Node, edges: list[Node]) -> Channel:
        passed: set[str] = set()
        for edge in edges:
            for name in (edge.name, *self.servers_above(edge)):
                if name == point.name:
                    break
                passed.add(name)
        members = tuple(sorted(n for edge in edges for n in edge.members))
        audience = frozenset((point.name, *self.servers_above(point)))
        return Channel(point.name, members, audience, trusted=self._receives_clear(point), through=frozenset(passed))

    @cached_property
    def uplinks(self) -> tuple[tuple[str, ...], ...]:
        """The servers level by level, the lowest first: each sends on to the one above it."""
        depth = {node.name: len(self.servers_above(node)) for node in self.nodes}
        levels = sorted(set(depth.values()), reverse=True)
        return tuple(tuple(name for name, found in depth.items() if found == level) for level in levels)

    @cached_property
    def trusted(self) -> tuple[str, ...]:
        """Who is handed un-noised values, or would be."""
        names = tuple(node.name for node in self.nodes if self._receives_clear(node))
        return (*names, CLOUD) if self.noise is Noise.CLOUD else names

    def trusted_clause(self, names: str) -> str:
        """By their names: servers of one level may differ."""
        return f"Trusted are {names}: their part is to receive"

    @property
    def observers(self) -> dict[str, str]:
        """Each kind with the first of its observers; views differ, see `lines`."""
        return {kind: lines[0].observer for kind, lines in self.lines.items()}

    @cached_property
    def lines(self) -> dict[str, tuple[Line, ...]]:
        """Lines of sight by kind. Devices of one subnet see the same, so two stand for all: one for the other."""
        everyone = frozenset(map(client_name, self.members))
        same, elsewhere = [], []
        for edge in self.edges:
            mates = frozenset(map(client_name, edge.members))
            for device in edge.members[:2] if len(edge.members) > 1 else ():
                same.append(Line(client_name(device), everyone - mates | {client_name(device)}))
            if mates != everyone:
                elsewhere.append(Line(client_name(edge.members[0]), mates))
        kinds = {
            CLOUD: () if self.noise is Noise.CLOUD else (Line(CLOUD),),
            UNTRUSTED: tuple(Line(node.name) for node in self.nodes if node.name not in self.trusted),
            SAME: tuple(same),
            ELSEWHERE: tuple(elsewhere),
            PUBLIC: (Line(PUBLIC),),
        }
        return {kind: lines for kind, lines in kinds.items() if lines}


def check_tree(below: tuple[Node, ...], clients: int) -> None:
    """Raise unless every device has exactly one edge, every server a name of its own and somebody below it."""
    nodes = [found for node in below for found in node.all()]
    names = [node.name for node in nodes]
    for node in nodes:
        if names.count(node.name) > 1:
            invalid("topology.file", node.name, "two servers have this name")
        if bool(node.members) == bool(node.below):
            invalid("topology.file", node.name, "a server has devices or servers below it, one of the two")
    seen: set[int] = set()
    for node in nodes:
        for device in node.members:
            if not 0 <= device < clients:
                invalid(f"topology.{node.name}", device, f"devices are numbered 0 to {clients - 1}")
            if device in seen:
                invalid(f"topology.{node.name}", device, "a device is below one edge only")
            seen.add(device)
    if len(seen) != clients:
        missing = min(set(range(clients)) - seen)
        invalid("topology", f"client-{missing}", f"has no edge: the tree has {len(seen)} of {clients} devices")
