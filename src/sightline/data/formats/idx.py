"""IDX files (the format of MNIST): magic number, sizes, then the values."""

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sightline.data.formats.broken import raise_broken
from sightline.data.formats.gz import gzip_stream, read_up_to

UNSIGNED_BYTE = 0x08
MOST_ITEMS = 1_000_000


def read_idx(path: Path, *, item: tuple[int, ...]) -> NDArray[np.uint8]:
    """The items of a gzipped IDX file of unsigned bytes, each of shape `item`.

    Guarantees: never unpacks more than the header states, and believes the header only when the item shape is `item`
    and there are 1 .. 1,000,000 items; a file that is shorter or longer than its header is refused.
    """
    with gzip_stream(path) as stream:
        items = _read_count(path, stream.read(4 + 4 * (1 + len(item))), item)
        size = items * math.prod(item)
        content = read_up_to(stream, size)
        surplus = stream.read(1)
    if len(content) < size:
        raise_broken(path, f"the header promises {size:,} bytes, the file holds {len(content):,}")
    if surplus:
        raise_broken(path, f"holds more than the {size:,} bytes that its header states")
    return np.frombuffer(content, dtype=np.uint8).reshape(items, *item)


def _read_count(path: Path, header: bytes, item: tuple[int, ...]) -> int:
    axes = 1 + len(item)
    if header[:4] != bytes((0, 0, UNSIGNED_BYTE, axes)):
        raise_broken(
            path, f"magic number {header[:4].hex() or 'missing'}, expected {bytes((0, 0, UNSIGNED_BYTE, axes)).hex()}"
        )
    if len(header) < 4 + 4 * axes:
        raise_broken(path, "the header ends too early")
    items, *shape = (int.from_bytes(header[at : at + 4], "big") for at in range(4, 4 + 4 * axes, 4))
    if tuple(shape) != item:
        raise_broken(path, f"items of shape {tuple(shape)}, expected {item}")
    if not 1 <= items <= MOST_ITEMS:
        raise_broken(path, f"{items:,} items, expected 1 .. {MOST_ITEMS:,}")
    return items
