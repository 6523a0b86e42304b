"""A data set in memory before it is dealt, and the description of sources that provide one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sightline.config import Data
from sightline.data.federation import Kind, Shard, Targets, check_one_label
from sightline.errors import did_you_mean, invalid
from sightline.randomness import Streams

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
        """The targets, if each is one label."""
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
    """One key of `data.options`: a whole number in a range, or one of a few words."""

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
