"""The local work that an experiment asks for, and the paths that it takes on this machine."""

import os
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from sightline.config import Experiment, Local
from sightline.errors import invalid
from sightline.models.flat import FlatModel
from sightline.training.dispatch import dense_layers, stacking_for
from sightline.training.fast.stacked import width_of
from sightline.training.local_work import Adam, LocalWork
from sightline.training.measure_paths import MeasuredWork, choose_measured
from sightline.training.paths import BY_RULE, Paths

VARIABLE = "SIGHTLINE_PATHS"
SIDE_BY_SIDE, IN_TURN = 8, 2
"""Clients of a comparison: where they can be stacked, and where each is trained by itself."""


def local_work(experiment: Experiment, paths: Paths = BY_RULE) -> LocalWork:
    """The work of one client in one round."""
    local = experiment.local
    return LocalWork(
        learning_rate=local.learning_rate,
        momentum=local.momentum,
        batch_size=None if experiment.samples_scheme == "full" else local.batch_size,
        epochs=local.epochs,
        steps=local.steps,
        weight_decay=local.weight_decay,
        compiled=local.compiled,
        adam=_adam_of(local),
        precision=local.precision,
        paths=paths,
    )


def _adam_of(local: Local) -> Adam | None:
    """The settings of Adam, where the experiment asks for it."""
    if not local.adaptive:
        return None
    plain = Adam(decoupled=local.optimizer == "adamw")
    return replace(plain, betas=local.betas or plain.betas, eps=local.adam_eps or plain.eps)


def wants_measuring(experiment: Experiment) -> bool:
    """Whether paths and processes are chosen by measuring: `SIGHTLINE_PATHS`, else `local.paths`, else yes."""
    word = os.environ.get(VARIABLE) or experiment.local.paths or "measured"
    if word not in ("measured", "rule"):
        invalid(VARIABLE, word, "is measured or rule", "unset it to let the experiment file decide")
    return word == "measured"


def measured_work(experiment: Experiment, model: FlatModel, sizes: Sequence[int]) -> MeasuredWork | None:
    """What of the experiment's local training is worth a comparison; None where no client takes steps of its own.

    Guarantees: a function of the settings and of numbers of examples, which are public; no data are looked at.
    """
    privacy, work = experiment.privacy, local_work(experiment)
    private = privacy.unit == "sample" and privacy.mechanism == "gaussian"
    if (private and privacy.place == "server") or not len(sizes):
        return None
    examples = max(1, int(np.median(sizes)))
    width = min(experiment.local.batch_size, examples) if private else width_of(examples, work)
    if private:
        together = dense_layers(model) is not None
    else:
        stacking = stacking_for(model)
        together = stacking is not None and stacking.takes(width)
    clients = min(len(sizes), SIDE_BY_SIDE if together else IN_TURN)
    return MeasuredWork(model, work, width, private, clients)


def choose_paths(experiment: Experiment, model: FlatModel, sizes: Sequence[int]) -> Paths:
    """The paths of a new run: the fastest on this machine, or the rule's where the setting or the variable says so.

    Parts of models are trained by rule, and so is everything on another device than the CPU.
    """
    if not wants_measuring(experiment) or experiment.algorithm.split is not None or model.device.type != "cpu":
        return BY_RULE
    torch.set_num_threads(1)  # as training does
    work = measured_work(experiment, model, sizes)
    return BY_RULE if work is None else choose_measured(work)
