"""Heart disease of four hospitals: the processed files of the UCI repository, read as FLamby prepares them.

14 columns, `?` for what was not measured. Slope, vessels and thallium are mostly missing outside Cleveland and left
out, as are patients for whom something else is; chest pain and the electrocardiogram become indicators. One difference:
FLamby standardises by the mean and deviation of the data, which would be a release; here numbers are scaled by fixed
clinical ranges.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from sightline.data.load import data_root
from sightline.errors import invalid

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
COLUMNS = 14
AGE, SEX, PAIN, PRESSURE, CHOLESTEROL, SUGAR, ELECTRO, RATE, ANGINA, DEPRESSION = range(10)
DISEASE = 13
USED = (*range(10), DISEASE)
RANGES = {AGE: (54, 10), PRESSURE: (130, 20), CHOLESTEROL: (220, 100), RATE: (140, 25), DEPRESSION: (1, 1)}
"""Column -> (middle, spread), from what is normal for adults, not from these patients."""
TRAINING = 2 / 3
"""Of each hospital's patients, as FLamby splits."""

Table = NDArray[np.float64]


def hospitals(clients: int, rng: np.random.Generator) -> Iterator[tuple[NDArray[np.float32], NDArray[np.int64], ...]]:
    """Each hospital's patients: (train_x, train_y, test_x, test_y)."""
    if clients != len(HOSPITALS):
        invalid("data.clients", clients, "there are four hospitals", "use clients = 4")
    for name in HOSPITALS:
        x, y = read_patients(name)
        order = rng.permutation(len(y))
        train, test = np.split(order, [int(TRAINING * len(y))])
        yield x[train], y[train], x[test], y[test]


def read_patients(name: str) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """(13 inputs, disease or not) of every patient of whom all that is used was measured."""
    path = data_root() / "heart_disease" / f"processed.{name}.data"
    if not path.is_file():
        law = f"no file {path.name} in {path.parent.absolute()}"
        invalid("data.source", "heart_disease", law, "get it from the UCI repository, data set Heart Disease")
    rows = [line.split(",") for line in path.read_text(encoding="ascii").splitlines() if line.strip()]
    for number, row in enumerate(rows, 1):
        if len(row) != COLUMNS:
            invalid("file", path, f"line {number} has {len(row)} columns, not {COLUMNS}")
    kept = [[float(row[column]) for column in USED] for row in rows if all(row[c].strip() != "?" for c in USED)]
    if not kept:
        invalid("file", path, "holds no patient of whom everything was measured")
    return encode_patients(np.array(kept))


def encode_patients(table: Table) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Numbers scaled by fixed ranges, kinds as indicators against the first kind.

    >>> x, y = encode_patients(np.array([[54.0, 1, 4, 130, 220, 0, 2, 165, 1, 2.0, 3]]))
    >>> x.shape, y.tolist(), x[0, 0].item(), x[0, -5:].tolist()
    ((1, 13), [1], 0.0, [0.0, 0.0, 1.0, 0.0, 1.0])
    """
    plain = [
        (table[:, column] - RANGES.get(column, (0, 1))[0]) / RANGES.get(column, (0, 1))[1]
        for column in range(10)
        if column not in (PAIN, ELECTRO)
    ]
    kinds = [table[:, PAIN] == kind for kind in (2, 3, 4)] + [table[:, ELECTRO] == kind for kind in (1, 2)]
    x = np.stack([*plain, *(kind.astype(np.float64) for kind in kinds)], axis=1)
    return x.astype(np.float32), (table[:, -1] > 0).astype(np.int64)
