"""Dropout with probability one half as splitting into two parts: a mask and its complement are equally likely."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sightline.data.federation import Kind
from sightline.errors import invalid, refuse
from sightline.models.flat import FlatModel, layout_of, probe_inputs
from sightline.models.mixing import mark_own, unknown_part
from sightline.models.submodel import Inputs, Submodel

DROPOUT = nn.modules.dropout._DropoutNd
KEEP_ZERO = (
    nn.ReLU, nn.Tanh, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Identity, nn.Dropout, nn.Dropout2d,
    nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d,
)  # fmt: skip
"""Layers that work on every node by itself and make zero of zero."""
PER_NODE = (*KEEP_ZERO, nn.Sigmoid, nn.Softplus)
"""Layers that work on every node by itself."""


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
    """A layer of the chain, with the shape of one example's output."""

    name: str
    module: nn.Module
    output: tuple[int, ...]


def check_layer(layer: Layer) -> None:
    """Refuse a rate other than one half, and masks that drop pixels instead of channels."""
    rate = layer.module.p
    if rate != 0.5:
        law = "amplification needs rate 0.5: only then are a mask and its complement equally likely"
        refuse("model.dropout", rate, law, "use 0.5, or remove algorithm.split (dropout stays, nothing is claimed)")
    whole_nodes = len(layer.output) == 1 if isinstance(layer.module, nn.Dropout) else len(layer.output) == 3
    if not whole_nodes or not isinstance(layer.module, nn.Dropout | nn.Dropout2d):
        law = "a convolution's weights are dropped only with whole channels"
        refuse(layer.name, type(layer.module).__name__, law, "use torch.nn.Dropout2d on images")


def trace_layers(model: FlatModel, module: nn.Module) -> list[Layer]:
    """The layers of the model's nested chains in order, each with its output shape."""
    found: list[Layer] = []
    x = probe_inputs(model, 1)
    with torch.no_grad():
        for name, child in chain_layers(module):
            x = child(x)
            found.append(Layer(name, child, tuple(x.shape[1:])))
    return found


def chain_layers(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """(full name, layer) in the order of the pass; a layer that is used twice comes twice."""
    for name, child in module._modules.items():
        if type(child) is nn.Sequential:
            yield from chain_layers(child, f"{prefix}{name}.")
        elif child is not None:
            yield prefix + name, child


def touched_by(layers: list[Layer], place: int, first: int, names: Mapping[int, str]) -> Iterator[Touch]:
    """The tensors into and out of the nodes of one dropout layer; `names` are the tensors' own, by identity."""
    nodes = layers[place].output[0]
    before = next((layer for layer in reversed(layers[:place]) if not isinstance(layer.module, PER_NODE)), None)
    if before is not None and has_nodes_in_front(before):
        for parameter in before.module.parameters():
            yield Touch(names[id(parameter)], 0, first, nodes)
    for layer in layers[place + 1 :]:
        if isinstance(layer.module, KEEP_ZERO) or flattens_examples(layer.module):
            continue
        weight = columns_of(layer)
        if weight is not None:
            yield Touch(names[id(weight)], 1, first, nodes, weight.shape[1] // nodes)
        return


def flattens_examples(module: nn.Module) -> bool:
    """Whether all of one example becomes one row, node after node."""
    return isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) == (1, -1)


def has_nodes_in_front(layer: Layer) -> bool:
    """Whether each entry of the first axis of the layer's tensors makes one node, and nothing else."""
    module = layer.module
    if isinstance(module, nn.LayerNorm):
        return tuple(module.normalized_shape) == layer.output
    return type(module) is nn.GroupNorm or columns_of(layer) is not None


def columns_of(layer: Layer) -> Tensor | None:
    """The weight from input nodes (second axis) to output nodes (first): of dense layers and plain convolutions."""
    module = layer.module
    if type(module) is nn.Linear:
        return module.weight if len(layer.output) == 1 else None
    return module.weight if isinstance(module, nn.Conv2d) and type(module) is nn.Conv2d and module.groups == 1 else None


def repeated_tensors(module: nn.Module) -> frozenset[str]:
    """Tensors that more than one layer of the pass uses: they can have a gradient under every mask."""
    uses = Counter(id(parameter) for _, layer in chain_layers(module) for parameter in layer.parameters())
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    return frozenset(names[number] for number, count in uses.items() if count > 1)


class MaskedStage:
    """Where the masks of the pass at hand lie, so that every dropout layer finds its own."""

    mask: Tensor


@mark_own
class HeldDropout(nn.Module):
    """Dropout whose mask is given: every node is doubled or dropped."""

    def __init__(self, stage: MaskedStage, first: int, nodes: int) -> None:
        super().__init__()
        self.stage, self.first, self.nodes = stage, first, nodes

    def forward(self, x: Tensor) -> Tensor:
        """2 m x."""
        mask = self.stage.mask[:, self.first : self.first + self.nodes]
        return x * (2 * mask).view(*mask.shape, *([1] * (x.dim() - 2)))


@mark_own
class Masked(nn.Sequential):
    """The chain with its masks as further inputs: (x, m) in one row per example, so that they are never parted."""

    def __init__(self, layers: "OrderedDict[str, nn.Module]", stage: MaskedStage, input_shape: tuple[int, ...]) -> None:
        super().__init__(layers)
        self.stage, self.input_shape = stage, input_shape

    def forward(self, rows: Tensor) -> Tensor:
        """The logits of examples under their own masks."""
        size = prod(self.input_shape)
        self.stage.mask = rows[:, size:]
        x = rows[:, :size].reshape(-1, *self.input_shape)
        for layer in self:
            x = layer(x)
        return x


def masked_model(model: FlatModel, nodes: int) -> FlatModel:
    """The model whose examples carry their masks."""
    factory = partial(masked_module, model.factory, model.input_shape, model)
    size = prod(model.input_shape) + nodes
    name, layout = f"{model.name} with masks", layout_of(factory())
    return FlatModel(
        name, (size,), model.classes, Kind.VECTOR, layout, factory, constants=model.constants, task=model.task
    )


def masked_module(factory: Callable[[], nn.Module], input_shape: tuple[int, ...], model: FlatModel) -> nn.Module:
    """The chain with held dropout in the place of drawn dropout."""
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
    """Every subject draws a mask over all dropped nodes, held through its training."""

    whole: FlatModel
    masked: FlatModel
    nodes: int
    touches: tuple[Touch, ...]
    parts = 2

    @cached_property
    def unsplit(self) -> frozenset[str]:
        """The tensors that touch no dropped node."""
        return frozenset(slot.name for slot in self.whole.layout) - {touch.tensor for touch in self.touches}

    @cached_property
    def share(self) -> float:
        """Each touch halves what is trained of a tensor."""
        touched = Counter(touch.tensor for touch in self.touches)
        return sum(slot.size * 0.5 ** touched[slot.name] for slot in self.whole.layout) / self.whole.parameters

    def draw(self, count: int, *, rng: np.random.Generator) -> NDArray[np.bool_]:
        """One fair draw per subject and node."""
        return rng.random((count, self.nodes)) < 0.5

    def batches(self, assigned: NDArray[Any], x: Inputs) -> Iterator[tuple[Submodel, NDArray[np.intp], Inputs]]:
        """The whole batch, every example with its own mask."""
        yield Submodel(self.masked, torch.arange(self.whole.parameters)), np.arange(len(x)), _append_masks(x, assigned)

    def part_of_one(self, assigned: Any, x: Inputs) -> tuple[Submodel, Inputs]:
        """One mask for all examples; what it drops does not move."""
        rows = np.broadcast_to(assigned, (len(x), self.nodes))
        moves = self.kept(np.asarray(assigned))
        return Submodel(self.masked, torch.arange(self.whole.parameters), moves), _append_masks(x, rows)

    def kept(self, mask: NDArray[np.bool_]) -> Tensor:
        """(d,) ones and zeros: the parameters that do not touch a dropped node."""
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
    """The model's own dropout as a splitting; refused where the proof does not reach."""
    module = model.module().eval()
    if type(module) is not nn.Sequential or model.kind is Kind.TEXT:
        law = "which weights touch dropped nodes is read off a torch.nn.Sequential of vectors or images"
        refuse("model.name", model.name, law, "use mlp with dropout = 0.5, or remove algorithm.split")
    strange = unknown_part(module)
    if strange is not None:
        law = f"what {strange} does with a dropped node is not known, and the proof needs that it stays silent"
        refuse("model.name", model.name, law, "use torch's own layers, or remove algorithm.split")
    layers = trace_layers(model, module)
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    dropouts = [place for place, layer in enumerate(layers) if isinstance(layer.module, DROPOUT)]
    if not dropouts:
        invalid("algorithm.split", "dropout", f"{model.name} has no dropout layer", "set model.dropout = 0.5")
    touches: list[Touch] = []
    nodes = 0
    for place in dropouts:
        check_layer(layers[place])
        touches += touched_by(layers, place, nodes, names)
        nodes += layers[place].output[0]
    shared = repeated_tensors(module)
    trained = {slot.name for slot in model.layout}  # frozen tensors have no gradient under any mask
    own = tuple(touch for touch in touches if touch.tensor in trained - shared)
    return DropoutSplitting(model, masked_model(model, nodes), nodes, own)
