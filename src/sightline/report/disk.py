"""Files that are there whole or not at all."""

import os
import secrets
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write UTF-8 text under a temporary name beside it, then rename: a reader never meets half a file.

    Half characters, which no file can hold, are question marks.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        with temporary.open("x", encoding="utf-8", errors="replace", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
