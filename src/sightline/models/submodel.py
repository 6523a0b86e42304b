"""Submodels that are trained alone: fewer units or blocks, and the positions of their parameters in the whole."""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sightline.errors import did_you_mean, invalid, refuse
from sightline.models.flat import FlatModel, constants_of, layout_of, probe_inputs

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
        means = [np.average(value, weights=self.part_weights or None) for value in values]
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
        reason = "two parts share a parameter that is not listed in unsplit"
        refuse("algorithm.split", whole.name, reason, "add its layer to unsplit")


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
        invalid(
            name,
            list(weights),
            "the weights must be whole multiples of a common step, with a sum below 2^52 steps",
            "write fewer digits",
        )
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


# -- narrower and shorter networks -----------------------------------------------------------------------------------

Units = Mapping[str, NDArray[np.int64]]
"""Layer name -> the units that a submodel keeps."""


@dataclass(frozen=True)
class SplittableDense:
    """One affine layer of the network."""

    name: str
    inputs: int
    outputs: int


def dense_chain(module: nn.Module) -> list[SplittableDense] | None:
    """Return the affine layers of a plain chain without other parameters, else None."""
    if type(module) is not nn.Sequential:
        return None
    children = list(module.named_children())
    layers = [
        SplittableDense(name, child.in_features, child.out_features)
        for name, child in children
        if isinstance(child, nn.Linear)
    ]
    others = [child for _, child in children if not isinstance(child, nn.Linear) and list(child.parameters())]
    return None if others or len(layers) < 2 else layers


def cut_layers(layers: Sequence[SplittableDense], unsplit: Sequence[str]) -> tuple[list[str], frozenset[str]]:
    """Return (hidden layers whose units are dealt to the parts, layers requested unsplit)."""
    names = [layer.name for layer in layers]
    known = {"first": names[0], "last": names[-1]} | {name: name for name in names}
    for requested in unsplit:
        if requested not in known:
            invalid("algorithm.split.unsplit", requested, "unknown layer", did_you_mean(requested, list(known)))
    whole = frozenset(known[name] for name in unsplit)
    # Only every second layer is cut. Between two cut layers, weights from one part to another would belong to no part
    # and never be trained under one partition.
    cut: list[str] = []
    for before, name in zip(["", *names], names[:-1], strict=False):
        if name not in whole and before not in cut:
            cut.append(name)
    return cut, whole


def unsplit_dense(
    model: FlatModel, layers: Sequence[SplittableDense], cut: Sequence[str], whole: frozenset[str]
) -> frozenset[str]:
    """Return the tensors that are requested unsplit, touch no cut layer, or are biases of layers that are not cut."""
    after = {later.name for earlier, later in pairwise(layers) if earlier.name in cut}
    split = {f"{name}.{tensor_name}" for name in cut for tensor_name in ("weight", "bias")}
    split |= {f"{name}.weight" for name in after - whole}
    return frozenset(slot.name for slot in model.layout) - split


def narrow_network(factory: Callable[[], nn.Module], kept: Units) -> nn.Module:
    """Return the network with only some units of its cut layers."""
    module = factory()
    before: NDArray[np.int64] | None = None
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Linear):
            own = kept.get(name)
            inputs = child.in_features if before is None else len(before)
            outputs = child.out_features if own is None else len(own)
            setattr(module, name, nn.Linear(inputs, outputs, bias=child.bias is not None))
            before = own
    return module


def dense_submodel(model: FlatModel, layers: Sequence[SplittableDense], kept: Units) -> Submodel:
    """Return the submodel with these units."""
    factory = partial(narrow_network, model.factory, kept)
    layout = layout_of(factory())
    positions = torch.cat([unit_positions(model, layers, kept, slot.name) for slot in layout])
    small = FlatModel(
        f"part of {model.name}", model.input_shape, model.classes, model.kind, layout, factory, model.vocabulary,
        model.settings, task=model.task,
    )  # fmt: skip
    return Submodel(small, positions)


def unit_positions(model: FlatModel, layers: Sequence[SplittableDense], kept: Units, tensor: str) -> Tensor:
    """Return the positions of a tensor's kept entries in the whole vector."""
    slot = next(slot for slot in model.layout if slot.name == tensor)
    numbers = torch.arange(slot.start, slot.stop).view(slot.shape)
    name = tensor.rsplit(".", 1)[0]
    index = [layer.name for layer in layers].index(name)
    if name in kept:
        numbers = numbers[torch.from_numpy(kept[name])]
    if tensor.endswith("weight") and index and layers[index - 1].name in kept:
        numbers = numbers[:, torch.from_numpy(kept[layers[index - 1].name])]
    return numbers.reshape(-1)


def has_blocks(module: nn.Module) -> bool:
    """Return whether the module has a chain of blocks named `blocks`."""
    return isinstance(getattr(module, "blocks", None), nn.Sequential)


def splittable_blocks(model: FlatModel, unsplit: Sequence[str]) -> list[str]:
    """Return the names of blocks that can be left out and are not requested unsplit, from input to output."""
    module = model.module().eval()
    blocks: nn.Sequential = module.blocks  # type: ignore[assignment]
    names = [name for name, _ in blocks.named_children()]
    wanted = {block_name(name, names) for name in unsplit}
    same: dict[str, bool] = {}

    def watch(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        return lambda _, given, output: same.__setitem__(name, given[0].shape == output.shape)

    for name, block in blocks.named_children():
        block.register_forward_hook(watch(name))
    with torch.no_grad():
        module(probe_inputs(model, 1))
    # A block that changes the shape cannot be left out without its shortcut, so it stays unsplit.
    return [name for name in names if same[name] and name not in wanted]


def block_name(requested: str, names: Sequence[str]) -> str:
    """Return the block that `first`, `last` or `blocks.N` names; raise for an unknown name."""
    known = {"first": names[0], "last": names[-1]} | {f"blocks.{name}": name for name in names}
    if requested not in known:
        invalid("algorithm.split.unsplit", requested, "unknown block", did_you_mean(requested, list(known)))
    return known[requested]


def without_blocks(factory: Callable[[], nn.Module], left_out: frozenset[str]) -> nn.Module:
    """Return the network without some of its blocks; the others keep their names."""
    module = factory()
    kept = [(name, block) for name, block in module.blocks.named_children() if name not in left_out]  # type: ignore[union-attr]
    module.blocks = nn.Sequential(OrderedDict(kept))
    return module


def residual_submodel(model: FlatModel, left_out: frozenset[str]) -> Submodel:
    """Return the submodel without these blocks."""
    factory = partial(without_blocks, model.factory, left_out)
    module = factory()
    layout, kept = layout_of(module), constants_of(module)
    where = {slot.name: slot for slot in model.layout}
    positions = torch.cat([torch.arange(where[slot.name].start, where[slot.name].stop) for slot in layout])
    small = FlatModel(
        f"{model.name} without {len(left_out)} blocks", model.input_shape, model.classes, model.kind, layout, factory,
        model.vocabulary, model.settings, {name: model.constants[name] for name in kept}, model.task,
    )  # fmt: skip
    return Submodel(small, positions)


def unsplit_tensors(model: FlatModel, splittable: Sequence[str]) -> frozenset[str]:
    """Return all tensors except those of the splittable blocks."""
    inside = tuple(f"blocks.{name}." for name in splittable)
    return frozenset(slot.name for slot in model.layout if not slot.name.startswith(inside))
