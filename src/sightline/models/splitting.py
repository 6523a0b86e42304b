"""Split a model into parts that are trained alone: dense and residual submodels, and dropout as two parts."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, pairwise
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sightline.config import Split
from sightline.data.federation import Kind
from sightline.errors import did_you_mean, invalid, refuse
from sightline.models.flat import FlatModel, constants_of, layout_of, mark_own, probe_inputs, unknown_part
from sightline.models.submodel import (
    Inputs,
    Partitions,
    Splitting,
    Submodel,
    deal_positions,
    unsplit_mask,
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
class Layer:
    """A layer of the chain, with the output shape of one example."""

    name: str
    module: nn.Module
    output: tuple[int, ...]


def check_layer(layer: Layer) -> None:
    """Raise for a rate other than one half, and for masks that drop pixels instead of channels."""
    rate = layer.module.p
    if rate != 0.5:
        reason = "amplification needs rate 0.5: only then are a mask and its complement equally likely"
        refuse("model.dropout", rate, reason, "use 0.5, or remove algorithm.split (dropout stays, nothing is claimed)")
    whole_nodes = len(layer.output) == 1 if isinstance(layer.module, nn.Dropout) else len(layer.output) == 3
    if not whole_nodes or not isinstance(layer.module, nn.Dropout | nn.Dropout2d):
        reason = "a convolution's weights are dropped only with whole channels"
        refuse(layer.name, type(layer.module).__name__, reason, "use torch.nn.Dropout2d on images")


def trace_layers(model: FlatModel, module: nn.Module) -> list[Layer]:
    """Return the layers of the model's nested chains in order, each with its output shape."""
    result: list[Layer] = []
    x = probe_inputs(model, 1)
    with torch.no_grad():
        for name, child in chain_layers(module):
            x = child(x)
            result.append(Layer(name, child, tuple(x.shape[1:])))
    return result


def chain_layers(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield (full name, layer) in forward order; a layer that is used twice appears twice."""
    for name, child in module._modules.items():
        if type(child) is nn.Sequential:
            yield from chain_layers(child, f"{prefix}{name}.")
        elif child is not None:
            yield prefix + name, child


def touched_by(layers: list[Layer], index: int, first: int, names: Mapping[int, str]) -> Iterator[Touch]:
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


def has_nodes_in_front(layer: Layer) -> bool:
    """Return whether each entry of the first axis of the layer's tensors makes exactly one node."""
    module = layer.module
    if isinstance(module, nn.LayerNorm):
        return tuple(module.normalized_shape) == layer.output
    return type(module) is nn.GroupNorm or columns_of(layer) is not None


def columns_of(layer: Layer) -> Tensor | None:
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
        reason = "which weights touch dropped nodes is read off a torch.nn.Sequential of vectors or images"
        refuse("model.name", model.name, reason, "use mlp with dropout = 0.5, or remove algorithm.split")
    strange = unknown_part(module)
    if strange is not None:
        reason = f"what {strange} does with a dropped node is not known, and the proof needs that it stays silent"
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


Units = Mapping[str, NDArray[np.int64]]
"""Layer name -> the units that a submodel keeps."""


@dataclass(frozen=True)
class Dense:
    """One affine layer of the network."""

    name: str
    inputs: int
    outputs: int


def dense_chain(module: nn.Module) -> list[Dense] | None:
    """Return the affine layers of a plain chain without other parameters, else None."""
    if type(module) is not nn.Sequential:
        return None
    children = list(module.named_children())
    layers = [
        Dense(name, child.in_features, child.out_features) for name, child in children if isinstance(child, nn.Linear)
    ]
    others = [child for _, child in children if not isinstance(child, nn.Linear) and list(child.parameters())]
    return None if others or len(layers) < 2 else layers


def cut_layers(layers: Sequence[Dense], unsplit: Sequence[str]) -> tuple[list[str], frozenset[str]]:
    """Return (hidden layers whose units are dealt to the parts, layers requested unsplit)."""
    names = [layer.name for layer in layers]
    known = {"first": names[0], "last": names[-1]} | {name: name for name in names}
    for word in unsplit:
        if word not in known:
            invalid("algorithm.split.unsplit", word, "no such layer", did_you_mean(word, list(known)))
    whole = frozenset(known[word] for word in unsplit)
    # Only every second layer is cut. Between two cut layers, weights from one part to another would belong to no part
    # and never be trained under one partition.
    cut: list[str] = []
    for before, name in zip(["", *names], names[:-1], strict=False):
        if name not in whole and before not in cut:
            cut.append(name)
    return cut, whole


def unsplit_dense(
    model: FlatModel, layers: Sequence[Dense], cut: Sequence[str], whole: frozenset[str]
) -> frozenset[str]:
    """Return the tensors that are requested unsplit, touch no cut layer, or are biases of layers that are not cut."""
    after = {later.name for earlier, later in pairwise(layers) if earlier.name in cut}
    split = {f"{name}.{word}" for name in cut for word in ("weight", "bias")}
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


def dense_submodel(model: FlatModel, layers: Sequence[Dense], kept: Units) -> Submodel:
    """Return the submodel with these units."""
    factory = partial(narrow_network, model.factory, kept)
    layout = layout_of(factory())
    positions = torch.cat([unit_positions(model, layers, kept, slot.name) for slot in layout])
    small = FlatModel(
        f"part of {model.name}", model.input_shape, model.classes, model.kind, layout, factory, model.vocabulary,
        model.settings, task=model.task,
    )  # fmt: skip
    return Submodel(small, positions)


def unit_positions(model: FlatModel, layers: Sequence[Dense], kept: Units, tensor: str) -> Tensor:
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
    wanted = {block_name(word, names) for word in unsplit}
    same: dict[str, bool] = {}

    def watch(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        return lambda _, given, output: same.__setitem__(name, given[0].shape == output.shape)

    for name, block in blocks.named_children():
        block.register_forward_hook(watch(name))
    with torch.no_grad():
        module(probe_inputs(model, 1))
    # A block that changes the shape cannot be left out without its shortcut, so it stays unsplit.
    return [name for name in names if same[name] and name not in wanted]


def block_name(word: str, names: Sequence[str]) -> str:
    """Return the block that `first`, `last` or `blocks.N` names; raise for an unknown name."""
    known = {"first": names[0], "last": names[-1]} | {f"blocks.{name}": name for name in names}
    if word not in known:
        invalid("algorithm.split.unsplit", word, "no such block", did_you_mean(word, list(known)))
    return known[word]


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
                invalid("algorithm.split.parts", tensor, reason, "name it once, or nowhere: then it is unsplit")
        for part in way:
            if part <= unsplit:
                reason = "has no parameter that every partition splits"
                invalid("algorithm.split.parts", sorted(part)[0], reason, "split the same parameters in each partition")
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
        reason = "parts are known of fully connected chains and of networks with a chain of `blocks`"
        invalid("model.name", model.name, reason, "list the parameters of each part in parts")
    if model.constants:
        reason = f"{next(iter(model.constants))!r} is frozen, and units are dealt to parts with all their weights"
        invalid("model.name", model.name, reason, "train all of it, or remove algorithm.split")
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
    model: FlatModel, settings: Split, parts: int, layers: Sequence[Dense], rng: np.random.Generator
) -> Partitions:
    cut, whole = cut_layers(layers, settings.unsplit)
    widths = {layer.name: layer.outputs for layer in layers if layer.name in cut}
    _check_enough(parts, min(widths.values(), default=0), "hidden units in a layer that is not unsplit")
    ways = []
    # The partitions are public; only the assignment of subjects to parts is secret.
    for way in range(settings.partitions):
        groups = {name: deal_positions(width, parts, rng if way else None) for name, width in widths.items()}
        units = [{name: np.array(some[part], dtype=np.int64) for name, some in groups.items()} for part in range(parts)]
        ways.append(tuple(dense_submodel(model, layers, kept) for kept in units))
    return Partitions(model, unsplit_dense(model, layers, cut, whole), tuple(ways))


def _check_enough(parts: int, there: int, what: str) -> None:
    if parts > there:
        invalid("algorithm.split.parts", parts, f"there are {there} {what}", "use fewer parts, or unsplit less")
