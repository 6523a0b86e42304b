"""Fixed public features of images for softmax regression, dealt to devices: nothing in them is learned from data.

A first-order scattering: the image's gradient, its modulus split over orientations, averaged over cells, and the root
of that; for colour images also the colours of coarse cells. Every block is centred on the image's own mean and the
whole has norm 1, so an example's features depend on that example only.
"""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sightline.config import Data
from sightline.data import Client, Shard, load_federation
from sightline.data.partition import draw_subsample, label_shards
from sightline.randomness import Streams

Images = NDArray[np.float32]
TESTED = 2000
"""Test images."""
PIECE = 2000
"""Images whose gradients are held at once."""


def deal_features(
    clients: int, rng: np.random.Generator, data: str, examples: int, labels: int = 3
) -> Iterator[Client]:
    """Yield devices with `examples` examples each, of three labels; the first one also holds the test images."""
    train, test = read_features(data)
    some = draw_subsample(len(train), keep=clients * examples, rng=rng)
    parts = label_shards(train.y[some], clients=clients, labels_per_client=labels, rng=rng)
    for number, part in enumerate(parts):
        yield Client(train.take(some[part]), test if number == 0 else test.take(slice(0, 0)))


@lru_cache(maxsize=2)
def read_features(data: str) -> tuple[Shard, Shard]:
    """(training, test): every image of a data set as its features, in an order that depends on nothing."""
    plain = Data(source=data, clients=1, partition="iid", test_fraction=0.0, test_samples=TESTED)
    whole = load_federation(plain, streams=Streams.from_seed(0))
    return describe_shard(whole.clients[0].train), describe_shard(whole.test)


def describe_shard(shard: Shard) -> Shard:
    """The same examples by their features, some at a time."""
    pieces = [describe_images(shard.x[at : at + PIECE]) for at in range(0, len(shard), PIECE)]
    return Shard(np.concatenate(pieces), shard.y)


def describe_images(images: Images) -> Images:
    """(n, channels, height, width) -> (n, features) of norm 1.

    >>> describe_images(np.ones((2, 1, 28, 28), np.float32)).shape, describe_images(np.ones((1, 3, 32, 32))).shape
    ((2, 196), (1, 304))
    """
    grey = images.mean(1)
    cells = 7 if images.shape[2] % 7 == 0 else 8
    blocks = [np.sqrt(orient_gradients(grey, cells))]
    if images.shape[1] == 3:
        blocks.append(pool_cells(images, 4))
    centred = [block - block.mean(1, keepdims=True) for block in blocks]
    return scale_to_unit(np.concatenate([scale_to_unit(block) for block in centred], 1)).astype(np.float32)


def orient_gradients(grey: Images, cells: int, orientations: int = 4) -> Images:
    """The gradient's modulus by orientation (shared between the two nearest), averaged over cells x cells."""
    across, down = np.zeros_like(grey), np.zeros_like(grey)
    across[:, :, 1:-1] = grey[:, :, 2:] - grey[:, :, :-2]
    down[:, 1:-1] = grey[:, 2:] - grey[:, :-2]
    modulus = np.hypot(across, down)
    angle = np.mod(np.arctan2(down, across), np.pi) * (orientations / np.pi)
    shares = []
    for orientation in range(orientations):
        away = np.abs(angle - orientation)
        shares.append(np.maximum(0.0, 1.0 - np.minimum(away, orientations - away)) * modulus)
    return pool_cells(np.stack(shares, 1), cells)


def pool_cells(images: Images, cells: int) -> Images:
    """(n, channels, height, width) -> (n, channels x cells x cells): the means of equal squares."""
    n, channels, height, width = images.shape
    squares = images.reshape(n, channels, cells, height // cells, cells, width // cells)
    return np.asarray(squares.mean((3, 5)).reshape(n, -1))


def scale_to_unit(rows: Images) -> Images:
    """Every row with norm 1; a row of zeros stays."""
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
