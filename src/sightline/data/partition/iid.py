"""Everybody gets a random share of the same size."""

import numpy as np

from sightline.data.table import Index


def deal_iid(examples: int, *, clients: int, rng: np.random.Generator) -> list[Index]:
    """Shuffle and cut into `clients` parts.

    Guarantees: every example is dealt exactly once; sizes differ by at most one.

    >>> [len(part) for part in deal_iid(7, clients=3, rng=np.random.default_rng(0))]
    [3, 2, 2]
    """
    return np.array_split(rng.permutation(examples), clients)
