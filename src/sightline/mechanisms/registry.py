"""Table of mechanisms: which one an experiment file asks for, by name, privacy unit and place of the noise."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sightline.config import Correlated, Experiment
from sightline.errors import refuse
from sightline.events import Adjacency
from sightline.mechanisms.adaptive_clipping import AdaptiveMean
from sightline.mechanisms.clip_and_noise import ARITHMETIC, NewSum
from sightline.mechanisms.contract import Mechanism, NoPrivacy
from sightline.mechanisms.convex_solver import HALF
from sightline.mechanisms.correlated_noise import Workload, build_correlated, sum_rounds
from sightline.mechanisms.dp_sgd import SampleAtClient, SampleAtServer, correlate_plan, schedule_steps, steps_for
from sightline.mechanisms.gaussian_means import CentralMean, EveryoneNoisesMean, LocalMean, NoiseByTrust, PooledMean
from sightline.mechanisms.perturbation import Bound, BoundTerms, Objective, Output
from sightline.mechanisms.samplers import Cohorts
from sightline.mechanisms.segments import WHOLE, ConvexSegments, ConvexTerms, SegmentSums, convex_plan
from sightline.mechanisms.submodels import Splitter
from sightline.plugins import MECHANISM, Plugin, locate_plugin, refuse_plugin
from sightline.topology import Topology
from sightline.training.call import PrivateSteps

UNIT_NOISE = 1.0
"""The noise multiplier of a mechanism that is not calibrated yet."""


def _private_plans(experiment: Experiment, sizes: Sequence[int]) -> dict[int, PrivateSteps]:
    local = experiment.local
    batch_size = None if experiment.samples_scheme == "full" else local.batch_size
    clip_norm = experiment.privacy.clip_norm
    plans = {
        client: steps_for(size, batch_size=batch_size, epochs=local.epochs, steps=local.steps, clip_norm=clip_norm)
        for client, size in enumerate(sizes)
    }
    if experiment.privacy.noise == "correlated":
        settings = experiment.privacy.correlated or Correlated()
        return {client: correlate_plan(plan, sizes[client], settings) for client, plan in plans.items()}
    sampler = experiment.sampling.samples
    if sampler is None or not sampler.scheduled:
        return plans
    return {
        client: schedule_steps(plan, sizes[client], sampler, rounds=experiment.rounds) for client, plan in plans.items()
    }


def _client_noise(experiment: Experiment) -> tuple[float, float, NewSum]:
    privacy = experiment.privacy
    return privacy.clip_norm, UNIT_NOISE, ARITHMETIC[privacy.arithmetic]


def _build_convex(experiment: Experiment, sizes: Sequence[int]) -> ConvexSegments | None:
    """Build convex steps if asked for: drawn in secret, or in a fixed order if only the output is noised."""
    privacy, local = experiment.privacy, experiment.local
    if privacy.sensitivity != "convex":
        return None
    every = 5 if experiment.algorithm.name == "h2fdp" else None
    steps = experiment.algorithm.settings.get("local_aggregation", every)
    plans = {
        n: convex_plan(plan, sizes[n], drawn=privacy.mechanism == "gaussian", steps=steps)
        for n, plan in _private_plans(experiment, sizes).items()
    }
    terms = ConvexTerms(
        learning_rate=local.learning_rate,
        weight_decay=local.weight_decay,
        sizes=dict(enumerate(sizes)),
        by_client=privacy.place == "client",
        adjacency=Adjacency(privacy.adjacency),
    )
    return ConvexSegments(plans, terms=terms, noise_std=privacy.noise_std)


def _server_mean(experiment: Experiment) -> CentralMean:
    """Build noise at a trusted server, with a clip norm that adapts if asked for."""
    rule = experiment.privacy.adaptive_clipping
    how = _client_noise(experiment)
    return CentralMean(*how) if rule is None else AdaptiveMean(*how, rule=rule)


def _client_mean(experiment: Experiment) -> LocalMean:
    """Build noise at every client; in a star the noises add up."""
    # In clusters the number of senders follows released values, so pooling is not claimed there. In a star the sampler
    # alone decides it.
    kind = PooledMean if experiment.topology.kind == "star" else LocalMean
    kind = EveryoneNoisesMean if experiment.privacy.everyone_sends_noise else kind
    return kind(*_client_noise(experiment))


def _build_output(experiment: Experiment, sizes: Sequence[int], classes: int) -> Output:
    privacy, local = experiment.privacy, experiment.local
    terms = BoundTerms(
        clip_norm=privacy.clip_norm,
        adjacency=Adjacency(privacy.adjacency),
        learning_rate=local.learning_rate,
        curvature=local.weight_decay,
        gradient_tolerance=privacy.gradient_tolerance,
    )
    bound = Bound(privacy.sensitivity or "clipped_model")
    return Output(bound, terms, local.weight_decay, dict(enumerate(sizes)), classes, privacy.noise_std)


def _build_objective(experiment: Experiment, sizes: Sequence[int], classes: int) -> Objective:
    privacy = experiment.privacy
    return Objective(
        sizes=dict(enumerate(sizes)),
        classes=classes,
        adjacency=Adjacency(privacy.adjacency),
        weight_decay=experiment.local.weight_decay,
        gradient_tolerance=privacy.gradient_tolerance,
        noise_rate=privacy.noise_rate,
    )


Build = Callable[[Experiment, Sequence[int], int], Mechanism]
"""(experiment, every client's number of examples, classes) -> the mechanism, with unit noise."""

MECHANISMS: dict[tuple[str, str, str], Build] = {
    ("gaussian", "client", "server"): lambda experiment, sizes, classes: _server_mean(experiment),
    ("gaussian", "client", "client"): lambda experiment, sizes, classes: _client_mean(experiment),
    ("gaussian", "client", "edge"): lambda experiment, sizes, classes: NoiseByTrust(*_client_noise(experiment)),
    ("gaussian", "sample", "server"): lambda experiment, sizes, classes: SampleAtServer(
        _private_plans(experiment, sizes), experiment.local.learning_rate
    ),
    ("gaussian", "sample", "client"): lambda experiment, sizes, classes: (
        _build_convex(experiment, sizes) or SampleAtClient(_private_plans(experiment, sizes))
    ),
    ("gaussian", "sample", "edge"): lambda experiment, sizes, classes: (
        _build_convex(experiment, sizes) or SegmentSums(_private_plans(experiment, sizes))
    ),
    ("output", "sample", "client"): lambda experiment, sizes, classes: (
        _build_convex(experiment, sizes) or _build_output(experiment, sizes, classes)
    ),
    ("objective", "sample", "client"): _build_objective,
    ("gaussian", "none", "server"): lambda experiment, sizes, classes: NoPrivacy(),
    ("gaussian", "none", "client"): lambda experiment, sizes, classes: NoPrivacy(),
    ("gaussian", "none", "edge"): lambda experiment, sizes, classes: NoPrivacy(),
}
"""(privacy.mechanism, unit, where) -> how to build it. Every noise check and audit loops over this table: a mechanism
that is not here cannot be asked for, and one that is here without a check of its noise fails the tests.
"""


@dataclass(frozen=True)
class MechanismPlugin:
    """A mechanism of another package for clients' updates, the unit on which it can be checked."""

    build: Build
    """Builds the mechanism; its own settings are `experiment.privacy.options`."""
    where: tuple[str, ...] = ("server",)
    """The values of `privacy.where` that it supports."""


def find_mechanism(experiment: Experiment) -> tuple[Plugin, MechanismPlugin] | None:
    """Return the plugin mechanism that the experiment names; None for a built-in one.

    Raise `Refused` if the plugin has the wrong type, unit or place.
    """
    privacy, built_in = experiment.privacy, {name for name, _, _ in MECHANISMS}
    plugin = locate_plugin(MECHANISM, privacy.mechanism, built_in)
    if plugin is None:
        return None
    result = plugin.load_object()
    if not isinstance(result, MechanismPlugin):
        plugin.refuse_type(result, "a `MechanismPlugin` of sightline.mechanisms")
    if privacy.unit != "client":
        reason = "plugin mechanisms can be checked at client level only"
        refuse("privacy.unit", privacy.unit, reason, 'use unit = "client", or a built-in mechanism')
    if privacy.place not in result.where:
        reason = f"{plugin.name} adds noise at {', '.join(result.where)}"
        refuse("privacy.where", privacy.place, reason, f'use where = "{result.where[0]}"')
    return plugin, result


def _build_plugin(plugin: Plugin, mechanism: MechanismPlugin, experiment: Experiment, *how: Any) -> Mechanism:
    """Build a plugin mechanism; `engine.build` has checked it."""
    try:
        return mechanism.build(experiment, *how)
    except Exception as error:
        refuse_plugin(MECHANISM, plugin.name, error)


def solves_exactly(experiment: Experiment) -> bool:
    """Return whether clients send minimisers found by a solver."""
    return experiment.privacy.mechanism == "objective" or experiment.privacy.sensitivity == "strongly_convex"


def feature_norm(experiment: Experiment) -> float | None:
    """Return the norm to which features are scaled if the guarantee rests on it; None otherwise."""
    if experiment.privacy.sensitivity == "convex":
        return WHOLE
    return HALF if solves_exactly(experiment) else None


def build_mechanism(
    experiment: Experiment,
    topology: Topology,
    *,
    sizes: Sequence[int],
    classes: int = 0,
    splitter: Splitter | None = None,
    cohorts: Cohorts | None = None,
    workload: Workload = sum_rounds,
) -> Mechanism:
    """Build the mechanism of an experiment with unit noise, over parts of the model if there is a splitter.

    `cohorts`: how many cohorts each channel draws, by default one per round; it is the length of noise streams, which
    are optimised for the algorithm's `workload`.
    """
    if experiment.privacy.noise == "correlated" and experiment.privacy.unit == "client":
        _refuse_edges(experiment, topology)
        edges = {channel.name: channel.trusted for channel in topology.gathering_channels}
        return build_correlated(experiment, cohorts or Cohorts(experiment.rounds), edges, workload)
    mechanism = _for_whole_models(experiment, topology, sizes, classes)
    return mechanism if splitter is None else mechanism.in_parts(splitter)


def _refuse_edges(experiment: Experiment, topology: Topology) -> None:
    """Raise `Refused` for noise at edges without edges."""
    if experiment.privacy.place == "edge" and not topology.uplinks:
        reason = f'topology.kind = "{experiment.topology.kind}" has no edge servers'
        refuse("privacy.where", "edge", reason, 'use where = "server" or "client", or kind = "tree"')


def _for_whole_models(experiment: Experiment, topology: Topology, sizes: Sequence[int], classes: int) -> Mechanism:
    privacy = experiment.privacy
    edges = bool(topology.uplinks)
    _refuse_edges(experiment, topology)
    own = find_mechanism(experiment)
    if own is not None:
        return _build_plugin(*own, experiment, sizes, classes)
    asked = (privacy.mechanism, privacy.unit, privacy.place)
    # With where = "client" no server of the tree is trusted: every channel pools its members' noises.
    if edges and asked == ("gaussian", "client", "client"):
        return NoiseByTrust(*_client_noise(experiment))
    if asked not in MECHANISMS:
        known = " or ".join(f'unit = "{unit}" with where = "{at}"' for name, unit, at in MECHANISMS if name == asked[0])
        refuse(
            "privacy.mechanism", asked[0], f'does not support unit = "{asked[1]}", where = "{asked[2]}"', f"use {known}"
        )
    return MECHANISMS[asked](experiment, sizes, classes)
