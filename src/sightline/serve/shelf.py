"""The runs folder: which runs are in it, and no way out of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from sightline.engine import CONFIG
from sightline.engine.record import DATABASE
from sightline.report.folder import runs_below


class NotThere(Exception):
    """No run of that name."""


@dataclass(frozen=True)
class Shelf:
    """Runs by their path inside one folder."""

    folder: Path

    @cached_property
    def _real(self) -> Path:
        return self.folder.resolve()

    def ids(self) -> Iterator[str]:
        """The name of every run: its path inside the folder, with slashes."""
        if self.folder.is_dir():
            for directory in runs_below(self.folder):
                yield directory.relative_to(self.folder).as_posix()

    def directory(self, id: str) -> Path:
        """The folder of a run; a name that leads out of the runs folder, by dots or by links, is no run."""
        parts = PurePosixPath(id).parts
        if not id or id.startswith("/") or "\\" in id or "\0" in id or ".." in parts:
            raise NotThere(id)
        directory = self.folder.joinpath(*parts)
        if not (directory / DATABASE).is_file():
            raise NotThere(id)
        for path in (directory / DATABASE, directory / CONFIG):
            if not path.resolve().is_relative_to(self._real):
                raise NotThere(id)
        return directory
