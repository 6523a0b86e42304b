"""Rules between settings of an experiment file; each violation is a one-line error with the reason."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from sightline.config.section import ClipNorm, Count, Positive, Section
from sightline.errors import invalid, refuse

if TYPE_CHECKING:
    from sightline.config.experiment import Experiment, Local, Privacy


ADAM_KEYS = ("betas", "adam_eps")
STEP_KEYS = ("decay_every", "decay")


def check_optimizer(local: "Local") -> None:
    """Raise unless the optimiser and the schedule have exactly their own keys."""
    if local.optimizer == "momentum" and not local.momentum:
        invalid("local.momentum", local.momentum, 'optimizer = "momentum" needs momentum > 0', "e.g. momentum = 0.9")
    if local.optimizer == "sgd" and local.momentum:
        invalid("local.momentum", local.momentum, 'optimizer = "sgd" has no momentum', 'use optimizer = "momentum"')
    if local.adaptive and local.momentum:
        reason = f'optimizer = "{local.optimizer}" uses betas instead'
        invalid("local.momentum", local.momentum, reason, "remove it, or give e.g. betas = [0.9, 0.999]")
    for key in ADAM_KEYS:
        if getattr(local, key) is not None and not local.adaptive:
            invalid(f"local.{key}", getattr(local, key), "only applies to adam and adamw", 'use optimizer = "adam"')
    for key in STEP_KEYS:
        if (getattr(local, key) is not None) != (local.schedule == "step"):
            value = getattr(local, key)
            if value is None:
                invalid(f"local.{key}", "missing", 'schedule = "step" needs it', "e.g. decay_every = 10, decay = 0.1")
            invalid(f"local.{key}", value, 'only applies to schedule = "step"', "remove it")


def check_local(experiment: "Experiment") -> None:
    """Raise for optimisers and schedules where the bound, or the algorithm, is about plain steps."""
    local, privacy = experiment.local, experiment.privacy
    if local.warmup is not None and local.warmup >= experiment.rounds:
        reason = f"the learning rate would never reach its value in rounds={experiment.rounds}"
        invalid("local.warmup", local.warmup, reason, "warm up for fewer rounds")
    _check_local_mechanism(experiment)
    if local.adaptive and local.compiled:
        reason = "compiled training supports SGD only, with or without momentum"
        invalid("local.compiled", True, reason, f'leave it out with optimizer = "{local.optimizer}"')
    if local.adaptive and privacy.unit == "sample" and privacy.place != "client":
        reason = f"the {privacy.place} adds noise to sums of gradients, not to the steps of an adaptive optimiser"
        refuse("local.optimizer", local.optimizer, reason, 'use optimizer = "sgd", or where = "client"')
    scheduled = local.schedule not in (None, "constant") or local.warmup is not None
    if scheduled and privacy.unit == "sample" and privacy.place == "edge":
        reason = "the noise at an edge is calibrated for one constant learning rate"
        refuse("local.schedule", local.schedule or "warmup", reason, 'remove it, or use where = "client"')


def check_device(experiment: "Experiment") -> None:
    """Raise for another device than the CPU if the work only runs there."""
    if experiment.device not in ("cuda", "mps") or experiment.training_device != "cpu":
        return
    what = "compiled training runs" if experiment.local.compiled else "algorithm.split trains"
    if experiment.local.precision != "float32":
        what = "local.precision applies"
    invalid("device", experiment.device, f"{what} only on the CPU", 'use device = "cpu", or leave it out')


def check_precision(experiment: "Experiment") -> None:
    """Raise for bfloat16 where a bound is about exact gradients, or where the code computes in float32."""
    local, privacy, way_out = experiment.local, experiment.privacy, 'use precision = "float32"'
    if local.precision == "float32":
        return
    if local.compiled or experiment.algorithm.split is not None:
        what = "compiled training computes" if local.compiled else "algorithm.split trains"
        invalid("local.precision", local.precision, f"{what} in float32", way_out)
    if privacy.mechanism in ("output", "objective") or privacy.sensitivity == "convex":
        what = "convex steps" if privacy.sensitivity == "convex" else f"{privacy.mechanism} perturbation"
        reason = f"the bound of {what} holds for exact gradients, and bf16 rounds them"
        refuse("local.precision", local.precision, reason, way_out)
    if privacy.unit == "sample":
        reason = "gradients of single examples are clipped in float32, which is also faster"
        refuse("local.precision", local.precision, reason, f'{way_out}, or unit = "client"')


def _check_local_mechanism(experiment: "Experiment") -> None:
    """Raise for training that output or objective perturbation has no bound for."""
    local, privacy = experiment.local, experiment.privacy
    if privacy.mechanism == "gaussian":
        return
    if experiment.model.target != "classification" or experiment.model.loss is not None:
        task = experiment.model.loss or experiment.model.target
        reason = f"{privacy.mechanism} perturbation is proved for cross entropy over classes"
        name = "model.loss" if experiment.model.loss else "model.task"
        if privacy.sensitivity != "clipped_model":
            refuse(name, task, reason, 'use mechanism = "gaussian"')
    if local.schedule not in (None, "constant") or local.warmup is not None:
        reason = f"{privacy.mechanism} perturbation needs a constant learning rate"
        refuse("local.schedule", local.schedule or "warmup", reason, 'remove it, or use mechanism = "gaussian"')
    if local.adaptive and privacy.sensitivity != "clipped_model":
        reason = f"the bound of {privacy.mechanism} perturbation does not hold for adaptive steps"
        refuse("local.optimizer", local.optimizer, reason, 'use optimizer = "sgd", or sensitivity = "clipped_model"')


TURNS = 'use sampling.clients = {scheme = "turns", groups = 10}'
INDEPENDENT = 'use privacy.noise = "independent"'

# Why correlated noise has no bound with a scheme other than turns.
NO_TURNS = {
    "full": "a client that takes part in every round gains nothing from correlated noise",
    "poisson": "Poisson draws give no minimum gap between the rounds of a client",
    "balanced": "a hidden schedule gives no minimum gap between the rounds of a client",
    "check_ins": "random check-ins give no minimum gap between the rounds of a client",
    "fixed": "a cohort of a fixed size gives no minimum gap between the rounds of a client",
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
        reason = f"there are only data.clients={experiment.data.clients}"
        invalid("sampling.clients.groups", clients.groups, reason, "use fewer groups")
    if clients.rate is not None and experiment.privacy.adjacency == "replace":
        reason = "draws inside a group are accounted under add/remove adjacency only"
        refuse("privacy.adjacency", "replace", reason, 'use adjacency = "add_remove", or turns without a rate')


def check_correlated(experiment: "Experiment") -> None:
    """Raise for correlated noise wherever one Gaussian for a whole stream is not proven."""
    privacy = experiment.privacy
    if privacy.noise != "correlated":
        if privacy.correlated is not None:
            reason = 'only applies with privacy.noise = "correlated"'
            invalid("privacy.correlated", "given", reason, "set it, or remove privacy.correlated")
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
        reason = "correlated noise is only available for Gaussian noise on clipped updates"
        refuse(name, value, reason, 'use mechanism = "gaussian"')
    if privacy.place == "client" and privacy.unit == "client":
        reason = (
            "a client that adds its own noise takes part in all its releases, and gains nothing from correlated noise"
        )
        refuse(name, value, reason, f'use where = "server" or trusted edges, or {INDEPENDENT}')
    if privacy.arithmetic == "integer":
        reason = "correlated noise adds fractions of earlier noise, which are not whole numbers"
        refuse(name, value, reason, 'use arithmetic = "float"')
    if experiment.algorithm.split is not None:
        refuse(name, value, "no bound is known for correlated noise with a split model", "remove split")
    if experiment.algorithm.settings.get("control") is not None:
        reason = "adaptive control changes during the run who takes part and how often"
        refuse(name, value, reason, f"remove algorithm.control, or {INDEPENDENT}")
    if experiment.topology.kind == "clusters":
        reason = "clients move between clusters, and correlated noise needs fixed members"
        refuse(name, value, reason, f"use a star, a tree or groups, or {INDEPENDENT}")


def _check_bands(settings: Correlated) -> None:
    """Raise for bands that the strategy cannot have."""
    if settings.strategy == "blt" and settings.bands is not None:
        reason = 'does not apply to strategy = "blt"'
        invalid("privacy.correlated.bands", settings.bands, reason, 'remove it, or use "bsr" or "band"')
    if settings.bands == 1:
        reason = "one band is independent noise, with no gain"
        refuse("privacy.correlated.bands", 1, reason, f"give 2 or more, or {INDEPENDENT}")


def _check_batches(experiment: "Experiment") -> None:
    """Raise unless examples come in fixed batches in a fixed order, noised by their own client."""
    privacy, settings = experiment.privacy, experiment.privacy.correlated or Correlated()
    if privacy.place != "client" or privacy.sensitivity is not None:
        reason = "for single examples, correlated noise is only available where clients add it to clipped steps"
        refuse("privacy.noise", "correlated", reason, f'use where = "client" without sensitivity, or {INDEPENDENT}')
    if experiment.sampling.samples is not None:
        reason = (
            "correlated noise needs fixed batches: random draws give no minimum gap between the steps of an example"
        )
        refuse("sampling.samples", "given", reason, f"remove it, or {INDEPENDENT}")
    # A round of a client is one stream; its separation and uses follow from the batches of an epoch.
    for key in ("separation", "uses", "restart"):
        if getattr(settings, key) is not None:
            reason = "is derived from the batches of one epoch and cannot be set"
            invalid(f"privacy.correlated.{key}", getattr(settings, key), reason, "leave it out")


def _check_participation(experiment: "Experiment") -> None:
    """Raise unless public groups take turns."""
    clients, settings = experiment.sampling.clients, experiment.privacy.correlated or Correlated()
    # An unknown name is reported by the registry that looks it up, with a suggestion.
    if clients.scheme not in (*NO_TURNS, "turns") and ":" not in clients.scheme:
        return
    if clients.scheme != "turns":
        reason = NO_TURNS.get(clients.scheme, "correlated noise needs a known minimum gap between a client's rounds")
        refuse("privacy.noise", "correlated", reason, f"{TURNS}, or {INDEPENDENT}")
    # Turns of public groups are the one participation whose distance between uses is known beforehand.
    groups = clients.groups or 1
    if groups == 1:
        reason = "one group takes part in every round, and gains nothing from correlated noise"
        refuse("sampling.clients.groups", groups, reason, f"use 2 or more, or {INDEPENDENT}")
    if settings.separation is not None and not 2 <= settings.separation <= groups:
        reason = (
            f"must be 2 to {groups}: with {groups} groups the rounds of a client are {groups} apart, and 1 has no gain"
        )
        refuse("privacy.correlated.separation", settings.separation, reason, "leave it out")
    length = min(settings.restart or experiment.rounds, experiment.rounds)
    needed = -(-length // groups)
    if settings.uses is not None and settings.uses < needed:
        reason = f"every group takes {needed} turns in {length} rounds, and all must be charged"
        refuse("privacy.correlated.uses", settings.uses, reason, "leave it out, or restart earlier")


def _check_strategy(experiment: "Experiment") -> None:
    """Raise for streams that are too short, and for hidden draws with more bands than groups."""
    clients, settings = experiment.sampling.clients, experiment.privacy.correlated or Correlated()
    length = min(settings.restart or experiment.rounds, experiment.rounds)
    if length < 2:
        refuse(
            "privacy.correlated.restart", length, "the noise of a single round has nothing to cancel", "give 2 or more"
        )
    # Hidden draws amplify only if the uses of one subject reach disjoint rows of C x: at most one band per group.
    if clients.rate is None:
        return
    if settings.strategy == "blt":
        reason = "a rate amplifies privacy only if noise is correlated over few rounds, and blt correlates all of them"
        refuse("privacy.correlated.strategy", "blt", reason, 'use "bsr" or "band", or turns without a rate')
    if settings.bands is not None and settings.bands > (clients.groups or 1):
        reason = f"a rate amplifies privacy only with at most one band per group, and there are {clients.groups} groups"
        refuse("privacy.correlated.bands", settings.bands, reason, f"use at most {clients.groups}")
    for key in ("separation", "uses"):
        if getattr(settings, key) is not None:
            reason = "with a rate, every turn is charged by itself"
            invalid(f"privacy.correlated.{key}", getattr(settings, key), reason, "leave it out")


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
    "output": (None, "clipped_model", "strongly_convex", "convex", "per_sample_mean"),
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
            reason = f'does not apply to mechanism = "{privacy.mechanism}"'
            invalid(f"privacy.{key}", getattr(privacy, key), reason, f"use {' or '.join(known)}")
    if privacy.unit == "none" and given:
        reason = 'unit = "none" adds no noise'
        invalid(f"privacy.{given[0]}", getattr(privacy, given[0]), reason, 'set unit = "client"')
    if privacy.unit != "none" and not given:
        invalid(
            "privacy.noise_multiplier",
            "missing",
            "a private run needs an amount of noise",
            "give noise_multiplier or epsilon",
        )
    if len(given) > 1:
        reason = f"privacy.{given[1]} is given too"
        invalid(f"privacy.{given[0]}", getattr(privacy, given[0]), reason, "keep one of the two")


def check_perturbation(privacy: "Privacy") -> None:
    """Raise for invalid bounds; output and objective perturbation protect single examples, at the client."""
    output = privacy.mechanism == "output"
    if privacy.options is not None and privacy.mechanism in NOISES:
        reason = f'mechanism = "{privacy.mechanism}" has no options'
        invalid("privacy.options", privacy.options, reason, "remove them")
    bounds = BOUNDS.get(privacy.mechanism, (None,))
    if privacy.sensitivity not in bounds:
        reason = f'mechanism = "{privacy.mechanism}" does not support this bound on one example'
        known = [f'"{name}"' for name in bounds if name]
        way_out = f"use {' or '.join(known)}" if known else "remove it"
        invalid(
            "privacy.sensitivity",
            privacy.sensitivity or "missing",
            reason,
            way_out + OUTPUT_HAS.get(privacy.mechanism, ""),
        )
    _check_examples(privacy)
    if privacy.mechanism not in PERTURBATIONS:
        return
    if privacy.unit != "sample":
        reason = f"{privacy.mechanism} perturbation protects single examples only"
        refuse("privacy.unit", privacy.unit, reason, 'use unit = "sample", or mechanism = "gaussian"')
    if privacy.place != "client":
        reason = f"in {privacy.mechanism} perturbation the client adds the noise"
        refuse("privacy.where", privacy.place, reason, 'use where = "client"')
    if output and privacy.sensitivity is None:
        way_out = "choose clipped_model, strongly_convex, convex or per_sample_mean"
        invalid(
            "privacy.sensitivity",
            "missing",
            "output perturbation needs to know what bounds the effect of one example",
            way_out,
        )


def _check_examples(privacy: "Privacy") -> None:
    """Raise for bounds on single examples that Gaussian noise does not have here."""
    if privacy.sensitivity is None or privacy.mechanism != "gaussian":
        return
    if privacy.unit != "sample":
        reason = f'bounds the effect of one example, and does not apply to unit = "{privacy.unit}"'
        invalid("privacy.sensitivity", privacy.sensitivity, reason, 'remove it, or use unit = "sample"')
    if privacy.sensitivity == "convex" and privacy.place == "server":
        reason = "the server adds noise to single gradients, and the convex bound is for several local steps"
        refuse("privacy.where", "server", reason, 'use where = "client", or "edge" on a tree')


def check_convex(experiment: "Experiment") -> None:
    """Raise unless the effect of one example on a path of steps is the sum of its own: convex, smooth, not clipped."""
    local = experiment.local
    if experiment.privacy.sensitivity != "convex":
        return
    # Convex steps are not clipped: a clipped gradient field is not a gradient field, and steps along it can drive two
    # paths apart. So the model itself must bound its gradients.
    if experiment.model.name != "linear":
        reason = "the convex bound is proven for softmax regression only"
        refuse("model.name", experiment.model.name, reason, 'use model.name = "linear", or sensitivity = "clipped"')
    if experiment.model.target != "classification" or experiment.model.loss is not None:
        reason = "the convex bound is proven for the cross entropy of softmax regression only"
        refuse("model.task", experiment.model.loss or experiment.model.target, reason, 'use sensitivity = "clipped"')
    if local.momentum or local.adaptive:
        reason = "the convex bound needs plain gradient steps, without momentum or moments"
        refuse("local.optimizer", local.optimizer or "momentum", reason, 'use optimizer = "sgd" and momentum = 0')
    if local.schedule not in (None, "constant") or local.warmup is not None:
        reason = "the convex bound needs a constant learning rate"
        refuse("local.schedule", local.schedule or "warmup", reason, "remove it")
    if local.augment is not None or local.stragglers > 0:
        key = "augment" if local.augment is not None else "stragglers"
        reason = "the convex bound needs unchanged examples and a fixed number of steps"
        refuse(f"local.{key}", "given", reason, "remove it")
    if experiment.algorithm.split is not None:
        refuse("algorithm.split", "given", "the convex bound is for steps on the whole model", "remove it")
    if experiment.privacy.mechanism == "gaussian" and experiment.samples_scheme not in ("poisson", "full"):
        reason = "the convex bound needs independent draws of examples"
        refuse("sampling.samples.scheme", experiment.samples_scheme, reason, 'use scheme = "poisson"')


def check_solution(experiment: "Experiment") -> None:
    """Raise unless the local training is one for which the sensitivity holds."""
    privacy, local = experiment.privacy, experiment.local
    if experiment.samples_scheme not in ("shuffle", "full"):
        reason = f"{privacy.mechanism} perturbation adds noise to the result, so sampling of steps gains nothing"
        refuse("sampling.samples.scheme", experiment.samples_scheme, reason, "use shuffle or full")
    if privacy.mechanism == "objective" or privacy.sensitivity == "strongly_convex":
        _check_exact(experiment)
    if privacy.sensitivity == "per_sample_mean":
        one_mean = experiment.samples_scheme == "full" and local.steps == 1 and local.weight_decay == 0
        if not one_mean:
            reason = "the result must be one mean of clipped per-example gradients"
            way_out = "use local.steps = 1, weight_decay = 0 and sampling.samples.scheme = full"
            refuse("privacy.sensitivity", "per_sample_mean", reason, way_out)


def _check_exact(experiment: "Experiment") -> None:
    if experiment.model.name != "linear":
        reason = "the bound needs the exact minimiser of a convex loss, which a network does not provide"
        refuse("model.name", experiment.model.name, reason, 'use model.name = "linear", or mechanism = "gaussian"')
    if experiment.local.stragglers > 0:
        reason = "stragglers do part of the work, and an exact solver has no partial result"
        refuse("local.stragglers", experiment.local.stragglers, reason, "use stragglers = 0")


def check_everyone(experiment: "Experiment") -> None:
    """Raise unless clients of a star add Gaussian noise: only then does everyone's noise hide the draws."""
    privacy, name = experiment.privacy, "privacy.everyone_sends_noise"
    if not privacy.everyone_sends_noise:
        return
    if (privacy.unit, privacy.mechanism, privacy.place) != ("client", "gaussian", "client"):
        reason = 'only applies with unit = "client", mechanism = "gaussian" and where = "client"'
        invalid(name, True, reason, "leave it out")
    if experiment.topology.kind != "star":
        invalid(
            name,
            True,
            'needs topology.kind = "star": only there is one mean made of all clients\' noise',
            "leave it out",
        )
    # Integer noise is exact post-processing of one Gaussian; for a sum of several rounded noises that is not true.
    if privacy.arithmetic == "integer":
        invalid(name, True, "a sum of rounded noises is not a rounded Gaussian", 'use arithmetic = "float"')


class AdaptiveClipping(Section):
    """How the clip norm follows the norms of the updates: the rule of Andrew et al. 2021."""

    quantile: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """gamma: the share of updates that should lie inside the clip norm."""
    learning_rate: Positive = 0.2
    """eta: the clip norm is multiplied by exp(-eta (share inside - quantile)) after every release."""
    count_noise_multiplier: Positive | None = None
    """Noise of the count over its sensitivity of 1/2; default: 10 times the noise multiplier of the release."""

    @model_validator(mode="before")
    @classmethod
    def _fill_defaults(cls, given: Any) -> Any:
        return {} if given is True else given


def check_adaptive(experiment: "Experiment") -> None:
    """Raise for adaptive clipping unless a trusted server clips, counts and noises the updates of clients."""
    privacy, name, value = experiment.privacy, "privacy.adaptive_clipping", "given"
    if privacy.adaptive_clipping is None:
        return
    if privacy.unit == "none":
        invalid(name, value, 'unit = "none" clips nothing', "remove it")
    if privacy.unit == "sample":
        reason = "the rule counts clipped clients, and here single examples are clipped"
        refuse(name, value, reason, 'remove it, or use unit = "client"')
    if privacy.mechanism != "gaussian":
        reason = "the mean and the count must be one Gaussian release"
        refuse(name, value, reason, 'use mechanism = "gaussian"')
    if privacy.place != "server":
        reason = "the party that clips learns who was clipped, so it must be a trusted server"
        refuse("privacy.where", privacy.place, f"with {name}, {reason}", 'use where = "server", or remove it')
    if privacy.noise == "correlated":
        reason = "correlated noise needs a constant clip norm"
        refuse(name, value, reason, f"remove it, or {INDEPENDENT}")
    if experiment.algorithm.split is not None:
        refuse(name, value, "a split model has one clip norm for each part", "remove it, or remove split")
    if experiment.algorithm.settings.get("control") is not None:
        refuse(name, value, "adaptive control needs a constant clip norm", "remove it, or remove algorithm.control")


Names = Annotated[tuple[str, ...], Field(strict=False)]
NamedPart = Annotated[tuple[Names, ...], Field(strict=False)]
NamedParts = Annotated[tuple[NamedPart, ...], Field(strict=False)]
"""Partitions, each a list of parts, each a list of parameters or layers."""
Weights = Annotated[tuple[Positive, ...], Field(strict=False)]


class Split(Section):
    """The parts, what stays unsplit, how subjects choose among them, and how the two are clipped."""

    by: Literal["blocks", "dropout"] = "blocks"
    parts: Count | NamedParts = 2
    unsplit: Annotated[tuple[str, ...], Field(strict=False)] = ()
    partitions: Count = 1
    part_weights: Weights = ()
    partition_weights: Weights = ()
    cycle: bool = False
    unsplit_clip_norm: ClipNorm | None = None
    unsplit_noise: Positive = 1.0

    @model_validator(mode="before")
    @classmethod
    def _fill_name(cls, given: Any) -> Any:
        return {"by": given} if isinstance(given, str) else given

    @field_validator("parts", mode="before")
    @classmethod
    def _fill_parts(cls, given: Any) -> Any:
        return list_partitions(given)

    @model_validator(mode="after")
    def _check_keys(self) -> "Split":
        keys = ("parts", "unsplit", "partitions", "part_weights", "partition_weights", "cycle")
        changed = [key for key in keys if getattr(self, key) != type(self).model_fields[key].default]
        if self.by == "dropout":
            for key in changed:
                reason = (
                    'does not apply to by = "dropout": it has two parts, and the model decides which layers are unsplit'
                )
                invalid(f"algorithm.split.{key}", getattr(self, key), reason, "remove it")
        if not isinstance(self.parts, int) and (self.unsplit or self.partitions != 1):
            key = "unsplit" if self.unsplit else "partitions"
            reason = (
                "does not apply to named parts: parameters in no list are unsplit, and each list of parts is a "
                "partition"
            )
            invalid(f"algorithm.split.{key}", getattr(self, key), reason, "remove it")
        self._check_choice()
        return self

    def _check_choice(self) -> None:
        named = () if isinstance(self.parts, int) else self.parts
        partitions = len(named) or self.partitions
        if self.cycle and partitions == 1:
            invalid(
                "algorithm.split.cycle",
                True,
                "there is only one partition to cycle through",
                "give several, or remove it",
            )
        if self.cycle and self.partition_weights:
            value, reason = (
                list(self.partition_weights),
                "cycle = true chooses the partition by the round, not at random",
            )
            invalid("algorithm.split.partition_weights", value, reason, "remove one of the two")
        counts = {self.parts} if isinstance(self.parts, int) else {len(way) for way in self.parts}
        for key, wanted in (("part_weights", counts), ("partition_weights", {partitions})):
            weights = getattr(self, key)
            if weights and wanted != {len(weights)}:
                reason = (
                    f"has {len(weights)} weights, and there are {' or '.join(map(str, sorted(wanted)))} {key[:-8]}s"
                )
                invalid(f"algorithm.split.{key}", list(weights), reason, "give one weight each")


def list_partitions(parts: Any) -> Any:
    """Return `parts` as a number or a list of partitions; one partition, a list of parts, becomes the only one.

    >>> list_partitions([["conv1"], ["conv2", "output.weight"]])
    [[['conv1'], ['conv2', 'output.weight']]]
    """

    def is_part(value: Any) -> bool:
        return isinstance(value, list | tuple) and bool(value) and all(isinstance(name, str) for name in value)

    def is_partition(value: Any) -> bool:
        return isinstance(value, list | tuple) and bool(value) and all(map(is_part, value))

    if is_partition(parts):
        return [parts]
    listed = isinstance(parts, list | tuple) and bool(parts) and all(map(is_partition, parts))
    if not listed and (type(parts) is not int or not 1 <= parts <= 10**9):
        reason = (
            "must be a whole number >= 1, a list of parts, or a list of partitions; a part lists parameters or layers"
        )
        invalid("algorithm.split.parts", parts, reason, 'e.g. [["conv1"], ["conv2", "output.weight"]]')
    return parts


def check_split(experiment: "Experiment") -> None:
    """Raise for settings in which splitting has no amplification or no law."""
    privacy = experiment.privacy
    if experiment.algorithm.split is None:
        return
    if experiment.local.augment is not None:
        reason = "the views of an example would be averaged over different parts"
        refuse("local.augment", "given", reason, "remove local.augment or algorithm.split")
    if privacy.unit == "none":
        return
    if privacy.mechanism != "gaussian":
        perturbs = privacy.mechanism in PERTURBATIONS
        reason = f"{privacy.mechanism} {'perturbation trains the whole model' if perturbs else 'releases whole models'}"
        refuse("algorithm.split", "given", reason, 'use mechanism = "gaussian", or remove split')
    if privacy.adjacency == "replace":
        reason = "a split model is accounted under add/remove adjacency only"
        refuse("privacy.adjacency", "replace", reason, 'use adjacency = "add_remove", or remove algorithm.split')
