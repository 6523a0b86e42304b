"""Submodels: smaller models that are trained alone, and the positions of their parameters in the whole."""

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


# A smaller model, not the whole one under a mask: it costs less to hold and compute. What lies outside is not computed,
# hence exactly zero in the update, and the guarantee rests on that.
@dataclass(frozen=True, eq=False)
class Submodel:
    """A smaller model, and the positions of its parameters in the vector of the whole."""

    model: FlatModel
    positions: Tensor
    """(own parameters,) increasing in each tensor, in the order of the submodel's own vector."""
    moves: Tensor | None = None
    """Ones where an own parameter may move, zeros where training must leave it; None if all may."""


class Splitting(Protocol):
    """Rule that confines one training of one subject to a part of the model.

    Guarantees of every splitting: `draw` assigns each subject to one of `parts` parts (of a partition that it may draw
    first) with equal probability, independently of everything else. The parts of one partition share no parameter
    outside `unsplit`.
    """

    @property
    def whole(self) -> FlatModel:
        """The model that is split."""

    @property
    def parts(self) -> int:
        """The number of parts."""

    @property
    def unsplit(self) -> frozenset[str]:
        """The tensors that every part trains, or could train."""

    @property
    def share(self) -> float:
        """The expected share of all parameters that one subject trains."""

    def draw(self, count: int, *, rng: np.random.Generator) -> NDArray[Any]:
        """Return the secret assignments of `count` subjects, one row each."""

    def batches(self, assigned: NDArray[Any], x: Inputs) -> Iterator[tuple[Submodel, NDArray[np.intp], Inputs]]:
        """Yield the examples of a batch by submodel: (submodel, their positions in the batch, their inputs)."""

    def part_of_one(self, assigned: Any, x: Inputs) -> tuple[Submodel, Inputs]:
        """Return the submodel that a subject with this assignment trains on all its examples, and their inputs."""


@dataclass(frozen=True, eq=False)
class Partitions:
    """One or more partitions of a model into `parts` submodels; every subject draws a partition, then a part.

    Several partitions form a mixture (Theorem 3.5 of the partitioning paper): the guarantee is that of one partition,
    and parameters between two parts of one are trained in another.
    """

    whole: FlatModel
    unsplit: frozenset[str]
    ways: tuple[tuple[Submodel, ...], ...]

    def __post_init__(self) -> None:
        for way in self.ways:
            check_disjoint(self.whole, way, self.unsplit)

    @property
    def parts(self) -> int:
        """The number of submodels in each partition."""
        return len(self.ways[0])

    @cached_property
    def share(self) -> float:
        """The mean size of the submodels over the size of the whole."""
        sizes = [sub.model.parameters for way in self.ways for sub in way]
        return sum(sizes) / len(sizes) / self.whole.parameters

    @property
    def submodels(self) -> list[Submodel]:
        """All submodels, partition after partition."""
        return [sub for way in self.ways for sub in way]

    def draw(self, count: int, *, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the index of a submodel for each subject, uniform over all partitions and parts."""
        return rng.integers(len(self.ways) * self.parts, size=count)

    def batches(self, assigned: NDArray[Any], x: Inputs) -> Iterator[tuple[Submodel, NDArray[np.intp], Inputs]]:
        """Yield only the submodels that some example is assigned to."""
        for number in np.unique(assigned).tolist():
            places = np.flatnonzero(assigned == number)
            yield self.submodels[number], places, x[places]

    def part_of_one(self, assigned: Any, x: Inputs) -> tuple[Submodel, Inputs]:
        """Return the subject's submodel, with inputs unchanged."""
        return self.submodels[int(assigned)], x


def check_disjoint(whole: FlatModel, way: Sequence[Submodel], unsplit: frozenset[str]) -> None:
    """Raise if parts share a parameter outside `unsplit`."""
    # The amplification by splitting rests on disjoint parts, so it is checked on positions, not assumed from names.
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
    """Return a (d,) bool mask of the positions of the unsplit tensors."""
    mask = torch.zeros(whole.parameters, dtype=torch.bool)
    for slot in whole.layout:
        mask[slot.start : slot.stop] = slot.name in unsplit
    return mask


def deal_positions(count: int, parts: int, rng: np.random.Generator | None) -> list[list[int]]:
    """Return 0 .. count - 1 in `parts` groups of nearly equal size: in turn, or after a shuffle.

    >>> deal_positions(5, 2, None)
    [[0, 2, 4], [1, 3]]
    """
    order = np.arange(count) if rng is None else rng.permutation(count)
    return [sorted(order[part::parts].tolist()) for part in range(parts)]
