"""The 8 x 8 digits that come with scikit-learn: always there, no file needed."""

import numpy as np

from sightline.data.federation import Kind
from sightline.data.source import Request, Source
from sightline.data.table import Scale, Table


def read_digits(request: Request) -> Table:
    """1,797 images of shape (1, 8, 8), pixels 0..16 scaled to [0, 1]."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return Table(
        x=bunch.images.astype(np.uint8)[:, None],
        y=bunch.target.astype(np.int64),
        classes=10,
        kind=Kind.IMAGE,
        scale=Scale(highest=16),
        notes=("digits: 8 x 8 pixels scaled to [0, 1]",),
    )


DIGITS = Source(
    name="digits",
    kind=Kind.IMAGE,
    examples="1,797 of 10 classes",
    read=read_digits,
    how_to_get="comes with scikit-learn",
    licence="CC BY 4.0 (UCI)",
)
