"""What splitting, output and objective perturbation need of an experiment file, in one-line errors."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from sightline.config.section import ClipNorm, Count, Positive, Section
from sightline.errors import invalid, refuse

if TYPE_CHECKING:
    from sightline.config.experiment import Experiment, Privacy


NOISES = {
    "gaussian": ("noise_multiplier", "epsilon"),
    "output": ("noise_multiplier", "epsilon", "noise_std"),
    "objective": ("noise_multiplier", "epsilon", "noise_rate"),
}
"""By which keys each mechanism can be told how much noise to add."""
PERTURBATIONS = ("output", "objective")


BOUNDS: dict[str, tuple[str | None, ...]] = {
    "gaussian": (None, "clipped", "convex"),
    "output": (None, "clipped_model", "strongly_convex", "convex", "per_sample_mean", "as_published"),
    "objective": (None,),
}
"""Which values of `privacy.sensitivity` each mechanism knows; without one, it has its own."""
OUTPUT_HAS = {"gaussian": ', or mechanism = "output" for the others', "objective": ', or use mechanism = "output"'}


def check_noise(privacy: "Privacy") -> None:
    """Exactly one amount of noise for a private run, none for an open one, and only the keys that the mechanism has."""
    known = NOISES.get(privacy.mechanism, NOISES["gaussian"])
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
    if privacy.options is not None and privacy.mechanism in NOISES:
        law = f'mechanism = "{privacy.mechanism}" has no options'
        invalid("privacy.options", privacy.options, law, "remove them")
    bounds = BOUNDS.get(privacy.mechanism, (None,))
    if privacy.sensitivity not in bounds:
        law = f'mechanism = "{privacy.mechanism}" has no such bound on one example'
        known = [f'"{name}"' for name in bounds if name]
        way_out = f"use {' or '.join(known)}" if known else "remove it"
        invalid(
            "privacy.sensitivity",
            privacy.sensitivity or "missing",
            law,
            way_out + OUTPUT_HAS.get(privacy.mechanism, ""),
        )
    _check_examples(privacy)
    if privacy.mechanism not in PERTURBATIONS:
        return
    if privacy.unit != "sample":
        law = f"{privacy.mechanism} perturbation protects single examples"
        refuse("privacy.unit", privacy.unit, law, 'use unit = "sample", or mechanism = "gaussian"')
    if privacy.place != "client":
        law = f"in {privacy.mechanism} perturbation the client adds the noise"
        refuse("privacy.where", privacy.place, law, 'use where = "client"')
    if output and privacy.sensitivity is None:
        way_out = "choose clipped_model, strongly_convex, convex or per_sample_mean (as_published is no guarantee)"
        invalid("privacy.sensitivity", "missing", "what bounds one example's effect on the model?", way_out)
    if privacy.sensitivity == "as_published" and privacy.epsilon is not None:
        law = "noise is calibrated to guarantees, and as_published is none"
        refuse("privacy.epsilon", privacy.epsilon, law, "give noise_std or noise_multiplier")


def _check_examples(privacy: "Privacy") -> None:
    """The bounds that Gaussian noise has for single examples."""
    if privacy.sensitivity is None or privacy.mechanism != "gaussian":
        return
    if privacy.unit != "sample":
        law = f'unit = "{privacy.unit}" knows its own sensitivity: it is about single examples'
        invalid("privacy.sensitivity", privacy.sensitivity, law, 'remove it, or use unit = "sample"')
    if privacy.sensitivity == "convex" and privacy.place == "server":
        law = "the server noises single gradients; a convex segment is a path of several"
        refuse("privacy.where", "server", law, 'use where = "client", or "edge" on a tree')


def check_convex(experiment: "Experiment") -> None:
    """What makes the effect of one example on a path of steps the sum of its own: convex, smooth and not clipped."""
    local = experiment.local
    if experiment.privacy.sensitivity != "convex":
        return
    if experiment.model.name != "linear":
        law = "only softmax regression is proven convex and smooth"
        refuse("model.name", experiment.model.name, law, 'use model.name = "linear", or sensitivity = "clipped"')
    if experiment.model.target != "classification" or experiment.model.loss is not None:
        law = "only the cross entropy of softmax regression is proven convex and smooth here"
        refuse("model.task", experiment.model.loss or experiment.model.target, law, 'use sensitivity = "clipped"')
    if local.momentum or local.adaptive:
        law = "momentum and moments make steps that are no contraction"
        refuse("local.optimizer", local.optimizer or "momentum", law, 'use optimizer = "sgd" and momentum = 0')
    if local.schedule not in (None, "constant") or local.warmup is not None:
        law = "the bound on a convex step is for one learning rate"
        refuse("local.schedule", local.schedule or "warmup", law, "remove it")
    if local.augment is not None or local.stragglers > 0:
        key = "augment" if local.augment is not None else "stragglers"
        law = "convex steps are on the examples themselves, as many as was planned"
        refuse(f"local.{key}", "given", law, "remove it")
    if experiment.algorithm.split is not None:
        refuse("algorithm.split", "given", "convex steps are on the whole model", "remove it")
    if experiment.privacy.mechanism == "gaussian" and experiment.samples_scheme not in ("poisson", "full"):
        law = "the rate of a convex segment is that of independent draws"
        refuse("sampling.samples.scheme", experiment.samples_scheme, law, 'use scheme = "poisson"')


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


def check_everyone(experiment: "Experiment") -> None:
    """Noise of everybody, drawn or not, hides the draws of a star whose clients add it."""
    privacy, name = experiment.privacy, "privacy.everyone_sends_noise"
    if not privacy.everyone_sends_noise:
        return
    if (privacy.unit, privacy.mechanism, privacy.place) != ("client", "gaussian", "client"):
        law = 'is of noise that clients add to their updates: unit = "client", mechanism = "gaussian", where = "client"'
        invalid(name, True, law, "leave it out")
    if experiment.topology.kind != "star":
        invalid(name, True, f"everybody's noise is in the one mean of a star, this is a {experiment.topology.kind}")
    if privacy.arithmetic == "integer":
        invalid(name, True, "a sum of rounded noises is not a rounded Gaussian", 'use arithmetic = "float"')


class Split(Section):
    """Into how many parts, what stays whole, and how the two are clipped."""

    by: Literal["blocks", "dropout"] = "blocks"
    parts: Count = 2
    unsplit: Annotated[tuple[str, ...], Field(strict=False)] = ()
    partitions: Count = 1
    unsplit_clip_norm: ClipNorm | None = None
    unsplit_noise: Positive = 1.0

    @model_validator(mode="before")
    @classmethod
    def _a_word_will_do(cls, given: Any) -> Any:
        return {"by": given} if isinstance(given, str) else given

    @model_validator(mode="after")
    def _dropout_has_two_parts(self) -> "Split":
        if self.by == "dropout":
            own = {"parts": self.parts != 2, "unsplit": bool(self.unsplit), "partitions": self.partitions != 1}
            for key, given in own.items():
                if given:
                    law = "dropout has two parts, and the model's layers say what is unsplit"
                    invalid(f"algorithm.split.{key}", getattr(self, key), law, "remove it")
        return self


def check_split(experiment: "Experiment") -> None:
    """Refuse what has no amplification, or no law of its own yet."""
    privacy = experiment.privacy
    if experiment.algorithm.split is None:
        return
    if experiment.local.augment is not None:
        law = "views of an example would be averaged over parts"
        refuse("local.augment", "given", law, "remove local.augment or algorithm.split")
    if privacy.unit == "none":
        return
    if privacy.mechanism != "gaussian":
        perturbs = privacy.mechanism in PERTURBATIONS
        law = f"{privacy.mechanism} {'perturbation trains the whole model' if perturbs else 'releases whole models'}"
        refuse("algorithm.split", "given", law, 'use mechanism = "gaussian", or remove split')
    if privacy.adjacency == "replace":
        law = "splitting is accounted as add/remove: a subject against none"
        refuse("privacy.adjacency", "replace", law, 'use adjacency = "add_remove", or remove algorithm.split')
