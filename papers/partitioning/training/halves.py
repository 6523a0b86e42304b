"""The paper's two halves: one to pre-train on 8 of the 10 classes, one to fine-tune in private.

Images are made smaller by means over squares.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline import data
from sightline.config import Data
from sightline.data import Shard
from sightline.randomness import Streams

KNOWN = 8
"""Classes of the pre-training."""
POOL = 4
"""Images at a quarter of their size, where nothing else is said."""
TEST = 2000
"""Test images of a fine-tuned model."""

Arrays = tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]


@cache
def images(source: str, pool: int) -> tuple[Shard, Shard]:
    """All training and test images, each pixel the mean of pool x pool."""
    settings = Data(source=source, clients=1, partition="iid", test_fraction=0.0)
    federation = data.load_federation(settings, streams=Streams.from_seed(0))
    return smaller(federation.clients[0].train, pool), smaller(federation.test, pool)


def smaller(shard: Shard, pool: int) -> Shard:
    """Return the images pooled by averages: height and width divided by `pool`."""
    n, channels, height, width = shard.x.shape
    pooled = shard.x.reshape(n, channels, height // pool, pool, width // pool, pool).mean((3, 5))
    return Shard(pooled.astype(np.float32), shard.y)


def halves(train: Shard) -> tuple[Shard, Shard]:
    """Two halves with the same number of images of every class."""
    order = [np.flatnonzero(train.y == label) for label in range(10)]
    first = np.concatenate([some[: len(some) // 2] for some in order])
    second = np.concatenate([some[len(some) // 2 :] for some in order])
    return train.take(first), train.take(second)


def public(clients: int, rng: np.random.Generator, *, source: str, size: int, pool: int = POOL) -> Iterator[Arrays]:
    """One owner of `size` images of the first half, of the known classes only."""
    train, test = images(source, pool)
    known = halves(train)[0]
    known, seen = known.take(known.y < KNOWN), test.take(test.y < KNOWN)
    some = known.take(rng.permutation(len(known))[:size])
    yield some.x, some.y, seen.x[:TEST], seen.y[:TEST]


def private(clients: int, rng: np.random.Generator, *, source: str, size: int, pool: int = POOL) -> Iterator[Arrays]:
    """`size` images of the second half, of all classes, dealt evenly; the first owner has the test set too."""
    train, test = images(source, pool)
    own = halves(train)[1]
    for number, index in enumerate(np.array_split(rng.permutation(len(own))[:size], clients)):
        held = test.take(slice(0, TEST if number == 0 else 0))
        yield own.x[index], own.y[index], held.x, held.y


def section(name: str, source: str, *, clients: int, size: int, pool: int = POOL) -> dict[str, Any]:
    """The [data] table that asks for one of the halves."""
    options = {"source": source, "size": size} | ({"pool": pool} if pool != POOL else {})
    return {
        "source": f"{__name__}:{name}", "clients": clients, "partition": "natural", "classes": 10, "options": options,
    }  # fmt: skip
