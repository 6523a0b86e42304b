"""Who talks to whom, who sees what, who is trusted."""

from collections.abc import Callable, Mapping
from typing import Any

from sightline.errors import did_you_mean, invalid
from sightline.topology.channel import Channel, Topology, client_name
from sightline.topology.star import PUBLIC, SERVER, Star

PLANNED = ("tree", "groups", "clusters")
"""Kinds that the experiment file names and that later versions build."""


def build_star(settings: Mapping[str, Any], *, clients: int, server_trusted: bool) -> Star:
    """A star has no settings of its own."""
    for key, value in settings.items():
        invalid(f"topology.{key}", value, "a star has no such setting", "remove it")
    return Star(clients, server_trusted)


REGISTRY: dict[str, Callable[..., Topology]] = {"star": build_star}


def build(kind: str, settings: Mapping[str, Any], *, clients: int, server_trusted: bool) -> Topology:
    """The topology of an experiment file, by its name."""
    if kind in PLANNED:
        invalid("topology.kind", kind, "not in this version", f"available: {', '.join(REGISTRY)}")
    if kind not in REGISTRY:
        invalid("topology.kind", kind, "no such topology", did_you_mean(kind, list(REGISTRY)))
    return REGISTRY[kind](settings, clients=clients, server_trusted=server_trusted)


__all__ = ["PLANNED", "PUBLIC", "REGISTRY", "SERVER", "Channel", "Star", "Topology", "build", "client_name"]
