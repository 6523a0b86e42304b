"""Small files in the real formats, and the folder of the real ones."""

import csv
import gzip
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

REAL = Path(os.environ.get("SIGHTLINE_DATA") or "data")


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not (REAL / name).is_dir(), reason=f"SIGHTLINE_DATA holds no {name}/")


def idx_bytes(values: NDArray[np.uint8], sizes: Sequence[int] | None = None, magic: bytes | None = None) -> bytes:
    sizes = values.shape if sizes is None else sizes
    head = bytes((0, 0, 8, len(sizes))) if magic is None else magic
    return head + b"".join(int(size).to_bytes(4, "big") for size in sizes) + values.tobytes()


def write_gz(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(content)
    return path


def write_images(folder: Path, *, train: int, test: int, seed: int = 0) -> None:
    """A four-file data set; the first pixel of image i is its label, the next two tell i."""
    rng = np.random.default_rng(seed)
    for prefix, count in (("train", train), ("t10k", test)):
        images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = rng.integers(0, 10, count, dtype=np.uint8)
        images[:, 0, 0], images[:, 0, 1], images[:, 0, 2] = labels, np.arange(count) % 256, np.arange(count) // 256
        write_gz(folder / f"{prefix}-images-idx3-ubyte.gz", idx_bytes(images))
        write_gz(folder / f"{prefix}-labels-idx1-ubyte.gz", idx_bytes(labels))


def write_webp(path: Path, pixels: NDArray[np.uint8]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, "WEBP", lossless=True, quality=0, method=0)
    return path


def write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> Path:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(header)
    writer.writerows(rows)
    return write_gz(path, text.getvalue().encode())
