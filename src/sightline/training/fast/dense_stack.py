"""Chains of layers with hand-written gradients: of one client, and fully connected networks of many clients."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sightline.data.federation import Kind
from sightline.models.flat import FlatModel, Slot
from sightline.models.task import CLASSIFICATION, Task
from sightline.training.clipping import LARGEST, Clip, clip_factors, factors_of
from sightline.training.fast.layers import Affine, Convolution, Flatten, Layer, MaxPool, ReLU, Tanh, layer_for
from sightline.training.fast.per_example_norms import outer_squares
from sightline.training.gradients import GradientWorker

CHUNK_BYTES = 1 << 25
"""Memory limit for the records of one chunk: they are read again soon and should stay in the cache."""


class ChainWorker(GradientWorker):
    """Worker with a chain of hand-written layers over flat weights and gradient."""

    def __init__(self, model: FlatModel, record: str = "unfold") -> None:
        super().__init__(model)
        self.layers = chain_of(self.module, model.layout, self.weights, self.gradient, record) or []
        self.channels_last = model.kind is Kind.IMAGE and not isinstance(self.layers[0], Flatten)
        self.per_chunk = max(
            8, CHUNK_BYTES // record_bytes(self.layers, self.inputs(np.zeros((1, *model.input_shape), np.float32)))
        )

    def inputs(self, x: NDArray[np.float32] | NDArray[np.int64]) -> Tensor:
        """Return images in channels_last, unless the chain starts by flattening them."""
        tensor = torch.from_numpy(np.ascontiguousarray(x))
        return as_channels_last(tensor) if self.channels_last else tensor

    def logits(self, x: Tensor, *, apart: bool = False) -> Tensor:
        """Return the logits of a batch; a chain always keeps examples apart."""
        for layer in self.layers:
            x = layer.forward(x)
        return x

    def record(self, recording: bool) -> None:
        """Tell the layers whether per-example norms will be needed."""
        for layer in self.layers:
            layer.recording = recording

    def mean_gradient(self, x: Tensor, y: Tensor) -> None:
        """Write the mean gradient of a batch: forward, backward, each layer writing its share."""
        self.record(False)
        g: Tensor | None = self.model.task.output_gradient(self.logits(x), y).div_(len(y))
        for layer in reversed(self.layers):
            if g is None:
                break
            g = layer.backward(g)

    def descend(self, x: Tensor, y: Tensor, rate: float) -> None:
        """Take a step of plain SGD with a batch's mean gradient, each layer moving its weights in the backward pass."""
        self.record(False)
        g: Tensor | None = self.model.task.output_gradient(self.logits(x), y).div_(len(y))
        for layer in reversed(self.layers):
            if g is None:
                break
            g = layer.descend(g, rate)

    def train_at(self, weights: Tensor) -> None:
        """Make the layers work on another vector, in place."""
        self.weights, slots = weights, {slot.name: slot for slot in self.model.layout}
        for layer in self.layers:
            if isinstance(layer, Affine):
                layer.weight = cast(Tensor, view_slot(slots[f"{layer.name}.weight"], weights))
                layer.bias = view_slot(slots.get(f"{layer.name}.bias"), weights)

    def clipped_sum(self, x: Tensor, y: Tensor, clip: Clip, *, views: int = 1) -> None:
        """Write the clipped sum, one forward and one backward pass per chunk, from the layers' records."""
        self.gradient.zero_()
        self.add_passes(x, y, clip, views)

    def most_examples(self, views: int) -> int:
        """Return how many examples are computed at once."""
        return max(1, self.per_chunk // views)

    def add_clipped(self, x: Tensor, y: Tensor, examples: int, clip: Clip, views: int) -> None:
        """Add the clipped sum of the first examples of one pass."""
        broken, factors = factors_of(self.pass_squares(x, y, views), clip, examples)
        for layer in self.layers:
            layer.add_clipped(factors, broken)

    def pass_squares(self, x: Tensor, y: Tensor, views: int) -> list[dict[str, Tensor]]:
        """Run one pass and return the squared norms of its examples from the layers' records."""
        self.record_pass(x, y.repeat_interleave(views, 0), views)
        recording = [layer for layer in self.layers if isinstance(layer, Affine)]
        for layer in recording:
            layer.join_views(views)
        return [layer.norms() for layer in recording]

    def record_pass(self, x: Tensor, labels: Tensor, views: int) -> None:
        """Run one forward and one backward pass, with every layer keeping its record."""
        self.record(True)
        # Dividing by the views here makes the joined record of an example its mean gradient over views.
        g: Tensor | None = self.model.task.output_gradient(self.logits(x), labels).div_(views)
        for layer in reversed(self.layers):
            if g is None:
                break
            g = layer.record(g)


def has_convolutions(worker: ChainWorker) -> bool:
    """Return whether the chain has convolutions, which have several kinds of records."""
    return any(isinstance(layer, Convolution) for layer in worker.layers)


def as_channels_last(x: Tensor) -> Tensor:
    """Return the images with channels_last strides, even if one channel makes both orders look alike."""
    _, channels, height, width = x.shape
    if channels == 1:
        return x.contiguous().as_strided(x.shape, (height * width, 1, width, 1))
    return x.contiguous(memory_format=torch.channels_last)


def chain_of(
    module: nn.Module, layout: tuple[Slot, ...], weights: Tensor, gradient: Tensor, record: str = "unfold"
) -> list[Layer] | None:
    """Return the hand-written layers of a module that is a chain of known layers, else None."""
    if type(module) is not nn.Sequential or not all(parameter.requires_grad for parameter in module.parameters()):
        return None
    slots = {slot.name: slot for slot in layout}
    layers: list[Layer] = []
    for name, child in flat_children(module):
        tensors = tuple(
            view_slot(slots.get(f"{name}.{word}"), flat) for flat in (weights, gradient) for word in ("weight", "bias")
        )
        first = not any(isinstance(layer, Affine) for layer in layers)
        layer = layer_for(child, tensors, first, record)
        if layer is None:
            return None
        layer.wanted = not first
        if isinstance(layer, Affine):
            layer.name = name
        layers.append(layer)
    # Every parameter must belong to exactly one layer of the chain: a shared or stray one would not be clipped.
    complete = sum(len(list(c.parameters())) for _, c in flat_children(module)) == len(layout)
    if not complete or not layers or not isinstance(layers[-1], Affine):
        return None
    return activations_in_place(pools_first(layers))


def view_slot(slot: Slot | None, flat: Tensor) -> Tensor | None:
    """Return the tensor of a slot inside a flat vector."""
    return None if slot is None else flat[slot.start : slot.stop].view(slot.shape)


def flat_children(module: nn.Sequential, prefix: str = "") -> list[tuple[str, nn.Module]]:
    """Return the layers of nested chains with their full names, in order, without identities."""
    found: list[tuple[str, nn.Module]] = []
    for name, child in module.named_children():
        if type(child) is nn.Sequential:
            found += flat_children(child, f"{prefix}{name}.")
        elif not isinstance(child, nn.Identity):
            found.append((prefix + name, child))
    return found


def pools_first(layers: list[Layer]) -> list[Layer]:
    """Return the chain with every (ReLU, max pool) swapped to (max pool, ReLU)."""
    # Both orders give the same result, and ReLU on the smaller image is cheaper.
    ordered = list(layers)
    for i in range(len(ordered) - 1):
        if isinstance(ordered[i], ReLU) and isinstance(ordered[i + 1], MaxPool):
            ordered[i], ordered[i + 1] = ordered[i + 1], ordered[i]
    return ordered


def activations_in_place(layers: list[Layer]) -> list[Layer]:
    """Let activations overwrite their input where no other layer needs it: after an affine layer or a pool."""
    for before, layer in pairwise(layers):
        if isinstance(layer, ReLU | Tanh):
            layer.in_place = isinstance(before, Affine | MaxPool)
    return layers


def record_bytes(layers: list[Layer], one: Tensor) -> int:
    """Return the most bytes that one example's records take: patches and gradients of the convolutions."""
    total, x = 4 * one.numel(), one
    for layer in layers:
        x = layer.forward(x)
        total += 4 * x.numel()
        if isinstance(layer, Affine) and x.dim() == 4:
            kernel = layer.weight[0].numel()
            total += 4 * kernel * (x.shape[2] * x.shape[3] + len(layer.weight))
    return total


aten: Any = torch.ops.aten


@dataclass(frozen=True)
class DenseSlots:
    """Position of one dense layer in the flat vector, and its activation (None after the last)."""

    weight: Slot
    bias: Slot | None
    activation: type[nn.Module] | None


def dense_slots(model: FlatModel) -> tuple[DenseSlots, ...] | None:
    """Return the layers of a plain fully connected network, else None."""
    module = model.module()
    if type(module) is not nn.Sequential:
        return None
    children = [(name, child) for name, child in flat_children(module) if type(child) is not nn.Flatten]
    slots = {slot.name: slot for slot in model.layout}
    found: list[DenseSlots] = []
    for (name, child), (_, after) in zip(children[::2], [*children[1::2], ("", None)], strict=False):
        if type(child) is not nn.Linear or not (after is None or type(after) in (nn.ReLU, nn.Tanh)):
            return None
        activation = None if after is None else type(after)
        found.append(DenseSlots(slots[f"{name}.weight"], slots.get(f"{name}.bias"), activation))
    complete = sum(2 if layer.bias else 1 for layer in found) == len(model.layout)
    return tuple(found) if found and complete and found[-1].activation is None else None


class Floor:
    """One dense layer of every stacked client: views into the (n, d) weights and gradients."""

    def __init__(self, slots: DenseSlots, weights: Tensor, gradient: Tensor) -> None:
        self.relu = slots.activation is nn.ReLU
        self.activated = slots.activation is not None
        self.weight = weights[:, slots.weight.start : slots.weight.stop].view(len(weights), *slots.weight.shape)
        self.weight_gradient = gradient[:, slots.weight.start : slots.weight.stop].view(self.weight.shape)
        self.kernel = self.weight.transpose(1, 2)
        self.bias = self.bias_gradient = None
        if slots.bias is not None:
            self.bias = weights[:, slots.bias.start : slots.bias.stop].unsqueeze(1)
            self.bias_gradient = gradient[:, slots.bias.start : slots.bias.stop]

    def forward(self, x: Tensor) -> Tensor:
        """Return the activation of x W^T + b, client by client."""
        self.x = x
        y = torch.bmm(x, self.kernel) if self.bias is None else torch.baddbmm(self.bias, x, self.kernel)
        if self.activated:
            y = torch.relu_(y) if self.relu else torch.tanh_(y)
        self.y = y
        return y

    def through_activation(self, g: Tensor) -> Tensor:
        """Return the gradient before the activation from the one after it."""
        back: Tensor = aten.threshold_backward(g, self.y, 0) if self.relu else aten.tanh_backward(g, self.y)
        return back

    def write(self, g: Tensor, x: Tensor) -> None:
        """Write the summed gradients g^T x and sum g."""
        torch.bmm(g.transpose(1, 2), x, out=self.weight_gradient)
        if self.bias_gradient is not None:
            torch.sum(g, 1, out=self.bias_gradient)


class DenseStack:
    """Networks of n clients over (n, d) weights; gradients are written to (n, d)."""

    def __init__(
        self, layers: tuple[DenseSlots, ...], weights: Tensor, gradient: Tensor, task: Task = CLASSIFICATION
    ) -> None:
        self.layers, self.weights, self.gradient, self.task = layers, weights, gradient, task
        self.floors = [Floor(slots, weights, gradient) for slots in layers]

    def first(self, count: int) -> "DenseStack":
        """Return the stack of the first `count` clients, sharing memory with this one."""
        if count == len(self.weights):
            return self
        return DenseStack(self.layers, self.weights[:count], self.gradient[:count], self.task)

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits of every client's batch, (n, b, classes)."""
        for floor in self.floors:
            x = floor.forward(x)
        return x

    def probabilities(self, x: Tensor) -> Tensor:
        """Return the softmax of the logits, (n, b, classes)."""
        return torch.softmax(self.logits(x), 2)

    def mean_gradients(self, x: Tensor, target: Tensor, share: Tensor) -> None:
        """Write the gradients of sum_j share_j loss_j; share (n, b, 1) is 0 for padding.

        `target` is -share onehot(y) for classes, and the targets themselves for any other task.
        """
        if self.task.classic:
            g = torch.addcmul(target, self.probabilities(x), share)
        else:
            g = self.loss_gradients(x, target) * share
        for index in range(len(self.floors) - 1, -1, -1):
            floor = self.floors[index]
            floor.write(g, floor.x)
            if index:
                g = self.floors[index - 1].through_activation(torch.bmm(g, floor.weight))

    def loss_gradients(self, x: Tensor, y: Tensor) -> Tensor:
        """Return (n, b, outputs): the gradient of every example's loss with respect to its output, for any task."""
        outputs = self.logits(x)
        return self.task.output_gradient(outputs.flatten(0, 1), y.flatten(0, 1)).view_as(outputs)

    def clipped_sums(self, x: Tensor, y: Tensor, present: Tensor, clip_norm: float) -> None:
        """Write each client's sum of clipped per-example gradients; `present` (n, b) is 0 for padding.

        Guarantees: those of `GradientWorker.clipped_sum`, for every client separately.
        """
        errors, squared = self.output_gradients(x, y)
        norms = squared.sqrt_()
        # `present` zeroes the factors of padding, whose gradients are not zero.
        factors = (clip_factors(norms, clip_norm) * present).unsqueeze(2)
        broken = None if bool((norms <= LARGEST).all()) else ~(norms <= LARGEST).unsqueeze(2)
        for floor, g in zip(self.floors, errors, strict=True):
            if broken is None:
                floor.write(g * factors, floor.x)
            # A factor of zero does not turn NaN into zero, so broken rows are blanked.
            else:
                floor.write(g.masked_fill(broken, 0.0) * factors, floor.x.masked_fill(broken, 0.0))

    def output_gradients(self, x: Tensor, y: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return every layer's output gradient per example loss, and |gradient|^2 of each example."""
        if self.task.classic:
            p = self.probabilities(x)
            g = p.scatter_add_(2, y.unsqueeze(2), p.new_full((1, 1, 1), -1.0).expand(*y.shape, 1))
        else:
            g = self.loss_gradients(x, y)
        errors, squared = [g], torch.zeros(y.shape[:2], dtype=torch.float64)
        for index in range(len(self.floors) - 1, -1, -1):
            floor = self.floors[index]
            squares = outer_squares(floor.x.flatten(0, 1), g.flatten(0, 1), bias=floor.bias is not None)
            squared += squares.view_as(squared)
            if index:
                g = self.floors[index - 1].through_activation(torch.bmm(g, floor.weight))
                errors.append(g)
        return errors[::-1], squared
