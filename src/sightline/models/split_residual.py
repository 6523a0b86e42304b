"""Submodels of a residual network: all of it but the blocks of the other parts.

A block that keeps the shape of its input can be left out: the skip connection remains. Stem, head, blocks that change
the shape and the blocks that the user names are in every submodel, unsplit.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from sightline.errors import did_you_mean, invalid
from sightline.models.flat import FlatModel, constants_of, layout_of, probe_inputs
from sightline.models.submodel import Submodel


def has_blocks(module: nn.Module) -> bool:
    """Whether the module is a network with a chain of blocks under the name `blocks`."""
    return isinstance(getattr(module, "blocks", None), nn.Sequential)


def splittable_blocks(model: FlatModel, unsplit: Sequence[str]) -> list[str]:
    """The names of the blocks that can be left out and that nobody wants unsplit, from the input to the output."""
    module = model.module().eval()
    blocks: nn.Sequential = module.blocks  # type: ignore[assignment]
    names = [name for name, _ in blocks.named_children()]
    wanted = {block_name(word, names) for word in unsplit}
    same: dict[str, bool] = {}

    def watch(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        return lambda _, given, output: same.__setitem__(name, given[0].shape == output.shape)

    for name, block in blocks.named_children():
        block.register_forward_hook(watch(name))
    with torch.no_grad():
        module(probe_inputs(model, 1))
    return [name for name in names if same[name] and name not in wanted]


def block_name(word: str, names: Sequence[str]) -> str:
    """The block that `first`, `last` or `blocks.N` stands for."""
    known = {"first": names[0], "last": names[-1]} | {f"blocks.{name}": name for name in names}
    if word not in known:
        invalid("algorithm.split.unsplit", word, "no such block", did_you_mean(word, list(known)))
    return known[word]


def without_blocks(factory: Callable[[], nn.Module], left_out: frozenset[str]) -> nn.Module:
    """The network without some of its blocks; the others keep their names."""
    module = factory()
    kept = [(name, block) for name, block in module.blocks.named_children() if name not in left_out]  # type: ignore[union-attr]
    module.blocks = nn.Sequential(OrderedDict(kept))
    return module


def residual_submodel(model: FlatModel, left_out: frozenset[str]) -> Submodel:
    """The submodel without these blocks."""
    factory = partial(without_blocks, model.factory, left_out)
    module = factory()
    layout, kept = layout_of(module), constants_of(module)
    where = {slot.name: slot for slot in model.layout}
    positions = torch.cat([torch.arange(where[slot.name].start, where[slot.name].stop) for slot in layout])
    small = FlatModel(
        f"{model.name} without {len(left_out)} blocks", model.input_shape, model.classes, model.kind, layout, factory,
        model.vocabulary, model.settings, {name: model.constants[name] for name in kept},
    )  # fmt: skip
    return Submodel(small, positions)


def unsplit_tensors(model: FlatModel, splittable: Sequence[str]) -> frozenset[str]:
    """All tensors but those of the splittable blocks."""
    inside = tuple(f"blocks.{name}." for name in splittable)
    return frozenset(slot.name for slot in model.layout if not slot.name.startswith(inside))
