"""NumPy archives, member by member: each header is checked before a value is unpacked, and nothing is unpickled."""

import lzma
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from sightline.data.formats.broken import raise_broken

MOST_ARRAY_BYTES = 2**30
MOST_OWN_BYTES = 2**34
"""Of what somebody else made, and of what the user made."""
UNREADABLE = (
    OSError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError, RuntimeError, ValueError,
    OverflowError, struct.error, MemoryError,
)  # fmt: skip
"""What zipfile raises for archives that are damaged, or were made to be."""


@dataclass(frozen=True)
class Field:
    """What a member must be: its dtype, and its shape with None where any size will do."""

    dtype: str
    shape: tuple[int | None, ...]

    def fits(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
        """Whether an array is of this kind."""
        sizes = len(shape) == len(self.shape) and all(w in (None, s) for w, s in zip(self.shape, shape, strict=True))
        return dtype == np.dtype(self.dtype) and sizes

    def __str__(self) -> str:
        return f"{self.dtype} ({', '.join('any' if size is None else str(size) for size in self.shape)})"


def read_npz(path: Path, fields: Mapping[str, Field]) -> dict[str, NDArray[Any]]:
    """The named arrays of an .npz file.

    Guarantees: no pickle is ever opened; a member is unpacked only when its header says the expected dtype and shape,
    and at most to the size that follows from them (never above 1 GiB).
    """
    with _open_archive(path) as archive:
        return {name: _read_member(path, archive, name, field) for name, field in fields.items()}


def read_arrays(path: Path, names: Iterable[str]) -> dict[str, NDArray[Any]]:
    """The named arrays of an .npz file of the user's own; guarantees as `read_npz`, with 16 GiB."""
    with _open_archive(path) as archive:
        return {name: _read_member(path, archive, name, None) for name in names}


@contextmanager
def _open_archive(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except UNREADABLE as error:
        raise_broken(path, f"is not a readable .npz archive ({type(error).__name__})")


def _read_member(path: Path, archive: zipfile.ZipFile, name: str, field: Field | None) -> NDArray[Any]:
    if f"{name}.npy" not in archive.namelist():
        raise_broken(path, f'has no array "{name}"')
    with archive.open(f"{name}.npy") as stream:
        shape, columns_first, dtype = _read_header(path, stream, name)
        if field is None and dtype.kind not in "biuf":
            raise_broken(path, f'array "{name}" is {dtype}, expected numbers')
        if field is not None and (columns_first or not field.fits(dtype, shape)):
            raise_broken(path, f'array "{name}" is {dtype} {shape}, expected {field} in C order')
        size, most = math.prod(shape) * dtype.itemsize, MOST_OWN_BYTES if field is None else MOST_ARRAY_BYTES
        if not 0 <= size <= most:
            raise_broken(path, f'array "{name}" claims {size:,} bytes, at most {most:,} are read')
        content = stream.read(size)
        surplus = stream.read(1)
    if len(content) != size or surplus:
        raise_broken(path, f'array "{name}" is not of the {size:,} bytes that its header states')
    found = np.frombuffer(content, dtype=dtype).reshape(shape, order="F" if columns_first else "C")
    return found.copy()  # bytes cannot be written to, and torch warns of arrays that cannot


def _read_header(path: Path, stream: IO[bytes], name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        version = npy.read_magic(stream)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, columns_first, dtype = read(stream)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError, tokenize.TokenError):
        raise_broken(path, f'array "{name}" has no valid .npy header')
    return shape, columns_first, dtype
