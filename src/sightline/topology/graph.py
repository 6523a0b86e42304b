"""A graph of equal nodes without a server: each sends its noisy model to its neighbours and mixes what it receives."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from sightline.errors import did_you_mean, invalid
from sightline.formatting import read_text
from sightline.randomness import Purpose, Streams
from sightline.topology.channel import Channel, Line, Steady, client_name
from sightline.topology.groups import Labels

Edge = tuple[int, int]
KEYS = ["structure", "rows", "probability", "file"]
NEIGHBOURS = "neighbours"
# Every pair of nodes has its own line of sight.
MOST_NODES = 512
TRIES = 100
"""How many random graphs are drawn until one is connected."""


def ring_edges(nodes: int) -> list[Edge]:
    """Return a cycle.

    >>> ring_edges(3)
    [(0, 1), (1, 2), (2, 0)]
    """
    return [(n, (n + 1) % nodes) for n in range(nodes if nodes > 2 else nodes - 1)]


def grid_edges(nodes: int, rows: int) -> list[Edge]:
    """Return a grid with this many rows, numbered row by row.

    >>> grid_edges(4, 2)
    [(0, 1), (2, 3), (0, 2), (1, 3)]
    """
    columns = nodes // rows
    across = [(n, n + 1) for n in range(nodes) if (n + 1) % columns]
    return across + [(n, n + columns) for n in range(nodes - columns)]


def random_edges(nodes: int, probability: float, rng: np.random.Generator) -> list[Edge]:
    """Return an Erdos-Renyi graph: every pair is an edge with this probability, independently."""
    drawn = np.triu(rng.random((nodes, nodes)) < probability, k=1)
    return [(int(a), int(b)) for a, b in zip(*np.nonzero(drawn), strict=True)]


def read_edges(path: Path | str) -> list[Edge]:
    """Return the edges of a text file with two node numbers per line; # begins a comment."""
    example = 'write two node numbers from 0 on each line, e.g. "0 1"'
    try:
        lines = [line.split("#")[0].split() for line in read_text(path).splitlines()]
        pairs = [tuple(map(int, line)) for line in lines if line]
    except FileNotFoundError:
        invalid("topology.file", path, "no such file", example)
    except (OSError, ValueError) as error:
        invalid("topology.file", path, f"cannot be read as a list of edges ({type(error).__name__})", example)
    for pair in pairs:
        if len(pair) != 2:
            invalid("topology.file", path, f"a line has {len(pair)} numbers instead of 2", example)
    return [(pair[0], pair[1]) for pair in pairs]


@dataclass(frozen=True)
class Graph(Steady):
    """Nodes that exchange models with their neighbours; every client is a node, and none is trusted.

    Guarantees: what a node publishes is seen by its neighbours and by itself, and by no one else. What travels further
    does so inside later releases, which the ledger follows.
    """

    nodes: int
    edges: frozenset[Edge]
    """Pairs of different nodes, the smaller number first."""

    compares_channels = False

    @cached_property
    def neighbours(self) -> tuple[tuple[int, ...], ...]:
        """Return the neighbours of every node, without itself."""
        result: list[list[int]] = [[] for _ in range(self.nodes)]
        for a, b in sorted(self.edges):
            result[a].append(b)
            result[b].append(a)
        return tuple(tuple(sorted(others)) for others in result)

    @cached_property
    def distances(self) -> tuple[tuple[int | None, ...], ...]:
        """Return the fewest hops between every two nodes; None if they are not connected."""
        return tuple(self._hops_from(node) for node in range(self.nodes))

    def _hops_from(self, start: int) -> tuple[int | None, ...]:
        hops: dict[int, int] = {start: 0}
        reached = [start]
        for node in reached:
            for other in self.neighbours[node]:
                if other not in hops:
                    hops[other] = hops[node] + 1
                    reached.append(other)
        return tuple(hops.get(node) for node in range(self.nodes))

    @cached_property
    def channels(self) -> tuple[Channel, ...]:
        """Return one channel per node: it gathers its own update and publishes to its neighbours."""
        return tuple(
            Channel(client_name(node), (node,), frozenset(map(client_name, (node, *self.neighbours[node]))))
            for node in range(self.nodes)
        )

    @property
    def trusted(self) -> tuple[str, ...]:
        """Return no party: every node noises what it sends."""
        return ()

    @property
    def observers(self) -> dict[str, str]:
        """Return each distance with its first observer; views differ, see `lines`."""
        return {kind: lines[0].observer for kind, lines in self.lines.items()}

    @cached_property
    def lines(self) -> dict[str, tuple[Line, ...]]:
        """Return the lines of sight by distance: an observer, and all subjects but those at this distance exempt."""
        names = [client_name(node) for node in range(self.nodes)]
        result: dict[int, list[Line]] = {}
        for node, hops in enumerate(self.distances):
            for distance in sorted({hop for hop in hops if hop}):
                away = frozenset(name for name, hop in zip(names, hops, strict=True) if hop != distance)
                result.setdefault(distance, []).append(Line(names[node], away))
        return {distance_kind(distance): tuple(result[distance]) for distance in sorted(result)}


def distance_kind(distance: int) -> str:
    """Return the name of the observers at a distance."""
    return NEIGHBOURS if distance == 1 else f"nodes {distance} hops away"


def build_graph(
    settings: Mapping[str, Any],
    *,
    clients: int,
    place: str,
    labels: Labels | None = None,
    streams: Streams | None = None,
) -> Graph:
    """Return the graph of `[topology]`: structure (ring, grid, random, complete) or file."""
    for key, value in settings.items():
        if key not in KEYS:
            invalid(f"topology.{key}", value, 'unknown setting of kind = "graph"', did_you_mean(key, KEYS))
    if not 2 <= clients <= MOST_NODES:
        invalid("data.clients", clients, f"a graph can have 2 to {MOST_NODES} nodes")
    if place not in ("client", "none"):
        invalid(
            "privacy.where",
            place,
            "a graph has no server: every node adds noise to what it sends",
            'use where = "client"',
        )
    structure, file = settings.get("structure"), settings.get("file")
    if (structure is None) == (file is None):
        reason = "give exactly one of structure and file"
        invalid("topology.structure", structure or "missing", reason, 'e.g. structure = "ring"')
    if file is not None:
        return connected_graph("file", file, clients, read_edges(file))
    builders: dict[str, Callable[[], Graph]] = {
        "ring": lambda: connected_graph("structure", "ring", clients, ring_edges(clients)),
        "grid": lambda: connected_graph(
            "structure", "grid", clients, grid_edges(clients, _read_rows(settings, clients))
        ),
        "random": lambda: draw_graph(settings, clients, streams or Streams.from_seed(0)),
        "complete": lambda: Graph(clients, frozenset((a, b) for b in range(clients) for a in range(b))),
    }
    for key, owner in (("rows", "grid"), ("probability", "random")):
        if key in settings and structure != owner:
            invalid(f"topology.{key}", settings[key], f'only applies to structure = "{owner}"', "remove it")
    if structure not in builders:
        invalid("topology.structure", structure, "unknown structure", did_you_mean(str(structure), list(builders)))
    return builders[str(structure)]()


def connected_graph(key: str, value: Any, nodes: int, edges: Iterable[Edge]) -> Graph:
    """Return the graph. Raise for an edge that is not one between two nodes, and for a graph in several pieces."""
    edges = list(edges)
    for a, b in edges:
        if a == b or not (0 <= a < nodes and 0 <= b < nodes):
            invalid(f"topology.{key}", value, f"edge {a} {b} must join two different nodes of 0 to {nodes - 1}")
    graph = Graph(nodes, frozenset((min(a, b), max(a, b)) for a, b in edges))
    if None in graph.distances[0]:
        apart = graph.distances[0].index(None)
        invalid(
            f"topology.{key}",
            value,
            f"the graph is not connected: no path leads from node 0 to node {apart}",
            "add edges",
        )
    return graph


def draw_graph(settings: Mapping[str, Any], nodes: int, streams: Streams) -> Graph:
    """Return the first connected Erdos-Renyi graph of the experiment's stream; the graph is public."""
    likely = min(1.0, 2 * math.log(nodes) / nodes)
    probability = settings.get("probability", likely)
    if isinstance(probability, bool) or not isinstance(probability, int | float) or not 0 < probability <= 1:
        invalid(
            "topology.probability",
            probability,
            "must lie in (0, 1]",
            f"{likely:.2g} gives a connected graph almost always",
        )
    rng = streams.rng(Purpose.TRUST)  # the topology's own stream, as for the trust of a tree's edges
    for _ in range(TRIES):
        graph = Graph(nodes, frozenset(random_edges(nodes, float(probability), rng)))
        if None not in graph.distances[0]:
            return graph
    reason = f"none of {TRIES} random graphs of {nodes} nodes was connected"
    invalid("topology.probability", probability, reason, f"use {likely:.2g} or more")


def _read_rows(settings: Mapping[str, Any], nodes: int) -> int:
    default = max(rows for rows in range(1, math.isqrt(nodes) + 1) if nodes % rows == 0)
    rows = settings.get("rows", default)
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1 or nodes % rows:
        invalid("topology.rows", rows, f"must divide the {nodes} nodes evenly", f"e.g. rows = {default}")
    return rows
