"""What a source of data is: a name, the files it needs, the options it has, the partitions that make sense for it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from sightline.config import Data
from sightline.data.federation import Kind
from sightline.data.table import Table
from sightline.errors import did_you_mean, invalid
from sightline.randomness import Streams


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
    """How a cluster sees the examples."""

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
    words: tuple[str, ...] = ()

    def check(self, name: str, value: Any) -> None:
        """Refuse a value of the wrong type or outside the range."""
        if self.words and value not in self.words:
            invalid(f"data.options.{name}", value, "one of " + ", ".join(self.words), f'e.g. "{self.default}"')
        number = isinstance(value, int) and not isinstance(value, bool)
        if not self.words and not (number and self.lowest <= value <= self.highest):
            law = f"a whole number from {self.lowest} to {self.highest}"
            invalid(f"data.options.{name}", value, law, f"e.g. {self.default}")


@dataclass(frozen=True)
class Request:
    """Everything a source may look at when it is read."""

    settings: Data
    streams: Streams = field(repr=False)
    folder: Path
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Source:
    """A registered source."""

    name: str
    kind: Kind
    examples: str
    read: Callable[[Request], Table]
    partitions: tuple[Partition, ...] = IMAGES
    files: tuple[tuple[str, ...], ...] = ()
    """Alternatives, best first: each a full set of file names in the folder `name`. Empty: nothing to download."""
    options: Mapping[str, Option] = field(default_factory=dict)
    how_to_get: str = "comes with Sightline's own requirements"
    licence: str = ""

    def checked_options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The options with their defaults; an unknown one is refused."""
        for name, value in given.items():
            if name not in self.options:
                known = sorted(self.options)
                way_out = did_you_mean(name, known) if known else f"{self.name} has no options"
                invalid(f"data.options.{name}", value, f"not an option of {self.name}", way_out)
            self.options[name].check(name, value)
        return {name: option.default for name, option in self.options.items()} | dict(given)

    def missing(self, folder: Path) -> tuple[str, ...]:
        """The files that are not there, of the alternative that is nearest to complete; none when one is complete."""
        lacking = {names: tuple(name for name in names if not (folder / name).is_file()) for names in self.files}
        nearest = max(lacking, key=lambda names: (not lacking[names], len(names) - len(lacking[names])), default=())
        return lacking.get(nearest, ())

    def present(self, folder: Path) -> tuple[str, ...]:
        """The first alternative whose files are all there; () when there is none."""
        complete = [names for names in self.files if all((folder / name).is_file() for name in names)]
        return complete[0] if complete else ()
