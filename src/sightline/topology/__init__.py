"""Who talks to whom, who sees what, who is trusted."""

from collections.abc import Callable, Mapping
from typing import Any

from sightline.errors import did_you_mean, invalid
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
from sightline.topology.tree import CLOUD, Node, Noise, Tree, build_tree


def build_star(
    settings: Mapping[str, Any],
    *,
    clients: int,
    place: str,
    labels: Labels | None = None,
    streams: Streams | None = None,
) -> Star:
    """A star has no settings of its own."""
    for key, value in settings.items():
        invalid(f"topology.{key}", value, "a star has no such setting", "remove it")
    return Star(clients, place == "server")


REGISTRY: dict[str, Callable[..., Topology]] = {
    "star": build_star,
    "groups": build_groups,
    "tree": build_tree,
    "clusters": build_clusters,
}


def find_topology(kind: str) -> Callable[..., Topology]:
    """The builder of a kind of topology."""
    if kind not in REGISTRY:
        invalid("topology.kind", kind, "no such topology", did_you_mean(kind, list(REGISTRY)))
    return REGISTRY[kind]


def build_topology(
    kind: str,
    settings: Mapping[str, Any],
    *,
    clients: int,
    place: str,
    labels: Labels | None = None,
    streams: Streams | None = None,
) -> Topology:
    """The topology of an experiment file, by its name.

    `place` says who adds the noise; `labels` what workers hold and `streams` what chance decides, for those that ask.
    """
    return find_topology(kind)(settings, clients=clients, place=place, labels=labels, streams=streams)


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
    "Tree",
    "build_clusters",
    "build_groups",
    "build_star",
    "build_topology",
    "build_tree",
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
