"""Submodels of a fully connected network: all of it but the hidden units of the other parts.

Every second hidden layer that may be cut is cut: its units are dealt to the parts, with the weights into and out of
them and their biases. No weight then lies between two cut layers, so that the parts together are the whole model.
Biases of layers that are not cut have a gradient in every part and are unsplit.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sightline.errors import did_you_mean, invalid
from sightline.models.flat import FlatModel, layout_of
from sightline.models.submodel import Submodel

Units = Mapping[str, NDArray[np.int64]]
"""Layer name -> the units of it that a submodel keeps."""


@dataclass(frozen=True)
class Dense:
    """One affine layer of the network."""

    name: str
    inputs: int
    outputs: int


def dense_chain(module: nn.Module) -> list[Dense] | None:
    """The affine layers of a plain chain without other parameters, else None."""
    if type(module) is not nn.Sequential:
        return None
    children = list(module.named_children())
    layers = [
        Dense(name, child.in_features, child.out_features) for name, child in children if isinstance(child, nn.Linear)
    ]
    others = [child for _, child in children if not isinstance(child, nn.Linear) and list(child.parameters())]
    return None if others or len(layers) < 2 else layers


def cut_layers(layers: Sequence[Dense], unsplit: Sequence[str]) -> tuple[list[str], frozenset[str]]:
    """(the hidden layers whose units are dealt to the parts, the layers that are wanted unsplit)."""
    names = [layer.name for layer in layers]
    known = {"first": names[0], "last": names[-1]} | {name: name for name in names}
    for word in unsplit:
        if word not in known:
            invalid("algorithm.split.unsplit", word, "no such layer", did_you_mean(word, list(known)))
    whole = frozenset(known[word] for word in unsplit)
    cut: list[str] = []
    for before, name in zip(["", *names], names[:-1], strict=False):
        if name not in whole and before not in cut:
            cut.append(name)
    return cut, whole


def unsplit_dense(
    model: FlatModel, layers: Sequence[Dense], cut: Sequence[str], whole: frozenset[str]
) -> frozenset[str]:
    """The tensors that are wanted unsplit, touch no cut layer, or are biases of layers that are not cut."""
    after = {later.name for earlier, later in pairwise(layers) if earlier.name in cut}
    split = {f"{name}.{word}" for name in cut for word in ("weight", "bias")}
    split |= {f"{name}.weight" for name in after - whole}
    return frozenset(slot.name for slot in model.layout) - split


def narrow_network(factory: Callable[[], nn.Module], kept: Units) -> nn.Module:
    """The network with only some units of its cut layers."""
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
    """The submodel with these units."""
    factory = partial(narrow_network, model.factory, kept)
    layout = layout_of(factory())
    positions = torch.cat([unit_positions(model, layers, kept, slot.name) for slot in layout])
    small = FlatModel(
        f"part of {model.name}", model.input_shape, model.classes, model.kind, layout, factory, model.vocabulary,
        model.settings,
    )  # fmt: skip
    return Submodel(small, positions)


def unit_positions(model: FlatModel, layers: Sequence[Dense], kept: Units, tensor: str) -> Tensor:
    """Where the kept entries of a tensor stand in the whole vector."""
    slot = next(slot for slot in model.layout if slot.name == tensor)
    numbers = torch.arange(slot.start, slot.stop).view(slot.shape)
    name = tensor.rsplit(".", 1)[0]
    place = [layer.name for layer in layers].index(name)
    if name in kept:
        numbers = numbers[torch.from_numpy(kept[name])]
    if tensor.endswith("weight") and place and layers[place - 1].name in kept:
        numbers = numbers[:, torch.from_numpy(kept[layers[place - 1].name])]
    return numbers.reshape(-1)
