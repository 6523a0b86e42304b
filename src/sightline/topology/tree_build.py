"""A tree from a JSON file: `{"servers": [{"name": "north", "trusted": true, "servers": [...]}, ...]}`.

A server has `"devices": [0, 1, 2]` or `"servers": [...]`; `"trusted"` may be left out and is then false.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sightline.errors import did_you_mean, invalid
from sightline.foreign import read_text
from sightline.randomness import Purpose, Streams
from sightline.topology.groups import Labels, cluster_groups
from sightline.topology.tree import CLOUD, Node, Noise, Tree, check_tree

FILE_KEYS = ["name", "trusted", "devices", "servers"]
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*(-[A-Za-z0-9_]+)*")
TAKEN = re.compile(r"(client-\d+|public|server|clients)")
EXAMPLE = 'e.g. {"servers": [{"name": "edge-0", "trusted": true, "devices": [0, 1]}]}'


def read_tree(path: Path | str) -> tuple[Node, ...]:
    """The servers directly below the cloud; anything malformed is refused in one line."""
    try:
        plain = json.loads(read_text(path))
    except FileNotFoundError:
        invalid("topology.file", path, "no such file", EXAMPLE)
    except (OSError, ValueError, RecursionError) as error:
        invalid("topology.file", path, f"cannot be read as JSON ({type(error).__name__})", EXAMPLE)
    if not isinstance(plain, dict) or set(plain) != {"servers"} or not _read_objects(plain["servers"]):
        invalid("topology.file", path, 'an object with a list of "servers" is needed', EXAMPLE)
    try:
        return tuple(_read_node(server) for server in plain["servers"])
    except RecursionError:
        invalid("topology.file", path, "has more levels than can be walked")


def _read_node(plain: dict[str, Any]) -> Node:
    for key, value in plain.items():
        if key not in FILE_KEYS:
            invalid(f"topology.file.{key}", value, "unknown key", did_you_mean(key, FILE_KEYS))
    name, trusted, devices = plain.get("name"), plain.get("trusted", False), plain.get("devices", [])
    if not isinstance(name, str) or not NAME.fullmatch(name) or TAKEN.fullmatch(name) or name == CLOUD:
        invalid("topology.file.name", name, "a server has a name of its own: letters, digits, dash", EXAMPLE)
    if not isinstance(trusted, bool):
        invalid(f"topology.file.{name}.trusted", trusted, "is true or false")
    if not isinstance(devices, list) or any(isinstance(n, bool) or not isinstance(n, int) for n in devices):
        invalid(f"topology.file.{name}.devices", devices, "is a list of device numbers", EXAMPLE)
    below = plain.get("servers", [])
    if not _read_objects(below):
        invalid(f"topology.file.{name}.servers", below, "is a list of servers", EXAMPLE)
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
    """The tree of an experiment file.

    `subnets = 10` (even) or `[5, 20, 25]`; `levels = [10, 2]` puts the ten edges below two regions; `trusted` is the
    probability that a server is trusted, or a list of names.
    """
    for key, value in settings.items():
        if key not in KEYS:
            invalid(f"topology.{key}", value, "a tree has no such setting", did_you_mean(key, KEYS))
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
                invalid(f"topology.{key}", settings[key], "the file says who is below whom", "keep one of the two")
        return read_tree(settings["file"])
    levels = _read_levels(settings)
    subnets = settings.get("subnets", levels[0] if levels else 1)
    sizes = _subnet_sizes(subnets, clients)
    if levels and levels[0] != len(sizes):
        invalid("topology.levels", levels, f"begins with the number of edges, which is {len(sizes)}")
    servers = tuple(
        Node(_node_name(0, i), members=tuple(range(sum(sizes[:i]), sum(sizes[: i + 1])))) for i in range(len(sizes))
    )
    for level, count in enumerate(levels[1:], start=1):
        if not 1 <= count <= len(servers):
            invalid(
                "topology.levels", levels, f"every level has 1 to {len(servers)} servers, fewer from level to level"
            )
        servers = tuple(
            Node(_node_name(level, i), below=tuple(servers[n] for n in group))
            for i, group in enumerate(cluster_groups(len(servers), count))
        )
    return servers


def _read_levels(settings: Mapping[str, Any]) -> list[int]:
    levels = settings.get("levels", [])
    if not isinstance(levels, list | tuple) or any(isinstance(n, bool) or not isinstance(n, int) for n in levels):
        invalid("topology.levels", levels, "is a list of whole numbers, edges first", "e.g. [10, 2]")
    return list(levels)


def _subnet_sizes(subnets: Any, clients: int) -> list[int]:
    if isinstance(subnets, int) and not isinstance(subnets, bool):
        if not 1 <= subnets <= clients:
            invalid("topology.subnets", subnets, f"{clients} devices make 1 to {clients} subnets")
        return [len(group) for group in cluster_groups(clients, subnets)]
    whole = isinstance(subnets, list | tuple) and all(isinstance(n, int) and not isinstance(n, bool) for n in subnets)
    if not whole or not subnets or min(subnets) < 1:
        invalid(
            "topology.subnets", subnets, "is a number of subnets or a list of their sizes", "e.g. 10 or [5, 20, 25]"
        )
    if sum(subnets) != clients:
        invalid("topology.subnets", list(subnets), f"the sizes add up to data.clients={clients}")
    return list(subnets)


def _node_name(level: int, number: int) -> str:
    return f"{('edge', 'region')[level] if level < 2 else f'level{level + 1}'}-{number}"


def _with_trust(below: tuple[Node, ...], trusted: Any, streams: Streams | None) -> tuple[Node, ...]:
    """The servers with their trust. By chance: one draw a server, so that a larger probability trusts no fewer."""
    names = [node.name for server in below for node in server.all()]
    if isinstance(trusted, int | float) and not isinstance(trusted, bool) and 0 <= trusted <= 1:
        draws = (streams or Streams.from_seed(0)).rng(Purpose.TRUST).random(len(names))
        chosen = {name for name, draw in zip(names, draws, strict=True) if draw < trusted}
    elif isinstance(trusted, list | tuple):
        for name in trusted:
            if name not in names:
                invalid("topology.trusted", name, "no such server", did_you_mean(str(name), names))
        chosen = set(trusted)
    else:
        law = "is the probability that a server is trusted, or a list of their names"
        invalid("topology.trusted", trusted, law, 'e.g. 0.5 or ["edge-0"]')
    return tuple(_with_trusted(node, chosen) for node in below)


def _with_trusted(node: Node, chosen: set[str]) -> Node:
    return replace(node, trusted=node.name in chosen, below=tuple(_with_trusted(under, chosen) for under in node.below))
