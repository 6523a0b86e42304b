"""The result of loading data: clients with a train and a test shard each, and one common test set."""

import hashlib
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from sightline.errors import InvalidInput


class Kind(StrEnum):
    """Type of one example; models choose their first layer by it."""

    VECTOR = "vector"
    IMAGE = "image"
    TEXT = "text"
    SEQUENCE = "sequence"


Targets = NDArray[np.int64] | NDArray[np.float32]
"""Prediction targets, one row per example: whole numbers for labels and tokens."""


def check_one_label(y: Targets) -> NDArray[np.int64]:
    """Return the targets; raise unless each is one label, as proofs and partitions by label require."""
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise InvalidInput(f"targets={y.dtype} {y.shape}: these are no labels; use task = classification")
    return y.astype(np.int64, copy=False)


@dataclass(frozen=True, eq=False)
class Shard:
    """Examples of one owner.

    x is float32 (n, ...) for vectors, (channels, height, width) images and (steps, features) sequences, int64 (n,
    tokens) for text. y holds the targets, int64 (n,) labels unless the task is another.
    """

    x: NDArray[np.float32] | NDArray[np.int64]
    y: Targets

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise InvalidInput(f"shard={len(self.x)} inputs, {len(self.y)} labels: each example has one label")

    def __len__(self) -> int:
        return len(self.y)

    def take(self, index: NDArray[np.integer] | slice) -> "Shard":
        """Return the examples at `index`, in that order."""
        return Shard(self.x[index], self.y[index])


@dataclass(frozen=True, eq=False)
class Client:
    """One participant's private data, and its cluster if the partition has clusters."""

    train: Shard
    test: Shard
    cluster: int | None = None
    validation: Shard | None = None
    """Examples to choose settings by, which no model is trained on; they are as private as the training examples."""


@dataclass(frozen=True, eq=False)
class Federation:
    """A data set, dealt to clients."""

    source: str
    clients: tuple[Client, ...]
    test: Shard
    classes: int
    kind: Kind
    vocabulary: int = 0
    """Number of tokens if the examples are text, else 0."""
    notes: tuple[str, ...] = field(default=())
    """What a reader of the report must know: sub-sampling, reuse, the meaning of a label."""
    elsewhere: bool = False
    """Whether the examples are at sites of their own; the shards here then only give their number."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return tuple(int(size) for size in self.test.x.shape[1:])

    @property
    def target_shape(self) -> tuple[int, ...]:
        """The shape of one target; () for a label or a number."""
        return tuple(int(size) for size in self.test.y.shape[1:])

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Training examples per client."""
        return np.array([len(client.train) for client in self.clients], dtype=np.int64)

    def digest(self) -> str:
        """Return a fingerprint of the training data and its partition. Anyone who can guess the data can verify it.

        For data that are elsewhere it covers sizes and shapes only, as the federation does.
        """
        # A hash without a key confirms a guess of the data: treat it as private.
        words = hashlib.blake2b(digest_size=32)
        for client in self.clients:
            for array in (client.train.x, client.train.y):
                words.update(repr((array.shape, array.dtype.str)).encode())
                if not self.elsewhere:
                    words.update(np.ascontiguousarray(array).data)
        return words.hexdigest()
