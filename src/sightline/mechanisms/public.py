"""Values that have been released, and their memory of the releases they were computed from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Public:
    """A vector computed from released values only; `sources` are the ids of those releases.

    Arithmetic keeps the memory: the result of combining two public values comes from the releases of both. What is
    made from a `Public` therefore gets its `inputs` in the ledger without anybody writing them down.
    """

    value: Tensor
    sources: frozenset[int] = frozenset()

    def __add__(self, other: "Public") -> "Public":
        return combine_public(lambda a, b: a + b, self, other)

    def __sub__(self, other: "Public") -> "Public":
        return combine_public(lambda a, b: a - b, self, other)

    def __mul__(self, factor: float) -> "Public":
        return combine_public(lambda a: a * factor, self)

    __rmul__ = __mul__


def combine_public(function: Callable[..., Tensor], *values: Public) -> Public:
    """Post-processing: any function of public values is public and comes from all their releases."""
    sources = frozenset().union(*(value.sources for value in values))
    return Public(function(*(value.value for value in values)), sources)


def sum_weighted(values: Sequence[Public], weights: Sequence[float]) -> Public:
    """The sum of public values, each times its weight, in double precision."""
    return combine_public(
        lambda *rows: sum((w * row.double() for w, row in zip(weights, rows, strict=True)), torch.zeros(())).float(),
        *values,
    )
