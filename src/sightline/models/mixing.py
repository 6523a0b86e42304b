"""Layers through which one example's value reaches another's gradient: no per-example clipping bounds those."""

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from sightline.errors import refuse


def mixing_layer(module: nn.Module) -> str | None:
    """The name and type of the first layer that mixes examples, or None.

    >>> mixing_layer(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
    '1 (BatchNorm1d)'
    """
    for name, layer in module.named_modules():
        if mixes(layer):
            return f"{name or 'model'} ({type(layer).__name__})"
    return None


def mixes(layer: nn.Module) -> bool:
    """Whether this one layer computes statistics over a batch or carries them from batch to batch."""
    batch_norm = isinstance(layer, _BatchNorm) and not isinstance(layer, _InstanceNorm)
    return batch_norm or getattr(layer, "track_running_stats", False) is True


def refuse_mixing_layers(module: nn.Module) -> None:
    """Raise `Refused` when a layer mixes examples: the sensitivity of a sum of clipped gradients would not be C.

    Guarantees: catches torch's batch normalisation (also synchronised and lazy) and running statistics. Mixing that a
    module does by hand is caught by the trainers, which differentiate every example alone.
    """
    layer = mixing_layer(module)
    if layer is not None:
        refuse(
            "model",
            layer,
            "this layer mixes examples, so one example's influence is not bounded by its own clip",
            "use torch.nn.GroupNorm in its place",
        )
