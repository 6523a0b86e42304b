"""Torch modules by name, each as one contiguous float32 vector."""

from sightline.models.flat import FlatModel, Slot, bind
from sightline.models.mixing import mixing_layer, refuse_mixing_layers
from sightline.models.registry import MODELS, build, probe_inputs

__all__ = ["MODELS", "FlatModel", "Slot", "bind", "build", "mixing_layer", "probe_inputs", "refuse_mixing_layers"]
