"""Which data sets are here, where they were looked for, and how to get the rest."""

from dataclasses import dataclass
from pathlib import Path

from sightline.data.folder import VARIABLE, data_root
from sightline.data.source import Source
from sightline.data.sources import SOURCES


@dataclass(frozen=True)
class DatasetStatus:
    """One line of `sightline datasets`."""

    name: str
    available: bool
    kind: str
    examples: str
    partitions: tuple[str, ...]
    options: tuple[str, ...]
    looked_in: str
    """The folder that was searched; empty when the data set needs no file."""
    missing: tuple[str, ...]
    how_to_get: str
    licence: str


def available_datasets(root: Path | None = None) -> list[DatasetStatus]:
    """The state of every registered source under `root` (default: SIGHTLINE_DATA, else `data/`); reads no file."""
    folder = data_root(root)
    return [_source_status(source, folder) for source in SOURCES.values()]


def _source_status(source: Source, root: Path) -> DatasetStatus:
    folder = root / source.name
    missing = source.missing(folder)
    where = f"put {_listed_files(source)} into {source.name}/ under the folder that {VARIABLE} names"
    return DatasetStatus(
        name=source.name,
        available=not missing,
        kind=str(source.kind),
        examples=source.examples,
        partitions=tuple(str(partition) for partition in source.partitions),
        options=tuple(source.options),
        looked_in=str(folder.absolute()) if source.files else "",
        missing=missing,
        how_to_get=f"{source.how_to_get}; {where}" if source.files else source.how_to_get,
        licence=source.licence,
    )


def _listed_files(source: Source) -> str:
    return ", ".join(source.files[0]) if source.files else ""
