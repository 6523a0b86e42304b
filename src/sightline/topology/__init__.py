"""Topologies: who talks to whom, who sees what, and who is trusted."""

from collections.abc import Callable, Mapping
from typing import Any

from sightline.errors import invalid
from sightline.plugins import TOPOLOGY, locate_plugin
from sightline.randomness import Streams
from sightline.topology.channel import (
    PUBLIC,
    SERVER,
    Channel,
    Line,
    Star,
    Steady,
    Topology,
    TopologyPlugin,
    client_name,
    has_one_server,
    participants_of,
)
from sightline.topology.clusters import Clusters, build_clusters, cluster_channel, cluster_count, read_candidates
from sightline.topology.graph import Graph, build_graph
from sightline.topology.groups import (
    STRUCTURES,
    Era,
    Groups,
    Labels,
    Memberships,
    build_groups,
    constant_memberships,
    group_name,
    memberships_from,
    read_memberships,
)
from sightline.topology.tree import CLOUD, Node, Noise, Tree, build_tree


def build_star(
    settings: Mapping[str, Any],
    *,
    clients: int,
    place: str,
    labels: Labels | None = None,
    streams: Streams | None = None,
) -> Star:
    """Return a star. Raises for any setting: a star has none."""
    for key, value in settings.items():
        invalid(f"topology.{key}", value, "a star has no settings", "remove it")
    return Star(clients, place == "server")


REGISTRY: dict[str, Callable[..., Topology]] = {
    "star": build_star,
    "groups": build_groups,
    "tree": build_tree,
    "clusters": build_clusters,
    "graph": build_graph,
}


def find_topology(kind: str) -> TopologyPlugin:
    """Return how a kind of topology is built, and the built-in kind that algorithms may treat it as."""
    plugin = locate_plugin(TOPOLOGY, kind, REGISTRY)
    if plugin is None:
        return TopologyPlugin(REGISTRY[kind], like=kind)
    result = plugin.load_object()
    if not isinstance(result, TopologyPlugin):
        plugin.refuse_type(result, "a `TopologyPlugin` of sightline.topology")
    return result


def build_topology(
    kind: str,
    settings: Mapping[str, Any],
    *,
    clients: int,
    place: str,
    labels: Labels | None = None,
    streams: Streams | None = None,
) -> Topology:
    """Return the topology of an experiment file by its name.

    `place` says who adds the noise; `labels` gives the labels that workers hold and `streams` the random streams, for
    topologies that use them. `engine.build` checks the shape of a plugin's.
    """
    return find_topology(kind).build(settings, clients=clients, place=place, labels=labels, streams=streams)


__all__ = [
    "CLOUD",
    "PUBLIC",
    "REGISTRY",
    "SERVER",
    "STRUCTURES",
    "Channel",
    "Clusters",
    "Era",
    "Graph",
    "Groups",
    "Labels",
    "Line",
    "Memberships",
    "Node",
    "Noise",
    "Star",
    "Steady",
    "Topology",
    "TopologyPlugin",
    "Tree",
    "build_clusters",
    "build_graph",
    "build_groups",
    "build_star",
    "build_topology",
    "build_tree",
    "client_name",
    "cluster_channel",
    "cluster_count",
    "constant_memberships",
    "find_topology",
    "group_name",
    "has_one_server",
    "memberships_from",
    "participants_of",
    "read_candidates",
    "read_memberships",
]
