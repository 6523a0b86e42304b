"""Which mechanism an experiment file asks for: by its name, the unit it protects and where the noise is added."""

from collections.abc import Callable, Sequence

from sightline.config import Experiment
from sightline.errors import refuse
from sightline.events import Adjacency
from sightline.mechanisms.clip_and_noise import ARITHMETIC, NoisySum
from sightline.mechanisms.contract import Mechanism
from sightline.mechanisms.dp_sgd import SampleAtClient, SampleAtServer, schedule_steps, steps_for
from sightline.mechanisms.gaussian_means import CentralMean, EveryoneNoisesMean, LocalMean, NoiseByTrust, PooledMean
from sightline.mechanisms.no_privacy import NoPrivacy
from sightline.mechanisms.objective import Objective
from sightline.mechanisms.output import Bound, Facts, Output
from sightline.mechanisms.segments import SegmentSums
from sightline.mechanisms.submodels import Splitter
from sightline.mechanisms.updates import PrivateSteps
from sightline.topology import Topology

UNIT_NOISE = 1.0
"""The noise of a mechanism that has not been calibrated yet."""


def _private_plans(experiment: Experiment, sizes: Sequence[int]) -> dict[int, PrivateSteps]:
    local = experiment.local
    batch_size = None if experiment.samples_scheme == "full" else local.batch_size
    clip_norm = experiment.privacy.clip_norm
    plans = {
        client: steps_for(size, batch_size=batch_size, epochs=local.epochs, steps=local.steps, clip_norm=clip_norm)
        for client, size in enumerate(sizes)
    }
    sampler = experiment.sampling.samples
    if sampler is None or not sampler.scheduled:
        return plans
    return {
        client: schedule_steps(plan, sizes[client], sampler, rounds=experiment.rounds) for client, plan in plans.items()
    }


def _client_noise(experiment: Experiment) -> tuple[float, float, NoisySum]:
    privacy = experiment.privacy
    return privacy.clip_norm, UNIT_NOISE, ARITHMETIC[privacy.arithmetic]


def _client_mean(experiment: Experiment) -> LocalMean:
    """Noise at every client: in a star it adds up, since how many there are does not follow from released values."""
    kind = PooledMean if experiment.topology.kind == "star" else LocalMean
    kind = EveryoneNoisesMean if experiment.privacy.everyone_sends_noise else kind
    return kind(*_client_noise(experiment))


def _build_output(experiment: Experiment, sizes: Sequence[int], classes: int) -> Output:
    privacy, local = experiment.privacy, experiment.local
    facts = Facts(
        clip_norm=privacy.clip_norm,
        adjacency=Adjacency(privacy.adjacency),
        learning_rate=local.learning_rate,
        curvature=local.weight_decay,
        gradient_tolerance=privacy.gradient_tolerance,
    )
    bound = Bound(privacy.sensitivity or "clipped_model")
    return Output(bound, facts, local.weight_decay, dict(enumerate(sizes)), classes, privacy.noise_std)


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
    ("gaussian", "client", "server"): lambda experiment, sizes, classes: CentralMean(*_client_noise(experiment)),
    ("gaussian", "client", "client"): lambda experiment, sizes, classes: _client_mean(experiment),
    ("gaussian", "client", "edge"): lambda experiment, sizes, classes: NoiseByTrust(*_client_noise(experiment)),
    ("gaussian", "sample", "server"): lambda experiment, sizes, classes: SampleAtServer(
        _private_plans(experiment, sizes), experiment.local.learning_rate
    ),
    ("gaussian", "sample", "client"): lambda experiment, sizes, classes: SampleAtClient(
        _private_plans(experiment, sizes)
    ),
    ("gaussian", "sample", "edge"): lambda experiment, sizes, classes: SegmentSums(_private_plans(experiment, sizes)),
    ("output", "sample", "client"): _build_output,
    ("objective", "sample", "client"): _build_objective,
    ("gaussian", "none", "server"): lambda experiment, sizes, classes: NoPrivacy(),
    ("gaussian", "none", "client"): lambda experiment, sizes, classes: NoPrivacy(),
    ("gaussian", "none", "edge"): lambda experiment, sizes, classes: NoPrivacy(),
}
"""(privacy.mechanism, unit, where) -> how it is built. Every law and every audit walks over these: a mechanism that is
not here cannot be asked for, and one that is here without a law of its noise turns the tests red."""


def needs_unit_features(experiment: Experiment) -> bool:
    """Whether the guarantee rests on features of bounded norm."""
    return experiment.privacy.mechanism == "objective" or experiment.privacy.sensitivity == "strongly_convex"


def build_mechanism(
    experiment: Experiment,
    topology: Topology,
    *,
    sizes: Sequence[int],
    classes: int = 0,
    splitter: Splitter | None = None,
) -> Mechanism:
    """The mechanism of an experiment, with unit noise; over parts of the model when there is a splitter."""
    mechanism = _for_whole_models(experiment, topology, sizes, classes)
    return mechanism if splitter is None else mechanism.in_parts(splitter)


def _for_whole_models(experiment: Experiment, topology: Topology, sizes: Sequence[int], classes: int) -> Mechanism:
    privacy = experiment.privacy
    edges = bool(topology.uplinks)
    if privacy.place == "edge" and not edges:
        law = f"a {experiment.topology.kind} has no edge servers"
        refuse("privacy.where", "edge", law, 'use where = "server" or "client", or kind = "tree"')
    asked = (privacy.mechanism, privacy.unit, privacy.place)
    if edges and asked == ("gaussian", "client", "client"):
        return NoiseByTrust(*_client_noise(experiment))
    return MECHANISMS[asked](experiment, sizes, classes)
