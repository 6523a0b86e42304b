"""Gzip streams whose faults are one line."""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sightline.data.formats.broken import raise_broken

STEP = 2**24


@contextmanager
def gzip_stream(path: Path) -> Iterator[gzip.GzipFile]:
    """The unpacked bytes of a gzip file, as a stream."""
    try:
        with gzip.open(path, "rb") as stream:
            yield stream
    except EOFError:
        raise_broken(path, "the gzip data end too early")
    except (OSError, zlib.error) as error:
        raise_broken(path, f"cannot be unpacked ({type(error).__name__})")


def read_up_to(stream: gzip.GzipFile, size: int) -> bytes:
    """The next `size` bytes, or all that are left; memory grows with what is really there, not with `size`."""
    pieces: list[bytes] = []
    while size > 0 and (piece := stream.read(min(size, STEP))):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def read_gzip(path: Path, *, most: int) -> bytes:
    """All unpacked bytes, refused as soon as they are more than `most`."""
    with gzip_stream(path) as stream:
        content = read_up_to(stream, most + 1)
    if len(content) > most:
        raise_broken(path, f"unpacks to more than {most:,} bytes")
    return content
