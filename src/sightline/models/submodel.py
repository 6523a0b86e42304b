"""Submodels: smaller models that are trained alone, and the positions of their parameters in the whole."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.errors import invalid, refuse
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

    @property
    def trained(self) -> Tensor:
        """The positions in the whole of the parameters that may move."""
        return self.positions if self.moves is None else self.positions[self.moves > 0]


class Splitting(Protocol):
    """Rule that confines one training of one subject to a part of the model.

    Guarantees of every splitting: `draw` assigns each subject to one part (of a partition that it may draw first),
    independently of everything else, and each part of a partition has at most probability 1 / `parts`. The parts of one
    partition share no parameter outside `unsplit`.
    """

    @property
    def whole(self) -> FlatModel:
        """The model that is split."""

    @property
    def parts(self) -> int:
        """The number of equally likely parts that cost as much as the draw, or more."""

    @property
    def even(self) -> bool:
        """Whether all parts are equally likely, so that `parts` is their number in each partition."""

    @property
    def unsplit(self) -> frozenset[str]:
        """The tensors that every part trains, or could train."""

    @property
    def share(self) -> float:
        """The expected share of all parameters that one subject trains."""

    @property
    def sent(self) -> float:
        """The expected share of all parameters that one subject needs for its training."""

    def in_round(self, number: int) -> "Splitting":
        """Return the splitting of one round; partitions may change publicly between rounds."""

    def draw(self, count: int, *, rng: np.random.Generator) -> NDArray[Any]:
        """Return the secret assignments of `count` subjects, one row each."""

    def batches(self, assigned: NDArray[Any], x: Inputs) -> Iterator[tuple[Submodel, NDArray[np.intp], Inputs]]:
        """Yield the examples of a batch by submodel: (submodel, their positions in the batch, their inputs)."""

    def part_of_one(self, assigned: Any, x: Inputs) -> tuple[Submodel, Inputs]:
        """Return the submodel that a subject with this assignment trains on all its examples, and their inputs."""


@dataclass(frozen=True, eq=False)
class Partitions:
    """One or more partitions of a model into submodels; every subject draws a partition, then a part.

    Several partitions form a mixture (Theorem 3.5 of the partitioning paper): the guarantee is that of one partition,
    whatever the weights of the partitions, and parameters between two parts of one are trained in another. With `cycle`
    the round chooses the partition.
    """

    whole: FlatModel
    unsplit: frozenset[str]
    ways: tuple[tuple[Submodel, ...], ...]
    part_weights: tuple[int, ...] = ()
    """Relative probabilities of the parts of every partition; equal if empty."""
    way_weights: tuple[int, ...] = ()
    """Relative probabilities of the partitions; equal if empty."""
    cycle: bool = False
    way: int | None = None
    """The only partition that is drawn from, if the round has chosen one."""

    def __post_init__(self) -> None:
        if self.way is None:
            for way in self.ways:
                check_disjoint(self.whole, way, self.unsplit)

    @cached_property
    def parts(self) -> int:
        """The d of the event: the fewest submodels of a partition, or 1 / the largest probability of a part."""
        # The ratio is a mean of exchangeable copies with weights w. Weights of at most 1/d are majorised by d equal
        # ones, so it is below the mean of d copies in convex order, which bounds both directions. Drawing a partition
        # first averages such ratios; the average, dependent or not, is below a common bound of them.
        if self.part_weights:
            return sum(self.part_weights) // max(self.part_weights)
        return min(len(way) for way in self.ways)

    @property
    def even(self) -> bool:
        """Whether all parts of all partitions are equally likely."""
        return not (self.part_weights or self.way_weights) and len({len(way) for way in self.ways}) == 1

    @cached_property
    def share(self) -> float:
        """The expected size of a drawn submodel over the size of the whole."""
        return self._expect([[len(sub.trained) for sub in way] for way in self.ways]) / self.whole.parameters

    @cached_property
    def sent(self) -> float:
        """The expected size of what a drawn submodel needs: all of the model if the part has no smaller network."""
        return self._expect([[sub.model.parameters for sub in way] for way in self.ways]) / self.whole.parameters

    def _expect(self, values: Sequence[Sequence[float]]) -> float:
        means = [np.average(some, weights=self.part_weights or None) for some in values]
        return float(np.average(means, weights=self.way_weights or None))

    def in_round(self, number: int) -> "Partitions":
        """Return the splitting of one round: with `cycle`, round r uses partition r modulo their number."""
        return replace(self, way=number % len(self.ways)) if self.cycle else self

    @property
    def submodels(self) -> list[Submodel]:
        """All submodels, partition after partition."""
        return [sub for way in self.ways for sub in way]

    def draw(self, count: int, *, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the index of a submodel for each subject."""
        sizes = [len(way) for way in self.ways]
        if self.even and self.way is None:
            return rng.integers(sum(sizes), size=count)
        ways = draw_weighted(self.way_weights or (1,) * len(sizes), count, rng)
        if self.way is not None:
            ways[:] = self.way
        parts = np.zeros(count, dtype=np.int64)
        for way in np.unique(ways).tolist():
            own = ways == way
            parts[own] = draw_weighted(self.part_weights or (1,) * sizes[way], int(own.sum()), rng)
        return np.concatenate([[0], np.cumsum(sizes)])[ways] + parts

    def batches(self, assigned: NDArray[Any], x: Inputs) -> Iterator[tuple[Submodel, NDArray[np.intp], Inputs]]:
        """Yield only the submodels that some example is assigned to."""
        for number in np.unique(assigned).tolist():
            indices = np.flatnonzero(assigned == number)
            yield self.submodels[number], indices, x[indices]

    def part_of_one(self, assigned: Any, x: Inputs) -> tuple[Submodel, Inputs]:
        """Return the subject's submodel, with inputs unchanged."""
        return self.submodels[int(assigned)], x


def check_disjoint(whole: FlatModel, way: Sequence[Submodel], unsplit: frozenset[str]) -> None:
    """Raise if parts share a parameter outside `unsplit`."""
    # The amplification by splitting rests on disjoint parts, so it is checked on positions, not assumed from names.
    taken = unsplit_mask(whole, unsplit).long()
    for sub in way:
        own = torch.zeros(whole.parameters, dtype=torch.long)
        own[sub.trained] = 1
        own[unsplit_mask(whole, unsplit)] = 0
        taken += own
    if bool((taken > 1).any()):
        reason = "two parts share a parameter that is not unsplit"
        refuse("algorithm.split", whole.name, reason, "name its layer in unsplit")


def draw_weighted(weights: Sequence[int], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return `count` draws of 0 .. n - 1 with exactly these relative probabilities."""
    # Whole numbers: a probability that rounding raised would make the claimed number of parts untrue.
    ends = np.cumsum(np.array(weights, dtype=np.int64))
    return np.searchsorted(ends, rng.integers(int(ends[-1]), size=count), side="right").astype(np.int64)


def whole_weights(name: str, weights: Sequence[float]) -> tuple[int, ...]:
    """Return decimal weights as whole numbers of the same ratios. Raises if they need more than 52 bits.

    >>> whole_weights("part_weights", (0.5, 0.3, 0.2))
    (5, 3, 2)
    """
    exact = [Fraction(str(weight)) for weight in weights]
    scale = math.lcm(*(weight.denominator for weight in exact))
    result = [int(weight * scale) for weight in exact]
    result = [number // math.gcd(*result) for number in result]
    if sum(result) >= 2**52:
        invalid(name, list(weights), "the weights are drawn as whole numbers below 2^52", "write fewer digits")
    return tuple(result)


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
