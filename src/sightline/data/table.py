"""A data set in memory, before it is dealt: raw values, labels, and how the raw values become model inputs."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sightline.data.federation import Kind, Shard

CHUNK = 1024
"""Examples encoded at a time: small enough to stay in the cache."""

Index = NDArray[np.int64]
"""Positions of examples in a table."""


@dataclass(frozen=True)
class Scale:
    """Pixels to inputs: (pixel / highest - mean) / std, with mean and std per channel."""

    highest: float
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def apply(self, raw: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        """Write the scaled pixels of (n, channels, height, width) images into `out`."""
        np.divide(raw, np.float32(self.highest), out=out, dtype=np.float32)
        if any(self.mean):
            out -= np.array(self.mean, dtype=np.float32).reshape(-1, 1, 1)
        if any(std != 1.0 for std in self.std):
            out /= np.array(self.std, dtype=np.float32).reshape(-1, 1, 1)


@dataclass(frozen=True, eq=False)
class Table:
    """The examples of a source. `x` stays raw (bytes for images) until it is dealt, so that it is copied once."""

    x: NDArray[np.uint8] | NDArray[np.float32] | NDArray[np.int64]
    y: NDArray[np.int64]
    classes: int
    kind: Kind
    scale: Scale | None = None
    owner: NDArray[np.int64] | None = None
    """Whose example it is (user or client number), when the source knows."""
    test: "Table | None" = None
    """The source's own test split, when it has one."""
    vocabulary: int = 0
    notes: tuple[str, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.y)

    def empty(self, examples: int) -> NDArray[np.float32] | NDArray[np.int64]:
        """Room for the inputs of `examples` examples."""
        shape = (examples, *self.x.shape[1:])
        return np.empty(shape, dtype=np.int64) if self.kind is Kind.TEXT else np.empty(shape, dtype=np.float32)

    def encode(self, index: Index, out: NDArray[np.float32] | NDArray[np.int64], turns: int = 0) -> None:
        """Write the inputs at `index` into `out`; images are turned by `turns` quarter turns, counter-clockwise."""
        for start in range(0, len(index), CHUNK):
            raw = self.x[index[start : start + CHUNK]]
            if turns % 4:
                raw = np.rot90(raw, turns, axes=(-2, -1))
            if self.scale is None:
                out[start : start + CHUNK] = raw
            else:
                self.scale.apply(raw.astype(np.uint8, copy=False), out[start : start + CHUNK].view(np.float32))

    def shard(self, index: Index) -> Shard:
        """The examples at `index`, in that order, as model inputs."""
        x = self.empty(len(index))
        self.encode(index, x)
        return Shard(x, self.y[index])
