"""MNIST and Fashion-MNIST: 28 x 28 grey images in four IDX files."""

from pathlib import Path

import numpy as np

from sightline.data.federation import Kind
from sightline.data.formats import read_idx
from sightline.data.formats.broken import raise_broken
from sightline.data.source import Request, Source
from sightline.data.table import Scale, Table

MNIST_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
GREY = Scale(highest=255)


def read_pair(images: Path, labels: Path, *, lowest: int, classes: int, notes: tuple[str, ...] = ()) -> Table:
    """One split: an image file and its label file, whose labels run from `lowest`."""
    x = read_idx(images, item=(28, 28))
    y = read_idx(labels, item=()).astype(np.int64) - lowest
    if len(x) != len(y):
        raise_broken(labels, f"{len(y):,} labels for {len(x):,} images")
    if y.min() < 0 or y.max() >= classes:
        raise_broken(
            labels, f"labels {y.min() + lowest} .. {y.max() + lowest}, expected {lowest} .. {lowest + classes - 1}"
        )
    return Table(x=x[:, None], y=y, classes=classes, kind=Kind.IMAGE, scale=GREY, notes=notes)


def read_four_files(request: Request) -> Table:
    """The train split, with the test split beside it."""
    images, labels, test_images, test_labels = (request.folder / name for name in MNIST_FILES)
    test = read_pair(test_images, test_labels, lowest=0, classes=10)
    train = read_pair(images, labels, lowest=0, classes=10)
    note = f"{request.settings.source}: 28 x 28 pixels scaled to [0, 1]"
    return Table(train.x, train.y, 10, Kind.IMAGE, GREY, test=test, notes=(note,))


MNIST = Source(
    name="mnist",
    kind=Kind.IMAGE,
    examples="60,000 + 10,000 test of 10 classes",
    read=read_four_files,
    files=(MNIST_FILES,),
    how_to_get="the four .gz files of MNIST (LeCun, Cortes, Burges), as published",
    licence="none stated; commonly cited as CC BY-SA 3.0",
)
FASHION_MNIST = Source(
    name="fashion_mnist",
    kind=Kind.IMAGE,
    examples="60,000 + 10,000 test of 10 classes",
    read=read_four_files,
    files=(MNIST_FILES,),
    how_to_get="the four .gz files in data/fashion of the GitHub project zalandoresearch/fashion-mnist",
    licence="MIT (Zalando SE)",
)
