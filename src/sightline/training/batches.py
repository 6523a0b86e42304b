"""Which examples a step uses. Every order and every coin comes from the client's own generator."""

from collections.abc import Iterator
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from sightline.training.work import LocalWork

Index = NDArray[np.intp]


def steps_of(examples: int, work: LocalWork, epochs: float | None = None) -> int:
    """How many steps a client with so many examples takes; `epochs` overrides the work's own number."""
    if examples == 0:
        return 0
    per_epoch = 1 if work.batch_size is None else -(-examples // work.batch_size)
    if epochs is None and work.steps is not None:
        return work.steps
    passes = epochs if epochs is not None else (1 if work.epochs is None else work.epochs)
    return round(passes * per_epoch)


def shuffled_batches(examples: int, work: LocalWork, steps: int, rng: np.random.Generator) -> Iterator[Index | None]:
    """The batches of `steps` steps: a fresh permutation an epoch, cut in order, the last piece kept though smaller.

    Guarantees: inside an epoch every example is used once; None stands for the whole shard in its own order, which is
    what `batch_size` None gives and for which nothing is drawn.
    """
    order: Index = np.empty(0, np.intp)
    for _ in range(steps):
        if work.batch_size is None:
            yield None
            continue
        if order.size == 0:
            order = rng.permutation(examples)
        batch, order = order[: work.batch_size], order[work.batch_size :]
        yield batch


def batch_table(
    examples: int, work: LocalWork, steps: int, rng: np.random.Generator, *, width: int, first: int, nothing: int
) -> NDArray[np.int64]:
    """(steps, width) rows: the batches of `shuffled` as one array, row numbers from `first`, padded with `nothing`."""
    per_epoch = max(1, -(-examples // (work.batch_size or 1)))
    found = np.full((steps, width), nothing, np.int64)
    for step in range(0, steps, per_epoch):
        rows = np.full(per_epoch * width, nothing, np.int64)
        rows[:examples] = first + rng.permutation(examples)
        found[step : step + per_epoch] = rows.reshape(per_epoch, width)[: steps - step]
    return found


def poisson_batches(examples: int, rate: float, steps: int, rng: np.random.Generator) -> Iterator[Index | None]:
    """The batches of `steps` steps in which every example tosses its own coin at every step.

    Guarantees: each example is in each batch with probability `rate`, independently of everything else; a batch may be
    empty; rate 1 is the whole shard (None), for which no coin is needed.
    """
    if rate >= 1.0:
        yield from repeat(None, steps)
        return
    ahead = max(1, (1 << 14) // max(examples, 1))  # a block of coins is the same coins as one step at a time
    for first in range(0, steps, ahead):
        for coins in rng.random((min(ahead, steps - first), examples)) < rate:
            yield np.flatnonzero(coins)
