"""The worker for modules that are plain chains of layers: gradients by hand, no tape.

A pool that follows a ReLU changes places with it (the largest of max(x, 0) is the max of the largest and 0): values and
gradients stay as they are, and most of the ReLU's work is saved.
"""

from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sightline.data.federation import Kind
from sightline.models.flat import FlatModel, Slot
from sightline.training.clipping import Clip, factors_of
from sightline.training.fast.layers import Affine, Flatten, Layer, MaxPool, ReLU, Tanh, layer_for
from sightline.training.gradients import GradientWorker, equal_chunks, stretch_views

CHUNK_BYTES = 1 << 25
"""How much the records of one chunk of examples may take: they are read again soon and should stay in the cache."""


class ChainWorker(GradientWorker):
    """A chain of hand-written layers over the worker's flat weights and gradient."""

    def __init__(self, model: FlatModel) -> None:
        super().__init__(model)
        self.layers = chain_of(self.module, model.layout, self.weights, self.gradient) or []
        self.per_chunk = max(
            8, CHUNK_BYTES // record_bytes(self.layers, self.inputs(np.zeros((1, *model.input_shape), np.float32)))
        )

    def inputs(self, x: NDArray[np.float32] | NDArray[np.int64]) -> Tensor:
        """Images in channels_last, unless the chain begins by flattening them."""
        tensor = torch.from_numpy(np.ascontiguousarray(x))
        image = self.model.kind is Kind.IMAGE and not isinstance(self.layers[0], Flatten)
        return as_channels_last(tensor) if image else tensor

    def logits(self, x: Tensor, *, apart: bool = False) -> Tensor:
        """The logits of a batch; a chain treats every example apart anyway."""
        for layer in self.layers:
            x = layer.forward(x)
        return x

    def record(self, recording: bool) -> None:
        """Tell the layers whether per-example norms will be asked for."""
        for layer in self.layers:
            layer.recording = recording

    def mean_gradient(self, x: Tensor, y: Tensor) -> None:
        """Forward, backward, every layer writing its share of `gradient`."""
        self.record(False)
        g: Tensor | None = loss_gradient(self.logits(x), y).div_(len(y))
        for layer in reversed(self.layers):
            if g is None:
                break
            g = layer.backward(g)

    def clipped_sum(self, x: Tensor, y: Tensor, clip: Clip, *, views: int = 1) -> None:
        """One forward and one backward pass per chunk; norms and clipped sums from the layers' records."""
        self.gradient.zero_()
        for some in equal_chunks(len(y), max(1, self.per_chunk // views)):
            self.add_clipped(x[stretch_views(some, views)], y[some], clip, views)

    def add_clipped(self, x: Tensor, y: Tensor, clip: Clip, views: int) -> None:
        """Add the clipped sum of one chunk."""
        self.record(True)
        g: Tensor | None = loss_gradient(self.logits(x), y.repeat_interleave(views)).div_(views)
        for layer in reversed(self.layers):
            if g is None:
                break
            g = layer.record(g)
        recording = [layer for layer in self.layers if isinstance(layer, Affine)]
        for layer in recording:
            layer.join_views(views)
        finite, factors = factors_of([layer.norms() for layer in recording], clip)
        if not bool(finite.all()):
            if bool(finite.any()):  # without the broken examples, whose zero factor would not make a NaN zero
                self.add_clipped(x[finite.repeat_interleave(views)], y[finite], clip, views)
            return
        for layer in recording:
            layer.add_clipped(factors)


def loss_gradient(logits: Tensor, y: Tensor) -> Tensor:
    """Gradient of every example's cross entropy: softmax(logits) - onehot(y)."""
    return torch.softmax(logits, 1).scatter_add_(1, y[:, None], logits.new_full((len(y), 1), -1.0))


def as_channels_last(x: Tensor) -> Tensor:
    """The images with channels_last strides, also where one channel makes both orders look alike."""
    _, channels, height, width = x.shape
    if channels == 1:
        return x.contiguous().as_strided(x.shape, (height * width, 1, width, 1))
    return x.contiguous(memory_format=torch.channels_last)


def chain_of(module: nn.Module, layout: tuple[Slot, ...], weights: Tensor, gradient: Tensor) -> list[Layer] | None:
    """The hand-written layers of a module that is a chain of known ones, else None."""
    if type(module) is not nn.Sequential or not all(parameter.requires_grad for parameter in module.parameters()):
        return None
    slots = {slot.name: slot for slot in layout}
    layers: list[Layer] = []
    for name, child in flat_children(module):
        tensors = tuple(
            view_slot(slots.get(f"{name}.{word}"), flat) for flat in (weights, gradient) for word in ("weight", "bias")
        )
        first = not any(isinstance(layer, Affine) for layer in layers)
        layer = layer_for(child, tensors, first)
        if layer is None:
            return None
        layer.wanted = not first
        if isinstance(layer, Affine):
            layer.name = name
        layers.append(layer)
    complete = sum(len(list(c.parameters())) for _, c in flat_children(module)) == len(layout)
    if not complete or not layers or not isinstance(layers[-1], Affine):
        return None
    return activations_in_place(pools_first(layers))


def view_slot(slot: Slot | None, flat: Tensor) -> Tensor | None:
    """The tensor of a slot inside a flat vector."""
    return None if slot is None else flat[slot.start : slot.stop].view(slot.shape)


def flat_children(module: nn.Sequential, prefix: str = "") -> list[tuple[str, nn.Module]]:
    """The layers of nested chains with their full names, in order, identities left out."""
    found: list[tuple[str, nn.Module]] = []
    for name, child in module.named_children():
        if type(child) is nn.Sequential:
            found += flat_children(child, f"{prefix}{name}.")
        elif not isinstance(child, nn.Identity):
            found.append((prefix + name, child))
    return found


def pools_first(layers: list[Layer]) -> list[Layer]:
    """The chain with ReLU, max pool turned into max pool, ReLU."""
    ordered = list(layers)
    for i in range(len(ordered) - 1):
        if isinstance(ordered[i], ReLU) and isinstance(ordered[i + 1], MaxPool):
            ordered[i], ordered[i + 1] = ordered[i + 1], ordered[i]
    return ordered


def activations_in_place(layers: list[Layer]) -> list[Layer]:
    """Let an activation overwrite its input where nobody else needs that input: after an affine layer or a pool."""
    for before, layer in pairwise(layers):
        if isinstance(layer, ReLU | Tanh):
            layer.in_place = isinstance(before, Affine | MaxPool)
    return layers


def record_bytes(layers: list[Layer], one: Tensor) -> int:
    """Bytes that one example's records take at most: patches and instantiated gradients of the convolutions."""
    total, x = 4 * one.numel(), one
    for layer in layers:
        x = layer.forward(x)
        total += 4 * x.numel()
        if isinstance(layer, Affine) and x.dim() == 4:
            kernel = layer.weight[0].numel()
            total += 4 * kernel * (x.shape[2] * x.shape[3] + len(layer.weight))
    return total
