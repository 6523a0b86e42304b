"""A model as one contiguous float32 vector: where each tensor stands, how it starts, how it becomes a module."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sightline.data.federation import Kind
from sightline.errors import invalid


@dataclass(frozen=True)
class Slot:
    """One named tensor inside the flat vector."""

    name: str
    shape: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        """How many numbers the tensor holds."""
        return prod(self.shape)

    @property
    def stop(self) -> int:
        """The first position after it."""
        return self.start + self.size


@dataclass(frozen=True, eq=False)
class FlatModel:
    """A classifier whose parameters are one float32 vector of length d.

    Guarantees: `split` and `join` are inverse to each other; `init` is a function of the generator alone; no method
    changes torch's global random state.

    >>> from sightline.models import build
    >>> model = build("linear", input_shape=(4,), classes=3, kind=Kind.VECTOR, settings={})
    >>> model.parameters, [slot.name for slot in model.layout]
    (15, ['output.weight', 'output.bias'])
    """

    name: str
    input_shape: tuple[int, ...]
    classes: int
    kind: Kind
    layout: tuple[Slot, ...]
    factory: Callable[[], nn.Module] = field(repr=False)
    vocabulary: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def parameters(self) -> int:
        """d, the length of the vector."""
        return self.layout[-1].stop if self.layout else 0

    def init(self, rng: np.random.Generator) -> Tensor:
        """A fresh vector, drawn by the layers' own rules from the generator."""
        return flatten(make(self.factory, seed=int(rng.integers(2**63))))

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """The named tensors of a vector, as views into it; a leading axis of clients is kept."""
        self.check(vector)
        lead = vector.shape[:-1]
        return {slot.name: vector[..., slot.start : slot.stop].view(*lead, *slot.shape) for slot in self.layout}

    def join(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The vector of named tensors: the inverse of `split` for one model."""
        missing = {slot.name for slot in self.layout} ^ set(tensors)
        if missing:
            invalid(
                "tensors", sorted(missing)[0], f"the tensors of {self.name} are named otherwise", "start from split()"
            )
        for slot in self.layout:
            if tuple(tensors[slot.name].shape) != slot.shape:
                invalid(
                    slot.name, tuple(tensors[slot.name].shape), f"this tensor of {self.name} has shape {slot.shape}"
                )
        return torch.cat([tensors[slot.name].detach().reshape(-1).float() for slot in self.layout])

    def module(self) -> nn.Module:
        """A new torch module of this architecture; its constant buffers are the same every time."""
        return make(self.factory, seed=0)

    def check(self, vector: Tensor) -> None:
        """Raise unless the last axis of `vector` has length d."""
        if vector.shape[-1:] != (self.parameters,):
            invalid("vector", tuple(vector.shape), f"{self.name} has {self.parameters} parameters on the last axis")


def make(factory: Callable[[], nn.Module], *, seed: int) -> nn.Module:
    """Call the factory under its own seed and leave torch's global generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return without_running_statistics(factory())


def without_running_statistics(module: nn.Module) -> nn.Module:
    """Let normalisation layers use the batch at hand: running statistics are no part of the vector that travels."""
    for layer in module.modules() if isinstance(module, nn.Module) else ():
        if getattr(layer, "track_running_stats", False):
            layer.track_running_stats = False  # type: ignore[assignment]
            layer.running_mean = layer.running_var = layer.num_batches_tracked = None  # type: ignore[assignment]
    return module


def flatten(module: nn.Module) -> Tensor:
    """The parameters of a module as one float32 vector, in the order of `named_parameters`."""
    return torch.cat([parameter.detach().reshape(-1).float() for parameter in module.parameters()])


def layout_of(module: nn.Module) -> tuple[Slot, ...]:
    """Where each parameter of a module stands in its flat vector."""
    slots: list[Slot] = []
    for name, parameter in module.named_parameters():
        slots.append(Slot(name, tuple(parameter.shape), slots[-1].stop if slots else 0))
    return tuple(slots)


def bind(module: nn.Module, layout: tuple[Slot, ...], weights: Tensor, gradient: Tensor | None = None) -> None:
    """Make the module's parameters views into `weights`, and their gradients views into `gradient`."""
    parameters = dict(module.named_parameters())
    for slot in layout:
        parameter = parameters[slot.name]
        parameter.data = weights[slot.start : slot.stop].view(slot.shape)
        parameter.grad = None if gradient is None else gradient[slot.start : slot.stop].view(slot.shape)
