"""Decide which modules keep the examples of a batch apart: layers that never do, and layers known to.

Per-example clipping bounds an example by its own gradient only if no other example's value reaches it. Layers that mix
examples are refused. Layers in `KNOWN`, chains of them and Sightline's own networks are known not to mix. Any other
module is the user's code, which may do anything with a batch, and never gets one where a guarantee rests on it.
"""

from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

from torch import nn
from torch.nn.modules import module as module_room
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from sightline.errors import refuse

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
