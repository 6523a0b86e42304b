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
    client_name,
    participants_of,
)
from sightline.topology.clusters import Clusters, build_clusters, cluster_channel, cluster_count
from sightline.topology.groups import (
    STRUCTURES,
    Era,
    Groups,
    Labels,
    Schedule,
    build_groups,
    constant_schedule,
    group_name,
    read_schedule,
    schedule_from,
)
from sightline.topology.shape import TopologyPlugin, check_shape
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
        invalid(f"topology.{key}", value, "a star has no such setting", "remove it")
    return Star(clients, place == "server")


REGISTRY: dict[str, Callable[..., Topology]] = {
    "star": build_star,
    "groups": build_groups,
    "tree": build_tree,
    "clusters": build_clusters,
}


def find_topology(kind: str) -> TopologyPlugin:
    """Return how a kind of topology is built, and the built-in kind that algorithms may treat it as."""
    plugin = locate_plugin(TOPOLOGY, kind, REGISTRY)
    if plugin is None:
        return TopologyPlugin(REGISTRY[kind], like=kind)
    found = plugin.load_object()
    if not isinstance(found, TopologyPlugin):
        plugin.refuse_type(found, "a `TopologyPlugin` of sightline.topology")
    return found


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
    topologies that use them. Raises for a plugin topology that fails `check_shape`.
    """
    known = find_topology(kind)
    built = known.build(settings, clients=clients, place=place, labels=labels, streams=streams)
    # Built-in topologies are covered by tests; a plugin's is checked before anything is computed with it.
    if kind not in REGISTRY:
        check_shape(kind, built, clients=clients, place=place, like=known.like)
    return built


__all__ = [
    "CLOUD",
    "PUBLIC",
    "REGISTRY",
    "SERVER",
    "STRUCTURES",
    "Channel",
    "Clusters",
    "Era",
    "Groups",
    "Labels",
    "Line",
    "Node",
    "Noise",
    "Schedule",
    "Star",
    "Steady",
    "Topology",
    "TopologyPlugin",
    "Tree",
    "build_clusters",
    "build_groups",
    "build_star",
    "build_topology",
    "build_tree",
    "check_shape",
    "client_name",
    "cluster_channel",
    "cluster_count",
    "constant_schedule",
    "find_topology",
    "group_name",
    "participants_of",
    "read_schedule",
    "schedule_from",
]
