"""Many small images in one lossless WebP picture: a grid, filled row by row."""

import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sightline.data.formats.broken import raise_broken


def read_webp_grid(path: Path, *, side: int, per_row: int) -> NDArray[np.uint8]:
    """The per_row^2 RGB images of side x side pixels of a square grid, as (n, 3, side, side).

    Guarantees: the size is checked before the picture is decoded.
    """
    picture = _decode_image(path, per_row * side)
    grid = picture.reshape(per_row, side, per_row, side, 3)
    return np.ascontiguousarray(grid.transpose(0, 2, 4, 1, 3)).reshape(per_row * per_row, 3, side, side)


def _decode_image(path: Path, edge: int) -> NDArray[np.uint8]:
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=("WEBP",)) as picture:
                if picture.size != (edge, edge) or picture.mode != "RGB" or getattr(picture, "n_frames", 1) != 1:
                    width, height = picture.size
                    raise_broken(
                        path, f"a {width} x {height} {picture.mode} picture, expected one of {edge} x {edge} RGB"
                    )
                return np.asarray(picture)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise_broken(path, f"is not a readable WebP picture ({type(error).__name__})")
