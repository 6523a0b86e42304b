"""A chain of layers whose dropout masks are given with the examples."""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from math import prod

from torch import Tensor, nn

from sightline.data.federation import Kind
from sightline.models.dropout_graph import DROPOUT, chain_layers, trace_layers
from sightline.models.flat import FlatModel, layout_of
from sightline.models.mixing import mark_own


class MaskedStage:
    """Where the masks of the pass at hand lie, so that every dropout layer finds its own."""

    mask: Tensor


@mark_own
class HeldDropout(nn.Module):
    """Dropout whose mask is given: every node is doubled or dropped."""

    def __init__(self, stage: MaskedStage, first: int, nodes: int) -> None:
        super().__init__()
        self.stage, self.first, self.nodes = stage, first, nodes

    def forward(self, x: Tensor) -> Tensor:
        """2 m x."""
        mask = self.stage.mask[:, self.first : self.first + self.nodes]
        return x * (2 * mask).view(*mask.shape, *([1] * (x.dim() - 2)))


@mark_own
class Masked(nn.Sequential):
    """The chain with its masks as further inputs: (x, m) in one row per example, so that they are never parted."""

    def __init__(self, layers: "OrderedDict[str, nn.Module]", stage: MaskedStage, input_shape: tuple[int, ...]) -> None:
        super().__init__(layers)
        self.stage, self.input_shape = stage, input_shape

    def forward(self, rows: Tensor) -> Tensor:
        """The logits of examples under their own masks."""
        size = prod(self.input_shape)
        self.stage.mask = rows[:, size:]
        x = rows[:, :size].reshape(-1, *self.input_shape)
        for layer in self:
            x = layer(x)
        return x


def masked_model(model: FlatModel, nodes: int) -> FlatModel:
    """The model whose examples carry their masks."""
    factory = partial(masked_module, model.factory, model.input_shape, model)
    size = prod(model.input_shape) + nodes
    name, layout = f"{model.name} with masks", layout_of(factory())
    return FlatModel(name, (size,), model.classes, Kind.VECTOR, layout, factory, constants=model.constants)


def masked_module(factory: Callable[[], nn.Module], input_shape: tuple[int, ...], model: FlatModel) -> nn.Module:
    """The chain with held dropout in the place of drawn dropout."""
    stage, first = MaskedStage(), 0
    module = factory()
    sizes = {layer.name: layer.output[0] for layer in trace_layers(model, module.eval())}
    for name, child in list(chain_layers(module)):
        if isinstance(child, DROPOUT):
            parent, _, own = name.rpartition(".")
            setattr(module.get_submodule(parent), own, HeldDropout(stage, first, sizes[name]))
            first += sizes[name]
    return Masked(
        OrderedDict((name, child) for name, child in module._modules.items() if child is not None), stage, input_shape
    ).train()
