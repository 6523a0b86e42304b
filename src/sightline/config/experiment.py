"""The sections of an experiment file as frozen values; key names are stable, scripts and papers refer to them."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

import tomli_w
from pydantic import Field, field_validator, model_validator

from sightline.config.rules import (
    PERTURBATIONS,
    AdaptiveClipping,
    Correlated,
    Split,
    check_adaptive,
    check_convex,
    check_correlated,
    check_device,
    check_everyone,
    check_local,
    check_noise,
    check_optimizer,
    check_perturbation,
    check_precision,
    check_solution,
    check_split,
    check_turns,
)
from sightline.config.section import (
    ClipNorm,
    Count,
    Fraction,
    Name,
    NonNegative,
    OpenSection,
    Positive,
    Probability,
    Section,
    check_plain,
)
from sightline.errors import did_you_mean, invalid, refuse

FACTORY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


def is_data_path(source: str) -> bool:
    """Return whether a `data.source` is a file or a folder, not a name.

    >>> [is_data_path(name) for name in ("patients.csv", "./scans", "digits", "mydata:clients")]
    [True, True, False, False]
    """
    return "/" in source or "\\" in source or source.endswith((".csv", ".parquet"))


SYNTHETIC = ("alpha", "beta", "iid", "size_mean", "size_sigma", "size_min")
READ_BY = {"concentration": "dirichlet", "labels_per_client": "label_shards"}


def unread_keys(data: Mapping[str, Any]) -> frozenset[str]:
    """Return the keys of a resolved `[data]` that its source and partition do not read.

    >>> sorted(unread_keys({"source": "synthetic", "partition": "dirichlet"}))
    ['labels_per_client', 'reuse']
    """
    source, partition = str(data.get("source")), data.get("partition")
    result = {key for key, one in READ_BY.items() if one != partition}
    result |= {"reuse"} if data.get("clusters") is None else set()
    if source == "synthetic":
        return frozenset(result)
    # Other sources read only the table of a transform, and those that Sightline ships know their classes.
    result |= {*SYNTHETIC, *(["features"] if isinstance(data.get("features"), int) else [])}
    own = source == "python" or ":" in source or is_data_path(source) or data.get("class_names")
    return frozenset(result if own else result | {"classes"})


class Features(Section):
    """A fixed, public transform of every example by itself; it uses no other example, so it costs no privacy."""

    transform: Literal["scattering"] = "scattering"
    groups: Count | None = None
    """Number of groups in which channels are normalised, within the example; None: not normalised."""
    whiten: bool = False
    """Mix channels after normalisation so that those of synthetic images would hardly correlate."""
    mirror: bool = False
    """Average the features of the image and of its mirror image, and keep the left half."""
    opponent: bool = False
    """Replace red, green and blue by brightness and two colour differences."""

    @model_validator(mode="after")
    def _check_whitening(self) -> Self:
        if self.whiten and self.groups is None:
            invalid(
                "data.features.whiten",
                "true",
                "only normalised channels can be whitened",
                "set groups too, e.g. groups = 27",
            )
        return self


class Data(Section):
    """Where the examples come from and how they are distributed to clients."""

    source: str = "digits"
    clients: Count = 20
    partition: Literal["iid", "dirichlet", "label_shards", "rotation", "label_shift", "by_user", "natural"] = "iid"
    concentration: Positive = 0.5
    labels_per_client: Count = 2
    clusters: Annotated[tuple[Count, ...], Field(strict=False)] | None = None
    alpha: NonNegative = 1.0
    beta: NonNegative = 1.0
    iid: bool = False
    features: Count | Features = 60
    """For "synthetic", the length of an example; for images, "scattering" or a table with its options."""
    classes: Annotated[int, Field(ge=2, le=10**6)] = 10
    class_names: Annotated[tuple[str | int, ...], Field(strict=False)] | None = None
    """The labels as the data have them, public; `classes = ["cat", "dog"]` sets both keys."""
    size_mean: float = 4.0
    size_sigma: NonNegative = 2.0
    size_min: Count = 50
    train_samples: Count | None = None
    test_samples: Count | None = None
    test_fraction: Fraction = 0.2
    validation_fraction: Fraction = 0.0
    """Share of every client's training examples that is held out to choose settings by. They are private."""
    public_test: bool | None = None
    """Whether the common test set holds nobody's private examples."""
    reuse: bool = False
    options: dict[str, Any] = Field(default_factory=dict)

    @property
    def is_path(self) -> bool:
        """Return whether the source is a file or a folder."""
        return is_data_path(self.source)

    @property
    def length(self) -> int:
        """Return the length of a synthetic example."""
        return 0 if isinstance(self.features, Features) else self.features

    @model_validator(mode="before")
    @classmethod
    def _fill_classes(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        if isinstance(given.get("source"), str) and is_data_path(given["source"]):
            # A file either names its clients or is dealt explicitly; "iid" would deal it without being asked to.
            given = {"partition": "natural"} | given
        classes = given.get("classes", 2)
        if isinstance(classes, bool) or not isinstance(classes, int | list | tuple):
            reason = "must be the number of classes, or the list of their names"
            invalid("data.classes", classes, reason, 'e.g. 3, or ["cat", "dog"]')
        names = given.get("classes") if isinstance(given.get("classes"), list | tuple) else given.get("class_names")
        if not isinstance(names, list | tuple):
            return given
        if any(isinstance(name, bool) or not isinstance(name, str | int) for name in names):
            invalid("data.classes", names, "class names must be text or whole numbers", 'e.g. ["cat", "dog"]')
        if len({str(name) for name in names}) != len(names):
            twice = next(name for name in names if [str(one) for one in names].count(str(name)) > 1)
            invalid("data.classes", twice, "two classes have this name", "give each class its own name")
        if names is not given.get("classes") and given.get("classes", len(names)) != len(names):
            invalid(
                "data.classes", given["classes"], f"data.class_names has {len(names)} names", "remove one of the two"
            )
        return given | {"classes": len(names), "class_names": tuple(names)}

    @field_validator("features", mode="before")
    @classmethod
    def _fill_features(cls, given: Any) -> Any:
        # `"scattering"` means the table with nothing else in it. The checks are repeated here because a union of int
        # and table would otherwise report both alternatives as mistakes.
        table = {"transform": given} if isinstance(given, str) else given
        if isinstance(given, Features):
            return given
        if not isinstance(table, dict):
            if type(given) is not int or not 1 <= given <= 10**9:
                invalid("data.features", given, 'must be a whole number >= 1, or "scattering"', "e.g. features = 60")
            return given
        for key, value in table.items():
            if key not in Features.model_fields:
                invalid(f"data.features.{key}", value, "unknown key", did_you_mean(str(key), [*Features.model_fields]))
        if table.get("transform", "scattering") != "scattering":
            reason = 'the only transform is "scattering"'
            invalid(
                "data.features",
                table["transform"],
                reason,
                'use "scattering", or {transform = "scattering", groups = 27}',
            )
        if type(table.get("groups", 1)) is not int or not 1 <= table.get("groups", 1) <= 10**9:
            invalid("data.features.groups", table["groups"], "must be a whole number >= 1", "e.g. groups = 27")
        for key in ("whiten", "mirror", "opponent"):
            if not isinstance(table.get(key, False), bool):
                invalid(f"data.features.{key}", table[key], "must be true or false", f"e.g. {key} = true")
        return Features(**table)

    @model_validator(mode="after")
    def _check_feature_source(self) -> "Data":
        made = isinstance(self.features, Features)
        if made and (":" in self.source or self.is_path or self.source in ("synthetic", "python")):
            reason = f"scattering only applies to images that Sightline reads, not to {self.source}"
            invalid(
                "data.features", "scattering", reason, "compute the features yourself, each from its own example alone"
            )
        return self

    @model_validator(mode="after")
    def _check_clusters(self) -> "Data":
        shifted = self.partition in ("rotation", "label_shift")
        if shifted and self.clusters is None:
            invalid(
                "data.clusters",
                "missing",
                f'partition = "{self.partition}" needs the sizes of the clusters',
                "e.g. [3, 6, 6, 6]",
            )
        if self.clusters is not None and not shifted:
            invalid("data.clusters", self.clusters, 'only partition = "rotation" and "label_shift" make clusters')
        if self.clusters is not None and sum(self.clusters) != self.clients:
            invalid("data.clusters", self.clusters, f"cluster sizes must add up to data.clients={self.clients}")
        return self


class Model(OpenSection):
    """A model by its name, or the user's own torch module as `package.module:factory`."""

    name: str = "mlp"
    init: str | None = None
    task: Literal["classification", "binary", "multilabel", "regression", "language"] | None = None
    loss: str | None = None
    """The user's own per-example loss, `package.module:function`."""

    @field_validator("loss")
    @classmethod
    def _check_loss(cls, loss: str | None) -> str | None:
        if loss is not None and not FACTORY.fullmatch(loss):
            invalid("model.loss", loss, "a loss must be given as package.module:function", 'e.g. "mylosses:huber"')
        return loss

    @property
    def target(self) -> str:
        """Return what is predicted: the given task, classes by default, and "own" for a loss without a task."""
        return self.task or ("classification" if self.loss is None else "own")


class Topology(OpenSection):
    """The topology by its kind; the other keys are its own settings."""

    kind: Name = "star"


class Algorithm(OpenSection):
    """The algorithm by its name; the other keys are its own settings."""

    name: Name = "fedavg"
    split: Split | None = None


class Augment(Section):
    """Several views of an example, which count as one: their gradients are averaged before they are clipped."""

    views: Annotated[int, Field(ge=2, le=1000)] = 4
    kind: Literal["shift", "flip", "shift_flip"] = "shift"
    pixels: Count = 2
    of: Literal["batch", "dataset"] = "batch"

    @model_validator(mode="after")
    def _check_views(self) -> "Augment":
        # The sensitivity is one clip norm only because the average of the views is clipped once.
        if self.of == "dataset":
            reason = (
                f"{self.views} copies of one example would be clipped one by one and change a sum {self.views} "
                "times as much"
            )
            refuse("local.augment.of", "dataset", reason, 'use of = "batch": the views are averaged, then clipped')
        if self.kind == "flip" and self.views != 2:
            reason = 'kind = "flip" has 2 views: the image and its mirror image'
            invalid("local.augment.views", self.views, reason, 'use views = 2, or kind = "shift_flip"')
        return self


class Local(Section):
    """The work of one client in one round."""

    epochs: Count | None = None
    steps: Count | None = None
    batch_size: Count = 32
    learning_rate: Positive = 0.1
    momentum: Fraction = 0.0
    weight_decay: NonNegative = 0.0
    optimizer: Literal["sgd", "momentum", "adam", "adamw"] | None = None
    betas: Annotated[tuple[Fraction, Fraction], Field(strict=False)] | None = None
    """For Adam: the shares of the old means of gradients and of squared gradients kept at each step."""
    adam_eps: Positive | None = None
    """For Adam: added to the root of the mean square."""
    schedule: Literal["constant", "cosine", "linear", "step"] | None = None
    """How the learning rate falls over the rounds."""
    warmup: Count | None = None
    """Rounds over which the learning rate rises to its value."""
    decay_every: Count | None = None
    decay: Probability | None = None
    """For the schedule "step": the factor on the learning rate after every `decay_every` rounds."""
    stragglers: Annotated[float, Field(ge=0, le=1)] = 0.0
    augment: Augment | None = None
    compiled: bool = False
    """Train linear models with compiled C code: a few times faster, equal up to float32 rounding."""
    precision: Literal["float32", "bf16"] = "float32"
    """Precision of products and convolutions in plain local steps; bf16 rounds to 8 bits and can be faster."""
    paths: Literal["measured", "rule"] | None = None
    """How exact training paths are chosen: "measured" (the default) takes the fastest on this machine, "rule" a fixed
    rule.
    """

    @property
    def adaptive(self) -> bool:
        """Return whether steps are scaled by moments of gradients, as Adam's are."""
        return self.optimizer in ("adam", "adamw")

    @model_validator(mode="before")
    @classmethod
    def _fill_work(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        if given.get("optimizer") == "momentum" and "momentum" not in given:
            given = given | {"momentum": 0.9}
        return given if "epochs" in given or "steps" in given else given | {"epochs": 1}

    @model_validator(mode="after")
    def _check_work(self) -> "Local":
        check_optimizer(self)
        if self.epochs is not None and self.steps is not None:
            invalid("local.steps", self.steps, f"local.epochs={self.epochs} is given too", "keep one of the two")
        if self.stragglers > 0 and self.epochs is None:
            invalid(
                "local.stragglers",
                self.stragglers,
                "stragglers do fewer epochs, and the work is given in steps",
                "give local.epochs instead of local.steps",
            )
        return self


SCHEMES = ("full", "poisson", "fixed", "balanced", "check_ins", "turns", "shuffle")


class Sampler(Section):
    """Who takes part: which clients in a round, or which examples in a step."""

    scheme: Name = "full"
    rate: Probability | None = None
    uses: Count | None = None
    epochs: Count | None = None
    """For schedules: the number of epochs drawn one after the other, each over an equal share of the rounds."""
    options: dict[str, Any] | None = None
    """Settings of the user's own sampler."""

    @property
    def scheduled(self) -> bool:
        """Return whether participation is drawn ahead for many steps, not step by step."""
        return self.scheme in ("balanced", "check_ins")

    @model_validator(mode="after")
    def _check_options(self) -> "Sampler":
        check_plain("sampling.options", self.options or {})
        return self

    def _check_keys(self, section: str, *, rated: tuple[str, ...]) -> None:
        # A plugin sampler checks its own settings.
        if self.scheme not in SCHEMES:
            return
        _check_needs(section, self, "options", False)
        # With turns a rate is optional: it is that of hidden draws inside a group.
        if self.scheme != "turns":
            _check_needs(section, self, "rate", self.scheme in rated)
        _check_needs(section, self, "uses", self.scheme == "balanced")
        if not self.scheduled:
            _check_needs(section, self, "epochs", False)


class ClientSampler(Sampler):
    """Which clients take part in a round."""

    groups: Count | None = None
    """For turns: the number of public groups, one of which is asked in each round."""

    @model_validator(mode="after")
    def _check_settings(self) -> "ClientSampler":
        if self.scheme in SCHEMES:
            _check_needs("sampling.clients", self, "groups", self.scheme == "turns")
        if self.scheme == "shuffle":
            invalid("sampling.clients.scheme", "shuffle", "clients cannot be shuffled", "use full, poisson or fixed")
        self._check_keys("sampling.clients", rated=("poisson", "fixed", "check_ins"))
        return self


class SampleSampler(Sampler):
    """Which examples a client's step uses."""

    scheme: Literal["full", "poisson", "fixed", "balanced", "check_ins", "shuffle"] = "full"

    @model_validator(mode="after")
    def _check_settings(self) -> "SampleSampler":
        if self.scheme == "fixed":
            invalid("sampling.samples.scheme", "fixed", "examples cannot be drawn in a fixed number")
        if self.rate is not None and self.scheme != "check_ins":
            invalid(
                "sampling.samples.rate", self.rate, "the rate is derived: batch_size / examples", "set local.batch_size"
            )
        self._check_keys("sampling.samples", rated=("check_ins",))
        return self


def _check_needs(section: str, sampler: Sampler, key: str, needed: bool) -> None:
    value = getattr(sampler, key)
    if needed and value is None:
        invalid(f"{section}.{key}", "missing", f'scheme = "{sampler.scheme}" needs it')
    if not needed and value is not None:
        invalid(f"{section}.{key}", value, f'does not apply to scheme = "{sampler.scheme}"', "remove it")


class Sampling(Section):
    """Both samplers; `samples` follows from the unit if it is not given."""

    clients: ClientSampler = ClientSampler()
    samples: SampleSampler | None = None


Sensitivity = Literal["clipped", "convex", "clipped_model", "strongly_convex", "per_sample_mean"]
"""What bounds the effect of one example; `check_perturbation` says which mechanism supports which."""


class Privacy(Section):
    """What is promised, to whom, and by which mechanism."""

    unit: Literal["client", "sample", "none"] = "client"
    mechanism: Name = "gaussian"
    where: Literal["server", "client", "edge"] | None = None
    clip_norm: ClipNorm = 1.0
    noise_multiplier: Positive | None = None
    epsilon: Positive | None = None
    noise_std: Positive | None = None
    noise_rate: Positive | None = None
    # No default for output perturbation: a wrong bound voids the guarantee, so the user must choose one.
    sensitivity: Sensitivity | None = None
    gradient_tolerance: Annotated[float, Field(ge=1e-12, le=1.0)] = 1e-9
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    allow_large_delta: bool | None = None
    """Whether delta may be one over the number of protected units, or more."""
    adjacency: Literal["add_remove", "replace"] = "add_remove"
    noise_source: Literal["seed", "os"] = "seed"
    arithmetic: Literal["float", "integer"] = "float"
    everyone_sends_noise: bool | None = None
    """For noise at the client: whether clients that are not drawn send their noise too."""
    noise: Literal["independent", "correlated"] | None = None
    """Whether the noises of rounds are independent (the default) or partly cancel."""
    correlated: Correlated | None = None
    """For correlated noise: how the noises of rounds are related."""
    adaptive_clipping: AdaptiveClipping | None = None
    """How the clip norm follows the updates; `clip_norm` is then the first one."""
    stop_at_epsilon: Positive | None = None
    """Stop before the round that would exceed it; valid for lists of releases that no data decide on."""
    continue_ledger: bool | None = None
    """Whether `epsilon` and `stop_at_epsilon` cover this run together with all runs that `model.init` comes from."""
    accountant: Literal["pld", "rdp"] = "pld"
    options: dict[str, Any] | None = None
    """Settings of the user's own mechanism."""

    @field_validator("sensitivity", mode="before")
    @classmethod
    def _check_sensitivity(cls, given: Any) -> Any:
        if given == "as_published":
            reason = "noise for a published formula gives no guarantee (papers/published.py has the formulas)"
            invalid("privacy.sensitivity", given, reason, 'use sensitivity = "clipped_model" with noise_std')
        return given

    @model_validator(mode="after")
    def _check_privacy(self) -> "Privacy":
        check_noise(self)
        check_perturbation(self)
        check_plain("privacy.options", self.options or {})
        # Per-example gradients are summed inside float32 matrix products; an exact integer norm per example would undo
        # that.
        if self.arithmetic == "integer" and (self.unit, self.mechanism) != ("client", "gaussian"):
            reason = 'integer noise needs unit = "client" and mechanism = "gaussian"'
            invalid("privacy.arithmetic", "integer", reason, 'use arithmetic = "float"')
        if self.unit == "none" and self.stop_at_epsilon is not None:
            invalid("privacy.stop_at_epsilon", self.stop_at_epsilon, 'unit = "none" has no epsilon')
        return self

    @property
    def place(self) -> str:
        """Return where the noise is added: as given, else at the server for clients and at the client for samples."""
        return self.where or ("client" if self.unit == "sample" else "server")


class Resources(OpenSection):
    """Energy and delay: a model by its name, and its settings."""

    model: Name


# Algorithms in which every device adds its own noise.
NOISE_AT_DEVICES = ("hfl_dp", "pedpfl")


def _find_value(given: dict[str, Any], section: str, key: str) -> Any:
    """Return a key of a section that may be missing or malformed."""
    result = given.get(section)
    return result.get(key) if isinstance(result, dict) else None


class Experiment(Section):
    """One experiment file, read and checked."""

    name: str = "experiment"
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    rounds: Annotated[int, Field(ge=1, le=10**7)]
    evaluate_every: Count = 1
    keep_best: Name | None = None
    """The metric on the test set by which the model of the best round is kept too; `data.public_test` must hold."""
    device: Literal["auto", "cpu", "cuda", "mps"] | None = None
    """Where clients are trained; the CPU by default; "auto": CUDA or MPS if torch finds it."""
    data: Data = Data()
    model: Model = Model()
    topology: Topology = Topology()
    algorithm: Algorithm = Algorithm()
    local: Local = Local(epochs=1)
    sampling: Sampling = Sampling()
    privacy: Privacy = Privacy(unit="none")
    resources: Resources | None = None

    def __str__(self) -> str:
        plain = self.model_dump(mode="json", exclude_none=True)
        # A default that the source does not read would look like a fact about the data.
        unread = unread_keys(plain["data"])
        plain["data"] = {key: value for key, value in plain["data"].items() if key not in unread}
        return tomli_w.dumps(plain)

    # What a notebook shows: the file, not one line with every key that is not set.
    __repr__ = __str__

    @model_validator(mode="before")
    @classmethod
    def _fill_noise_place(cls, given: Any) -> Any:
        # On a tree clients' noise is added where trust ends, unless the file or the algorithm says otherwise.
        if not isinstance(given, dict) or not isinstance(given.get("privacy"), dict):
            return given
        privacy, kind = given["privacy"], _find_value(given, "topology", "kind")
        if privacy.get("where") or privacy.get("unit", "client") != "client":
            return given
        if _find_value(given, "algorithm", "name") in NOISE_AT_DEVICES:
            return given | {"privacy": privacy | {"where": "client"}}
        return given | {"privacy": privacy | {"where": "edge"}} if kind == "tree" else given

    @field_validator("name")
    @classmethod
    def _check_folder_name(cls, name: str) -> str:
        if not SAFE_NAME.fullmatch(name):
            invalid("name", repr(name), "letters, digits, dot, dash and underscore, at most 80", 'e.g. "quickstart"')
        return name

    @model_validator(mode="after")
    def _check_combinations(self) -> "Experiment":
        if self.local.augment is not None and (self.privacy.unit, self.privacy.mechanism) != ("sample", "gaussian"):
            reason = "views are averaged by per-example clipping, which only sample-level Gaussian noise uses"
            invalid("local.augment", self.local.augment.kind, reason, 'use unit = "sample", or remove local.augment')
        if self.local.augment is not None and isinstance(self.data.features, Features):
            reason = "views are shifted or mirrored images, and features cannot be shifted or mirrored"
            invalid("local.augment", self.local.augment.kind, reason, "remove local.augment or data.features")
        if self.local.compiled and (self.privacy.unit == "sample" or self.algorithm.split is not None):
            reason = "compiled training supports plain steps on whole models only"
            invalid("local.compiled", True, reason, 'leave it out, or use unit = "client" without algorithm.split')
        check_local(self)
        check_device(self)
        check_precision(self)
        if self.privacy.mechanism in PERTURBATIONS:
            check_solution(self)
        elif self.privacy.unit == "sample" and self.privacy.mechanism == "gaussian":
            self._check_sample_unit()
        elif self.privacy.unit != "sample" and self.samples_scheme not in ("shuffle", "full"):
            reason = f'draws of examples gain nothing with unit = "{self.privacy.unit}"'
            invalid("sampling.samples.scheme", self.samples_scheme, reason, 'use shuffle or full, or unit = "sample"')
        clients = self.sampling.clients
        # The laws of Poisson cohorts and schedules are for zero-out, where one world lacks the subject.
        if self.privacy.adjacency == "replace" and (clients.scheme == "poisson" or clients.scheduled):
            reason = f"{clients.scheme.capitalize()} cohorts are accounted under add/remove adjacency only"
            refuse("privacy.adjacency", "replace", reason, 'use adjacency = "add_remove", or scheme = "fixed"')
        for section, sampler in (("clients", clients), ("samples", self.sampling.samples)):
            if sampler is not None and self.rounds % (sampler.epochs or 1):
                reason = f"rounds={self.rounds} must divide into epochs of equal length"
                invalid(f"sampling.{section}.epochs", sampler.epochs, reason, "use a divisor of rounds")
        check_split(self)
        check_convex(self)
        check_everyone(self)
        check_turns(self)
        check_correlated(self)
        check_adaptive(self)
        return self

    def _check_sample_unit(self) -> None:
        # Each example is used exactly once in a shuffled epoch, so its draws are not independent and Poisson's law
        # fails.
        if self.samples_scheme == "shuffle":
            reason = "shuffled batches do not have the guarantee of Poisson sampling"
            refuse("sampling.samples.scheme", "shuffle", reason, 'use scheme = "poisson" with unit = "sample"')
        samples, clients = self.sampling.samples, self.sampling.clients
        if samples is not None and samples.scheduled and clients.scheme != "full":
            reason = (
                f"the {samples.scheme} schedule of examples covers all local steps, so every client must take part "
                "in every round"
            )
            refuse("sampling.clients.scheme", clients.scheme, reason, 'use clients = {scheme = "full"}')
        if self.privacy.adjacency == "replace":
            batches = "fixed" if self.privacy.noise == "correlated" else self.samples_scheme
            reason = f"{batches.capitalize()} batches are accounted under add/remove adjacency only"
            refuse("privacy.adjacency", "replace", reason, 'use adjacency = "add_remove"')
        if self.privacy.place == "server" and self.local.weight_decay > 0:
            reason = "the server only adds noise to gradient sums and applies them"
            refuse("local.weight_decay", self.local.weight_decay, reason, 'use weight_decay = 0, or where = "client"')
        # The number of private steps is part of the event, so it must be known before the run.
        if self.local.stragglers > 0:
            reason = "the number of private steps must be fixed before the run, and stragglers do a random number"
            refuse("local.stragglers", self.local.stragglers, reason, 'use stragglers = 0 with unit = "sample"')
        if self.privacy.place == "server" and self.local.steps != 1:
            reason = "the server can only add noise to a sum of single gradients"
            refuse("privacy.where", "server", reason, 'use local.steps = 1, or where = "client"')

    @property
    def training_device(self) -> str:
        """Return where clients are trained: as given, else the CPU, which is also used for what only runs there."""
        only_here = self.local.compiled or self.algorithm.split is not None or self.local.precision != "float32"
        return "cpu" if only_here else self.device or "cpu"

    @property
    def samples_scheme(self) -> str:
        """Return how examples are drawn: as given, else Poisson for sample-level privacy and shuffled epochs."""
        if self.sampling.samples is not None:
            return self.sampling.samples.scheme
        private_steps = self.privacy.unit == "sample" and self.privacy.mechanism == "gaussian"
        return "poisson" if private_steps else "shuffle"
