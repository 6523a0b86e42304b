"""CIFAR-10, packed as lossless WebP grids."""

import numpy as np

from sightline.data.federation import Kind
from sightline.data.formats import Field, read_npz, read_webp_grid
from sightline.data.formats.broken import raise_broken
from sightline.data.source import Request, Source
from sightline.data.table import Scale, Table

BATCHES = tuple(f"data_batch_{number}.webp" for number in range(1, 6))
CIFAR_FILES = (*BATCHES, "test_batch.webp", "labels.npz")
SIDE, PER_ROW = 32, 100
LABELS = {"train": Field("uint8", (50_000,)), "test": Field("uint8", (10_000,))}
NORMAL = Scale(highest=255, mean=(0.49140, 0.48216, 0.44653), std=(0.24703, 0.24349, 0.26159))
"""The published mean and standard deviation of the training pixels."""


def read_cifar10(request: Request) -> Table:
    """50,000 training and 10,000 test images of shape (3, 32, 32), normalised per channel."""
    labels = read_npz(request.folder / "labels.npz", LABELS)
    if max(labels["train"].max(), labels["test"].max()) > 9:
        raise_broken(request.folder / "labels.npz", "labels must be 0 .. 9")
    images = np.empty((60_000, 3, SIDE, SIDE), dtype=np.uint8)
    for number, name in enumerate((*BATCHES, "test_batch.webp")):
        grid = read_webp_grid(request.folder / name, side=SIDE, per_row=PER_ROW)
        images[number * PER_ROW**2 : (number + 1) * PER_ROW**2] = grid
    test = Table(images[50_000:], labels["test"].astype(np.int64), 10, Kind.IMAGE, NORMAL)
    note = "cifar10: pixels scaled to [0, 1], then normalised by the published mean and std of each channel"
    train = labels["train"].astype(np.int64)
    return Table(images[:50_000], train, 10, Kind.IMAGE, NORMAL, test=test, notes=(note,))


CIFAR10 = Source(
    name="cifar10",
    kind=Kind.IMAGE,
    examples="50,000 + 10,000 test of 10 classes",
    read=read_cifar10,
    files=(CIFAR_FILES,),
    how_to_get=(
        "CIFAR-10 (Krizhevsky 2009), each batch of 10,000 as one lossless 3200 x 3200 WebP (100 x 100 images, row by "
        "row), and labels.npz with uint8 arrays train and test"
    ),
    licence="none stated; cite Krizhevsky 2009",
)
