"""Strict readers of file formats: headers are checked first, and nothing is unpacked beyond its stated size."""

import csv
import gzip
import io
import lzma
import math
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from sightline.errors import invalid
from sightline.plugins import import_extra


# Data files come from strangers. A small archive that unpacks to terabytes, a pickle or a header that lies must end in
# one error line, not in exhausted memory or foreign code.
def raise_broken(path: Path, reason: str) -> NoReturn:
    """Raise the error for a damaged or foreign file."""
    invalid(
        "file", f"{path.parent.name}/{path.name}", reason, "replace it; `sightline datasets` lists the expected files"
    )


# Read in steps: a header that promises too much cannot make us allocate memory that the file does not fill.
STEP = 2**24


@contextmanager
def gzip_stream(path: Path) -> Iterator[gzip.GzipFile]:
    """Yield the unpacked bytes of a gzip file as a stream."""
    try:
        with gzip.open(path, "rb") as stream:
            yield stream
    except EOFError:
        raise_broken(path, "the gzip data is incomplete")
    except (OSError, zlib.error) as error:
        raise_broken(path, f"cannot be unpacked ({type(error).__name__})")


def read_up_to(stream: gzip.GzipFile, size: int) -> bytes:
    """Return the next `size` bytes, or all that are left; memory grows with the actual content, not with `size`."""
    pieces: list[bytes] = []
    while size > 0 and (piece := stream.read(min(size, STEP))):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def read_gzip(path: Path, *, most: int) -> bytes:
    """Return all unpacked bytes; raise as soon as there are more than `most`."""
    with gzip_stream(path) as stream:
        content = read_up_to(stream, most + 1)
    if len(content) > most:
        raise_broken(path, f"unpacks to more than {most:,} bytes")
    return content


MOST_CSV_BYTES = 2**30


def read_csv(path: Path, columns: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the named columns of every row, as text.

    Guarantees: unpacks at most 1 GiB; every row has as many fields as the header.
    """
    try:
        text = read_gzip(path, most=MOST_CSV_BYTES).decode("utf-8")
        rows = csv.reader(io.StringIO(text, newline=""), strict=True)
        header = next(rows, [])
        indices = [_column_index(path, header, column) for column in columns]
        return [tuple(_check_row(path, row, header, rows.line_num)[index] for index in indices) for row in rows]
    except UnicodeDecodeError:
        raise_broken(path, "is not UTF-8 text")
    except csv.Error as error:
        raise_broken(path, f"is not a CSV table ({error})")


def _column_index(path: Path, header: list[str], column: str) -> int:
    if column not in header:
        raise_broken(path, f'has no column "{column}"')
    return header.index(column)


def _check_row(path: Path, row: list[str], header: list[str], line: int) -> list[str]:
    if len(row) != len(header):
        raise_broken(path, f"line {line} has {len(row)} fields, the header {len(header)}")
    return row


UNSIGNED_BYTE = 0x08
MOST_ITEMS = 1_000_000


def read_idx(path: Path, *, item: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return the items of a gzipped IDX file of unsigned bytes, each of shape `item`.

    Guarantees: never unpacks more than the header states, and trusts the header only if the item shape is `item` and
    there are 1 .. 1,000,000 items. A file that is shorter or longer than its header says is refused.
    """
    with gzip_stream(path) as stream:
        items = _read_count(path, stream.read(4 + 4 * (1 + len(item))), item)
        size = items * math.prod(item)
        content = read_up_to(stream, size)
        # One byte beyond the stated size shows a file that does not match its header.
        surplus = stream.read(1)
    if len(content) < size:
        raise_broken(path, f"the header states {size:,} bytes, the file has {len(content):,}")
    if surplus:
        raise_broken(path, f"has more than the {size:,} bytes that its header states")
    return np.frombuffer(content, dtype=np.uint8).reshape(items, *item)


def _read_count(path: Path, header: bytes, item: tuple[int, ...]) -> int:
    axes = 1 + len(item)
    if header[:4] != bytes((0, 0, UNSIGNED_BYTE, axes)):
        raise_broken(
            path, f"magic number {header[:4].hex() or 'missing'}, expected {bytes((0, 0, UNSIGNED_BYTE, axes)).hex()}"
        )
    if len(header) < 4 + 4 * axes:
        raise_broken(path, "the header is incomplete")
    items, *shape = (int.from_bytes(header[at : at + 4], "big") for at in range(4, 4 + 4 * axes, 4))
    if tuple(shape) != item:
        raise_broken(path, f"items of shape {tuple(shape)}, expected {item}")
    if not 1 <= items <= MOST_ITEMS:
        raise_broken(path, f"{items:,} items, expected 1 .. {MOST_ITEMS:,}")
    return items


MOST_ARRAY_BYTES = 2**30
MOST_OWN_BYTES = 2**34
"""Size limits for files from others, and for the user's own."""
UNREADABLE = (
    OSError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError, RuntimeError, ValueError,
    OverflowError, struct.error, MemoryError,
)  # fmt: skip
"""What zipfile raises for archives that are damaged, accidentally or on purpose."""


@dataclass(frozen=True)
class Field:
    """Expected dtype and shape of an array; None stands for any size."""

    dtype: str
    shape: tuple[int | None, ...]

    def fits(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
        """Return whether an array matches."""
        sizes = len(shape) == len(self.shape) and all(w in (None, s) for w, s in zip(self.shape, shape, strict=True))
        return dtype == np.dtype(self.dtype) and sizes

    def __str__(self) -> str:
        return f"{self.dtype} ({', '.join('any' if size is None else str(size) for size in self.shape)})"


def read_npz(path: Path, fields: Mapping[str, Field]) -> dict[str, NDArray[Any]]:
    """Return the named arrays of an .npz file.

    Guarantees: no pickle is ever opened. A member is unpacked only if its header states the expected dtype and shape,
    and at most to the size that follows from them (never above 1 GiB).
    """
    with _open_archive(path) as archive:
        return {name: _read_member(path, archive, name, field) for name, field in fields.items()}


def read_arrays(path: Path, names: Iterable[str]) -> dict[str, NDArray[Any]]:
    """Return the named arrays of a user's own .npz file; guarantees as `read_npz`, with 16 GiB."""
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
    result = np.frombuffer(content, dtype=dtype).reshape(shape, order="F" if columns_first else "C")
    # frombuffer is read-only, and torch warns about read-only arrays.
    return result.copy()


def _read_header(path: Path, stream: IO[bytes], name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        version = npy.read_magic(stream)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, columns_first, dtype = read(stream)
    # numpy parses headers as Python literals, so damaged ones raise many kinds of errors.
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError, tokenize.TokenError):
        raise_broken(path, f'array "{name}" has no valid .npy header')
    return shape, columns_first, dtype


def read_webp_grid(path: Path, *, side: int, per_row: int) -> NDArray[np.uint8]:
    """Return the per_row^2 RGB images of side x side pixels in a square grid, as (n, 3, side, side).

    Guarantees: the size is checked before the picture is decoded.
    """
    picture = _decode_image(path, per_row * side)
    grid = picture.reshape(per_row, side, per_row, side, 3)
    return np.ascontiguousarray(grid.transpose(0, 2, 4, 1, 3)).reshape(per_row * per_row, 3, side, side)


def _decode_image(path: Path, edge: int) -> NDArray[np.uint8]:
    Image = import_extra("PIL.Image", "images")

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            # Only the expected format: Pillow would otherwise try every decoder it has on a foreign file.
            with Image.open(path, formats=("WEBP",)) as picture:
                if picture.size != (edge, edge) or picture.mode != "RGB" or getattr(picture, "n_frames", 1) != 1:
                    width, height = picture.size
                    raise_broken(
                        path, f"a {width} x {height} {picture.mode} picture, expected one of {edge} x {edge} RGB"
                    )
                return np.asarray(picture)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise_broken(path, f"is not a readable WebP picture ({type(error).__name__})")


PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
GREY, COLOUR = ("1", "L", "LA"), ("RGB", "RGBA", "P", "CMYK", "YCbCr")
"""Pillow's modes of pictures with 8 bits or fewer a channel."""


def list_pictures(folder: Path) -> list[tuple[tuple[str, ...], Path]]:
    """Return (names of the folders between, file) of every image below a folder, sorted; hidden files are left out."""
    files = (path for path in folder.rglob("*") if path.suffix.lower() in PICTURES and path.is_file())
    result = [(path.relative_to(folder).parts, path) for path in files]
    return sorted((parts[:-1], path) for parts, path in result if not any(part.startswith(".") for part in parts))


def read_picture(path: Path, side: int | None = None) -> NDArray[np.uint8]:
    """Return an image file as (channels, height, width) bytes, scaled to `side` x `side` pixels if given.

    Guarantees: grey pictures have one channel, all others three (red, green, blue). Raises for more than 8 bits a
    channel and for a picture so large that it may exhaust memory.
    """
    Image = import_extra("PIL.Image", "images")

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF")) as picture:
                if picture.mode not in GREY + COLOUR:
                    invalid(
                        "data", path, f"image mode {picture.mode} is not supported", "convert it to 8 bits per channel"
                    )
                plain = picture.convert("L" if picture.mode in GREY else "RGB")
                if side is not None and plain.size != (side, side):
                    plain = plain.resize((side, side), Image.Resampling.BILINEAR)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        invalid("data", path, f"is not a readable image ({type(error).__name__})", "replace or remove it")
    pixels = np.asarray(plain)
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


__all__ = [
    "Field",
    "list_pictures",
    "read_arrays",
    "read_csv",
    "read_idx",
    "read_npz",
    "read_picture",
    "read_webp_grid",
]
