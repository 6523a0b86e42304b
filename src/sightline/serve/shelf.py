"""The runs folder: which runs are in it, and no way out of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from sightline.engine import CONFIG
from sightline.engine.record import DATABASE
from sightline.errors import invalid
from sightline.report.folder import runs_below

READ = (DATABASE, f"{DATABASE}-wal", CONFIG)
"""The files of a run that pages are made of."""


class NotThere(Exception):
    """No run of that name."""


@dataclass(frozen=True)
class RunFolder:
    """Runs by their path inside one folder."""

    folder: Path

    @cached_property
    def _real(self) -> Path:
        return self.folder.resolve()

    def ids(self) -> Iterator[str]:
        """The name of every run: its path inside the folder, with slashes; what cannot be shown is passed over."""
        if self.folder.is_dir():
            for directory in runs_below(self.folder):
                id = directory.relative_to(self.folder).as_posix()
                if id.isprintable():
                    yield id

    def directory(self, id: str) -> Path:
        """The folder of a run; a name that leads out of the runs folder, by dots or by links, is no run."""
        parts = PurePosixPath(id).parts
        if not id or id.startswith("/") or "\\" in id or "\0" in id or ".." in parts:
            raise NotThere(id)
        directory = self.folder.joinpath(*parts)
        try:
            inside = [(directory / name).resolve().is_relative_to(self._real) for name in READ]
            there = (directory / DATABASE).is_file()
            if not all(inside) or not (there or (directory / DATABASE).is_dir()):
                raise NotThere(id)
        except (OSError, RuntimeError, ValueError):  # too long a name, links that go in circles, half a character
            raise NotThere(id) from None
        if not there:
            invalid("run", id, f"{DATABASE} in it is a folder, where a run has a file", "restore it from a copy")
        return directory
