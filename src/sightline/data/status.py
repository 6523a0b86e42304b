"""Where data sets live on disk."""

import os
from dataclasses import dataclass
from pathlib import Path

from sightline.data.source import Source
from sightline.data.sources import SOURCES
from sightline.errors import invalid

VARIABLE = "SIGHTLINE_DATA"


def data_root(root: Path | None = None) -> Path:
    """The folder of the data sets: as given, else what SIGHTLINE_DATA names, else `data/` in the working folder."""
    return Path(root) if root is not None else Path(os.environ.get(VARIABLE) or "data")


def folder_of(source: Source, root: Path) -> Path:
    """The source's folder, with all its files there."""
    folder = root / source.name
    missing = source.missing(folder)
    if missing:
        where = f"looked for {missing[0]} in {folder.absolute()}"
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        law = f"{where}{more}, not found" if root.is_dir() else f"no data folder {root.absolute()} ({where}{more})"
        way_out = f"{VARIABLE} names the folder that holds {source.name}/, and `sightline datasets` tells how to get it"
        invalid("data.source", source.name, law, way_out)
    return folder


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
