"""Fully connected networks of many clients at once: batched matrix products, gradients by hand.

Client i's weights are row i of (n, d); inputs are (n, b, features). Rows of a batch that are only there to make clients
equally long carry weight zero, so they change nothing.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sightline.models.flat import FlatModel, Slot
from sightline.training.clipping import clip_factors
from sightline.training.fast.chain import flat_children

aten: Any = torch.ops.aten


@dataclass(frozen=True)
class DenseSlots:
    """Where one dense layer stands in the flat vector, and the activation after it (None after the last)."""

    weight: Slot
    bias: Slot | None
    activation: type[nn.Module] | None


def dense_slots(model: FlatModel) -> tuple[DenseSlots, ...] | None:
    """The layers of a model that is a plain fully connected network, else None."""
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
    """One dense layer of every client in the stack: views into the (n, d) weights and gradients."""

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
        """Activation of x W^T + b, client by client."""
        self.x = x
        y = torch.bmm(x, self.kernel) if self.bias is None else torch.baddbmm(self.bias, x, self.kernel)
        if self.activated:
            y = torch.relu_(y) if self.relu else torch.tanh_(y)
        self.y = y
        return y

    def through_activation(self, g: Tensor) -> Tensor:
        """The gradient before the activation, from the one after it."""
        back: Tensor = aten.threshold_backward(g, self.y, 0) if self.relu else aten.tanh_backward(g, self.y)
        return back

    def write(self, g: Tensor, x: Tensor) -> None:
        """The summed gradients g^T x and sum g."""
        torch.bmm(g.transpose(1, 2), x, out=self.weight_gradient)
        if self.bias_gradient is not None:
            torch.sum(g, 1, out=self.bias_gradient)


class DenseStack:
    """The networks of n clients over (n, d) weights; gradients are written to (n, d)."""

    def __init__(self, layers: tuple[DenseSlots, ...], weights: Tensor, gradient: Tensor) -> None:
        self.layers, self.weights, self.gradient = layers, weights, gradient
        self.floors = [Floor(slots, weights, gradient) for slots in layers]

    def first(self, count: int) -> "DenseStack":
        """The stack of the first `count` clients, sharing memory with this one."""
        if count == len(self.weights):
            return self
        return DenseStack(self.layers, self.weights[:count], self.gradient[:count])

    def logits(self, x: Tensor) -> Tensor:
        """The logits of every client's batch, (n, b, classes)."""
        for floor in self.floors:
            x = floor.forward(x)
        return x

    def probabilities(self, x: Tensor) -> Tensor:
        """softmax of the logits, (n, b, classes)."""
        return torch.softmax(self.logits(x), 2)

    def mean_gradients(self, x: Tensor, target: Tensor, share: Tensor) -> None:
        """Write the gradients of sum_j share_j loss_j; share (n, b, 1) is 0 for padding, target = -share onehot(y)."""
        g = torch.addcmul(target, self.probabilities(x), share)
        for index in range(len(self.floors) - 1, -1, -1):
            floor = self.floors[index]
            floor.write(g, floor.x)
            if index:
                g = self.floors[index - 1].through_activation(torch.bmm(g, floor.weight))

    def clipped_sums(self, x: Tensor, y: Tensor, present: Tensor, clip_norm: float) -> None:
        """Write each client's sum of clipped per-example gradients; `present` (n, b) is 0 for padding.

        Guarantees: as `Worker.clipped_sum`, for every client on its own.
        """
        errors, squared = self.output_gradients(x, y)
        norms = squared.sqrt_()
        factors = (clip_factors(norms, clip_norm) * present).unsqueeze(2)
        broken = None if bool(torch.isfinite(norms).all()) else ~torch.isfinite(norms).unsqueeze(2)
        for floor, g in zip(self.floors, errors, strict=True):
            if broken is None:
                floor.write(g * factors, floor.x)
            else:  # a zero factor does not make a NaN zero
                floor.write(g.masked_fill(broken, 0.0) * factors, floor.x.masked_fill(broken, 0.0))

    def output_gradients(self, x: Tensor, y: Tensor) -> tuple[list[Tensor], Tensor]:
        """Every layer's output gradient for each example's own loss, and |gradient|^2 of each example."""
        p = self.probabilities(x)
        g = p.scatter_add_(2, y.unsqueeze(2), p.new_full((1, 1, 1), -1.0).expand(*y.shape, 1))
        errors, squared = [g], torch.zeros(y.shape)
        for index in range(len(self.floors) - 1, -1, -1):
            floor = self.floors[index]
            inputs = torch.linalg.vecdot(floor.x, floor.x)
            squared += torch.linalg.vecdot(g, g) * (inputs if floor.bias is None else inputs + 1.0)
            if index:
                g = self.floors[index - 1].through_activation(torch.bmm(g, floor.weight))
                errors.append(g)
        return errors[::-1], squared
