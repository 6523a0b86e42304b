"""The experiment file as frozen values. Names are stable: scripts and papers refer to them."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from sightline.config.rules import (
    PERTURBATIONS,
    Correlated,
    Split,
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


class Features(Section):
    """A fixed, public transform of every example by itself; it looks at no other, so it costs no privacy."""

    transform: Literal["scattering"] = "scattering"
    groups: Count | None = None
    """Channels are normalised in so many groups, inside the example; left out, they are not."""
    whiten: bool = False
    """Channels are mixed after that, so that those of made-up pictures would hardly correlate."""
    mirror: bool = False
    """Features are the mean of those of the image and of its mirror image; their left half is kept."""
    opponent: bool = False
    """Brightness and two differences of colour take the place of red, green and blue."""

    @model_validator(mode="after")
    def _whitened_are_normalised(self) -> Self:
        if self.whiten and self.groups is None:
            invalid("data.features.whiten", "true", "only normalised channels are whitened", "set groups = 27, too")
        return self


class Data(Section):
    """Where the examples come from and how they are dealt to clients."""

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
    """Of "synthetic": the length of an example; of images: "scattering", or a table of what is wanted of it."""
    classes: Annotated[int, Field(ge=2, le=10**6)] = 10
    size_mean: float = 4.0
    size_sigma: NonNegative = 2.0
    size_min: Count = 50
    train_samples: Count | None = None
    test_samples: Count | None = None
    test_fraction: Fraction = 0.2
    reuse: bool = False
    options: dict[str, Any] = Field(default_factory=dict)

    @property
    def length(self) -> int:
        """The length of a synthetic example."""
        return 0 if isinstance(self.features, Features) else self.features

    @field_validator("features", mode="before")
    @classmethod
    def _a_word_will_do(cls, given: Any) -> Any:
        """`"scattering"` is the table with nothing else in it; numbers are left to their own checks."""
        table = {"transform": given} if isinstance(given, str) else given
        if isinstance(given, Features):
            return given
        if not isinstance(table, dict):
            if type(given) is not int or not 1 <= given <= 10**9:
                invalid("data.features", given, 'is a whole number from 1 on, or "scattering"', "e.g. features = 60")
            return given
        for key, value in table.items():
            if key not in Features.model_fields:
                invalid(f"data.features.{key}", value, "unknown key", did_you_mean(str(key), [*Features.model_fields]))
        if table.get("transform", "scattering") != "scattering":
            law = "there is one transform, of images"
            invalid(
                "data.features", table["transform"], law, 'use "scattering", or {transform = "scattering", groups = 27}'
            )
        if type(table.get("groups", 1)) is not int or not 1 <= table.get("groups", 1) <= 10**9:
            invalid("data.features.groups", table["groups"], "is a whole number from 1 on", "e.g. groups = 27")
        for key in ("whiten", "mirror", "opponent"):
            if not isinstance(table.get(key, False), bool):
                invalid(f"data.features.{key}", table[key], "is true or false", f"e.g. {key} = true")
        return Features(**table)

    @model_validator(mode="after")
    def _pixels_are_ours(self) -> "Data":
        made = isinstance(self.features, Features)
        if made and (":" in self.source or self.source in ("synthetic", "python")):
            law = f"scattering is of the images that Sightline reads, not of {self.source}"
            invalid("data.features", "scattering", law, "make the features yourself, each of its own example alone")
        return self

    @model_validator(mode="after")
    def _clusters_are_given(self) -> "Data":
        shifted = self.partition in ("rotation", "label_shift")
        if shifted and self.clusters is None:
            invalid("data.clusters", "missing", f'partition = "{self.partition}" needs clusters', "e.g. [3, 6, 6, 6]")
        if self.clusters is not None and not shifted:
            invalid("data.clusters", self.clusters, 'only partitions "rotation" and "label_shift" make clusters')
        if self.clusters is not None and sum(self.clusters) != self.clients:
            invalid("data.clusters", self.clusters, f"cluster sizes must add up to data.clients={self.clients}")
        return self


class Model(OpenSection):
    """A model by its name, or the user's own torch module as `package.module:factory`."""

    name: str = "mlp"
    init: str | None = None
    task: Literal["classification", "binary", "multilabel", "regression", "language"] | None = None
    loss: str | None = None
    """A per-example loss of the user's own, `package.module:function`."""

    @field_validator("loss")
    @classmethod
    def _loss_is_named(cls, loss: str | None) -> str | None:
        if loss is not None and not FACTORY.fullmatch(loss):
            invalid("model.loss", loss, "a loss is named package.module:function", 'e.g. "mylosses:huber"')
        return loss

    @property
    def target(self) -> str:
        """What is predicted: the task as given, classes by default, and "own" for a loss without a task."""
        return self.task or ("classification" if self.loss is None else "own")


class Topology(OpenSection):
    """Who talks to whom."""

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
    def _counts_as_one(self) -> "Augment":
        if self.of == "dataset":
            law = f"{self.views} copies of one example would be clipped apart and move a sum {self.views} times as far"
            refuse("local.augment.of", "dataset", law, 'use of = "batch": the views are averaged, then clipped')
        if self.kind == "flip" and self.views != 2:
            law = "there are two: the image and its mirror image"
            invalid("local.augment.views", self.views, law, 'use views = 2, or kind = "shift_flip"')
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
    """Of Adam: how much of the old means of gradients and of their squares is kept at a step."""
    adam_eps: Positive | None = None
    """Of Adam: what is added to the root of the mean square."""
    schedule: Literal["constant", "cosine", "linear", "step"] | None = None
    """How the learning rate falls over the rounds."""
    warmup: Count | None = None
    """Rounds over which the learning rate rises to its value."""
    decay_every: Count | None = None
    decay: Probability | None = None
    """Of the schedule "step": after so many rounds the learning rate is multiplied by this."""
    stragglers: Annotated[float, Field(ge=0, le=1)] = 0.0
    augment: Augment | None = None
    compiled: bool = False
    """Linear models by compiled C code: a few times faster, equal up to float32 rounding."""
    precision: Literal["float32", "bf16"] = "float32"
    """Of products and convolutions in local training; bf16 rounds to 8 bits, and is faster on some processors."""
    paths: Literal["measured", "rule"] | None = None
    """Which exact paths local training takes: the fastest on this machine, as where it is left out; or a rule's."""

    @property
    def adaptive(self) -> bool:
        """Whether steps are scaled by moments of gradients: Adam's."""
        return self.optimizer in ("adam", "adamw")

    @model_validator(mode="before")
    @classmethod
    def _epochs_by_default(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        if given.get("optimizer") == "momentum" and "momentum" not in given:
            given = given | {"momentum": 0.9}
        return given if "epochs" in given or "steps" in given else given | {"epochs": 1}

    @model_validator(mode="after")
    def _one_kind_of_work(self) -> "Local":
        check_optimizer(self)
        if self.epochs is not None and self.steps is not None:
            invalid("local.steps", self.steps, f"local.epochs={self.epochs} is given too", "keep one of the two")
        if self.stragglers > 0 and self.epochs is None:
            invalid("local.stragglers", self.stragglers, "stragglers do fewer epochs", "give local.epochs, not steps")
        return self


SCHEMES = ("full", "poisson", "fixed", "balanced", "check_ins", "turns", "shuffle")


class Sampler(Section):
    """Who takes part: every client of a round, or every example of a step."""

    scheme: Name = "full"
    rate: Probability | None = None
    uses: Count | None = None
    epochs: Count | None = None
    """Of a schedule: how many are drawn one after the other, each over an equal share of the rounds."""
    options: dict[str, Any] | None = None
    """Of a sampler of your own: its settings."""

    @property
    def scheduled(self) -> bool:
        """Whether who takes part when is drawn ahead for many steps, not step by step."""
        return self.scheme in ("balanced", "check_ins")

    @model_validator(mode="after")
    def _options_can_be_written(self) -> "Sampler":
        check_plain("sampling.options", self.options or {})
        return self

    def _check_keys(self, section: str, *, rated: tuple[str, ...]) -> None:
        if self.scheme not in SCHEMES:  # somebody else's: it knows itself what it needs
            return
        _check_needs(section, self, "options", False)
        if self.scheme != "turns":  # where a rate is one of hidden draws inside a group
            _check_needs(section, self, "rate", self.scheme in rated)
        _check_needs(section, self, "uses", self.scheme == "balanced")
        if not self.scheduled:
            _check_needs(section, self, "epochs", False)


class ClientSampler(Sampler):
    """Which clients take part in a round."""

    groups: Count | None = None
    """Of turns: how many public groups there are, one of which is asked in a round."""

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> "ClientSampler":
        if self.scheme in SCHEMES:
            _check_needs("sampling.clients", self, "groups", self.scheme == "turns")
        if self.scheme == "shuffle":
            invalid("sampling.clients.scheme", "shuffle", "clients are not shuffled", "use full, poisson or fixed")
        self._check_keys("sampling.clients", rated=("poisson", "fixed", "check_ins"))
        return self


class SampleSampler(Sampler):
    """Which examples a client's step uses."""

    scheme: Literal["full", "poisson", "fixed", "balanced", "check_ins", "shuffle"] = "full"

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> "SampleSampler":
        if self.scheme == "fixed":
            invalid(
                "sampling.samples.scheme", "fixed", "examples come by shuffle, full, poisson, balanced or check_ins"
            )
        if self.rate is not None and self.scheme != "check_ins":
            invalid("sampling.samples.rate", self.rate, "the rate is batch_size / samples", "set local.batch_size")
        self._check_keys("sampling.samples", rated=("check_ins",))
        return self


def _check_needs(section: str, sampler: Sampler, key: str, needed: bool) -> None:
    value = getattr(sampler, key)
    if needed and value is None:
        invalid(f"{section}.{key}", "missing", f'scheme = "{sampler.scheme}" needs it')
    if not needed and value is not None:
        invalid(f"{section}.{key}", value, f'scheme = "{sampler.scheme}" has no {key}', "remove it")


class Sampling(Section):
    """Both samplers; `samples` follows from the unit when it is not given."""

    clients: ClientSampler = ClientSampler()
    samples: SampleSampler | None = None


Sensitivity = Literal["clipped", "convex", "clipped_model", "strongly_convex", "per_sample_mean", "as_published"]
"""What bounds the effect of one example; see `check_perturbation` for which mechanism knows which."""


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
    sensitivity: Sensitivity | None = None
    gradient_tolerance: Annotated[float, Field(ge=1e-12, le=1.0)] = 1e-9
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    allow_large_delta: bool | None = None
    """Whether delta may be one over the number of protected units, or more."""
    adjacency: Literal["add_remove", "replace"] = "add_remove"
    noise_source: Literal["seed", "os"] = "seed"
    arithmetic: Literal["float", "integer"] = "float"
    everyone_sends_noise: bool | None = None
    """Of noise at the client: whether who is not drawn sends its noise all the same."""
    noise: Literal["independent", "correlated"] | None = None
    """Whether the noises of rounds are independent, as they are where it is left out, or cancel in part."""
    correlated: Correlated | None = None
    """Of correlated noise: how the noises of rounds belong together."""
    stop_at_epsilon: Positive | None = None
    """Stop before the round that would exceed it: covered for lists that no data decide on (accounting-proofs.md)."""
    continue_ledger: bool | None = None
    """Whether `epsilon` and `stop_at_epsilon` are for this run and all runs that `model.init` comes from, together."""
    accountant: Literal["pld", "rdp"] = "pld"
    options: dict[str, Any] | None = None
    """Of a mechanism of your own: its settings."""

    @model_validator(mode="after")
    def _one_amount_of_noise(self) -> "Privacy":
        check_noise(self)
        check_perturbation(self)
        check_plain("privacy.options", self.options or {})
        if self.arithmetic == "integer" and (self.unit, self.mechanism) != ("client", "gaussian"):
            law = 'integers hold clipped updates of clients: unit = "client", mechanism = "gaussian"'
            invalid("privacy.arithmetic", "integer", law, 'use arithmetic = "float"')
        if self.unit == "none" and self.stop_at_epsilon is not None:
            invalid("privacy.stop_at_epsilon", self.stop_at_epsilon, 'unit = "none" has no epsilon to stop at')
        return self

    @property
    def place(self) -> str:
        """Where the noise is added: as given, else at the server for clients and at the client for samples."""
        return self.where or ("client" if self.unit == "sample" else "server")


class Resources(OpenSection):
    """Energy and delay."""

    model: Name


NOISE_AT_DEVICES = ("hfl_dp", "pedpfl")
"""Algorithms by which every device adds its own noise."""


def _find_word(given: dict[str, Any], section: str, key: str) -> Any:
    """A key of a section that may not be there, or be anything."""
    found = given.get(section)
    return found.get(key) if isinstance(found, dict) else None


class Experiment(Section):
    """One experiment file, read and checked."""

    name: str = "experiment"
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    rounds: Annotated[int, Field(ge=1, le=10**7)]
    evaluate_every: Count = 1
    device: Literal["auto", "cpu", "cuda", "mps"] | None = None
    """Where clients are trained; left out, the CPU; "auto": CUDA or MPS where torch finds it."""
    data: Data = Data()
    model: Model = Model()
    topology: Topology = Topology()
    algorithm: Algorithm = Algorithm()
    local: Local = Local(epochs=1)
    sampling: Sampling = Sampling()
    privacy: Privacy = Privacy(unit="none")
    resources: Resources | None = None

    @model_validator(mode="before")
    @classmethod
    def _noise_where_it_belongs(cls, given: Any) -> Any:
        """On a tree clients' noise is added where trust ends, unless the file or the algorithm says otherwise."""
        if not isinstance(given, dict) or not isinstance(given.get("privacy"), dict):
            return given
        privacy, kind = given["privacy"], _find_word(given, "topology", "kind")
        if privacy.get("where") or privacy.get("unit", "client") != "client":
            return given
        if _find_word(given, "algorithm", "name") in NOISE_AT_DEVICES:
            return given | {"privacy": privacy | {"where": "client"}}
        return given | {"privacy": privacy | {"where": "edge"}} if kind == "tree" else given

    @field_validator("name")
    @classmethod
    def _name_is_a_folder(cls, name: str) -> str:
        if not SAFE_NAME.fullmatch(name):
            invalid("name", repr(name), "letters, digits, dot, dash and underscore, at most 80", 'e.g. "quickstart"')
        return name

    @model_validator(mode="after")
    def _guarantees_hold(self) -> "Experiment":
        if self.local.augment is not None and (self.privacy.unit, self.privacy.mechanism) != ("sample", "gaussian"):
            law = "views are averaged inside per-example clipping, which only sample-level Gaussian noise does"
            invalid("local.augment", self.local.augment.kind, law, 'use unit = "sample", or remove local.augment')
        if self.local.augment is not None and isinstance(self.data.features, Features):
            law = "views are of images, and features of a moved image are not moved features"
            invalid("local.augment", self.local.augment.kind, law, "remove local.augment or data.features")
        if self.local.compiled and (self.privacy.unit == "sample" or self.algorithm.split is not None):
            law = "compiled code takes plain steps on whole models"
            invalid("local.compiled", True, law, 'leave it out, or use unit = "client" without algorithm.split')
        check_local(self)
        check_device(self)
        check_precision(self)
        if self.privacy.mechanism in PERTURBATIONS:
            check_solution(self)
        elif self.privacy.unit == "sample" and self.privacy.mechanism == "gaussian":
            self._check_sample_unit()
        elif self.privacy.unit != "sample" and self.samples_scheme not in ("shuffle", "full"):
            law = f'unit = "{self.privacy.unit}" says nothing about single examples'
            invalid("sampling.samples.scheme", self.samples_scheme, law, 'use shuffle or full, or unit = "sample"')
        clients = self.sampling.clients
        if self.privacy.adjacency == "replace" and (clients.scheme == "poisson" or clients.scheduled):
            law = f"{clients.scheme.capitalize()} cohorts are accounted as add/remove"
            refuse("privacy.adjacency", "replace", law, 'use adjacency = "add_remove", or scheme = "fixed"')
        for section, sampler in (("clients", clients), ("samples", self.sampling.samples)):
            if sampler is not None and self.rounds % (sampler.epochs or 1):
                law = f"the rounds={self.rounds} are divided into epochs of equal length"
                invalid(f"sampling.{section}.epochs", sampler.epochs, law, "use a divisor of rounds")
        check_split(self)
        check_convex(self)
        check_everyone(self)
        check_turns(self)
        check_correlated(self)
        return self

    def _check_sample_unit(self) -> None:
        if self.samples_scheme == "shuffle":
            law = "a shuffled epoch does not have Poisson's guarantee"
            refuse("sampling.samples.scheme", "shuffle", law, 'use scheme = "poisson" with unit = "sample"')
        samples, clients = self.sampling.samples, self.sampling.clients
        if samples is not None and samples.scheduled and clients.scheme != "full":
            law = f"the {samples.scheme} schedule of examples runs over all local steps, so every round needs everybody"
            refuse("sampling.clients.scheme", clients.scheme, law, 'use clients = {scheme = "full"}')
        if self.privacy.adjacency == "replace":
            batches = "fixed" if self.privacy.noise == "correlated" else self.samples_scheme
            law = f"{batches.capitalize()} batches are accounted as add/remove"
            refuse("privacy.adjacency", "replace", law, 'use adjacency = "add_remove"')
        if self.privacy.place == "server" and self.local.weight_decay > 0:
            law = "the server only noises and applies gradient sums"
            refuse("local.weight_decay", self.local.weight_decay, law, 'use weight_decay = 0, or where = "client"')
        if self.local.stragglers > 0:
            law = "the number of private steps must not depend on luck the ledger cannot see"
            refuse("local.stragglers", self.local.stragglers, law, 'use stragglers = 0 with unit = "sample"')
        if self.privacy.place == "server" and self.local.steps != 1:
            law = "the server can only noise a sum of single gradients"
            refuse("privacy.where", "server", law, 'use local.steps = 1, or where = "client"')

    @property
    def training_device(self) -> str:
        """Where clients are trained: as given, else on the CPU, and there what runs there only."""
        only_here = self.local.compiled or self.algorithm.split is not None or self.local.precision != "float32"
        return "cpu" if only_here else self.device or "cpu"

    @property
    def samples_scheme(self) -> str:
        """How examples are drawn: as given, else Poisson for sample-level privacy and shuffled epochs otherwise."""
        if self.sampling.samples is not None:
            return self.sampling.samples.scheme
        private_steps = self.privacy.unit == "sample" and self.privacy.mechanism == "gaussian"
        return "poisson" if private_steps else "shuffle"
