"""Which parameters touch the nodes of a dropout layer: read off a chain of layers."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sightline.errors import refuse
from sightline.models.flat import FlatModel, probe_inputs

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
