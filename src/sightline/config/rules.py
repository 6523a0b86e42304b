"""Rules between settings of an experiment file; each violation is a one-line error with the reason."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from sightline.config.section import ClipNorm, Count, Positive, Section
from sightline.errors import invalid, refuse

if TYPE_CHECKING:
    from sightline.config.experiment import Experiment, Local, Privacy


ADAM_KEYS = ("betas", "adam_eps")
STEP_KEYS = ("decay_every", "decay")


def check_optimizer(local: "Local") -> None:
    """Raise unless the optimiser and the schedule have exactly their own keys."""
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
    """Raise for optimisers and schedules where the bound, or the algorithm, is about plain steps."""
    local, privacy = experiment.local, experiment.privacy
    if local.warmup is not None and local.warmup >= experiment.rounds:
        law = f"the learning rate would never reach its value in rounds={experiment.rounds}"
        invalid("local.warmup", local.warmup, law, "warm up for fewer rounds")
    _check_local_mechanism(experiment)
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
    """Raise for another device than the CPU if the work only runs there."""
    if experiment.device not in ("cuda", "mps") or experiment.training_device != "cpu":
        return
    what = "local.compiled is code" if experiment.local.compiled else "the parts of algorithm.split are trained"
    if experiment.local.precision != "float32":
        what = "local.precision is chosen"
    invalid("device", experiment.device, f"{what} on the CPU", 'use device = "cpu", or leave it out')


def check_precision(experiment: "Experiment") -> None:
    """Raise for bfloat16 where a bound is about exact gradients, or where the code computes in float32."""
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


def _check_local_mechanism(experiment: "Experiment") -> None:
    """Raise for training that output or objective perturbation has no bound for."""
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


TURNS = 'use sampling.clients = {scheme = "turns", groups = 10}'
INDEPENDENT = 'use privacy.noise = "independent"'

# Why correlated noise has no bound with a scheme other than turns.
NO_TURNS = {
    "full": "a client that takes part in every round gains nothing from correlated noise",
    "poisson": "hidden draws out of everybody keep no distance between the rounds of a client",
    "balanced": "a hidden schedule keeps no distance between the rounds of a client",
    "check_ins": "random check-ins keep no distance between the rounds of a client",
    "fixed": "a cohort of a fixed size keeps no distance between the rounds of a client",
}


class Correlated(Section):
    """How the noises of rounds are related: n = C^-1 z, and the participation that the strategy C is made for."""

    strategy: Literal["bsr", "band", "blt"] = "bsr"
    """The banded square root; optimised bands; two optimised buffers."""
    bands: Count | None = None
    """Coefficients of a banded strategy; default: the rounds between two uses of a client."""
    separation: Count | None = None
    """b: the least number of rounds between two uses of a client; default: the number of groups."""
    uses: Count | None = None
    """k: the most uses of a client in a stream; default: the turns of its group."""
    restart: Count | None = None
    """Rounds after which a new stream with fresh noise begins; default: one stream for the whole run."""


def check_turns(experiment: "Experiment") -> None:
    """Raise for turns that cannot be: too many groups, or hidden draws under replace-one."""
    clients = experiment.sampling.clients
    if clients.scheme != "turns" or clients.groups is None:
        return
    if clients.groups > experiment.data.clients:
        law = f"data.clients={experiment.data.clients} cannot fill them"
        invalid("sampling.clients.groups", clients.groups, law, "use fewer groups")
    if clients.rate is not None and experiment.privacy.adjacency == "replace":
        law = "draws inside a group are accounted as add/remove"
        refuse("privacy.adjacency", "replace", law, 'use adjacency = "add_remove", or turns without a rate')


def check_correlated(experiment: "Experiment") -> None:
    """Raise for correlated noise wherever one Gaussian for a whole stream is not proven."""
    privacy = experiment.privacy
    if privacy.noise != "correlated":
        if privacy.correlated is not None:
            law = "is of correlated noise, and the noise is independent"
            invalid("privacy.correlated", "given", law, 'use privacy.noise = "correlated", or remove it')
        return
    _check_mechanism(experiment)
    _check_bands(privacy.correlated or Correlated())
    if privacy.unit == "sample":
        _check_batches(experiment)
        return
    _check_participation(experiment)
    _check_strategy(experiment)


def _check_mechanism(experiment: "Experiment") -> None:
    """Raise unless clipped updates of clients are noised by the trusted party that gathers them."""
    privacy, name, value = experiment.privacy, "privacy.noise", "correlated"
    if privacy.unit == "none":
        invalid(name, value, 'unit = "none" adds no noise', 'use unit = "client"')
    if privacy.mechanism != "gaussian":
        law = f"streams are of Gaussian noise on clipped updates, and this is {privacy.mechanism}"
        refuse(name, value, law, 'use mechanism = "gaussian"')
    if privacy.place == "client" and privacy.unit == "client":
        law = (
            "a client that adds its own noise is in every one of its releases, and gains nothing from correlated noise"
        )
        refuse(name, value, law, f'use where = "server" or trusted edges, or {INDEPENDENT}')
    if privacy.arithmetic == "integer":
        law = "multiples of earlier noises are not whole numbers"
        refuse(name, value, law, 'use arithmetic = "float"')
    if experiment.algorithm.split is not None:
        refuse(name, value, "hidden parts of the model have no bound over the rounds of a stream", "remove split")
    if experiment.algorithm.settings.get("control") is not None:
        law = "adaptive control changes on the way who takes part and how often"
        refuse(name, value, law, f"remove algorithm.control, or {INDEPENDENT}")
    if experiment.topology.kind == "clusters":
        law = "members move between clusters, and a stream counts the uses of those who stay"
        refuse(name, value, law, f"use a star, a tree or groups, or {INDEPENDENT}")


def _check_bands(settings: Correlated) -> None:
    """Raise for bands that the strategy cannot have."""
    if settings.strategy == "blt" and settings.bands is not None:
        law = "blt has buffers in the place of bands"
        invalid("privacy.correlated.bands", settings.bands, law, "leave it out, or use bsr or band")
    if settings.bands == 1:
        law = "one band is independent noise: there is no gain"
        refuse("privacy.correlated.bands", 1, law, f"give 2 or more, or {INDEPENDENT}")


def _check_batches(experiment: "Experiment") -> None:
    """Raise unless examples come in fixed batches in a fixed order, noised by their own client."""
    privacy, settings = experiment.privacy, experiment.privacy.correlated or Correlated()
    if privacy.place != "client" or privacy.sensitivity is not None:
        law = "single examples have streams where their own client noises clipped steps"
        refuse("privacy.noise", "correlated", law, f'use where = "client" without sensitivity, or {INDEPENDENT}')
    if experiment.sampling.samples is not None:
        law = "batches are fixed and in a fixed order: draws and schedules keep no distance between steps of an example"
        refuse("sampling.samples", "given", law, f"remove it, or {INDEPENDENT}")
    # A round of a client is one stream; its separation and uses follow from the batches of an epoch.
    for key in ("separation", "uses", "restart"):
        if getattr(settings, key) is not None:
            law = "follows from the batches of an epoch, and every round of a client is a stream"
            invalid(f"privacy.correlated.{key}", getattr(settings, key), law, "leave it out")


def _check_participation(experiment: "Experiment") -> None:
    """Raise unless public groups take turns."""
    clients, settings = experiment.sampling.clients, experiment.privacy.correlated or Correlated()
    # An unknown name is reported by the registry that looks it up, with a suggestion.
    if clients.scheme not in (*NO_TURNS, "turns") and ":" not in clients.scheme:
        return
    if clients.scheme != "turns":
        law = NO_TURNS.get(clients.scheme, "of other schemes nobody knows the distance between rounds of a client")
        refuse("privacy.noise", "correlated", law, f"{TURNS}, or {INDEPENDENT}")
    # Turns of public groups are the one participation whose distance between uses is known beforehand.
    groups = clients.groups or 1
    if groups == 1:
        law = "one group takes part in every round, and gains nothing from correlated noise"
        refuse("sampling.clients.groups", groups, law, f"use 2 or more, or {INDEPENDENT}")
    if settings.separation is not None and not 2 <= settings.separation <= groups:
        law = f"turns of {groups} groups keep rounds of a client {groups} apart, and with less than 2 there is no gain"
        refuse("privacy.correlated.separation", settings.separation, law, "leave it out")
    length = min(settings.restart or experiment.rounds, experiment.rounds)
    needed = -(-length // groups)
    if settings.uses is not None and settings.uses < needed:
        law = f"every group has {needed} turns in {length} rounds"
        refuse("privacy.correlated.uses", settings.uses, law, "leave it out, or restart earlier")


def _check_strategy(experiment: "Experiment") -> None:
    """Raise for streams that are too short, and for hidden draws with more bands than groups."""
    clients, settings = experiment.sampling.clients, experiment.privacy.correlated or Correlated()
    length = min(settings.restart or experiment.rounds, experiment.rounds)
    if length < 2:
        refuse("privacy.correlated.restart", length, "noises of one round have nothing to cancel", "give 2 or more")
    # Hidden draws amplify only if the uses of one subject reach disjoint rows of C x: at most one band per group.
    if clients.rate is None:
        return
    if settings.strategy == "blt":
        law = "hidden draws hide only where noises are correlated over a few rounds, and blt never forgets"
        refuse("privacy.correlated.strategy", "blt", law, 'use "bsr" or "band", or turns without a rate')
    if settings.bands is not None and settings.bands > (clients.groups or 1):
        law = f"hidden draws hide only where a group's next turn, {clients.groups} rounds later, meets other noise"
        refuse("privacy.correlated.bands", settings.bands, law, f"use at most {clients.groups}")
    for key in ("separation", "uses"):
        if getattr(settings, key) is not None:
            law = "with hidden draws every turn is charged by itself"
            invalid(f"privacy.correlated.{key}", getattr(settings, key), law, "leave it out")


# The keys that state each mechanism's amount of noise.
NOISES = {
    "gaussian": ("noise_multiplier", "epsilon"),
    "output": ("noise_multiplier", "epsilon", "noise_std"),
    "objective": ("noise_multiplier", "epsilon", "noise_rate"),
}
PERTURBATIONS = ("output", "objective")


# The values of `privacy.sensitivity` that each mechanism supports; None means its own bound.
BOUNDS: dict[str, tuple[str | None, ...]] = {
    "gaussian": (None, "clipped", "convex"),
    "output": (None, "clipped_model", "strongly_convex", "convex", "per_sample_mean", "as_published"),
    "objective": (None,),
}
OUTPUT_HAS = {"gaussian": ', or mechanism = "output" for the others', "objective": ', or use mechanism = "output"'}


def check_noise(privacy: "Privacy") -> None:
    """Raise unless a private run has exactly one amount of noise, in a key of its mechanism, and an open run none."""
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
    """Raise for invalid bounds; output and objective perturbation protect single examples, at the client."""
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
    """Raise for bounds on single examples that Gaussian noise does not have here."""
    if privacy.sensitivity is None or privacy.mechanism != "gaussian":
        return
    if privacy.unit != "sample":
        law = f'unit = "{privacy.unit}" knows its own sensitivity: it is about single examples'
        invalid("privacy.sensitivity", privacy.sensitivity, law, 'remove it, or use unit = "sample"')
    if privacy.sensitivity == "convex" and privacy.place == "server":
        law = "the server noises single gradients; a convex segment is a path of several"
        refuse("privacy.where", "server", law, 'use where = "client", or "edge" on a tree')


def check_convex(experiment: "Experiment") -> None:
    """Raise unless the effect of one example on a path of steps is the sum of its own: convex, smooth, not clipped."""
    local = experiment.local
    if experiment.privacy.sensitivity != "convex":
        return
    # Convex steps are not clipped: a clipped gradient field is not a gradient field, and steps along it can drive two
    # paths apart. So the model itself must bound its gradients.
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
    """Raise unless the local training is one for which the sensitivity holds."""
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
    """Raise unless clients of a star add Gaussian noise: only then does everyone's noise hide the draws."""
    privacy, name = experiment.privacy, "privacy.everyone_sends_noise"
    if not privacy.everyone_sends_noise:
        return
    if (privacy.unit, privacy.mechanism, privacy.place) != ("client", "gaussian", "client"):
        law = 'is of noise that clients add to their updates: unit = "client", mechanism = "gaussian", where = "client"'
        invalid(name, True, law, "leave it out")
    if experiment.topology.kind != "star":
        invalid(name, True, f"everybody's noise is in the one mean of a star, this is a {experiment.topology.kind}")
    # Integer noise is exact post-processing of one Gaussian; for a sum of several rounded noises that is not true.
    if privacy.arithmetic == "integer":
        invalid(name, True, "a sum of rounded noises is not a rounded Gaussian", 'use arithmetic = "float"')


class Split(Section):
    """How many parts, what stays unsplit, and how the two are clipped."""

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
    """Raise for settings in which splitting has no amplification or no law."""
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
