"""Build the objects that run an experiment; every invalid setting is found here, before a run exists."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from sightline import algorithms, data, models, resources, topology
from sightline.accounting import Accountant
from sightline.config import Experiment
from sightline.data import Federation, Kind
from sightline.engine.earlier_runs import EarlierRuns, find_earlier
from sightline.errors import invalid, refuse
from sightline.events import Adjacency, Unit
from sightline.laws import check_first_mechanism, check_first_sampler, check_shape
from sightline.mechanisms import (
    MECHANISMS,
    SAMPLERS,
    CohortSampler,
    Mechanism,
    Public,
    Splitter,
    build_mechanism,
    build_sampler,
    build_splitter,
)
from sightline.mechanisms.contract import only_sums
from sightline.mechanisms.convex_solver import unit_features
from sightline.mechanisms.registry import feature_norm, find_mechanism
from sightline.mechanisms.samplers import find_sampler, reveal_cohorts
from sightline.models import FlatModel, refuse_mixing_layers
from sightline.plugins import ALGORITHM, MECHANISM, RESOURCES, SAMPLER, TOPOLOGY, Plugin, PluginKind, locate_plugin
from sightline.randomness import Purpose, Streams
from sightline.resources import Resources
from sightline.topology import Channel, Clusters, Topology, participants_of
from sightline.training.compiled import kernels as linear_kernel
from sightline.training.dispatch import find_device, half_worker, place_model
from sightline.training.local_work import BY_RULE, Paths


@dataclass(frozen=True, eq=False)
class BuiltExperiment:
    """An experiment and the objects built from it."""

    experiment: Experiment
    federation: Federation
    model: FlatModel
    start: Tensor
    topology: Topology
    samplers: Mapping[str, CohortSampler]
    """Channel name -> its sampler."""
    mechanism: Mechanism
    algorithm: algorithms.Algorithm
    settings: Any
    resources: Resources | None = None
    """The cost model of communication, if the experiment has one."""
    multipliers: Mapping[int, float] = field(default_factory=dict)
    """Client -> noise multiplier, once given or calibrated."""
    splitter: Splitter | None = None
    """Assigns subjects to parts of the model; None for whole models."""
    earlier: EarlierRuns | None = None
    """The runs whose model this one starts from."""
    paths: Paths = BY_RULE
    """The exact code paths of local training, as recorded when the run began."""

    @cached_property
    def plugins(self) -> tuple[Plugin, ...]:
        """The plugins that the experiment uses."""
        return tuple(list_plugins(self.experiment))

    @property
    def foreign(self) -> bool:
        """Whether the algorithm is a plugin: released values may then decide what it releases."""
        return self.experiment.algorithm.name not in algorithms.BUILT_IN

    @property
    def unit(self) -> Unit:
        """The privacy unit."""
        return Unit(self.experiment.privacy.unit)

    @property
    def adjacency(self) -> Adjacency:
        """The adjacency of neighbouring data sets."""
        return Adjacency(self.experiment.privacy.adjacency)

    @property
    def accountant(self) -> Accountant:
        """The accountant that computes epsilon."""
        return Accountant(self.experiment.privacy.accountant)

    @property
    def clients(self) -> range:
        """The clients' numbers."""
        return range(len(self.federation.clients))

    @cached_property
    def participants(self) -> frozenset[str]:
        """All parties that can be a subject or an observer, by their names in the ledger."""
        return participants_of(self.topology, len(self.clients))

    def sampler_of(self, channel: Channel) -> CohortSampler:
        """Return the sampler of a channel in its current form: members may have come and gone."""
        first = self.samplers.get(channel.name)
        if first is not None and first.population == len(channel.members):
            return first
        return sampler_of(self.experiment, channel, self.algorithm)

    def channel_number(self, channel: Channel) -> int:
        """Return the channel's number among all."""
        # The number is part of the key of random streams: the order of `samplers` must stay the same between versions.
        return list(self.samplers).index(channel.name) if channel.name in self.samplers else len(self.samplers)

    def as_found(self, state: algorithms.State) -> "BuiltExperiment":
        """Return the same experiment with every client in the cluster that the state gives it."""
        result = self.algorithm.facts.clusters(state)
        if result is None or not isinstance(self.topology, Clusters):
            return self
        return replace(self, topology=self.topology.as_found(result.cluster_of, result.alike))

    def with_noise(self, multipliers: Mapping[int, float]) -> "BuiltExperiment":
        """Return the same experiment with calibrated noise."""
        return replace(self, mechanism=self.mechanism.with_noise(multipliers), multipliers=dict(multipliers))


def count_protected(built: BuiltExperiment) -> tuple[int, str]:
    """Return the number of subjects to compare delta with, and what they are.

    Clients; or the examples of the data set from which one release is computed: the largest client's own, or those of
    all clients if another party sums what clients hand over.
    """
    if built.unit is not Unit.SAMPLE:
        return len(built.clients), "clients"
    sizes = built.federation.sizes
    return int(sizes.max() if built.experiment.privacy.place == "client" else sizes.sum()), "examples"


def build_experiment(
    experiment: Experiment,
    *,
    data_root: Path | None = None,
    federation: Federation | None = None,
    factory: models.Factory | None = None,
    device: str = "cpu",
) -> BuiltExperiment:
    """Load the data, build the model and choose the mechanism; the noise is not calibrated yet.

    A given `federation` replaces the experiment's own data: real sites have theirs, and so do Python programs, whose
    model comes from the `factory`. Clients are trained on the `device`, see `find_device`.
    """
    algorithm, settings = algorithms.build_algorithm(experiment)
    privacy = experiment.privacy
    if algorithm.facts.personal and privacy.unit != "none" and privacy.place == "server":
        only_sums(algorithm.name)
    # Names are looked up before data are loaded, so that a typing error is reported at once.
    find_sampler(experiment.sampling.clients.scheme)
    find_mechanism(experiment)
    shape = topology.find_topology(experiment.topology.kind)
    if not {experiment.topology.kind, shape.like} & set(algorithm.facts.topologies):
        reason = f"{algorithm.name} runs on {', '.join(algorithm.facts.topologies)}"
        invalid("topology.kind", experiment.topology.kind, reason, "choose another topology or algorithm")
    streams = Streams.from_seed(experiment.seed)
    if federation is None and experiment.data.is_path:
        # The file, not a default, says how many clients there are.
        experiment, federation = data.load_settled(experiment, streams)
        return build_experiment(experiment, federation=federation, factory=factory, device=device)
    target = experiment.model.target
    federation = federation or data.load_federation(experiment.data, streams=streams, root=data_root, task=target)
    # Scale features before anything is computed from them: the convex bounds hold for bounded features only. Each
    # example is scaled by itself, so it is not a release.
    if (norm := feature_norm(experiment)) is not None:
        federation = unit_features(federation, norm)
    federation = data.hold_validation(federation, experiment.data.validation_fraction, streams)
    adder = privacy.place if privacy.unit != "none" else "none"
    structure = topology.build_topology(
        experiment.topology.kind,
        experiment.topology.settings,
        clients=experiment.data.clients,
        place=adder,
        streams=streams,
        labels=None if federation.elsewhere else partial(held_labels, federation),
    )
    # Built-in topologies are covered by tests; a plugin's is checked before anything is computed with it.
    if experiment.topology.kind not in topology.REGISTRY:
        check_shape(experiment.topology.kind, structure, clients=experiment.data.clients, place=adder, like=shape.like)
    _refuse_schedules_of_changing_members(experiment, structure)
    every = {channel.name: channel for channel in (*structure.channels, *structure.gathering_channels, structure.top)}
    samplers = {name: sampler_of(experiment, channel, algorithm) for name, channel in every.items()}
    model, start = _start_vector(experiment, _build_model(experiment, federation, factory), streams)
    model = place_model(model, find_device(device))
    splitter = build_splitter(experiment, model, streams)
    check_first_mechanism(experiment, federation.classes)
    mechanism = build_mechanism(
        experiment, structure, sizes=federation.sizes.tolist(), classes=federation.classes, splitter=splitter,
        cohorts=algorithm.facts.cohorts(experiment), workload=partial(algorithm.facts.workload, settings),
    )  # fmt: skip
    _refuse_unused_factors(structure, mechanism)
    if mechanism.facts.numbers:
        algorithm = algorithms.wrap_released(algorithm)
    built = BuiltExperiment(
        experiment,
        federation,
        model,
        start,
        structure,
        samplers,
        mechanism,
        algorithm,
        settings,
        resources.build_resources(experiment, parameters=model.parameters),
        splitter=splitter,
        earlier=_find_earlier(experiment, federation),
    )
    return built.as_found(algorithm.init(Public(start), built.clients, settings))


def list_plugins(experiment: Experiment) -> list[Plugin]:
    """Return the plugins that an experiment names, found without importing them."""
    section = experiment.resources
    asked: list[tuple[PluginKind, str, Collection[str]]] = [
        (ALGORITHM, experiment.algorithm.name, algorithms.REGISTRY),
        (MECHANISM, experiment.privacy.mechanism, {name for name, _, _ in MECHANISMS}),
        (TOPOLOGY, experiment.topology.kind, topology.REGISTRY),
        (SAMPLER, experiment.sampling.clients.scheme, SAMPLERS),
        *([(RESOURCES, section.model, resources.MODELS)] if section is not None else []),
    ]
    result = [locate_plugin(kind, name, built_in) for kind, name, built_in in asked]
    return [plugin for plugin in result if plugin is not None]


def sampler_of(experiment: Experiment, channel: Channel, algorithm: algorithms.Algorithm) -> CohortSampler:
    """Build the sampler of a channel: as the experiment says, at the channel's own rate if it has one.

    Raise `Refused` for a plugin's that fails its checks.
    """
    settings = experiment.sampling.clients
    if channel.rate is not None:
        if settings.scheme != "poisson":
            invalid(
                "topology.rates",
                channel.rate,
                "some groups set a rate, which other schemes do not support",
                'use scheme = "poisson"',
            )
        settings = settings.model_copy(update={"rate": channel.rate})
    adjacency = Adjacency(experiment.privacy.adjacency)
    cohorts = replace(algorithm.facts.cohorts(experiment), seed=experiment.seed)
    sampler = build_sampler(settings, population=len(channel.members), adjacency=adjacency, cohorts=cohorts)
    if settings.scheme not in SAMPLERS:
        check_first_sampler(settings, sampler, adjacency)
    return reveal_cohorts(sampler) if algorithm.facts.remembers else sampler


def held_labels(federation: Federation, share: float) -> list[frozenset[int]]:
    """Return, per client, the labels that make up more than `share` of its training examples."""
    if federation.target_shape or federation.test.y.dtype.kind == "f":
        reason = f"{federation.source} has no labels from which groups could be formed"
        invalid("topology.structure", "labels", reason, "choose another structure")
    result = []
    for client in federation.clients:
        labels, counts = np.unique(client.train.y, return_counts=True)
        result.append(frozenset(int(y) for y, n in zip(labels, counts, strict=True) if n > share * len(client.train)))
    return result


def _refuse_schedules_of_changing_members(experiment: Experiment, topology: Topology) -> None:
    """Raise `Refused` for schedules and noise streams over the whole run if members come and go."""
    for name, sampler in (("clients", experiment.sampling.clients), ("samples", experiment.sampling.samples)):
        if sampler is not None and sampler.scheduled and not topology.steady:
            reason = "members join and leave, but a schedule needs the same members in every round"
            refuse(f"sampling.{name}.scheme", sampler.scheme, reason, 'use scheme = "poisson", or fixed memberships')
    if experiment.privacy.noise == "correlated" and not topology.steady:
        reason = "members join and leave, but correlated noise needs the same members in every round"
        refuse("privacy.noise", "correlated", reason, 'use privacy.noise = "independent", or fixed memberships')


def _refuse_unused_factors(topology: Topology, mechanism: Mechanism) -> None:
    """Raise `Refused` if a channel has its own noise or clip norm and the mechanism ignores it."""
    # Ignoring a factor silently would add less noise than the topology promises to the group.
    own = [c for c in topology.channels if (c.noise_factor, c.clip_factor) != (1.0, 1.0)]
    if own and not mechanism.facts.uses_channel_factors:
        reason = f"{own[0].name} sets a noise or clip factor, which only client-level Gaussian noise supports"
        refuse("topology", own[0].name, reason, 'use unit = "client" with mechanism = "gaussian"')


def _build_model(experiment: Experiment, federation: Federation, factory: models.Factory | None) -> FlatModel:
    loss = experiment.model.loss
    own = None if loss is None else models.own_loss(loss)
    task = models.build_task(experiment.model.target, federation, own, loss)
    model = models.build_model(
        experiment.model.name,
        input_shape=federation.input_shape,
        classes=models.count_outputs(task, federation),
        kind=federation.kind,
        vocabulary=federation.vocabulary,
        settings=experiment.model.settings,
        task=task,
        factory=factory,
    )
    # A layer that mixes the examples of a batch has no per-example gradient that could be clipped.
    if experiment.privacy.unit == "sample":
        refuse_mixing_layers(model.module())
    augment = experiment.local.augment
    if augment is not None and federation.kind is not Kind.IMAGE:
        invalid("local.augment.kind", augment.kind, f"{federation.source} holds no images", "remove local.augment")
    if experiment.local.compiled:
        linear_kernel.check_kernel(model)
    if experiment.local.precision != "float32":
        half_worker(model)
    return model


def _start_vector(experiment: Experiment, model: FlatModel, streams: Streams) -> tuple[FlatModel, Tensor]:
    """Return the model and the start vector; a file may also hold the model's frozen tensors and buffers."""
    if experiment.model.init is None:
        return model, model.init(streams.rng(Purpose.INIT))
    path = Path(experiment.model.init)
    try:
        if not path.is_file():
            raise OSError("not a regular file") if path.exists() else FileNotFoundError(path)
        model, vector = model.load(load_file(path))
    except FileNotFoundError:
        invalid("model.init", path, "no such file", "give a .safetensors file of named tensors")
    except (OSError, SafetensorError) as error:
        invalid("model.init", path, f"is not a safetensors file ({type(error).__name__})")
    if not all(torch.isfinite(tensor).all() for tensor in (vector, *model.constants.values())):
        invalid("model.init", path, "holds numbers that are not finite")
    return model, vector


def _find_earlier(experiment: Experiment, federation: Federation) -> EarlierRuns | None:
    """Return the runs behind `model.init`. Raise `Refused` if the budget must include their cost and it is unknown."""
    init, privacy = experiment.model.init, experiment.privacy
    digest = None if init is None or federation.elsewhere else federation.digest()
    earlier = None if init is None else find_earlier(Path(init), digest)
    if privacy.continue_ledger:
        why = "there is no ledger beside the file that training starts from"
        if earlier is not None:
            why = earlier.explain_unknown(privacy.unit, privacy.adjacency)
        if why:
            refuse("privacy.continue_ledger", True, why, "omit it, or start from the model in a run directory")
    return earlier
