"""`[topology] kind = "tree"`: subnets by number or sizes, levels of servers, or a file; trust by chance or by name."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sightline.errors import did_you_mean, invalid
from sightline.randomness import Purpose, Streams
from sightline.topology.groups_structures import cluster_groups
from sightline.topology.tree import Node, Noise, Tree, check_tree
from sightline.topology.tree_file import read_tree

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
