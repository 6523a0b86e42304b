"""Torch modules by name, each as one contiguous float32 vector."""

from sightline.models.flat import (
    FlatModel,
    Module,
    Slot,
    bind_parameters,
    mixing_layer,
    probe_inputs,
    refuse_mixing_layers,
    unknown_part,
)
from sightline.models.registry import MODELS, Factory, build_model, is_given_model, own_loss, read_given_model
from sightline.models.splitting import split_model
from sightline.models.state import code_digest
from sightline.models.submodel import Partitions, Splitting, Submodel, unsplit_mask
from sightline.models.task import Task, build_task, count_outputs, probe_targets

__all__ = [
    "MODELS",
    "Factory",
    "FlatModel",
    "Module",
    "Partitions",
    "Slot",
    "Splitting",
    "Submodel",
    "Task",
    "bind_parameters",
    "build_model",
    "build_task",
    "code_digest",
    "count_outputs",
    "is_given_model",
    "mixing_layer",
    "own_loss",
    "probe_inputs",
    "probe_targets",
    "read_given_model",
    "refuse_mixing_layers",
    "split_model",
    "unknown_part",
    "unsplit_mask",
]
