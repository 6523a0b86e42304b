"""Torch modules by name, each as one contiguous float32 vector."""

from sightline.models.flat import FlatModel, Slot, bind
from sightline.models.mixing import mixing_layer, refuse_mixing_layers
from sightline.models.registry import MODELS, build, probe_inputs
from sightline.models.splitting import split_model
from sightline.models.submodel import Partitions, Splitting, Submodel, unsplit_mask

__all__ = [
    "MODELS",
    "FlatModel",
    "Partitions",
    "Slot",
    "Splitting",
    "Submodel",
    "bind",
    "build",
    "mixing_layer",
    "probe_inputs",
    "refuse_mixing_layers",
    "split_model",
    "unsplit_mask",
]
