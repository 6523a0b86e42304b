"""What `mechanism = "output"` and `"objective"` need of an experiment file, in one-line errors."""

from typing import TYPE_CHECKING

from sightline.errors import invalid, refuse

if TYPE_CHECKING:
    from sightline.config.experiment import Experiment, Privacy

NOISES = {
    "gaussian": ("noise_multiplier", "epsilon"),
    "output": ("noise_multiplier", "epsilon", "noise_std"),
    "objective": ("noise_multiplier", "epsilon", "noise_rate"),
}
"""By which keys each mechanism can be told how much noise to add."""


def check_noise(privacy: "Privacy") -> None:
    """Exactly one amount of noise for a private run, none for an open one, and only the keys that the mechanism has."""
    known = NOISES[privacy.mechanism]
    every = sorted({key for keys in NOISES.values() for key in keys})
    given = [key for key in every if getattr(privacy, key) is not None]
    for key in given:
        if key not in known:
            law = f'mechanism = "{privacy.mechanism}" has no such noise'
            invalid(f"privacy.{key}", getattr(privacy, key), law, f"use {' or '.join(known)}")
    if privacy.unit == "none" and given:
        law = 'unit = "none" adds no noise'
        invalid(f"privacy.{given[0]}", getattr(privacy, given[0]), law, 'set unit = "client"')
    if privacy.unit != "none" and not given:
        invalid("privacy.noise_multiplier", "missing", "a private run needs an amount of noise", "or give epsilon")
    if len(given) > 1:
        law = f"privacy.{given[1]} is given too"
        invalid(f"privacy.{given[0]}", getattr(privacy, given[0]), law, "keep one of the two")


def check_perturbation(privacy: "Privacy") -> None:
    """Output and objective perturbation protect single examples, at the client."""
    output = privacy.mechanism == "output"
    if privacy.sensitivity is not None and not output:
        law = f'mechanism = "{privacy.mechanism}" knows its own sensitivity'
        invalid("privacy.sensitivity", privacy.sensitivity, law, 'remove it, or use mechanism = "output"')
    if privacy.mechanism == "gaussian":
        return
    if privacy.unit != "sample":
        law = f"{privacy.mechanism} perturbation protects single examples"
        refuse("privacy.unit", privacy.unit, law, 'use unit = "sample", or mechanism = "gaussian"')
    if privacy.place != "client":
        law = f"in {privacy.mechanism} perturbation the client adds the noise"
        refuse("privacy.where", privacy.place, law, 'use where = "client"')
    if output and privacy.sensitivity is None:
        way_out = "choose clipped_model, strongly_convex or per_sample_mean (as_published is no guarantee)"
        invalid("privacy.sensitivity", "missing", "what bounds one example's effect on the model?", way_out)
    if privacy.sensitivity == "as_published" and privacy.epsilon is not None:
        law = "noise is calibrated to guarantees, and as_published is none"
        refuse("privacy.epsilon", privacy.epsilon, law, "give noise_std or noise_multiplier")


def check_solution(experiment: "Experiment") -> None:
    """What the local training must be for the sensitivity to hold."""
    privacy, local = experiment.privacy, experiment.local
    if experiment.samples_scheme not in ("shuffle", "full"):
        law = f"{privacy.mechanism} perturbation noises the result, not the steps"
        refuse("sampling.samples.scheme", experiment.samples_scheme, law, "use shuffle or full")
    if privacy.mechanism == "objective" or privacy.sensitivity == "strongly_convex":
        _check_exact(experiment)
    if privacy.sensitivity == "per_sample_mean":
        one_mean = experiment.samples_scheme == "full" and local.steps == 1 and local.weight_decay == 0
        if not one_mean:
            law = "the result must be one mean of clipped per-example gradients"
            way_out = "use local.steps = 1, weight_decay = 0 and sampling.samples.scheme = full"
            refuse("privacy.sensitivity", "per_sample_mean", law, way_out)


def _check_exact(experiment: "Experiment") -> None:
    if experiment.model.name != "linear":
        law = "the bound needs the exact minimiser of a convex loss, which a network does not have"
        refuse("model.name", experiment.model.name, law, 'use model.name = "linear", or mechanism = "gaussian"')
    if experiment.local.stragglers > 0:
        law = "the exact minimiser cannot be half done"
        refuse("local.stragglers", experiment.local.stragglers, law, "use stragglers = 0")
