"""A model as one contiguous float32 vector; and which modules are known to keep the examples of a batch apart.

Per-example clipping bounds an example by its own gradient only if no other example's value reaches it. Layers that mix
examples are refused. Layers in `KNOWN`, chains of them and Sightline's own networks are known not to mix. Any other
module is the user's code, which may do anything with a batch, and never gets one where a guarantee rests on it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from math import prod
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_room
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from sightline.data.federation import Kind
from sightline.errors import invalid, refuse
from sightline.models.task import CLASSIFICATION, Task

CPU = torch.device("cpu")

Module = nn.Module
"""torch's own class, for packages that pass modules on and build none."""


@dataclass(frozen=True)
class Slot:
    """One named tensor inside the flat vector."""

    name: str
    shape: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        """The number of entries of the tensor."""
        return prod(self.shape)

    @property
    def stop(self) -> int:
        """The first position after it."""
        return self.start + prod(self.shape)


# The vector is what travels, is clipped, noised, averaged and stored. Frozen parameters and buffers never enter it:
# they are the same everywhere, so they carry no data.
@dataclass(frozen=True, eq=False)
class FlatModel:
    """A model whose parameters are one float32 vector of length d, with the task it is trained for.

    `classes` is the number of outputs per example (or position): classes, labels, targets, tokens. The vector holds
    what is trained. Frozen parameters (`requires_grad=False`) and buffers are `constants`: they are in every module,
    and never in what is clipped, noised or sent.

    Guarantees: `split` and `join` are inverse to each other. `init` is a function of the generator alone. No method
    changes torch's global random state.

    >>> from sightline.models import build_model
    >>> model = build_model("linear", input_shape=(4,), classes=3, kind=Kind.VECTOR, settings={})
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
    constants: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    task: Task = CLASSIFICATION
    device: torch.device = CPU
    """Where it is trained; its vectors and the modules it creates are on the CPU regardless."""

    @property
    def parameters(self) -> int:
        """d, the length of the vector."""
        return self.layout[-1].stop if self.layout else 0

    def init(self, rng: np.random.Generator) -> Tensor:
        """Return a fresh vector, drawn from the generator by the layers' own initialisation."""
        # The seed comes from the caller's generator: initialisation is reproducible and independent of torch's global
        # state.
        return flatten_module(make_module(self.factory, seed=int(rng.integers(2**63))))

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """Return the named tensors of a vector as views into it; a leading axis of clients is kept."""
        self.check_vector(vector)
        lead = vector.shape[:-1]
        return {slot.name: vector[..., slot.start : slot.stop].view((*lead, *slot.shape)) for slot in self.layout}

    def join(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return the vector of named tensors, the inverse of `split` for one model; raise for wrong names or shapes."""
        missing = {slot.name for slot in self.layout} ^ set(tensors)
        if missing:
            invalid("tensors", sorted(missing)[0], f"{self.name} has other tensor names", "start from split()")
        for slot in self.layout:
            if tuple(tensors[slot.name].shape) != slot.shape:
                invalid(
                    slot.name, tuple(tensors[slot.name].shape), f"this tensor of {self.name} has shape {slot.shape}"
                )
        return torch.cat([tensors[slot.name].detach().reshape(-1).float() for slot in self.layout])

    def module(self) -> nn.Module:
        """Return a new torch module of this architecture; its frozen tensors and buffers are always the same."""
        module = make_module(self.factory, seed=0)
        for name, tensor in constants_of(module).items():
            if name in self.constants:
                tensor.copy_(self.constants[name])
        return module

    def named_tensors(self, vector: Tensor) -> dict[str, Tensor]:
        """Return everything that `load_state_dict` expects: trained, frozen and tied tensors, and buffers."""
        trained, module = self.split(vector), self.module()
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        kept = {
            name: tensor for name, tensor in module.state_dict(keep_vars=True).items() if isinstance(tensor, Tensor)
        }
        beside = {
            name: trained[names[id(tensor)]] if names.get(id(tensor)) in trained else tensor.detach()
            for name, tensor in kept.items()
            if name not in trained
        }
        return trained | beside

    def load(self, tensors: Mapping[str, Tensor]) -> tuple["FlatModel", Tensor]:
        """Return the model with these constants, and the vector of the other tensors; the inverse of `named_tensors`.

        Constants that are not among the tensors keep the factory's values.
        """
        known = {name for name in self.named_tensors(torch.zeros(self.parameters)) if name not in self.constants}
        trained = {slot.name for slot in self.layout}
        others = {name for name in tensors if name in self.constants or (name in known and name not in trained)}
        vector = self.join({name: tensor for name, tensor in tensors.items() if name not in others})
        constants = {name: tensors.get(name, old).to(old.dtype) for name, old in self.constants.items()}
        for name, old in self.constants.items():
            if constants[name].shape != old.shape:
                invalid(name, tuple(constants[name].shape), f"this tensor of {self.name} has shape {tuple(old.shape)}")
        return replace(self, constants=constants), vector

    def check_vector(self, vector: Tensor) -> None:
        """Raise unless the last axis of `vector` has length d."""
        if vector.shape[-1:] != (self.parameters,):
            invalid(
                "vector",
                tuple(vector.shape),
                f"{self.name} has {self.parameters} parameters, so the last axis must have that size",
            )


def make_module(factory: Callable[[], nn.Module], *, seed: int) -> nn.Module:
    """Call the factory under its own seed and restore torch's global generator."""
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed queries every kind of device, which takes a millisecond.
        torch.default_generator.manual_seed(seed)
        return without_running_statistics(factory())


def without_running_statistics(module: nn.Module) -> nn.Module:
    """Make normalisation layers use the current batch: running statistics are not part of the vector."""
    # Running statistics are data of the examples outside the vector: neither clipped, noised nor accounted.
    for layer in module.modules() if isinstance(module, nn.Module) else ():
        if getattr(layer, "track_running_stats", False):
            layer.track_running_stats = False  # type: ignore[assignment]
            layer.running_mean = layer.running_var = layer.num_batches_tracked = None  # type: ignore[assignment]
    return module


def flatten_module(module: nn.Module) -> Tensor:
    """Return the trained parameters of a module as one float32 vector, in the order of `named_parameters`."""
    return torch.cat([parameter.detach().reshape(-1).float() for _, parameter in trained_parameters(module)])


def trained_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Return the named parameters that are not frozen: what travels."""
    return ((name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad)


def constants_of(module: nn.Module) -> dict[str, Tensor]:
    """Return the frozen parameters and buffers of a module by name, not copied."""
    frozen = (
        (name, parameter.detach()) for name, parameter in module.named_parameters() if not parameter.requires_grad
    )
    return dict(chain(frozen, module.named_buffers()))


def layout_of(module: nn.Module) -> tuple[Slot, ...]:
    """Return the slot of each trained parameter of a module in its flat vector."""
    slots: list[Slot] = []
    for name, parameter in trained_parameters(module):
        slots.append(Slot(name, tuple(parameter.shape), slots[-1].stop if slots else 0))
    return tuple(slots)


def bind_parameters(
    module: nn.Module, layout: tuple[Slot, ...], weights: Tensor, gradient: Tensor | None = None
) -> None:
    """Make the module's parameters views into `weights`, and their gradients views into `gradient`."""
    parameters = dict(module.named_parameters())
    for slot in layout:
        parameter = parameters[slot.name]
        parameter.data = weights[slot.start : slot.stop].view(slot.shape)
        parameter.grad = None if gradient is None else gradient[slot.start : slot.stop].view(slot.shape)


def probe_inputs(model: FlatModel, batch: int, *, seed: int = 0) -> Tensor:
    """Return a made-up batch of the model's input type and shape, with distinct numbers, fixed for a seed."""
    # Made up and fixed: choices that follow from probes must not depend on private data.
    size = (batch, *model.input_shape)
    generator = torch.Generator().manual_seed(seed)
    if model.kind is Kind.TEXT:
        return torch.randint(max(model.vocabulary, 1), size, generator=generator)
    return torch.randn(size, generator=generator)


Condition = Callable[[Any], bool]

ALWAYS: tuple[type[nn.Module], ...] = (
    nn.Sequential, nn.Identity, nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d,
    nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm,
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid,
    nn.LogSigmoid, nn.Softplus, nn.Softsign, nn.Softshrink, nn.Hardshrink, nn.Tanhshrink, nn.Hardtanh, nn.Hardswish,
    nn.Hardsigmoid, nn.PReLU, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d,
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d,
    nn.AdaptiveMaxPool3d, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout,
)  # fmt: skip
"""Layers that treat each row of the first axis separately, under any settings."""

# A list of known types instead of a test with data: no probe can show that a module does not mix at other batch sizes,
# modes and values. A module that mixed only above four examples passed one, and moved a sum by up to 200 clip norms.
KNOWN: dict[type[nn.Module], Condition] = {
    **dict.fromkeys(ALWAYS, lambda layer: True),
    nn.Flatten: lambda layer: layer.start_dim >= 1,
    nn.Unflatten: lambda layer: isinstance(layer.dim, int) and layer.dim >= 1,
    nn.Softmax: lambda layer: layer.dim in (1, -1),
    nn.LogSoftmax: lambda layer: layer.dim in (1, -1),
    nn.LSTM: lambda layer: layer.batch_first,
    # max_norm writes into the weights that it looks up; scale_grad_by_freq counts tokens over the whole batch
    nn.Embedding: lambda layer: layer.max_norm is None and not layer.scale_grad_by_freq and not layer.sparse,
    **dict.fromkeys((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), lambda l: not l.track_running_stats),  # noqa: E741
}
"""Layers that keep examples apart, each with a condition on its settings."""

OURS: set[type[nn.Module]] = set()
"""Sightline's own networks, see `mark_own`."""

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def mark_own(kind: type[nn.Module]) -> type[nn.Module]:
    """Mark a network as Sightline's own: its forward keeps examples apart if its layers do."""
    OURS.add(kind)
    return kind


def unknown_part(module: nn.Module) -> str | None:
    """Return name and type of the first part not known to keep examples apart, or None.

    Guarantees: None only if every part has exactly a known type (a subclass may compute something else), no hooks, no
    function that replaces a method, and settings under which its type is known.

    >>> unknown_part(nn.Sequential(nn.Linear(2, 3), nn.Flatten(0)))
    '1 (Flatten)'
    """
    for name, layer in module.named_modules():
        if not _is_known(layer):
            return f"{name or 'model'} ({type(layer).__name__})"
    return "a hook on all modules" if _hooks_on_all() else None


def _is_known(layer: nn.Module) -> bool:
    kind = type(layer)
    condition = KNOWN.get(kind)
    if kind not in OURS and (condition is None or not condition(layer)):
        return False
    if any(getattr(layer, hooks, None) for hooks in HOOKS):
        return False
    # A parameter subclass, a function stored on the instance or a patched forward can run any code.
    plain = all(type(tensor) is nn.Parameter for tensor in layer.parameters(recurse=False))
    replaced = any(isinstance(value, FunctionType | MethodType) for value in vars(layer).values())
    patched = getattr(kind.forward, "__module__", None) != kind.__module__
    return plain and not replaced and not patched


def _hooks_on_all() -> bool:
    return any(getattr(module_room, f"_global{name}", None) for name in HOOKS)


def mixing_layer(module: nn.Module) -> str | None:
    """Return name and type of the first layer that mixes examples, or None.

    >>> mixing_layer(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
    '1 (BatchNorm1d)'
    """
    for name, layer in module.named_modules():
        if mixes_examples(layer):
            return f"{name or 'model'} ({type(layer).__name__})"
    return None


def mixes_examples(layer: nn.Module) -> bool:
    """Return whether this layer computes statistics over a batch or carries them between batches."""
    batch_norm = isinstance(layer, _BatchNorm) and not isinstance(layer, _InstanceNorm)
    return batch_norm or getattr(layer, "track_running_stats", False) is True


def refuse_mixing_layers(module: nn.Module) -> None:
    """Raise `Refused` if a layer mixes examples: the sensitivity of a sum of clipped gradients would not be C.

    Guarantees: catches torch's batch normalisation (also synchronised and lazy) and running statistics. Mixing written
    by hand reaches no other example, because an unknown module is differentiated one example at a time.
    """
    layer = mixing_layer(module)
    if layer is not None:
        refuse(
            "model",
            layer,
            "this layer mixes examples, so one example's influence is not bounded by its own clip",
            "use torch.nn.GroupNorm in its place",
        )
