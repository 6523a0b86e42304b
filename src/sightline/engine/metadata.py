"""Facts that a run records once: settings, versions, the guarantee in sentences, caveats, and expected use."""

import dataclasses
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Self

import torch
from typing_extensions import override

from sightline import mkl
from sightline.accounting import large_delta_note
from sightline.config import Privacy
from sightline.engine.build import BuiltExperiment, count_protected
from sightline.events import Unit
from sightline.ledger import write_parties
from sightline.models import is_given_model
from sightline.training import clipping_note
from sightline.training.dispatch import describe_device


class StoredFacts:
    """Base of frozen facts whose fields are the names under which a run stores them; groups are stored flat."""

    def to_stored(self) -> dict[str, Any]:
        """Return name -> value as a run directory keeps them."""
        stored: dict[str, Any] = {}
        for name, value in vars(self).items():
            stored |= value.to_stored() if isinstance(value, StoredFacts) else {name: value}
        return stored

    @classmethod
    def from_stored(cls, stored: Mapping[str, Any]) -> Self:
        """Return the facts in what a run stores, which may hold others too. Raise KeyError if one is missing."""
        values: dict[str, Any] = {}
        for field in dataclasses.fields(cls):  # type: ignore[arg-type]
            if isinstance(field.type, type) and issubclass(field.type, StoredFacts):
                values[field.name] = field.type.from_stored(stored)
            elif field.name in stored or field.default is dataclasses.MISSING:
                value = stored[field.name]
                values[field.name] = tuple(value) if isinstance(value, list) else value
        return cls(**values)


@dataclass(frozen=True)
class MachineFacts(StoredFacts):
    """Versions, device, threads, MKL's mode and the paths of local training."""

    sightline_version: str
    versions: Mapping[str, str]
    device: str
    threads: int
    mkl_cbwr: str | None
    cpu_capability: str
    paths: Mapping[str, str]


@dataclass(frozen=True)
class DataFacts(StoredFacts):
    """The federation: public sizes, and notes on how it was made."""

    source: str
    clients: int
    participants: str
    classes: int
    sizes: Sequence[int]
    data_notes: Sequence[str]
    class_names: Sequence[str | int] | None = None


@dataclass(frozen=True)
class ModelShape(StoredFacts):
    """What is needed to build the model again, besides the experiment file."""

    kind: str
    input_shape: Sequence[int]
    vocabulary: int
    outputs: int
    # Runs of earlier versions had neither of these.
    target_shape: Sequence[int] = ()
    whole_targets: bool = True


@dataclass(frozen=True)
class ModelFacts(StoredFacts):
    """The model, and the task by which it is trained and measured."""

    model: str
    task: str
    loss: str | None
    metric: str
    metrics: Sequence[str]
    parameters: int
    shape: ModelShape


@dataclass(frozen=True)
class MethodFacts(StoredFacts):
    """Algorithm, topology and participation."""

    algorithm: str
    algorithm_settings: Mapping[str, Any]
    upcycle: Any
    split: Mapping[str, float] | None
    control: Any
    personal: bool
    topology: str
    resources: Mapping[str, Any] | None
    sampling: Mapping[str, Mapping[str, Any]]
    load: Sequence[Mapping[str, Any]]
    """How often sampled clients and examples are used."""


@dataclass(frozen=True)
class PrivacyFacts(StoredFacts):
    """The guarantee: its parameters, and in sentences."""

    unit: str
    adjacency: str
    delta: float
    accountant: str
    where: str
    clip_norm: float | None
    noise_multiplier: float | Mapping[str, float] | None
    """z, or its range if every client has its own."""
    target_epsilon: float | None
    stop_at_epsilon: float | None
    noise_source: str
    trusted: Sequence[str]
    guarantee: Sequence[str]
    caveats: Sequence[str]
    stream: Mapping[str, Any] | None = None
    """The strategy of correlated noise; not stored for independent noise."""

    @override
    def to_stored(self) -> dict[str, Any]:
        stored = super().to_stored()
        if self.stream is None:
            del stored["stream"]
        return stored


@dataclass(frozen=True)
class ObserverFacts(StoredFacts):
    """The kinds of untrusted observers with one representative each, and their observer lines."""

    observers: Mapping[str, str]
    lines: Mapping[str, Sequence[Sequence[str]]] | None
    """Every line as (observer, exempt subjects); None if all observers of each kind see the same."""


@dataclass(frozen=True)
class RunFacts(StoredFacts):
    """Everything about a run that is recorded once, when it starts or resumes."""

    name: str
    rounds_planned: int
    seed: int
    machine: MachineFacts
    data: DataFacts
    model: ModelFacts
    method: MethodFacts
    privacy: PrivacyFacts
    observers: ObserverFacts
    notes: Sequence[str]


def load_of(built: BuiltExperiment) -> list[dict[str, Any]]:
    """Return how often clients and examples are used, for those that are sampled or scheduled.

    Guarantees: a function of public settings and sizes; the schedule, the cohorts and their streams are not used.
    """
    result: list[dict[str, Any]] = []
    sampler = next(iter(built.samplers.values()))
    load = sampler.load(built.algorithm.facts.cohorts(built.experiment))
    if load is not None:
        result.append({"who": "client", "steps_are": "rounds", "members": len(built.clients)} | load)
    sizes = built.federation.sizes.tolist()
    largest = max(built.clients, key=lambda client: sizes[client])
    steps, samples = built.mechanism.facts.private_steps.get(largest), built.experiment.sampling.samples
    if samples is not None and steps is not None and steps.allotment is not None:
        who = {"who": "example", "steps_are": "steps of the largest client", "members": sizes[largest]}
        result.append(who | steps.allotment.load(samples.epochs or 1))
    return result


def _samples_of(built: BuiltExperiment) -> str:
    """Return how examples are drawn, or that batches have a fixed order."""
    experiment = built.experiment
    ordered = experiment.privacy.unit == "sample" and experiment.privacy.noise == "correlated"
    return "fixed order" if ordered else experiment.samples_scheme


PACKAGES = ("sightline", "torch", "numpy", "scipy", "dp-accounting", "scikit-learn")

ADJACENCY = {
    "add_remove": "with or without that {unit} (its contribution zeroed out; all counts are public)",
    "replace": "with that {unit}'s data or any other in their place",
}


def collect_facts(built: BuiltExperiment, *, real_sites: bool = False) -> RunFacts:
    """Return the facts of a run; `real_sites` always draw their own noise."""
    experiment = built.experiment
    return RunFacts(
        name=experiment.name,
        rounds_planned=experiment.rounds,
        seed=experiment.seed,
        machine=MachineFacts(
            sightline_version=version("sightline"),
            versions=package_versions(),
            device=describe_device(built.model.device),
            threads=torch.get_num_threads(),
            mkl_cbwr=mkl.read_mode(),
            cpu_capability=torch.backends.cpu.get_cpu_capability(),
            paths=built.paths.describe(),
        ),
        data=_data_facts(built),
        model=_model_facts(built),
        method=_method_facts(built),
        privacy=_privacy_facts(built, real_sites=real_sites),
        observers=observer_facts(built),
        notes=notes_of(built),
    )


def _data_facts(built: BuiltExperiment) -> DataFacts:
    federation = built.federation
    return DataFacts(
        source=federation.source,
        clients=len(federation.clients),
        participants=write_parties(built.participants),
        classes=federation.classes,
        sizes=federation.sizes.tolist(),
        data_notes=[*federation.notes, *_speed_notes(built)],
        class_names=built.experiment.data.class_names,
    )


def _model_facts(built: BuiltExperiment) -> ModelFacts:
    federation, model, task = built.federation, built.model, built.model.task
    shape = ModelShape(
        kind=str(federation.kind),
        input_shape=list(federation.input_shape),
        vocabulary=federation.vocabulary,
        outputs=model.classes,
        target_shape=list(task.target_shape),
        whole_targets=task.whole,
    )
    measured = (task.name, task.loss_name, task.metric.name, list(task.kind.metrics))
    return ModelFacts(model.name, *measured, model.parameters, shape)


def _method_facts(built: BuiltExperiment) -> MethodFacts:
    experiment, given = built.experiment, built.experiment.algorithm.settings
    clients, samples = experiment.sampling.clients, experiment.sampling.samples
    drawn = samples.model_dump(exclude_none=True) if samples else {}
    return MethodFacts(
        algorithm=built.algorithm.name,
        algorithm_settings=dataclasses.asdict(built.settings),
        upcycle=given.get("upcycle"),
        split=None if built.splitter is None else built.splitter.facts,
        control=given.get("control"),
        personal=built.algorithm.facts.personal,
        topology=experiment.topology.kind,
        resources=experiment.resources.model_dump() if experiment.resources else None,
        sampling={
            "clients": clients.model_dump(exclude_none=True),
            "samples": {"scheme": _samples_of(built)} | drawn,
        },
        load=load_of(built),
    )


def _privacy_facts(built: BuiltExperiment, *, real_sites: bool) -> PrivacyFacts:
    privacy = built.experiment.privacy
    return PrivacyFacts(
        unit=privacy.unit,
        adjacency=privacy.adjacency,
        delta=privacy.delta,
        accountant=privacy.accountant,
        where=privacy.place,
        clip_norm=privacy.clip_norm if privacy.unit != "none" else None,
        noise_multiplier=noise_multiplier(built),
        target_epsilon=privacy.epsilon,
        stop_at_epsilon=privacy.stop_at_epsilon,
        noise_source="os" if real_sites else privacy.noise_source,
        trusted=list(built.topology.trusted),
        guarantee=describe_guarantee(built),
        caveats=list_caveats(built, real_sites=real_sites),
        stream=built.mechanism.facts.describe_stream(),
    )


def observer_facts(built: BuiltExperiment) -> ObserverFacts:
    """Return who observes, as the topology has it now."""
    topology, lines = built.topology, built.topology.lines
    if all(len(some) == 1 and not some[0].exempt for some in lines.values()):
        return ObserverFacts(topology.observers, None)
    stored = {kind: [[line.observer, write_parties(line.exempt)] for line in some] for kind, some in lines.items()}
    return ObserverFacts(topology.observers, stored)


def notes_of(built: BuiltExperiment) -> list[str]:
    """Return notes for the end of the run: on its topology, on slow private steps, on a large delta."""
    return [*built.topology.notes, *_speed_notes(built), *_delta_notes(built)]


def _speed_notes(built: BuiltExperiment) -> list[str]:
    """Return why private steps are slow, if they are."""
    note = clipping_note(built.model) if built.unit is Unit.SAMPLE else None
    return [note] if note else []


def _delta_notes(built: BuiltExperiment) -> list[str]:
    """Return a warning if delta is so large that the guarantee says little."""
    if built.unit is Unit.NONE:
        return []
    note = large_delta_note(built.experiment.privacy.delta, *count_protected(built))
    return [f"{note}."] if note else []


def package_versions() -> dict[str, str]:
    """Return the versions on which the numbers depend."""
    result = {package: _read_version(package) for package in PACKAGES}
    return {"python": platform.python_version()} | {name: said for name, said in result.items() if said is not None}


@cache
def _read_version(package: str) -> str | None:
    """Return the version of a package, read once; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def noise_multiplier(built: BuiltExperiment) -> float | dict[str, float] | None:
    """Return z, or its range if every client has its own."""
    result = set(built.mechanism.noise_multipliers(built.clients).values())
    if not result:
        return None
    return result.pop() if len(result) == 1 else {"min": min(result), "max": max(result)}


def _trusted_with(built: BuiltExperiment) -> str:
    """Return what a trusted server does with updates; cohorts are its secret unless turns are public."""
    clients = built.experiment.sampling.clients
    public = clients.scheme == "turns" and clients.rate is None
    return " and add the noise" if public else ", add the noise and keep the cohorts secret"


def describe_cohorts(built: BuiltExperiment) -> list[str]:
    """Return sentences on public turns, and on what cohorts of a fixed size hide below a trusted server."""
    experiment, clients = built.experiment, built.experiment.sampling.clients
    if clients.scheme == "turns":
        drawn = "" if clients.rate is None else f", and there each is drawn in secret with probability {clients.rate:g}"
        told = f"Clients take turns in {clients.groups} groups, one of them in a round: who is in which group is public"
        return [f"{told}{drawn}."]
    if experiment.sampling.clients.scheme != "fixed" or built.unit is not Unit.CLIENT or not built.topology.trusted:
        return []
    if built.algorithm.facts.remembers:
        return [
            f"Clients of {built.algorithm.name} remember that they took part: cohorts of a fixed size are not "
            "claimed to hide their members."
        ]
    return [
        "Every cohort has a fixed size and is drawn in secret. That is counted as what it is, not as Poisson sampling, "
        "and against a client who knows that it was not drawn itself."
    ]


def describe_guarantee(built: BuiltExperiment) -> list[str]:
    """Return the guarantee in sentences."""
    privacy = built.experiment.privacy
    if privacy.unit == "none":
        return ["No privacy guarantee: updates are published without noise."]
    unit = {"client": "client", "sample": "single example of a client"}[privacy.unit]
    sentences = [
        f"Protects every {unit}: {ADJACENCY[privacy.adjacency].format(unit=unit)}, what is published is equally likely "
        "up to a factor of e^epsilon, plus delta.",
    ]
    if built.topology.trusted:
        names = write_parties(frozenset(built.topology.trusted))
        sentences.append(
            f"{built.topology.trusted_clause(names)} the updates{_trusted_with(built)}. "
            "The guarantee holds against all other observers."
        )
        if not all(channel.trusted for channel in built.topology.gathering_channels) and privacy.place == "edge":
            sentences.append("Below every other edge, each device adds noise before it sends anything.")
    else:
        sentences.append("No party is trusted: each client adds noise before it sends anything.")
    sentences += describe_cohorts(built)
    if privacy.stop_at_epsilon is not None:
        sentences.append(
            f"It stops before epsilon would exceed {privacy.stop_at_epsilon:g}. No data decide on the list of its "
            "releases, or they are claimed at their limit: the bound for the list covers an early end."
        )
    sentences += describe_schedule(built)
    if built.splitter is not None:
        sentences += built.splitter.explain_guarantee({"client": "client", "sample": "example"}[privacy.unit])
    curvature = float(getattr(built.settings, "mu", 0.0)) + built.experiment.local.weight_decay
    sentences += built.mechanism.facts.explain(curvature)
    if built.algorithm.facts.says:
        sentences.append(built.algorithm.facts.says)
    return sentences + list(built.topology.notes)


def describe_schedule(built: BuiltExperiment) -> list[str]:
    """Return what a schedule promises, for clients and for examples."""
    sampling, privacy = built.experiment.sampling, built.experiment.privacy
    sentences = []
    for noun, sampler, hidden in (
        ("client", sampling.clients, privacy.unit == "client" and privacy.place == "server"),
        ("example", sampling.samples, True),
    ):
        if sampler is None or not sampler.scheduled:
            continue
        uses = f"exactly {sampler.uses} times" if sampler.uses else f"with probability {sampler.rate:g} once"
        sentences.append(f"Each {noun} is used {uses} in each of {sampler.epochs or 1} schedule(s), drawn at random.")
        if hidden:
            sentences.append(
                "The schedule is a secret: the epsilon of a whole schedule is counted from its first round on, "
                "so that a run that stops early has spent it."
            )
    return sentences


def describe_randomness(privacy: Privacy, *, real_sites: bool) -> list[str]:
    """Return where noise and sampling come from: the file's setting in a simulation, own entropy at real sites."""
    if not real_sites and privacy.noise_source == "seed":
        return [
            "Noise and sampling come from the seed: reproducible, and no protection against an observer who knows it. "
            'Use noise_source = "os" for real people\'s data.'
        ]
    cipher = "AES-256-CTR, keyed by the operating system's entropy in an owner-only file"
    if not real_sites:
        return [f"Noise and sampling come from {cipher}."]
    sites = f"Each site draws its batches, and the noise that it adds, from {cipher} of its own, not from the seed."
    if privacy.noise_source == "os":
        return [sites, f"The server draws from {cipher}."]
    return [sites, "The server draws from the seed; every site adds its own noise, so no guarantee rests on it."]


def list_caveats(built: BuiltExperiment, *, real_sites: bool = False) -> list[str]:
    """Return what the guarantee does not cover."""
    privacy = built.experiment.privacy
    if privacy.unit == "none":
        return []
    notes = [
        *describe_randomness(privacy, real_sites=real_sites),
        "Accuracies, losses, timings and the count of rejected updates are diagnostics, outside the guarantee.",
        "Pair guarantees exclude collusion; a coalition sees the union of its members' views.",
        "Floating-point side channels and the tuning of hyper-parameters on private data are not accounted.",
    ]
    if built.experiment.data.validation_fraction:
        notes.append(
            "Validation metrics are of examples that clients hold out, which are private: the ledger does not count a "
            "setting that is chosen by them."
        )
    notes += _delta_notes(built)
    if built.earlier is not None:
        notes.append(f"{built.earlier.tell(counted=bool(privacy.continue_ledger))}.")
    elif built.experiment.model.init is not None:
        notes.append("The weights that training started from (model.init) are taken as public.")
    elif is_given_model(built.experiment.model.name):
        notes.append("The model that was handed over (model=), with the weights that it held, is taken as public.")
    notes += built.mechanism.facts.caveats
    notes += [
        f"The {plugin.kind.noun} {plugin.name} comes from {plugin.module}: its laws were checked by trying, not proven."
        for plugin in built.plugins
    ]
    if built.federation.notes and built.experiment.data.reuse:
        notes.append("Every cluster gets the whole data set: epsilon is per copy of an example.")
    return notes
