"""Images: scikit-learn's digits, MNIST and Fashion-MNIST, CIFAR-10."""

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sightline.data.federation import Kind
from sightline.data.formats import Field, raise_broken, read_idx, read_npz, read_webp_grid
from sightline.data.source import Request, Scale, Source, Table

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


def read_digits(request: Request) -> Table:
    """1,797 images of shape (1, 8, 8), pixels 0..16 scaled to [0, 1]."""
    rows = _digit_rows()
    return Table(
        x=rows[:, :-1].astype(np.uint8).reshape(-1, 1, 8, 8),
        y=rows[:, -1].astype(np.int64),
        classes=10,
        kind=Kind.IMAGE,
        scale=Scale(highest=16),
        notes=("digits: 8 x 8 pixels scaled to [0, 1]",),
    )


def _digit_rows() -> NDArray[np.float64]:
    """(1797, 65): 64 pixels and the label, from the file inside scikit-learn; loading all of it takes longer."""
    package = find_spec("sklearn")
    path = Path(str(package.origin)).parent / "datasets" / "data" / "digits.csv.gz" if package else None
    if path is not None and path.is_file():
        with gzip.open(path, "rt", encoding="ascii") as file:
            return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return np.column_stack([bunch.data, bunch.target])


DIGITS = Source(
    name="digits",
    kind=Kind.IMAGE,
    examples="1,797 of 10 classes",
    read=read_digits,
    how_to_get="comes with scikit-learn",
    licence="CC BY 4.0 (UCI)",
)
