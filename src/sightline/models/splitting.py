"""Split a model into parts that are trained alone, by its settings or by dropout masks."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sightline.config import Split
from sightline.data.federation import Kind
from sightline.errors import did_you_mean, invalid, refuse
from sightline.models.flat import FlatModel, layout_of, mark_own, probe_inputs, unknown_part
from sightline.models.submodel import (
    Inputs,
    Partitions,
    SplittableDense,
    Splitting,
    Submodel,
    cut_layers,
    deal_positions,
    dense_chain,
    dense_submodel,
    has_blocks,
    residual_submodel,
    splittable_blocks,
    unsplit_dense,
    unsplit_mask,
    unsplit_tensors,
    whole_weights,
)

DROPOUT = nn.modules.dropout._DropoutNd
# Which parameters are split is decided by layer types, not by looking at gradients: a dead unit would make any probe
# look disjoint. What is not known to be split counts as unsplit, which is always sound.
KEEP_ZERO = (
    nn.ReLU, nn.Tanh, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Identity, nn.Dropout, nn.Dropout2d,
    nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d,
)  # fmt: skip
"""Layers that act on every node separately and map zero to zero."""
PER_NODE = (*KEEP_ZERO, nn.Sigmoid, nn.Softplus)
"""Layers that act on every node separately."""


@dataclass(frozen=True)
class Touch:
    """Along `axis` of a tensor, node n of a dropout layer owns `repeat` entries from n x repeat on."""

    tensor: str
    axis: int
    first: int
    nodes: int
    repeat: int = 1


@dataclass(frozen=True, eq=False)
class SplittableLayer:
    """A layer of the chain, with the output shape of one example."""

    name: str
    module: nn.Module
    output: tuple[int, ...]


def check_layer(layer: SplittableLayer) -> None:
    """Raise for a rate other than one half, and for masks that drop pixels instead of channels."""
    rate = layer.module.p
    if rate != 0.5:
        reason = "amplification needs rate 0.5: only then are a mask and its complement equally likely"
        refuse(
            "model.dropout", rate, reason, "use 0.5, or remove algorithm.split (dropout stays, without amplification)"
        )
    whole_nodes = len(layer.output) == 1 if isinstance(layer.module, nn.Dropout) else len(layer.output) == 3
    if not whole_nodes or not isinstance(layer.module, nn.Dropout | nn.Dropout2d):
        reason = "a convolution's weights are dropped only with whole channels"
        refuse(layer.name, type(layer.module).__name__, reason, "use torch.nn.Dropout2d on images")


def trace_layers(model: FlatModel, module: nn.Module) -> list[SplittableLayer]:
    """Return the layers of the model's nested chains in order, each with its output shape."""
    result: list[SplittableLayer] = []
    x = probe_inputs(model, 1)
    with torch.no_grad():
        for name, child in chain_layers(module):
            x = child(x)
            result.append(SplittableLayer(name, child, tuple(x.shape[1:])))
    return result


def chain_layers(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield (full name, layer) in forward order; a layer that is used twice appears twice."""
    for name, child in module._modules.items():
        if type(child) is nn.Sequential:
            yield from chain_layers(child, f"{prefix}{name}.")
        elif child is not None:
            yield prefix + name, child


def touched_by(layers: list[SplittableLayer], index: int, first: int, names: Mapping[int, str]) -> Iterator[Touch]:
    """Yield the tensors into and out of the nodes of one dropout layer; `names` are tensor names by identity."""
    nodes = layers[index].output[0]
    before = next((layer for layer in reversed(layers[:index]) if not isinstance(layer.module, PER_NODE)), None)
    if before is not None and has_nodes_in_front(before):
        for parameter in before.module.parameters():
            yield Touch(names[id(parameter)], 0, first, nodes)
    for layer in layers[index + 1 :]:
        if isinstance(layer.module, KEEP_ZERO) or flattens_examples(layer.module):
            continue
        weight = columns_of(layer)
        if weight is not None:
            yield Touch(names[id(weight)], 1, first, nodes, weight.shape[1] // nodes)
        return


def flattens_examples(module: nn.Module) -> bool:
    """Return whether the layer turns each example into one row, node after node."""
    return isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) == (1, -1)


def has_nodes_in_front(layer: SplittableLayer) -> bool:
    """Return whether each entry of the first axis of the layer's tensors makes exactly one node."""
    module = layer.module
    if isinstance(module, nn.LayerNorm):
        return tuple(module.normalized_shape) == layer.output
    return type(module) is nn.GroupNorm or columns_of(layer) is not None


def columns_of(layer: SplittableLayer) -> Tensor | None:
    """Return the weight from input nodes (axis 1) to output nodes (axis 0) of a dense layer or plain convolution."""
    module = layer.module
    if type(module) is nn.Linear:
        return module.weight if len(layer.output) == 1 else None
    return module.weight if isinstance(module, nn.Conv2d) and type(module) is nn.Conv2d and module.groups == 1 else None


def repeated_tensors(module: nn.Module) -> frozenset[str]:
    """Return tensors that more than one layer of the pass uses: they can have a gradient under every mask."""
    uses = Counter(id(parameter) for _, layer in chain_layers(module) for parameter in layer.parameters())
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    return frozenset(names[number] for number, count in uses.items() if count > 1)


class MaskedStage:
    """Holder of the current pass's masks, shared by all dropout layers."""

    mask: Tensor


# torch draws a new mask at every pass. The proof needs one mask per subject and release, held through local steps,
# chunks and fallbacks to slower paths.
@mark_own
class HeldDropout(nn.Module):
    """Dropout with a given mask: every node is doubled or dropped."""

    def __init__(self, stage: MaskedStage, first: int, nodes: int) -> None:
        super().__init__()
        self.stage, self.first, self.nodes = stage, first, nodes

    def forward(self, x: Tensor) -> Tensor:
        """Return 2 m x."""
        mask = self.stage.mask[:, self.first : self.first + self.nodes]
        return x * (2 * mask).view(*mask.shape, *([1] * (x.dim() - 2)))


@mark_own
class Masked(nn.Sequential):
    """The chain with its masks as extra inputs: one row (x, m) per example, so that they cannot be separated."""

    def __init__(self, layers: "OrderedDict[str, nn.Module]", stage: MaskedStage, input_shape: tuple[int, ...]) -> None:
        super().__init__(layers)
        self.stage, self.input_shape = stage, input_shape

    def forward(self, rows: Tensor) -> Tensor:
        """Return the logits of examples under their own masks."""
        size = prod(self.input_shape)
        self.stage.mask = rows[:, size:]
        x = rows[:, :size].reshape(-1, *self.input_shape)
        for layer in self:
            x = layer(x)
        return x


def masked_model(model: FlatModel, nodes: int) -> FlatModel:
    """Return the model whose examples carry their masks."""
    factory = partial(masked_module, model.factory, model.input_shape, model)
    size = prod(model.input_shape) + nodes
    name, layout = f"{model.name} with masks", layout_of(factory())
    return FlatModel(
        name, (size,), model.classes, Kind.VECTOR, layout, factory, constants=model.constants, task=model.task
    )


def masked_module(factory: Callable[[], nn.Module], input_shape: tuple[int, ...], model: FlatModel) -> nn.Module:
    """Return the chain with held dropout instead of drawn dropout."""
    stage, first = MaskedStage(), 0
    module = factory()
    sizes = {layer.name: layer.output[0] for layer in trace_layers(model, module.eval())}
    for name, child in list(chain_layers(module)):
        if isinstance(child, DROPOUT):
            parent, _, own = name.rpartition(".")
            setattr(module.get_submodule(parent), own, HeldDropout(stage, first, sizes[name]))
            first += sizes[name]
    return Masked(
        OrderedDict((name, child) for name, child in module._modules.items() if child is not None), stage, input_shape
    ).train()


@dataclass(frozen=True, eq=False)
class DropoutSplitting:
    """Splitting by dropout: every subject draws a mask over all dropped nodes, held through its training."""

    whole: FlatModel
    masked: FlatModel
    nodes: int
    touches: tuple[Touch, ...]
    parts = 2
    even = True

    @cached_property
    def unsplit(self) -> frozenset[str]:
        """The tensors that touch no dropped node."""
        return frozenset(slot.name for slot in self.whole.layout) - {touch.tensor for touch in self.touches}

    @cached_property
    def share(self) -> float:
        """The expected share of trained parameters; each touch halves what is trained of a tensor."""
        touched = Counter(touch.tensor for touch in self.touches)
        return sum(slot.size * 0.5 ** touched[slot.name] for slot in self.whole.layout) / self.whole.parameters

    @property
    def sent(self) -> float:
        """What a mask drops need not be sent."""
        return self.share

    def in_round(self, number: int) -> "DropoutSplitting":
        """Return the same splitting: masks are drawn alike in every round."""
        return self

    def draw(self, count: int, *, rng: np.random.Generator) -> NDArray[np.bool_]:
        """Return one fair draw per subject and node."""
        return rng.random((count, self.nodes)) < 0.5

    def batches(self, assigned: NDArray[Any], x: Inputs) -> Iterator[tuple[Submodel, NDArray[np.intp], Inputs]]:
        """Yield the whole batch, every example with its own mask."""
        yield Submodel(self.masked, torch.arange(self.whole.parameters)), np.arange(len(x)), _append_masks(x, assigned)

    def part_of_one(self, assigned: Any, x: Inputs) -> tuple[Submodel, Inputs]:
        """Return one mask for all examples; what it drops does not move."""
        rows = np.broadcast_to(assigned, (len(x), self.nodes))
        moves = self.kept(np.asarray(assigned))
        return Submodel(self.masked, torch.arange(self.whole.parameters), moves), _append_masks(x, rows)

    def kept(self, mask: NDArray[np.bool_]) -> Tensor:
        """Return (d,) ones and zeros: the parameters that do not touch a dropped node."""
        moves = torch.ones(self.whole.parameters)
        tensors = self.whole.split(moves)
        for touch in self.touches:
            own = (
                torch.from_numpy(mask[touch.first : touch.first + touch.nodes]).float().repeat_interleave(touch.repeat)
            )
            shape = [-1 if axis == touch.axis else 1 for axis in range(tensors[touch.tensor].dim())]
            tensors[touch.tensor].mul_(own.view(shape))
        return moves


def _append_masks(x: Inputs, masks: NDArray[np.bool_]) -> Inputs:
    return np.concatenate([x.reshape(len(x), prod(x.shape[1:])), masks.astype(np.float32)], axis=1)


def dropout_splitting(model: FlatModel) -> DropoutSplitting:
    """Return the model's own dropout as a splitting; raise where the proof does not apply."""
    module = model.module().eval()
    if type(module) is not nn.Sequential or model.kind is Kind.TEXT:
        reason = "dropped weights can be derived only for a torch.nn.Sequential on vectors or images"
        refuse("model.name", model.name, reason, "use mlp with dropout = 0.5, or remove algorithm.split")
    strange = unknown_part(module)
    if strange is not None:
        reason = f"it is not known whether {strange} keeps dropped nodes at zero, which the proof needs"
        refuse("model.name", model.name, reason, "use torch's own layers, or remove algorithm.split")
    layers = trace_layers(model, module)
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    dropouts = [index for index, layer in enumerate(layers) if isinstance(layer.module, DROPOUT)]
    if not dropouts:
        invalid("algorithm.split", "dropout", f"{model.name} has no dropout layer", "set model.dropout = 0.5")
    touches: list[Touch] = []
    nodes = 0
    for index in dropouts:
        check_layer(layers[index])
        touches += touched_by(layers, index, nodes, names)
        nodes += layers[index].output[0]
    shared = repeated_tensors(module)
    # Frozen tensors have no gradient under any mask.
    trained = {slot.name for slot in model.layout}
    # A tensor that two layers use may have a gradient under every mask: it counts as unsplit.
    own = tuple(touch for touch in touches if touch.tensor in trained - shared)
    return DropoutSplitting(model, masked_model(model, nodes), nodes, own)


def split_model(model: FlatModel, settings: Split, *, rng: np.random.Generator) -> Splitting:
    """Return the model split according to `settings`; partitions are public, `rng` shuffles all but the first.

    Guarantees: with one part and nothing unsplit, the only submodel is the model itself.
    """
    if settings.by == "dropout":
        return dropout_splitting(model)
    if isinstance(settings.parts, int):
        partitions = _split_evenly(model, settings, settings.parts, rng)
    else:
        partitions = _split_named(model, settings.parts)
    return replace(
        partitions,
        part_weights=whole_weights("algorithm.split.part_weights", settings.part_weights),
        way_weights=whole_weights("algorithm.split.partition_weights", settings.partition_weights),
        cycle=settings.cycle,
    )


def _split_named(model: FlatModel, partitions: Sequence[Sequence[Sequence[str]]]) -> Partitions:
    """Return partitions whose parts are lists of parameters or layers; parameters in no list are unsplit.

    A part trains its own and the unsplit parameters inside the whole network, whose other parameters stay fixed.
    """
    named = [[tensors_named(model, part) for part in way] for way in partitions]
    # What one partition splits and another does not is clipped with the unsplit tensors in all: sound for each.
    everything = frozenset(slot.name for slot in model.layout)
    unsplit = everything - frozenset.intersection(*(frozenset(chain(*way)) for way in named))
    ways = []
    for way in named:
        taken = Counter(chain(*way))
        for tensor, count in taken.items():
            if count > 1:
                reason = "is in two parts of one partition, and amplification needs disjoint parts"
                invalid("algorithm.split.parts", tensor, reason, "name it once, or leave it out so that it is unsplit")
        for part in way:
            if part <= unsplit:
                reason = "has no parameter that every partition splits"
                invalid(
                    "algorithm.split.parts", sorted(part)[0], reason, "split the same parameters in every partition"
                )
        left = everything - frozenset(taken)
        ways.append(tuple(_masked_submodel(model, part | left) for part in way))
    return Partitions(model, unsplit, tuple(ways))


def tensors_named(model: FlatModel, names: Sequence[str]) -> frozenset[str]:
    """Return the trained tensors that are named, or lie in a named layer. Raises for an unknown name."""
    known = [slot.name for slot in model.layout]
    result: set[str] = set()
    for name in names:
        own = {tensor for tensor in known if tensor == name or tensor.startswith(f"{name}.")}
        if not own:
            layers = {tensor.rsplit(".", 1)[0] for tensor in known if "." in tensor}
            reason = f"no trained parameter or layer of {model.name} has this name"
            invalid("algorithm.split.parts", name, reason, did_you_mean(name, [*known, *sorted(layers)]))
        result |= own
    return frozenset(result)


def _masked_submodel(model: FlatModel, trained: frozenset[str]) -> Submodel:
    moves = unsplit_mask(model, trained).float()
    return Submodel(model, torch.arange(model.parameters), moves)


def _split_evenly(model: FlatModel, settings: Split, parts: int, rng: np.random.Generator) -> Partitions:
    module = model.module()
    if parts == 1 and not settings.unsplit:
        return Partitions(model, frozenset(), ((whole_model(model),),))
    if has_blocks(module):
        return _split_residual(model, settings, parts, rng)
    layers = dense_chain(module)
    if layers is None:
        reason = "parts are derived only for fully connected chains and networks with a chain of `blocks`"
        invalid("model.name", model.name, reason, "list the parameters of each part in parts")
    if model.constants:
        reason = f"{next(iter(model.constants))!r} is frozen, but units are assigned to parts with all their weights"
        invalid("model.name", model.name, reason, "train all parameters, or remove algorithm.split")
    return _split_dense(model, settings, parts, layers, rng)


def whole_model(model: FlatModel) -> Submodel:
    """Return the whole model as its only part."""
    return Submodel(model, torch.arange(model.parameters))


def _split_residual(model: FlatModel, settings: Split, parts: int, rng: np.random.Generator) -> Partitions:
    blocks = splittable_blocks(model, settings.unsplit)
    _check_enough(parts, len(blocks), "blocks that keep their shape and are not unsplit")
    ways = []
    for way in range(settings.partitions):
        groups = deal_positions(len(blocks), parts, rng if way else None)
        kept = [frozenset(blocks[index] for index in group) for group in groups]
        ways.append(tuple(residual_submodel(model, frozenset(blocks) - own) for own in kept))
    return Partitions(model, unsplit_tensors(model, blocks), tuple(ways))


def _split_dense(
    model: FlatModel, settings: Split, parts: int, layers: Sequence[SplittableDense], rng: np.random.Generator
) -> Partitions:
    cut, whole = cut_layers(layers, settings.unsplit)
    widths = {layer.name: layer.outputs for layer in layers if layer.name in cut}
    _check_enough(parts, min(widths.values(), default=0), "hidden units in a layer that is not unsplit")
    ways = []
    # The partitions are public; only the assignment of subjects to parts is secret.
    for way in range(settings.partitions):
        groups = {name: deal_positions(width, parts, rng if way else None) for name, width in widths.items()}
        units = [
            {name: np.array(units_of[part], dtype=np.int64) for name, units_of in groups.items()}
            for part in range(parts)
        ]
        ways.append(tuple(dense_submodel(model, layers, kept) for kept in units))
    return Partitions(model, unsplit_dense(model, layers, cut, whole), tuple(ways))


def _check_enough(parts: int, there: int, what: str) -> None:
    if parts > there:
        invalid("algorithm.split.parts", parts, f"there are only {there} {what}", "use fewer parts, or unsplit less")
