"""Text files that somebody else may have written, or named."""

from pathlib import Path
from typing import Any

MOST_BYTES = 2**28


def read_text(path: Any, *, encoding: str = "utf-8") -> str:
    """The text of a regular file of at most 256 MiB.

    Raises FileNotFoundError where there is none, and OSError or ValueError, one line to the reader, for anything else:
    a device never ends, a pipe waits, and a name may be no name at all.
    """
    if not isinstance(path, str | Path):
        raise ValueError("a file has a name")
    place = Path(path)
    if not place.is_file():
        raise OSError("not a regular file") if place.exists() else FileNotFoundError(path)
    if place.stat().st_size > MOST_BYTES:
        raise OSError("larger than 256 MiB")
    return place.read_text(encoding=encoding)
