"""The splitting that an experiment file asks for: submodels of dense and of residual networks."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sightline.config import Split
from sightline.errors import did_you_mean, invalid
from sightline.models.flat import FlatModel, constants_of, layout_of, probe_inputs
from sightline.models.split_dropout import dropout_splitting
from sightline.models.submodel import Partitions, Splitting, Submodel, deal_positions

Units = Mapping[str, NDArray[np.int64]]
"""Layer name -> the units of it that a submodel keeps."""


@dataclass(frozen=True)
class Dense:
    """One affine layer of the network."""

    name: str
    inputs: int
    outputs: int


def dense_chain(module: nn.Module) -> list[Dense] | None:
    """The affine layers of a plain chain without other parameters, else None."""
    if type(module) is not nn.Sequential:
        return None
    children = list(module.named_children())
    layers = [
        Dense(name, child.in_features, child.out_features) for name, child in children if isinstance(child, nn.Linear)
    ]
    others = [child for _, child in children if not isinstance(child, nn.Linear) and list(child.parameters())]
    return None if others or len(layers) < 2 else layers


def cut_layers(layers: Sequence[Dense], unsplit: Sequence[str]) -> tuple[list[str], frozenset[str]]:
    """(the hidden layers whose units are dealt to the parts, the layers that are wanted unsplit)."""
    names = [layer.name for layer in layers]
    known = {"first": names[0], "last": names[-1]} | {name: name for name in names}
    for word in unsplit:
        if word not in known:
            invalid("algorithm.split.unsplit", word, "no such layer", did_you_mean(word, list(known)))
    whole = frozenset(known[word] for word in unsplit)
    cut: list[str] = []
    for before, name in zip(["", *names], names[:-1], strict=False):
        if name not in whole and before not in cut:
            cut.append(name)
    return cut, whole


def unsplit_dense(
    model: FlatModel, layers: Sequence[Dense], cut: Sequence[str], whole: frozenset[str]
) -> frozenset[str]:
    """The tensors that are wanted unsplit, touch no cut layer, or are biases of layers that are not cut."""
    after = {later.name for earlier, later in pairwise(layers) if earlier.name in cut}
    split = {f"{name}.{word}" for name in cut for word in ("weight", "bias")}
    split |= {f"{name}.weight" for name in after - whole}
    return frozenset(slot.name for slot in model.layout) - split


def narrow_network(factory: Callable[[], nn.Module], kept: Units) -> nn.Module:
    """The network with only some units of its cut layers."""
    module = factory()
    before: NDArray[np.int64] | None = None
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Linear):
            own = kept.get(name)
            inputs = child.in_features if before is None else len(before)
            outputs = child.out_features if own is None else len(own)
            setattr(module, name, nn.Linear(inputs, outputs, bias=child.bias is not None))
            before = own
    return module


def dense_submodel(model: FlatModel, layers: Sequence[Dense], kept: Units) -> Submodel:
    """The submodel with these units."""
    factory = partial(narrow_network, model.factory, kept)
    layout = layout_of(factory())
    positions = torch.cat([unit_positions(model, layers, kept, slot.name) for slot in layout])
    small = FlatModel(
        f"part of {model.name}", model.input_shape, model.classes, model.kind, layout, factory, model.vocabulary,
        model.settings, task=model.task,
    )  # fmt: skip
    return Submodel(small, positions)


def unit_positions(model: FlatModel, layers: Sequence[Dense], kept: Units, tensor: str) -> Tensor:
    """Where the kept entries of a tensor stand in the whole vector."""
    slot = next(slot for slot in model.layout if slot.name == tensor)
    numbers = torch.arange(slot.start, slot.stop).view(slot.shape)
    name = tensor.rsplit(".", 1)[0]
    place = [layer.name for layer in layers].index(name)
    if name in kept:
        numbers = numbers[torch.from_numpy(kept[name])]
    if tensor.endswith("weight") and place and layers[place - 1].name in kept:
        numbers = numbers[:, torch.from_numpy(kept[layers[place - 1].name])]
    return numbers.reshape(-1)


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
        model.vocabulary, model.settings, {name: model.constants[name] for name in kept}, model.task,
    )  # fmt: skip
    return Submodel(small, positions)


def unsplit_tensors(model: FlatModel, splittable: Sequence[str]) -> frozenset[str]:
    """All tensors but those of the splittable blocks."""
    inside = tuple(f"blocks.{name}." for name in splittable)
    return frozenset(slot.name for slot in model.layout if not slot.name.startswith(inside))


def split_model(model: FlatModel, settings: Split, *, rng: np.random.Generator) -> Splitting:
    """The model cut as `settings` say; the ways to cut it are public, `rng` shuffles all but the first.

    Guarantees: with one part and nothing unsplit there is one submodel, the model itself.
    """
    if settings.by == "dropout":
        return dropout_splitting(model)
    module = model.module()
    if settings.parts == 1 and not settings.unsplit:
        return Partitions(model, frozenset(), ((whole_model(model),),))
    if has_blocks(module):
        return _split_residual(model, settings, rng)
    layers = dense_chain(module)
    if layers is None:
        law = "parts are known of fully connected chains and of networks with a chain of `blocks`"
        invalid("model.name", model.name, law, "use mlp or a residual network, or remove algorithm.split")
    if model.constants:
        law = f"{next(iter(model.constants))!r} is frozen, and units are dealt to parts with all their weights"
        invalid("model.name", model.name, law, "train all of it, or remove algorithm.split")
    return _split_dense(model, settings, layers, rng)


def whole_model(model: FlatModel) -> Submodel:
    """The whole model as its own only part."""
    return Submodel(model, torch.arange(model.parameters))


def _split_residual(model: FlatModel, settings: Split, rng: np.random.Generator) -> Partitions:
    blocks = splittable_blocks(model, settings.unsplit)
    _check_enough(settings.parts, len(blocks), "blocks that keep their shape and are not unsplit")
    ways = []
    for way in range(settings.partitions):
        groups = deal_positions(len(blocks), settings.parts, rng if way else None)
        kept = [frozenset(blocks[place] for place in group) for group in groups]
        ways.append(tuple(residual_submodel(model, frozenset(blocks) - own) for own in kept))
    return Partitions(model, unsplit_tensors(model, blocks), tuple(ways))


def _split_dense(model: FlatModel, settings: Split, layers: Sequence[Dense], rng: np.random.Generator) -> Partitions:
    cut, whole = cut_layers(layers, settings.unsplit)
    widths = {layer.name: layer.outputs for layer in layers if layer.name in cut}
    _check_enough(settings.parts, min(widths.values(), default=0), "hidden units in a layer that is not unsplit")
    ways = []
    for way in range(settings.partitions):
        groups = {name: deal_positions(width, settings.parts, rng if way else None) for name, width in widths.items()}
        units = [
            {name: np.array(some[part], dtype=np.int64) for name, some in groups.items()}
            for part in range(settings.parts)
        ]
        ways.append(tuple(dense_submodel(model, layers, kept) for kept in units))
    return Partitions(model, unsplit_dense(model, layers, cut, whole), tuple(ways))


def _check_enough(parts: int, there: int, what: str) -> None:
    if parts > there:
        invalid("algorithm.split.parts", parts, f"there are {there} {what}", "use fewer parts, or unsplit less")
