"""A section of a page, and files that are written whole or not at all."""

import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sightline.apps.report.run_view import RunView


def write_whole(path: Path, text: str) -> None:
    """Write UTF-8 text under a temporary name beside it, then rename: a reader never meets half a file.

    Half characters, which no file can hold, are question marks. Nobody but the owner may write to the file.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


Content = dict[str, Any]


@dataclass(frozen=True)
class Frame:
    """A titled part of a page, drawn by the template of its name."""

    name: str
    title: str

    @property
    def template(self) -> str:
        """The file that draws it."""
        return f"{self.name}.html"


@dataclass(frozen=True)
class Section(Frame):
    """`content` answers None when the run has nothing to say here; the section is then left out."""

    content: Callable[[RunView], Content | None]
