"""A tree of devices, edge servers, regions and the cloud, each server trusted or not; from settings or a file."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from typing_extensions import override

from sightline.errors import did_you_mean, invalid, refuse
from sightline.formatting import read_text
from sightline.randomness import Purpose, Streams
from sightline.topology.channel import PUBLIC, Channel, Line, Steady, client_name
from sightline.topology.groups import Labels, cluster_groups

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
    """A server: an edge with its own devices, or a region with servers below it."""

    name: str
    trusted: bool = False
    members: tuple[int, ...] = ()
    below: tuple["Node", ...] = ()

    def all(self) -> Iterator["Node"]:
        """Yield this server and every one below it."""
        yield self
        for node in self.below:
            yield from node.all()

    def devices(self) -> tuple[int, ...]:
        """Return every device below the server."""
        return (*self.members, *(n for node in self.below for n in node.devices()))


@dataclass(frozen=True)
class Tree(Steady):
    """Servers between the devices and the cloud. Noise is added where trust ends on the way up.

    Guarantees: with noise by trust nothing un-noised reaches an untrusted server, or one above it. An untrusted edge
    gets from every device a value with the device's own noise; a chain of trusted servers sums un-noised values, and
    its last one adds noise to what it sends up. What an edge sends back to its own devices between global rounds is
    noised by that edge, regardless of the servers above it.
    """

    below: tuple[Node, ...]
    noise: Noise
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # where = "server" means that everything up to the cloud is trusted. With an untrusted server it is refused
        # instead of silently becoming where = "edge".
        if self.noise is Noise.CLOUD:
            for node in self.nodes:
                if not node.trusted:
                    reason = f"{node.name} is not trusted and would see updates without noise on their way to the cloud"
                    refuse("privacy.where", "server", reason, 'use where = "edge", or trusted = 1.0')

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Return every server below the cloud."""
        return tuple(result for node in self.below for result in node.all())

    @cached_property
    def edges(self) -> tuple[Node, ...]:
        """Return the servers that have their own devices."""
        return tuple(node for node in self.nodes if node.members)

    @cached_property
    def parent(self) -> dict[str, Node | None]:
        """Return for each server the one above it; None is the cloud."""
        return {node.name: None for node in self.below} | {
            under.name: node for node in self.nodes for under in node.below
        }

    @cached_property
    def members(self) -> tuple[int, ...]:
        """Return every device."""
        return tuple(sorted(n for edge in self.edges for n in edge.members))

    def servers_above(self, node: Node) -> tuple[str, ...]:
        """Return the names of the servers above a server, the cloud last."""
        up = self.parent[node.name]
        return (CLOUD,) if up is None else (up.name, *self.servers_above(up))

    def _receives_clear(self, node: Node) -> bool:
        """Return whether a server receives un-noised values, which reach it through trusted servers only."""
        return self.noise is Noise.CLOUD or (self.noise is Noise.BY_TRUST and node.trusted)

    def noise_point(self, edge: Node) -> Node:
        """Return the last trusted server of the chain that begins with the edge: where its devices' sum is noised."""
        # The climb stops below the first untrusted server: a trusted region above an untrusted edge changes nothing for
        # that edge's devices.
        up = self.parent[edge.name]
        return self.noise_point(up) if up is not None and edge.trusted and up.trusted else edge

    @cached_property
    def channels(self) -> tuple[Channel, ...]:
        """Return the edges, each with its own devices as members and audience."""
        return tuple(
            Channel(edge.name, edge.members, frozenset((edge.name, *map(client_name, edge.members))),
                    trusted=self._receives_clear(edge), above=frozenset(self.servers_above(edge)))
            for edge in self.edges
        )  # fmt: skip

    @cached_property
    def top(self) -> Channel:
        """Return the cloud, whose models everyone sees."""
        names = tuple(node.name for node in self.nodes)
        everybody = frozenset((CLOUD, PUBLIC, *names, *map(client_name, self.members)))
        # If the cloud adds the noise, un-noised updates pass every server on the way.
        trusted = self.noise is Noise.CLOUD
        return Channel(
            CLOUD, self.members, everybody, trusted=trusted, through=frozenset(names) if trusted else frozenset()
        )

    @cached_property
    def gathering_channels(self) -> tuple[Channel, ...]:
        """Return the channels where a global round is noised: the ends of trust, or edges whose devices add noise."""
        if self.noise is Noise.CLOUD:
            return (self.top,)
        points: dict[str, list[Node]] = {}
        by_name = {node.name: node for node in self.nodes}
        for edge in self.edges:
            point = self.noise_point(edge) if self._receives_clear(edge) else edge
            points.setdefault(point.name, []).append(edge)
        return tuple(self._gathering_channel(by_name[name], edges) for name, edges in points.items())

    def _gathering_channel(self, point: Node, edges: list[Node]) -> Channel:
        # Servers between the edges and the noise point pass on un-noised sums; all of them are trusted.
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
        """Return the servers level by level, the lowest first: each sends on to the one above it."""
        depth = {node.name: len(self.servers_above(node)) for node in self.nodes}
        levels = sorted(set(depth.values()), reverse=True)
        return tuple(tuple(name for name, result in depth.items() if result == level) for level in levels)

    @cached_property
    def trusted(self) -> tuple[str, ...]:
        """Return the parties that receive un-noised values, or would."""
        names = tuple(node.name for node in self.nodes if self._receives_clear(node))
        return (*names, CLOUD) if self.noise is Noise.CLOUD else names

    def trusted_clause(self, names: str) -> str:
        """Return a clause with names: servers of one level may differ."""
        return f"Trusted are {names}: their part is to receive"

    @property
    def observers(self) -> dict[str, str]:
        """Return each kind with its first observer; views differ, see `lines`."""
        return {kind: lines[0].observer for kind, lines in self.lines.items()}

    @cached_property
    @override
    def lines(self) -> dict[str, tuple[Line, ...]]:
        # Devices of one subnet see the same, so two stand for all: each is the observer of the other.
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
    """Raise unless every device has exactly one edge and every server has a unique name and something below it."""
    nodes = [result for node in below for result in node.all()]
    names = [node.name for node in nodes]
    for node in nodes:
        if names.count(node.name) > 1:
            invalid("topology.file", node.name, "two servers have this name")
        if bool(node.members) == bool(node.below):
            invalid("topology.file", node.name, "a server must have either devices or servers below it")
    seen: set[int] = set()
    for node in nodes:
        for device in node.members:
            if not 0 <= device < clients:
                invalid(f"topology.{node.name}", device, f"devices are numbered 0 to {clients - 1}")
            if device in seen:
                invalid(f"topology.{node.name}", device, "a device can be below one edge server only")
            seen.add(device)
    if len(seen) != clients:
        missing = min(set(range(clients)) - seen)
        invalid(
            "topology", f"client-{missing}", f"is below no edge server: the tree has {len(seen)} of {clients} devices"
        )


FILE_KEYS = ["name", "trusted", "devices", "servers"]
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*(-[A-Za-z0-9_]+)*")
# Reserved for other parties of the ledger: a server named client-3 would be taken for that client.
TAKEN = re.compile(r"(client-\d+|public|server|clients)")
EXAMPLE = 'e.g. {"servers": [{"name": "edge-0", "trusted": true, "devices": [0, 1]}]}'


def read_tree(path: Path | str) -> tuple[Node, ...]:
    """Return the servers directly below the cloud. Raises with one line for anything malformed."""
    try:
        plain = json.loads(read_text(path))
    except FileNotFoundError:
        invalid("topology.file", path, "no such file", EXAMPLE)
    except (OSError, ValueError, RecursionError) as error:
        invalid("topology.file", path, f"cannot be read as JSON ({type(error).__name__})", EXAMPLE)
    if not isinstance(plain, dict) or set(plain) != {"servers"} or not _read_objects(plain["servers"]):
        invalid("topology.file", path, 'must be an object with a list of "servers"', EXAMPLE)
    try:
        return tuple(_read_node(server) for server in plain["servers"])
    except RecursionError:
        invalid("topology.file", path, "is nested too deep")


def _read_node(plain: dict[str, Any]) -> Node:
    for key, value in plain.items():
        if key not in FILE_KEYS:
            invalid(f"topology.file.{key}", value, "unknown key", did_you_mean(key, FILE_KEYS))
    name, trusted, devices = plain.get("name"), plain.get("trusted", False), plain.get("devices", [])
    if not isinstance(name, str) or not NAME.fullmatch(name) or TAKEN.fullmatch(name) or name == CLOUD:
        invalid(
            "topology.file.name",
            name,
            "a server name has letters, digits and dashes, begins with a letter, and is not a reserved name",
            EXAMPLE,
        )
    if not isinstance(trusted, bool):
        invalid(f"topology.file.{name}.trusted", trusted, "must be true or false")
    if not isinstance(devices, list) or any(isinstance(n, bool) or not isinstance(n, int) for n in devices):
        invalid(f"topology.file.{name}.devices", devices, "must be a list of device numbers", EXAMPLE)
    below = plain.get("servers", [])
    if not _read_objects(below):
        invalid(f"topology.file.{name}.servers", below, "must be a list of servers", EXAMPLE)
    return Node(name, trusted, tuple(sorted(devices)), tuple(_read_node(server) for server in below))


def _read_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, dict) for one in value)


KEYS = ["subnets", "levels", "trusted", "file"]

UNUSED = (
    'where = "client": every device adds noise of its own, and what topology.trusted says of the edges is not used. '
    'where = "edge" uses it.'
)


def build_tree(
    settings: Mapping[str, Any],
    *,
    clients: int,
    place: str = "edge",
    labels: Labels | None = None,
    streams: Streams | None = None,
) -> Tree:
    """Return the tree of an experiment file.

    `subnets = 10` (even) or `[5, 20, 25]`; `levels = [10, 2]` puts the ten edges below two regions; `trusted` is the
    probability that a server is trusted, one for each server, or a list of names.
    """
    for key, value in settings.items():
        if key not in KEYS:
            invalid(f"topology.{key}", value, 'unknown setting of kind = "tree"', did_you_mean(key, KEYS))
    noise = Noise(place)
    below = _read_shape(settings, clients)
    check_tree(below, clients)
    if "trusted" in settings or settings.get("file") is None:
        below = _with_trust(below, settings.get("trusted", 1.0 if noise is Noise.CLOUD else 0.0), streams)
    given = any(node.trusted for server in below for node in server.all())
    return Tree(below, noise, (UNUSED,) if noise is Noise.DEVICES and given else ())


def _read_shape(settings: Mapping[str, Any], clients: int) -> tuple[Node, ...]:
    if settings.get("file") is not None:
        for key in ("subnets", "levels"):
            if key in settings:
                invalid(f"topology.{key}", settings[key], "the file already defines the tree", "keep one of the two")
        return read_tree(settings["file"])
    levels = _read_levels(settings)
    subnets = settings.get("subnets", levels[0] if levels else 1)
    sizes = _subnet_sizes(subnets, clients)
    if levels and levels[0] != len(sizes):
        invalid("topology.levels", levels, f"must begin with the number of edges, which is {len(sizes)}")
    servers = tuple(
        Node(_node_name(0, i), members=tuple(range(sum(sizes[:i]), sum(sizes[: i + 1])))) for i in range(len(sizes))
    )
    for level, count in enumerate(levels[1:], start=1):
        if not 1 <= count <= len(servers):
            invalid(
                "topology.levels",
                levels,
                f"a level must not have more servers than the one below it: 1 to {len(servers)} here",
            )
        servers = tuple(
            Node(_node_name(level, i), below=tuple(servers[n] for n in group))
            for i, group in enumerate(cluster_groups(len(servers), count))
        )
    return servers


def _read_levels(settings: Mapping[str, Any]) -> list[int]:
    levels = settings.get("levels", [])
    if not isinstance(levels, list | tuple) or any(isinstance(n, bool) or not isinstance(n, int) for n in levels):
        invalid("topology.levels", levels, "must be a list of whole numbers, edges first", "e.g. [10, 2]")
    return list(levels)


def _subnet_sizes(subnets: Any, clients: int) -> list[int]:
    if isinstance(subnets, int) and not isinstance(subnets, bool):
        if not 1 <= subnets <= clients:
            invalid("topology.subnets", subnets, f"{clients} devices can form 1 to {clients} subnets")
        return [len(group) for group in cluster_groups(clients, subnets)]
    whole = isinstance(subnets, list | tuple) and all(isinstance(n, int) and not isinstance(n, bool) for n in subnets)
    if not whole or not subnets or min(subnets) < 1:
        invalid(
            "topology.subnets",
            subnets,
            "must be the number of subnets or a list of their sizes",
            "e.g. 10 or [5, 20, 25]",
        )
    if sum(subnets) != clients:
        invalid("topology.subnets", list(subnets), f"the sizes must add up to data.clients={clients}")
    return list(subnets)


def _node_name(level: int, number: int) -> str:
    return f"{('edge', 'region')[level] if level < 2 else f'level{level + 1}'}-{number}"


def _with_trust(below: tuple[Node, ...], trusted: Any, streams: Streams | None) -> tuple[Node, ...]:
    """Return the servers with their trust."""
    names = [node.name for server in below for node in server.all()]
    each = list(trusted) if isinstance(trusted, list | tuple) else [trusted] * len(names)
    if each and all(map(_is_probability, each)):
        if len(each) != len(names):
            reason = f"has {len(each)} probabilities for {len(names)} servers ({', '.join(names[:3])} ...)"
            invalid("topology.trusted", list(each), reason, "give one for each server, or one for all")
        # One draw per server whatever the probability, so that a larger probability trusts a superset of servers.
        draws = (streams or Streams.from_seed(0)).rng(Purpose.TRUST).random(len(names))
        chosen = {name for name, draw, p in zip(names, draws, each, strict=True) if draw < p}
    elif isinstance(trusted, list | tuple):
        for name in trusted:
            if name not in names:
                invalid("topology.trusted", name, "unknown server", did_you_mean(str(name), names))
        chosen = set(trusted)
    else:
        reason = (
            "must be the probability that a server is trusted, a list with one for each server, or a list of "
            "server names"
        )
        invalid("topology.trusted", trusted, reason, 'e.g. 0.5 or ["edge-0"]')
    return tuple(_with_trusted(node, chosen) for node in below)


def _is_probability(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _with_trusted(node: Node, chosen: set[str]) -> Node:
    return replace(node, trusted=node.name in chosen, below=tuple(_with_trusted(under, chosen) for under in node.below))
