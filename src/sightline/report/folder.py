"""Where runs lie: every run directory below a folder."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from sightline.engine.record import DATABASE, WHOSE
from sightline.errors import invalid

DEPTH = 4
"""So many folders deep runs are looked for: runs/SWEEP/RUN is two."""


def runs_below(folder: Path, *, depth: int = DEPTH) -> Iterator[Path]:
    """Every run directory in a folder, the folder itself included, by name; links are not followed.

    Folders of others that cannot be looked into are passed over.
    """
    try:
        here = (folder / DATABASE).is_file()
        with os.scandir(folder) as found:
            below = sorted(entry.name for entry in found if entry.is_dir(follow_symlinks=False))
    except PermissionError:
        return
    if here:
        yield folder
    elif depth:
        for name in below:
            if not name.startswith("."):
                yield from runs_below(folder / name, depth=depth - 1)


def runs_of(places: Iterable[Path]) -> list[Path]:
    """The run directories that are named, or that lie in a folder that is named; none twice."""
    found: dict[Path, Path] = {}
    for place in places:
        try:
            if not place.is_dir():
                invalid("run", place, "no such folder", "give the folder that sightline run printed")
            os.scandir(place).close()
        except OSError as error:
            invalid("run", place, f"cannot be looked into ({error.strerror})", WHOSE)
        below = list(runs_below(place))
        if not below:
            invalid("run", place, f"no {DATABASE} in it or below it", "give the folder that sightline run printed")
        for directory in below:
            found.setdefault(directory.resolve(), directory)
    return list(found.values())
