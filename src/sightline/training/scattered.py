"""Examples of many clients for steps that look at few of them: fetched from the shards, not copied beforehand."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sightline.data.federation import Shard
from sightline.training.stacked import ExamplePile


class ScatteredExamples(ExamplePile):
    """The same rows by the same numbers, fetched from the shards when they are asked for.

    For clients that look at few of their examples: nothing is copied that is not used.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        self.offsets = np.concatenate([[0], np.cumsum([len(shard) for shard in shards])])
        self.shards, self.nothing = shards, int(self.offsets[-1])
        self.features = int(np.prod(shards[0].x.shape[1:]))

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """The examples at (n, b) rows; row i is client i's."""
        places = index.numpy()
        x = np.zeros((*places.shape, self.features), np.float32)
        y = np.zeros(places.shape, np.int64)
        for member, own in enumerate(places):
            there = own != self.nothing
            rows, shard = own[there] - self.offsets[member], self.shards[member]
            x[member, there] = shard.x[rows].reshape(len(rows), self.features)
            y[member, there] = shard.y[rows]
        return torch.from_numpy(x), torch.from_numpy(y)


def pile_of(shards: Sequence[Shard], looked_at: float) -> ExamplePile:
    """One pile, unless only a part of the examples will be looked at."""
    return ScatteredExamples(shards) if 2 * looked_at < sum(map(len, shards)) else ExamplePile(shards)
