"""Networks of several clients stacked over (n, d) weights: fully connected ones, and small convolutional ones.

Dense layers are one batched product for all clients, convolutions patches and one product. Convolutions are stacked
where a client's step is so small that calling torch costs as much as the work: a few clients at a time, so that their
patches stay in the cache. Larger networks are faster in a loop with torch's own kernels.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from sightline.models.flat import FlatModel, Slot
from sightline.models.task import CLASSIFICATION, Task
from sightline.training.clipping import LARGEST, clip_factors
from sightline.training.fast.chains import (
    Layer,
    MaxPool,
    Pair,
    ReLU,
    Tanh,
    convolution_for,
    flat_children,
    size_pair,
)
from sightline.training.fast.per_example_norms import (
    fold_patches,
    outer_squares,
    output_size,
    patches_by_pixel,
    stride_divides,
    unfold_patches,
)

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
    result: list[DenseSlots] = []
    for (name, child), (_, after) in zip(children[::2], [*children[1::2], ("", None)], strict=False):
        if type(child) is not nn.Linear or not (after is None or type(after) in (nn.ReLU, nn.Tanh)):
            return None
        activation = None if after is None else type(after)
        result.append(DenseSlots(slots[f"{name}.weight"], slots.get(f"{name}.bias"), activation))
    complete = sum(2 if layer.bias else 1 for layer in result) == len(model.layout)
    return tuple(result) if result and complete and result[-1].activation is None else None


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


# Measured: beyond this the patches leave the cache, and a stack of a 28,938-parameter CNN is 1.8 times slower than the
# loop.
CLIENT_FLOATS = 1 << 17
"""A client whose patches in one step hold more numbers than this is trained in the loop."""

GROUP_FLOATS = 1 << 19
"""Most numbers in the patches of clients stacked together."""


@dataclass(frozen=True, eq=False)
class Part:
    """One layer of the chain and the slots of its tensors in the flat vector."""

    module: nn.Module
    weight: Slot | None
    bias: Slot | None


class StackStage(Layer):
    """A layer with parameters of every stacked client: views into (n, d) weights and gradients."""

    def __init__(self, part: Part, weights: Tensor, gradient: Tensor, wanted: bool) -> None:
        if part.weight is None:
            raise ValueError("a stage must have a weight")
        self.clients, self.wanted = len(weights), wanted
        self.weight = weights[:, part.weight.start : part.weight.stop].view(len(weights), *part.weight.shape)
        self.weight_gradient = gradient[:, part.weight.start : part.weight.stop].view(self.weight.shape)
        self.bias = self.bias_gradient = None
        if part.bias is not None:
            self.bias = weights[:, part.bias.start : part.bias.stop].unsqueeze(1)
            self.bias_gradient = gradient[:, part.bias.start : part.bias.stop]

    def affine_product(self, rows: Tensor, kernel: Tensor) -> Tensor:
        """Return rows kernel^T + bias, client by client."""
        kernel = kernel.transpose(1, 2)
        return torch.bmm(rows, kernel) if self.bias is None else torch.baddbmm(self.bias, rows, kernel)

    def write_bias(self, rows: Tensor) -> None:
        """Write the summed gradient of the bias."""
        if self.bias_gradient is not None:
            torch.sum(rows, 1, out=self.bias_gradient)


class DenseStage(StackStage):
    """x W^T + b on (n, b, inputs)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x W^T + b; images are flattened first."""
        self.shape = x.shape
        self.x = x.flatten(1).view(self.clients, -1, self.weight.shape[2])
        return self.affine_product(self.x, self.weight)

    @override
    def backward(self, g: Tensor) -> Tensor | None:
        torch.bmm(g.transpose(1, 2), self.x, out=self.weight_gradient)
        self.write_bias(g)
        before = torch.bmm(g, self.weight).view(self.shape)
        return before.contiguous(memory_format=torch.channels_last) if before.dim() == 4 else before


class ConvolutionStage(StackStage):
    """A convolution on (n * b, C, H, W) images in channels_last, as a product with their patches."""

    def __init__(self, part: Part, weights: Tensor, gradient: Tensor, wanted: bool) -> None:
        super().__init__(part, weights, gradient, wanted)
        how = part.module
        self.how: tuple[Pair, Pair, Pair] = (size_pair(how.kernel_size), size_pair(how.stride), size_pair(how.padding))

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution; the first layer takes its patches by pixel, in the weight's own order."""
        self.shape = tuple(x.shape)
        if self.wanted:
            self.u = unfold_patches(x, *self.how).view(self.clients, -1, self.weight[0, 0].numel())
            self.kernel = self.weight.permute(0, 1, 3, 4, 2).reshape(*self.weight.shape[:2], -1)
        else:
            self.u = patches_by_pixel(x, *self.how).view(self.weight[0, 0].numel(), self.clients, -1).permute(1, 2, 0)
            self.kernel = self.weight.flatten(2)
        size = output_size(x, *self.how)
        return self.affine_product(self.u, self.kernel).view(len(x), *size, -1).permute(0, 3, 1, 2)

    @override
    def backward(self, g: Tensor) -> Tensor | None:
        rows = g.permute(0, 2, 3, 1).reshape(self.clients, -1, g.shape[1])
        total = torch.bmm(rows.transpose(1, 2), self.u)
        self.write_bias(rows)
        if not self.wanted:
            self.weight_gradient.copy_(total.view(self.weight.shape))
            return None
        (tall, wide), channels = self.how[0], self.shape[1]
        self.weight_gradient.copy_(total.view(*total.shape[:2], tall, wide, channels).permute(0, 1, 4, 2, 3))
        return fold_patches(torch.bmm(rows, self.kernel).flatten(0, 1), self.shape, *self.how)


class ConvStack:
    """Networks of n clients over (n, d) weights, with the interface of `DenseStack` for plain steps."""

    def __init__(self, parts: tuple[Part, ...], weights: Tensor, gradient: Tensor, image: tuple[int, ...]) -> None:
        self.parts, self.weights, self.gradient, self.image = parts, weights, gradient, image
        self.layers: list[Layer] = []
        for part in parts:
            started = any(isinstance(layer, StackStage) for layer in self.layers)
            layer = stage_for(part, weights, gradient, started)
            if isinstance(layer, ReLU | Tanh):
                layer.in_place = isinstance(self.layers[-1], StackStage | MaxPool)
            self.layers.append(layer)

    def first(self, count: int) -> "ConvStack":
        """Return the stack of the first `count` clients, sharing memory with this one."""
        if count == len(self.weights):
            return self
        return ConvStack(self.parts, self.weights[:count], self.gradient[:count], self.image)

    def mean_gradients(self, x: Tensor, target: Tensor, share: Tensor) -> None:
        """Write the gradients of sum_j share_j loss_j; share (n, b, 1) is 0 for padding, target = -share onehot(y)."""
        y = x.reshape(-1, *self.image)
        for layer in self.layers:
            y = layer.forward(y)
        g: Tensor | None = torch.addcmul(target, torch.softmax(y, 2), share)
        for layer in reversed(self.layers):
            if g is None:
                break
            g = layer.backward(g)


def stage_for(part: Part, weights: Tensor, gradient: Tensor, started: bool) -> Layer:
    """Return the stacked equivalent of a layer; those without parameters see one long batch."""
    module = part.module
    if isinstance(module, nn.Conv2d):
        return ConvolutionStage(part, weights, gradient, started)
    if isinstance(module, nn.Linear):
        return DenseStage(part, weights, gradient, started)
    if isinstance(module, nn.MaxPool2d):
        return MaxPool(size_pair(module.kernel_size), size_pair(module.stride), size_pair(module.padding))
    return ReLU() if isinstance(module, nn.ReLU) else Tanh()


def conv_parts(model: FlatModel) -> tuple[Part, ...] | None:
    """Return the layers of a chain that starts with convolutions whose strides divide their kernels, else None."""
    module = model.module()
    if type(module) is not nn.Sequential:
        return None
    slots = {slot.name: slot for slot in model.layout}
    parts = [
        Part(child, slots.get(f"{name}.weight"), slots.get(f"{name}.bias"))
        for name, child in flat_children(module)
        if not isinstance(child, nn.Flatten)
    ]
    # Max pool before ReLU, as in `pools_first`: same result, less work.
    for at in range(len(parts) - 1):
        if isinstance(parts[at].module, nn.ReLU) and isinstance(parts[at + 1].module, nn.MaxPool2d):
            parts[at], parts[at + 1] = parts[at + 1], parts[at]
    stackable = all(can_stack(part.module) for part in parts) and isinstance(parts[0].module, nn.Conv2d)
    return tuple(parts) if stackable and isinstance(parts[-1].module, nn.Linear) else None


def can_stack(module: nn.Module) -> bool:
    """Return whether a layer of a chain has a stacked equivalent."""
    if isinstance(module, nn.Conv2d):
        return convolution_for(module, (torch.empty(1, 1, 1, 1),) * 4, False) is not None and stride_divides(
            size_pair(module.stride), size_pair(module.kernel_size)
        )
    return isinstance(module, nn.Linear | nn.MaxPool2d | nn.ReLU | nn.Tanh)


def patch_floats(parts: tuple[Part, ...], image: tuple[int, ...]) -> int:
    """Return the most numbers in one layer's patches of one example."""
    largest, x = 0, torch.zeros(1, *image)
    for part in parts:
        if isinstance(part.module, nn.Linear):
            break
        with torch.no_grad():
            x = part.module(x)
        if isinstance(part.module, nn.Conv2d):
            largest = max(largest, part.module.weight[0].numel() * x.shape[2] * x.shape[3])
    return largest
