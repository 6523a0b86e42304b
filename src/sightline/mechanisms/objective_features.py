"""Features of norm <= 1 with the bias in it: what the bounds of convex perturbation rest on."""

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sightline.data import Client, Federation, Kind, Shard
from sightline.errors import refuse
from sightline.mechanisms.objective_solver import HALF

NOTE = "features: every example is scaled to norm <= 1 / sqrt 2, so that with the bias's constant feature it is <= 1"


def unit_features(federation: Federation) -> Federation:
    """The federation with every example scaled down to norm 1 / sqrt 2 where it is longer.

    Guarantees: an example's scaling depends on that example only, so it is no release.
    """
    if federation.kind is Kind.TEXT:
        refuse("data.source", federation.source, "words are not vectors of bounded norm", "use vectors or images")
    clients = tuple(
        Client(unit_shard(client.train), unit_shard(client.test), client.cluster) for client in federation.clients
    )
    return replace(federation, clients=clients, test=unit_shard(federation.test), notes=(*federation.notes, NOTE))


def unit_shard(shard: Shard) -> Shard:
    """The shard with every example's norm at most 1 / sqrt 2."""
    flat = shard.x.reshape(len(shard), math.prod(shard.x.shape[1:])).astype(np.float64)
    norms = np.linalg.norm(flat, axis=1, keepdims=True)
    scaled: NDArray[np.float32] = (flat * np.minimum(1.0, HALF / np.maximum(norms, 1e-300))).astype(np.float32)
    return Shard(scaled.reshape(shard.x.shape), shard.y)
