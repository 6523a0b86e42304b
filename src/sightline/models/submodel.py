"""Parts of a model that can be trained by themselves: smaller models, and where their parameters stand in the whole."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.errors import refuse
from sightline.models.flat import FlatModel

Inputs = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Submodel:
    """A smaller model, and the positions of its parameters in the vector of the whole."""

    model: FlatModel
    positions: Tensor
    """(own parameters,) increasing in each tensor, in the order of the submodel's own vector."""
    moves: Tensor | None = None
    """Ones where an own parameter may move, zeros where training must leave it; None: all may."""


class Splitting(Protocol):
    """How one training of one subject is confined to a part of the model.

    Guarantees of every splitting: `draw` sends each subject to one of `parts` parts (of a partition that it may draw
    first) with equal probability, independently of everything else; the parts of one partition share no parameter
    outside `unsplit`.
    """

    @property
    def whole(self) -> FlatModel:
        """The model that is split."""

    @property
    def parts(self) -> int:
        """Into how many parts."""

    @property
    def unsplit(self) -> frozenset[str]:
        """The tensors that every part trains, or could train."""

    @property
    def share(self) -> float:
        """The expected number of parameters that one subject trains, over all parameters."""

    def draw(self, count: int, *, rng: np.random.Generator) -> NDArray[Any]:
        """The secret assignments of `count` subjects, one row each."""

    def batches(self, assigned: NDArray[Any], x: Inputs) -> Iterator[tuple[Submodel, NDArray[np.intp], Inputs]]:
        """The examples of a batch by submodel: (submodel, their places in the batch, their inputs)."""

    def part_of_one(self, assigned: Any, x: Inputs) -> tuple[Submodel, Inputs]:
        """The submodel that one subject with this assignment trains on all its examples, and their inputs."""


@dataclass(frozen=True, eq=False)
class Partitions:
    """One or more ways to cut a model into `parts` submodels; every subject draws a way, then a part of it.

    With several ways this is a mixture of partitions (Theorem 3.5 of the partitioning paper): the guarantee is that of
    one way, and parameters between two parts of one way are trained in another.
    """

    whole: FlatModel
    unsplit: frozenset[str]
    ways: tuple[tuple[Submodel, ...], ...]

    def __post_init__(self) -> None:
        for way in self.ways:
            check_disjoint(self.whole, way, self.unsplit)

    @property
    def parts(self) -> int:
        """Submodels of each way."""
        return len(self.ways[0])

    @cached_property
    def share(self) -> float:
        """The mean size of the submodels over the size of the whole."""
        sizes = [sub.model.parameters for way in self.ways for sub in way]
        return sum(sizes) / len(sizes) / self.whole.parameters

    @property
    def submodels(self) -> list[Submodel]:
        """All of them, way after way."""
        return [sub for way in self.ways for sub in way]

    def draw(self, count: int, *, rng: np.random.Generator) -> NDArray[np.int64]:
        """The number of a submodel for each subject, uniform over all ways and parts."""
        return rng.integers(len(self.ways) * self.parts, size=count)

    def batches(self, assigned: NDArray[Any], x: Inputs) -> Iterator[tuple[Submodel, NDArray[np.intp], Inputs]]:
        """Only the submodels that somebody was sent to."""
        for number in np.unique(assigned).tolist():
            places = np.flatnonzero(assigned == number)
            yield self.submodels[number], places, x[places]

    def part_of_one(self, assigned: Any, x: Inputs) -> tuple[Submodel, Inputs]:
        """The subject's submodel; inputs as they are."""
        return self.submodels[int(assigned)], x


def check_disjoint(whole: FlatModel, way: Sequence[Submodel], unsplit: frozenset[str]) -> None:
    """Refuse parts that share a parameter outside `unsplit`: the amplification rests on it."""
    taken = unsplit_mask(whole, unsplit).long()
    for sub in way:
        own = torch.zeros(whole.parameters, dtype=torch.long)
        own[sub.positions] = 1
        own[unsplit_mask(whole, unsplit)] = 0
        taken += own
    if bool((taken > 1).any()):
        law = "two parts share a parameter that is not unsplit"
        refuse("algorithm.split", whole.name, law, "name its layer in unsplit")


def unsplit_mask(whole: FlatModel, unsplit: frozenset[str]) -> Tensor:
    """(d,) bool: the positions of the unsplit tensors."""
    mask = torch.zeros(whole.parameters, dtype=torch.bool)
    for slot in whole.layout:
        mask[slot.start : slot.stop] = slot.name in unsplit
    return mask


def deal_positions(count: int, parts: int, rng: np.random.Generator | None) -> list[list[int]]:
    """0 .. count - 1 in `parts` groups of nearly equal size: in turn, or after a shuffle.

    >>> deal_positions(5, 2, None)
    [[0, 2, 4], [1, 3]]
    """
    order = np.arange(count) if rng is None else rng.permutation(count)
    return [sorted(order[part::parts].tolist()) for part in range(parts)]
