"""Data in memory: tables that sources provide, and the federation of clients with train and test shards."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sightline.config import Data
from sightline.errors import InvalidInput, did_you_mean, invalid
from sightline.randomness import Streams


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
        raise InvalidInput(f'targets={y.dtype} {y.shape}: these are not labels; use task = "classification"')
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
            raise InvalidInput(f"shard={len(self.x)} inputs, {len(self.y)} labels: each example must have one label")

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
        digest = hashlib.blake2b(digest_size=32)
        for client in self.clients:
            for array in (client.train.x, client.train.y):
                digest.update(repr((array.shape, array.dtype.str)).encode())
                if not self.elsewhere:
                    digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


CHUNK = 1024
"""Examples encoded at a time: few enough to stay in the cache."""

Index = NDArray[np.int64]
"""Positions of examples in a table."""


@dataclass(frozen=True)
class Scale:
    """Scaling of pixels: (pixel / highest - mean) / std, with mean and std per channel."""

    highest: float
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def apply(self, raw: NDArray[Any], out: NDArray[np.float32]) -> None:
        """Write the scaled pixels of (n, channels, height, width) images into `out`."""
        np.divide(raw.astype(np.uint8, copy=False), np.float32(self.highest), out=out, dtype=np.float32)
        if any(self.mean):
            out -= np.array(self.mean, dtype=np.float32).reshape(-1, 1, 1)
        if any(std != 1.0 for std in self.std):
            out /= np.array(self.std, dtype=np.float32).reshape(-1, 1, 1)


# Nothing of one example may enter the inputs of another: such statistics would be a release without noise or ledger
# entry.
class Scaling(Protocol):
    """Map from raw values to inputs, each example by itself."""

    def apply(self, raw: NDArray[Any], out: NDArray[np.float32]) -> None:
        """Write the inputs of raw examples into `out`."""


@dataclass(frozen=True, eq=False)
class Table:
    """The examples of a source. `x` stays raw (bytes for images) until it is dealt, so that it is copied once."""

    x: NDArray[np.uint8] | NDArray[np.float16] | NDArray[np.float32] | NDArray[np.int64]
    y: Targets
    classes: int
    kind: Kind
    scale: Scaling | None = None
    owner: NDArray[np.int64] | None = None
    """Owner of each example (user or client number), if the source knows it."""
    test: "Table | None" = None
    """The source's own test split, if it has one."""
    vocabulary: int = 0
    notes: tuple[str, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.y)

    @property
    def labels(self) -> NDArray[np.int64]:
        """Return the targets if each is one label; raise if not."""
        return check_one_label(self.y)

    def empty(self, examples: int) -> NDArray[np.float32] | NDArray[np.int64]:
        """Return an empty array for the inputs of `examples` examples."""
        shape = (examples, *self.x.shape[1:])
        return np.empty(shape, dtype=np.int64) if self.kind is Kind.TEXT else np.empty(shape, dtype=np.float32)

    def encode(self, index: Index, out: NDArray[np.float32] | NDArray[np.int64], turns: int = 0) -> None:
        """Write the inputs at `index` into `out`, images rotated counter-clockwise by `turns` quarter turns."""
        for start in range(0, len(index), CHUNK):
            raw = self.x[index[start : start + CHUNK]]
            if turns % 4:
                # Raw bytes are turned before scaling, which moves a quarter of the memory.
                raw = np.rot90(raw, turns, axes=(-2, -1))
            if self.scale is None:
                out[start : start + CHUNK] = raw
            else:
                self.scale.apply(raw, out[start : start + CHUNK].view(np.float32))

    def shard(self, index: Index) -> Shard:
        """Return the examples at `index`, in that order, as model inputs."""
        x = self.empty(len(index))
        self.encode(index, x)
        return Shard(x, self.y[index])


class Partition(StrEnum):
    """How examples are dealt to clients."""

    IID = "iid"
    DIRICHLET = "dirichlet"
    LABEL_SHARDS = "label_shards"
    ROTATION = "rotation"
    LABEL_SHIFT = "label_shift"
    BY_USER = "by_user"
    NATURAL = "natural"


class Shift(StrEnum):
    """How a cluster transforms its examples."""

    NONE = "as they are"
    ROTATION = "turned by k quarter turns"
    LABELS = "labels moved on by k"


IMAGES = (Partition.IID, Partition.DIRICHLET, Partition.LABEL_SHARDS, Partition.ROTATION, Partition.LABEL_SHIFT)
TEXTS = (Partition.BY_USER, Partition.IID, Partition.DIRICHLET, Partition.LABEL_SHARDS, Partition.LABEL_SHIFT)


@dataclass(frozen=True)
class Option:
    """One key of `data.options`: a whole number in a range, or one of a few choices."""

    default: int | str
    lowest: int = 0
    highest: int = 0
    choices: tuple[str, ...] = ()

    def check(self, name: str, value: Any) -> None:
        """Raise for a value of the wrong type or outside the range."""
        if self.choices and value not in self.choices:
            invalid(
                f"data.options.{name}", value, "must be one of " + ", ".join(self.choices), f'e.g. "{self.default}"'
            )
        number = isinstance(value, int) and not isinstance(value, bool)
        if not self.choices and not (number and self.lowest <= value <= self.highest):
            reason = f"must be a whole number from {self.lowest} to {self.highest}"
            invalid(f"data.options.{name}", value, reason, f"e.g. {self.default}")


@dataclass(frozen=True)
class Request:
    """Everything that a source may use when it is read."""

    settings: Data
    streams: Streams = field(repr=False)
    folder: Path
    options: Mapping[str, Any]
    task: str = "classification"


@dataclass(frozen=True)
class Source:
    """A registered source."""

    name: str
    kind: Kind
    examples: str
    read: Callable[[Request], Table]
    partitions: tuple[Partition, ...] = IMAGES
    files: tuple[tuple[str, ...], ...] = ()
    """Alternatives, best first: each a full set of file names in the folder `name`. Empty if nothing is downloaded."""
    options: Mapping[str, Option] = field(default_factory=dict)
    how_to_get: str = "comes with Sightline's own requirements"
    licence: str = ""

    def checked_options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options with defaults filled in; raise for an unknown one."""
        for name, value in given.items():
            if name not in self.options:
                known = sorted(self.options)
                way_out = did_you_mean(name, known) if known else f"{self.name} has no options"
                invalid(f"data.options.{name}", value, f"not an option of {self.name}", way_out)
            self.options[name].check(name, value)
        return {name: option.default for name, option in self.options.items()} | dict(given)

    def missing(self, folder: Path) -> tuple[str, ...]:
        """Return the missing files of the alternative that is closest to complete; () if one is complete."""
        lacking = {names: tuple(name for name in names if not (folder / name).is_file()) for names in self.files}
        nearest = max(lacking, key=lambda names: (not lacking[names], len(names) - len(lacking[names])), default=())
        return lacking.get(nearest, ())

    def present(self, folder: Path) -> tuple[str, ...]:
        """Return the first alternative whose files are all there, or ()."""
        complete = [names for names in self.files if all((folder / name).is_file() for name in names)]
        return complete[0] if complete else ()
