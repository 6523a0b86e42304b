"""Made-up pictures: dead leaves, discs that fall over each other. They look like nobody's data and are like pictures.

Their statistics are near those of photographs (edges of every size, covered by others; Lee, Mumford and Huang 2001), so
that what should be fitted to pictures in general can be fitted to them. They are drawn from a fixed seed: whoever runs
this has the same ones, and no example of anybody had a part in them.
"""

import numpy as np
from numpy.typing import NDArray

SEED = 2001
LEAVES = 150
"""Discs a picture: at 28 and 32 pixels they leave about a tenth of the black ground, of larger pictures more."""
SMALLEST = 2.0
"""Radius of the smallest disc, in half pixels; larger ones get rarer with the cube of the radius."""
TINT = 0.15
"""How far the channels of a disc stray from its brightness."""
FINE = 2
"""Pictures are drawn so many times finer and then averaged, which makes their edges soft."""


def draw_pictures(count: int, channels: int, height: int, width: int) -> NDArray[np.uint8]:
    """(count, channels, height, width), the same in every process.

    >>> draw_pictures(2, 3, 8, 8).shape
    (2, 3, 8, 8)
    """
    draws = np.random.Generator(np.random.Philox(SEED))
    rows, columns = FINE * height, FINE * width
    down, along = np.arange(rows, dtype=np.float32)[:, None], np.arange(columns, dtype=np.float32)
    margin = 4 * SMALLEST
    canvas = np.zeros((count, channels, rows, columns), np.float32)
    for _ in range(LEAVES):
        radius = np.minimum(SMALLEST / np.sqrt(1 - draws.random(count)), max(rows, columns))
        middle = draws.random((2, count)) * (np.array([[rows], [columns]]) + 2 * margin) - margin
        colour = np.clip(draws.random((count, 1)) + TINT * draws.standard_normal((count, channels)), 0, 1)
        top, left, size = (part.astype(np.float32)[:, None, None] for part in (*middle, radius))
        inside = np.square(down - top) + np.square(along - left) < np.square(size)
        np.copyto(canvas, colour.astype(np.float32)[:, :, None, None], where=inside[:, None])
    soft = canvas.reshape(count, channels, height, FINE, width, FINE).mean(axis=(3, 5))
    return np.asarray(np.rint(255 * soft), dtype=np.uint8)
