"""What optimiser, schedule, task and device need of the rest of an experiment file, in one-line errors."""

from typing import TYPE_CHECKING

from sightline.errors import invalid, refuse

if TYPE_CHECKING:
    from sightline.config.experiment import Experiment, Local

ADAM_KEYS = ("betas", "adam_eps")
STEP_KEYS = ("decay_every", "decay")


def check_optimizer(local: "Local") -> None:
    """One optimiser with its own keys, one schedule with its own."""
    if local.optimizer == "momentum" and not local.momentum:
        invalid("local.momentum", local.momentum, 'optimizer = "momentum" has some', "e.g. momentum = 0.9")
    if local.optimizer == "sgd" and local.momentum:
        invalid("local.momentum", local.momentum, 'optimizer = "sgd" has none', 'use optimizer = "momentum"')
    if local.adaptive and local.momentum:
        law = f'optimizer = "{local.optimizer}" has moments of its own'
        invalid("local.momentum", local.momentum, law, "remove it, or give betas = [0.9, 0.999]")
    for key in ADAM_KEYS:
        if getattr(local, key) is not None and not local.adaptive:
            invalid(f"local.{key}", getattr(local, key), "only adam and adamw have it", 'use optimizer = "adam"')
    for key in STEP_KEYS:
        if (getattr(local, key) is not None) != (local.schedule == "step"):
            value = getattr(local, key)
            if value is None:
                invalid(f"local.{key}", "missing", 'schedule = "step" needs it', "e.g. decay_every = 10, decay = 0.1")
            invalid(f"local.{key}", value, 'only schedule = "step" has it', "remove it")


def check_local(experiment: "Experiment") -> None:
    """Refuse optimisers and schedules where the bound, or the algorithm, is about plain steps."""
    local, privacy = experiment.local, experiment.privacy
    if local.warmup is not None and local.warmup >= experiment.rounds:
        law = f"the learning rate would never reach its value in rounds={experiment.rounds}"
        invalid("local.warmup", local.warmup, law, "warm up for fewer rounds")
    _check_mechanism(experiment)
    if local.adaptive and local.compiled:
        law = "compiled code takes steps of SGD, with or without momentum"
        invalid("local.compiled", True, law, f'leave it out with optimizer = "{local.optimizer}"')
    if local.adaptive and privacy.unit == "sample" and privacy.place != "client":
        law = f"the {privacy.place} noises sums of gradients, not the steps that an optimiser makes of them"
        refuse("local.optimizer", local.optimizer, law, 'use optimizer = "sgd", or where = "client"')
    scheduled = local.schedule not in (None, "constant") or local.warmup is not None
    if scheduled and privacy.unit == "sample" and privacy.place == "edge":
        law = "the noise of a segment is for steps of one learning rate"
        refuse("local.schedule", local.schedule or "warmup", law, 'remove it, or use where = "client"')


def check_device(experiment: "Experiment") -> None:
    """Refuse another device than the CPU for what runs there only."""
    if experiment.device not in ("cuda", "mps") or experiment.training_device != "cpu":
        return
    what = "local.compiled is code" if experiment.local.compiled else "the parts of algorithm.split are trained"
    if experiment.local.precision != "float32":
        what = "local.precision is chosen"
    invalid("device", experiment.device, f"{what} on the CPU", 'use device = "cpu", or leave it out')


def check_precision(experiment: "Experiment") -> None:
    """Refuse bfloat16 where a bound is about exact gradients, or where its code computes in float32."""
    local, privacy, way_out = experiment.local, experiment.privacy, 'use precision = "float32"'
    if local.precision == "float32":
        return
    if local.compiled or experiment.algorithm.split is not None:
        what = "compiled code computes" if local.compiled else "the parts of algorithm.split are trained"
        invalid("local.precision", local.precision, f"{what} in float32", way_out)
    if privacy.mechanism in ("output", "objective") or privacy.sensitivity == "convex":
        what = "convex steps" if privacy.sensitivity == "convex" else f"{privacy.mechanism} perturbation"
        law = f"the bound of {what} is on the gradients themselves, which bf16 rounds"
        refuse("local.precision", local.precision, law, way_out)
    if privacy.unit == "sample" and privacy.place != "client":
        law = f"sums of examples that the {privacy.place} noises are computed in float32"
        refuse("local.precision", local.precision, law, f'{way_out}, or where = "client"')


def _check_mechanism(experiment: "Experiment") -> None:
    """Output and objective perturbation bound what plain training ends at, or do not train by steps at all."""
    local, privacy = experiment.local, experiment.privacy
    if privacy.mechanism == "gaussian":
        return
    if experiment.model.target != "classification" or experiment.model.loss is not None:
        task = experiment.model.loss or experiment.model.target
        law = f"{privacy.mechanism} perturbation is proved for cross entropy over classes"
        name = "model.loss" if experiment.model.loss else "model.task"
        if privacy.sensitivity != "clipped_model":
            refuse(name, task, law, 'use mechanism = "gaussian"')
    if local.schedule not in (None, "constant") or local.warmup is not None:
        law = f"{privacy.mechanism} perturbation has one learning rate"
        refuse("local.schedule", local.schedule or "warmup", law, 'remove it, or use mechanism = "gaussian"')
    if local.adaptive and privacy.sensitivity != "clipped_model":
        law = f"{privacy.mechanism} perturbation is not about the steps of an optimiser"
        refuse("local.optimizer", local.optimizer, law, 'use optimizer = "sgd", or sensitivity = "clipped_model"')
