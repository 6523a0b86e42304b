"""The splitting that an experiment file asks for."""

from collections.abc import Sequence

import numpy as np
import torch

from sightline.config import Split
from sightline.errors import invalid
from sightline.models.flat import FlatModel
from sightline.models.split_dense import Dense, cut_layers, dense_chain, dense_submodel, unsplit_dense
from sightline.models.split_dropout import dropout_splitting
from sightline.models.split_residual import has_blocks, residual_submodel, splittable_blocks, unsplit_tensors
from sightline.models.submodel import Partitions, Splitting, Submodel, deal_positions


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
