"""Where data sets live on disk."""

import os
from pathlib import Path

from sightline.data.source import Source
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
