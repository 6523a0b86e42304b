"""Dropout with probability one half as splitting into two parts: a mask and its complement are equally likely.

Which parameters are split is read off the chain of layers: the weights (and biases) into the dropped nodes and the
weights out of them. Everything else has, or could have, a gradient under a mask and under its complement: unsplit.
Reference: the partitioning paper, Corollary 3.7 and appendix A.11.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sightline.data.federation import Kind
from sightline.errors import invalid, refuse
from sightline.models.dropout_graph import DROPOUT, Touch, check_layer, repeated_tensors, touched_by, trace_layers
from sightline.models.flat import FlatModel
from sightline.models.masked import masked_model
from sightline.models.mixing import unknown_part
from sightline.models.submodel import Inputs, Submodel


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
        """One fair coin per subject and node."""
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
