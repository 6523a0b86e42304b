"""What is released, minus what it was computed from: the noise, in units of what the ledger claims of it.

Every mechanism of the registry runs through the engine's own rounds on clients whose contributions are known. For every
release that claims noise, the un-noised value is worked out by hand and taken off; what is left is divided by the
standard deviation that follows from the claimed event and from the sensitivity, written here as a formula of its own.
It must then be standard normal, in every coordinate, and independent of everything else that the run drew.
"""

import importlib
import inspect
import math
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

import sightline.mechanisms
from sightline import engine
from sightline.config import parse
from sightline.engine import BuiltExperiment
from sightline.engine.execution import LiveExecution
from sightline.engine.round import TrainingRound
from sightline.events import Clear, Event, Exponential, Gaussian, Product, Pure
from sightline.ledger import POST_PROCESSING, Ledger, Release
from sightline.mechanisms import (
    MECHANISMS,
    AdaptiveMean,
    CentralMean,
    ConvexSegments,
    CorrelatedByTrust,
    CorrelatedMean,
    EveryoneNoisesMean,
    LocalMean,
    Mechanism,
    NoiseByTrust,
    NoPrivacy,
    PooledMean,
    PrivateSteps,
    Public,
    ReleaseContext,
    ReleaseValues,
    SampleAtClient,
    SampleAtServer,
    SegmentSums,
    Updates,
    trim_sources,
)
from sightline.mechanisms.contract import UniformMechanism
from sightline.mechanisms.convex_solver import to_unit, unit_examples
from sightline.mechanisms.perturbation import REMAINDER, Objective, Output
from sightline.randomness import EVERYONE, Streams
from sightline.runtimes import Simulator
from sightline.topology import client_name
from sightline.training.call import CallKind, TrainingCall
from tests.laws.combinations import Combination, plain

CLIP_NORM, LEARNING_RATE, CURVATURE, TOLERANCE = 0.5, 0.1, 0.5, 1e-3
DIMENSION, FEATURES = 2000, 600
NEEDED = {n: 1.1 + 0.2 * n for n in range(6)}
"""Every client's noise multiplier: no two are alike."""


@dataclass(frozen=True)
class Case:
    """A combination, with some keys of its file changed."""

    words: dict[str, Any] = field(default_factory=dict)
    changes: dict[str, dict[str, Any]] = field(default_factory=dict)
    rounds: int = 4

    @property
    def combination(self) -> Combination:
        """The one that the file is made from."""
        return Combination(**self.words)

    @property
    def asked(self) -> tuple[str, str, str]:
        """The key of the registry."""
        c = self.combination
        return c.mechanism, c.unit, c.where

    def setting(self) -> BuiltExperiment:
        """Ready to run, every client with noise of its own."""
        file = plain(self.combination)
        file["rounds"] = self.rounds
        file["local"]["learning_rate"] = LEARNING_RATE
        if self.combination.unit == "sample":
            file["data"]["features"] = 30 if self.combination.split == "yes" else FEATURES
        for section, keys in self.changes.items():
            file[section] = {key: value for key, value in (file[section] | keys).items() if value is not None}
        return engine.build_experiment(parse(file)).with_noise(NEEDED)


SAMPLE = {"unit": "sample", "where": "client"}
OUTPUT = SAMPLE | {"mechanism": "output"}
TREE = {"topology": "tree", "where": "edge"}
CONVEX = {"privacy": {"sensitivity": "convex"}}
TRUSTED = {"topology": {"trusted": 1.0}}
EVERYONES_NOISE = {"privacy": {"everyone_sends_noise": True}}
ONE_STEP = {"local": {"steps": 1}}
PARTS = {
    "algorithm": {"split": {"parts": 3, "unsplit": ["first"], "unsplit_noise": 1.6, "unsplit_clip_norm": 0.2}},
    "model": {"name": "mlp", "hidden": [36, 36]},
}
ADAPTIVE = {"privacy": {"adaptive_clipping": {"quantile": 0.6, "learning_rate": 0.8}}}
TURNS = {"clients": "turns"}
CORRELATED = TURNS | {"noise": "correlated"}
THREE_GROUPS = {"sampling": {"clients": {"scheme": "turns", "groups": 3}}}
DRAWN_TURNS = {"sampling": {"clients": {"scheme": "turns", "groups": 3, "rate": 0.5}}}
SEVERAL = {"rates": [0.7, 0.4], "noise_factors": [1.0, 1.5], "clip_factors": [1.0, 0.3]}


def bound(name: str, **local: Any) -> dict[str, dict[str, Any]]:
    """Output perturbation by one of its bounds."""
    return {"privacy": {"sensitivity": name, "gradient_tolerance": TOLERANCE}, "local": {"steps": 1} | local}


def strategy(name: str, **more: int) -> dict[str, dict[str, Any]]:
    """Correlated noise by one of its strategies."""
    return {"privacy": {"correlated": {"strategy": name} | more}}


CASES: dict[str, Case] = {
    "central": Case({"clients": "poisson"}, rounds=8),
    "central, replaced": Case({"clients": "fixed", "adjacency": "replace"}),
    "central, integers": Case({"clients": "poisson"}, {"privacy": {"arithmetic": "integer"}}),
    "central, integers, replaced": Case({"adjacency": "replace"}, {"privacy": {"arithmetic": "integer"}}),
    "central, balanced": Case({"clients": "balanced"}),
    "central, parts": Case({"clients": "poisson", "split": "yes"}, PARTS),
    "central, groups": Case({"topology": "groups", "algorithm": "dp_ogl", "clients": "poisson"}, {"topology": SEVERAL}),
    "central, groups of their own": Case({"topology": "groups", "algorithm": "dp_ogl_plus"}),
    "central, adaptive": Case({"clients": "poisson"}, ADAPTIVE, rounds=8),
    "central, adaptive, replaced, integers": Case(
        {"clients": "fixed", "adjacency": "replace"},
        {"privacy": {"adaptive_clipping": {"count_noise_multiplier": 5.0}, "arithmetic": "integer"}},
    ),
    "central, adaptive, groups": Case(
        {"topology": "groups", "algorithm": "dp_ogl", "clients": "poisson"}, {"topology": SEVERAL} | ADAPTIVE
    ),
    "central, turns": Case(TURNS, rounds=8),
    "central, turns, replaced": Case(TURNS | {"adjacency": "replace"}, THREE_GROUPS, rounds=6),
    "central, drawn turns": Case(TURNS, DRAWN_TURNS, rounds=8),
    "correlated": Case(CORRELATED, rounds=8),
    "correlated, optimised": Case(CORRELATED, THREE_GROUPS | strategy("band"), rounds=8),
    "correlated, in buffers": Case(CORRELATED, THREE_GROUPS | strategy("blt"), rounds=8),
    "correlated, more bands": Case(CORRELATED, strategy("bsr", bands=5), rounds=8),
    "correlated, restarted": Case(CORRELATED, strategy("bsr", restart=3), rounds=8),
    "correlated, drawn turns": Case(CORRELATED, DRAWN_TURNS, rounds=8),
    "correlated, replaced": Case(CORRELATED | {"adjacency": "replace"}, THREE_GROUPS, rounds=8),
    "correlated, groups": Case(
        CORRELATED | {"topology": "groups", "algorithm": "dp_ogl"}, {"topology": {"noise_factors": [1.0, 1.5]}}
    ),
    "correlated, by trust": Case(TREE | CORRELATED, TRUSTED, rounds=6),
    "local, turns": Case(TURNS | {"where": "client"}, rounds=6),
    "local": Case({"where": "client", "clients": "poisson"}),
    "local, replaced": Case({"where": "client", "adjacency": "replace"}),
    "local, integers": Case({"where": "client"}, {"privacy": {"arithmetic": "integer"}}),
    "local, parts": Case({"where": "client", "split": "yes"}, PARTS),
    "local, one model each": Case({"where": "client", "algorithm": "local"}),
    "local, clusters": Case({"where": "client", "topology": "clusters", "algorithm": "oracle_clusters"}),
    "local, of everyone": Case({"where": "client", "clients": "poisson"}, EVERYONES_NOISE, rounds=8),
    "local, of everyone, replaced": Case(
        {"where": "client", "clients": "fixed", "adjacency": "replace"}, EVERYONES_NOISE
    ),
    "by trust": Case(TREE | {"clients": "poisson"}),
    "by trust, in segments": Case(TREE | {"algorithm": "h2fdp"}),
    "by trust, all edges trusted": Case(TREE | {"algorithm": "h2fdp", "clients": "poisson"}, TRUSTED),
    "by trust, parts": Case(TREE | {"split": "yes"}, PARTS),
    "by trust, at the devices": Case({"topology": "tree", "where": "client"}),
    "examples at the client": Case(SAMPLE | {"samples": "poisson", "clients": "poisson"}, ONE_STEP),
    "examples at the client, full": Case(SAMPLE | {"samples": "full"}, ONE_STEP),
    "examples at the client, balanced": Case(SAMPLE | {"samples": "balanced"}, ONE_STEP),
    "examples at the client, parts": Case(SAMPLE | {"samples": "poisson", "split": "yes"}, PARTS | ONE_STEP),
    "examples at the server": Case(SAMPLE | {"where": "server", "samples": "poisson"}, rounds=8),
    "examples at the server, some clients": Case(SAMPLE | {"where": "server", "samples": "full", "clients": "poisson"}),
    "examples at the server, parts": Case(SAMPLE | {"where": "server", "samples": "poisson", "split": "yes"}, PARTS),
    "segments": Case(SAMPLE | {"topology": "tree", "algorithm": "h2fdp", "where": "edge", "samples": "poisson"}),
    "segments, all edges trusted": Case(
        SAMPLE | {"topology": "tree", "algorithm": "h2fdp", "where": "edge", "samples": "poisson"}, TRUSTED
    ),
    "convex segments": Case(
        SAMPLE | {"topology": "tree", "algorithm": "h2fdp", "where": "edge", "samples": "poisson"}, CONVEX
    ),
    "convex segments, all edges trusted": Case(
        SAMPLE | {"topology": "tree", "algorithm": "h2fdp", "where": "edge", "samples": "poisson"}, CONVEX | TRUSTED
    ),
    "convex steps at the client": Case(SAMPLE | {"samples": "poisson", "clients": "poisson"}, CONVEX),
    "output, convex": Case(OUTPUT, bound("convex")),
    "output, convex, replaced": Case(OUTPUT | {"adjacency": "replace"}, bound("convex")),
    "output, clipped_model": Case(OUTPUT, bound("clipped_model")),
    "output, strongly_convex": Case(OUTPUT, bound("strongly_convex", weight_decay=CURVATURE), rounds=2),
    "output, strongly_convex, replaced": Case(
        OUTPUT | {"adjacency": "replace"}, bound("strongly_convex", weight_decay=CURVATURE), rounds=2
    ),
    "output, per_sample_mean": Case(OUTPUT | {"samples": "full"}, bound("per_sample_mean")),
    "output, per_sample_mean, replaced": Case(
        OUTPUT | {"samples": "full", "adjacency": "replace"}, bound("per_sample_mean")
    ),
    "objective": Case(SAMPLE | {"mechanism": "objective"}, {"privacy": {"gradient_tolerance": TOLERANCE}}),
    "objective, replaced": Case(
        SAMPLE | {"mechanism": "objective", "adjacency": "replace"}, {"privacy": {"gradient_tolerance": TOLERANCE}}
    ),
}


class KnownClients:
    """Clients whose training ends at a known distance from its start: far outside the clip norm, or inside it."""

    nodes = None

    def __init__(self, dimension: int, sizes: list[int]) -> None:
        self.dimension, self.sizes = dimension, sizes

    def close(self) -> None:
        """Nothing to let go."""

    def update(self, member: int, at: Any) -> torch.Tensor:
        """What a member has to say in one training call."""
        rng = np.random.default_rng([member, at.round, at.use])
        direction = rng.standard_normal(self.dimension)
        length = (3.0 if member % 2 else 0.1) * CLIP_NORM
        return torch.from_numpy(direction * (length / np.linalg.norm(direction))).float()

    def run(self, call):
        """Where training ended; private steps only where another adds the noise for the members."""
        assert call.kind in (CallKind.TRAIN, CallKind.DP_SGD)
        assert {plan.noise_multiplier for plan in call.plans} <= {0.0}
        if call.cohort:
            yield call.cohort, call.starts + torch.stack([self.update(member, call.at) for member in call.cohort])


@dataclass(frozen=True, eq=False)
class Call:
    """One release call: what was asked, what the members let go of, what came out."""

    updates: Updates
    context: ReleaseContext
    left: dict[int, torch.Tensor]
    outcome: ReleaseValues

    def value_of(self, release: Release) -> torch.Tensor:
        """The value that a release let go."""
        values = {client_name(n): v for n, v in {**self.outcome.values, **self.left}.items() if n != EVERYONE}
        if EVERYONE in self.outcome.values:
            values[self.context.channel.name] = self.outcome.values[EVERYONE]
        return values[release.source]


class NotedExecution(LiveExecution):
    """The execution of a real run that remembers its release calls."""

    def __init__(self, calls: list[Call], *where: Any) -> None:
        super().__init__(*where)
        self._calls = calls

    def compute_values(
        self, updates: Updates, context: ReleaseContext, compute: Callable[..., ReleaseValues]
    ) -> ReleaseValues:
        left: dict[int, torch.Tensor] = {}
        whole = Updates.collect_outputs

        def noted(self, mechanism, context):
            for one in whole(self, mechanism, context):
                left[one.member] = one.value
                yield one

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Updates, "collect_outputs", noted)
            outcome = super().compute_values(updates, context, compute)
        self._calls.append(Call(updates, context, left, outcome))
        return outcome


@dataclass(frozen=True, eq=False)
class Noted:
    """A run: its setting, its ledger, and its release calls."""

    setting: BuiltExperiment
    ledger: Ledger
    calls: list[Call]
    worker: Any

    def claims_of(self, number: int) -> list[Release]:
        """What the ledger says of one call."""
        first = [call.context.next_id for call in self.calls] + [len(self.ledger)]
        return [self.ledger[place] for place in range(first[number], first[number + 1])]

    def noisy(self) -> Iterator[tuple[Call, Release]]:
        """Every release that claims noise, with its call."""
        for number, call in enumerate(self.calls):
            for release in self.claims_of(number):
                if not isinstance(release.event, Clear | Exponential) and release.event != POST_PROCESSING:
                    yield call, release


def noted_run(setting: BuiltExperiment, rounds: int, seed: int = 7) -> Noted:
    """The engine's own rounds of a setting, on known clients or on real examples."""
    secret, ledger, calls = Streams.from_seed(seed), Ledger(), list[Call]()
    worker: Any
    if setting.unit == "sample" and not isinstance(setting.mechanism, SegmentSums):
        worker = Simulator(setting, secret, secret)
    else:
        size = setting.model.parameters if setting.splitter is not None else DIMENSION
        setting = replace(setting, start=0.01 * torch.ones(size))
        worker = KnownClients(size, setting.federation.sizes.tolist())
    execution, memories = NotedExecution(calls, worker, secret), {}
    state = setting.algorithm.init(Public(setting.start), setting.clients, setting.settings)
    for time in range(1, rounds + 1):
        r = TrainingRound(setting, ledger, execution, time, memories)
        after = setting.algorithm.round(state, r, setting.settings)
        state = trim_sources(after, ledger)
        memories = r.memories
    return Noted(setting, ledger, calls, worker)


def noises_in(event: Event) -> tuple[float, ...]:
    """The noise multipliers that an event claims: of the parts first, then of what is not split."""
    if isinstance(event, Gaussian):
        return (event.noise_multiplier,)
    if isinstance(event, Product):
        if all(isinstance(part, Gaussian) for part in event.events):  # a sum and a count
            return tuple(z for part in event.events for z in noises_in(part))
        unsplit, parts = event.events
        return noises_in(parts) + noises_in(unsplit)
    return noises_in(event.event)  # coins, schedules, parts and pools around one Gaussian


def doubled(run: Noted) -> float:
    """How much further one subject moves a value when it is replaced and not left out."""
    return 2.0 if run.setting.experiment.privacy.adjacency == "replace" else 1.0


def expected_cohort(run: Noted, call: Call) -> float:
    """The public denominator of a mean, from the experiment file."""
    how, channel = run.setting.experiment.sampling.clients, call.context.channel
    share = {"poisson": channel.rate or how.rate, "fixed": how.rate}.get(how.scheme, 1.0)
    if how.scheme == "balanced":
        share = how.uses / run.setting.experiment.rounds
    if how.scheme == "turns":
        share = (how.rate or 1.0) / how.groups
    return share * len(channel.members)


def onto_ball(update: torch.Tensor, radius: float) -> torch.Tensor:
    """The textbook's clipping, in double precision."""
    norm = float(update.double().norm())
    return update.double() * min(1.0, radius / norm)


def scales(run: Noted, release: Release, sensitivity: float) -> torch.Tensor | float:
    """The standard deviation that the claimed event stands for; of split models by coordinate."""
    claimed, splitter = noises_in(release.event), run.setting.splitter
    if splitter is None or len(claimed) == 1:
        return claimed[0] * sensitivity
    unsplit = splitter.unsplit
    return torch.where(unsplit, claimed[1] * sensitivity * 0.2 / CLIP_NORM, claimed[0] * sensitivity).double()


def clipped_update(run: Noted, member: int, call: Call, radius: float) -> torch.Tensor:
    """What a known client's update is once it is clipped, in two balls where the model is split."""
    update, splitter = run.worker.update(member, call.updates.at), run.setting.splitter
    if splitter is None:
        return onto_ball(update, radius)
    inside = torch.where(splitter.unsplit, 0.0, update)
    return onto_ball(inside, radius) + onto_ball(update - inside, 0.2 / CLIP_NORM * radius)


def at_server(run: Noted, call: Call, release: Release) -> torch.Tensor:
    """(sum of clipped updates + noise) / expected cohort."""
    radius = CLIP_NORM * call.context.channel.clip_factor
    total = sum(clipped_update(run, n, call, radius) for n in call.updates.cohort.members)
    residual = call.value_of(release).double() * expected_cohort(run, call) - total
    return residual / scales(run, release, doubled(run) * radius)


def adapted_radius(run: Noted, call: Call) -> float:
    """C_t = C_1 prod exp(-eta (b_s - gamma)) over the earlier shares inside of the channel."""
    rule, name = run.setting.experiment.privacy.adaptive_clipping, call.context.channel.name
    assert rule is not None
    earlier = [c.outcome.numbers["inside_clip_norm"] for c in run.calls[: run.calls.index(call)]
               if c.context.channel.name == name]  # fmt: skip
    return CLIP_NORM * math.exp(-rule.learning_rate * sum(b - rule.quantile for b in earlier))


def adaptively_at_server(run: Noted, call: Call, release: Release) -> torch.Tensor:
    """`at_server` with the radius of the round; and the count of those inside, centred at 1/2."""
    radius, members = adapted_radius(run, call) * call.context.channel.clip_factor, call.updates.cohort.members
    updates = [run.worker.update(n, call.updates.at) for n in members]
    total = sum(onto_ball(update, radius) for update in updates)
    inside = sum(0.5 if float(update.double().norm()) <= radius else -0.5 for update in updates)
    z_sum, z_count = noises_in(release.event)
    expected = expected_cohort(run, call)
    residual = (call.value_of(release).double() * expected - total) / (z_sum * doubled(run) * radius)
    count = (call.outcome.numbers["inside_clip_norm"] - 0.5) * expected - inside
    return torch.cat([residual, torch.tensor([count / (z_count * doubled(run) / 2)])])


def at_client(run: Noted, call: Call, release: Release) -> torch.Tensor:
    """clipped update + noise."""
    radius = CLIP_NORM * call.context.channel.clip_factor
    clipped = clipped_update(run, sender(release), call, radius)
    return (call.value_of(release).double() - clipped) / scales(run, release, doubled(run) * radius)


def by_trust(run: Noted, call: Call, release: Release) -> torch.Tensor:
    """Either, as the channel is trusted or not."""
    return (at_server if call.context.channel.trusted else at_client)(run, call, release)


def in_segments(run: Noted, call: Call, release: Release) -> torch.Tensor:
    """Sums of m steps of length eta, each gradient of norm <= C: one example bends them by up to 2 eta m C."""
    task = call.updates.task
    reach = task.learning_rate * task.steps * CLIP_NORM
    who = call.updates.cohort.members if call.context.channel.trusted else (sender(release),)
    total = sum(onto_ball(run.worker.update(n, call.updates.at), reach) for n in who)
    count = len(call.updates.cohort.members) if call.context.channel.trusted else 1
    return (call.value_of(release).double() * count - total) / (noises_in(release.event)[0] * 2 * reach)


def in_convex_segments(run: Noted, call: Call, release: Release) -> torch.Tensor:
    """Paths of steps -eta / b (gradients), not clipped: each draw of an example moves them by up to 2 eta / b."""
    eta = call.updates.task.learning_rate or LEARNING_RATE
    at_server = call.context.channel.trusted and not release.source.startswith("client-")
    who = call.updates.cohort.members if at_server else (sender(release),)
    batch = run.setting.experiment.local.batch_size
    around = call.context.channel.members if at_server else who
    least = min(min(batch, int(run.setting.federation.sizes[n])) for n in around)
    total = sum(run.worker.update(n, call.updates.at).double() for n in who)
    count = len(call.updates.cohort.members) if at_server else 1
    reach = doubled(run) * 2 * eta / least
    return (call.value_of(release).double() * count - total) / (noises_in(release.event)[0] * reach)


def silent(plan: PrivateSteps) -> PrivateSteps:
    """The same steps without noise."""
    return replace(plan, noise_multiplier=0.0)


def own_steps(run: Noted, call: Call, release: Release) -> torch.Tensor:
    """One step: -eta (clipped gradients of the batch + noise) / expected batch, against the same step without noise."""
    member, updates = sender(release), call.updates
    plan = replace(run.setting.mechanism.plans[member], line=call.context.line)  # type: ignore[attr-defined]
    start = updates.starts[member].value
    ((_, ends),) = run.worker.run(
        replace(updates.make_call(CallKind.DP_SGD, [silent(plan)]), cohort=[member], starts=start)
    )
    noise = (call.value_of(release).double() - (ends[0] - start).double()) * (-plan.expected_batch / LEARNING_RATE)
    return noise / scales(run, release, CLIP_NORM)


def one_step_of_all(run: Noted, call: Call, release: Release) -> torch.Tensor:
    """-eta (clipped gradients of all batches + noise) / expected batch of all."""
    updates, sizes = call.updates, run.setting.federation.sizes
    plans = [run.setting.mechanism.plans[n] for n in updates.cohort.members]  # type: ignore[attr-defined]
    total = sum(some.double() for some in updates.gradient_sums(plans))
    full = run.setting.experiment.samples_scheme == "full"
    batches = sum(float(sizes[n]) if full else 4.0 for n in call.context.channel.members)
    share = expected_cohort(run, call) / len(call.context.channel.members)
    residual = call.value_of(release).double() * (-share * batches / LEARNING_RATE) - total
    return residual / scales(run, release, CLIP_NORM)


def perturbed_output(run: Noted, call: Call, release: Release) -> torch.Tensor:
    """The client's result + noise, in the space where the bound holds."""
    member, name = sender(release), run.setting.experiment.privacy.sensitivity
    start, size = call.updates.starts[member].value, float(run.setting.federation.sizes[member])
    sent, (z,) = call.value_of(release).double(), noises_in(release.event)
    if name == "strongly_convex":
        minimise = TrainingCall(CallKind.MINIMISE, [member], start, call.updates.at, gradient_tolerance=TOLERANCE)
        ((_, found),) = run.worker.run(minimise)
        moved = doubled(run) * math.sqrt(2) / (size * CURVATURE) + 2 * TOLERANCE / CURVATURE
        model = torch.from_numpy(to_unit((sent + start.double()).numpy(), 3))
        return (model - found[0].double()) / (z * moved)
    if name == "per_sample_mean":
        plan = PrivateSteps(CLIP_NORM, 0.0, 1.0, 1, 1.0)
        ((_, sums),) = run.worker.run(
            TrainingCall(CallKind.GRADIENT_SUMS, [member], start, call.updates.at, plans=[plan])
        )
        step = -LEARNING_RATE / size * sums[0].double()
        return (sent - step) / (z * doubled(run) * LEARNING_RATE * CLIP_NORM / size)
    ((_, ends),) = run.worker.run(TrainingCall(CallKind.TRAIN, [member], start, call.updates.at))
    return (sent + start.double() - onto_ball(ends[0], CLIP_NORM)) / (z * 2 * CLIP_NORM)


def perturbed_objective(run: Noted, call: Call, release: Release) -> torch.Tensor:
    """The linear term that leads to what was sent, and the noise on top: each of density ~ exp(-rate |n|).

    Such a vector's coordinates have variance (d + 1) / rate^2. The gradient of the data's own loss is less than sqrt 2
    long and hardly seen beside them; it is taken off all the same.
    """
    member, event = sender(release), release.event
    assert isinstance(event, Pure)
    start, size = call.updates.starts[member].value, float(run.setting.federation.sizes[member])
    model = to_unit((call.value_of(release) + start).double().numpy(), 3)
    shard = run.setting.federation.clients[member].train
    x, classes = unit_examples(shard.x), 3
    scores = x @ model.reshape(classes, -1).T
    p = np.exp(scores - scores.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p[np.arange(len(p)), shard.y] -= 1
    gradient = (p.T @ x / size).ravel() + CURVATURE * model
    share = event.epsilon * (1 - REMAINDER) - (1 - 1 / classes) / (size * CURVATURE)
    linear_rate = share * size / (doubled(run) * math.sqrt(2))
    rest_rate = REMAINDER * event.epsilon * CURVATURE / (2 * TOLERANCE)
    std = math.sqrt(len(model) + 1) * math.hypot(1 / linear_rate, CURVATURE / rest_rate)
    return torch.from_numpy(-gradient / std)


def sender(release: Release) -> int:
    """The client that let the value go."""
    return int(release.source.removeprefix("client-"))


def of_everyone(run: Noted, call: Call, release: Release) -> torch.Tensor:
    """A mean over the expected cohort, with one noise of every member, drawn or not."""
    return at_server(run, call, release) / math.sqrt(len(call.context.channel.members))


def dense_strategy(run: Noted) -> np.ndarray:
    """C of a stream, in full."""
    privacy, rounds = run.setting.experiment.privacy, run.setting.experiment.rounds
    length = min((privacy.correlated and privacy.correlated.restart) or rounds, rounds)
    found = run.setting.mechanism.stream.strategy  # type: ignore[attr-defined]
    c = [math.comb(2 * i, i) / 4**i for i in range(found.bands)] if found.name == "bsr" else found.coefficients
    column = np.zeros(length)
    column[: len(c)] = c
    return np.array([[column[i - j] if i >= j else 0.0 for j in range(length)] for i in range(length)])


@cache
def largest_shift(column: tuple[float, ...], apart: int) -> float:
    """Return how far a subject moves C x at most: the longest sum of columns at least `apart` apart, by brute force."""
    steps, longest = len(column), 0.0
    matrix = np.array([[column[i - j] if i >= j else 0.0 for j in range(steps)] for i in range(steps)])
    for chosen in range(1, 1 << steps):
        columns = [j for j in range(steps) if chosen >> j & 1]
        if all(later - earlier >= apart for earlier, later in pairwise(columns)):
            longest = max(longest, float(np.linalg.norm(matrix[:, columns].sum(1))))
    return longest


def spread_noise(run: Noted, release: Release) -> float:
    """How much more noise a row of z has than its release is charged: one where noises are independent."""
    if not isinstance(run.setting.mechanism, CorrelatedMean | CorrelatedByTrust):
        return 1.0
    matrix, groups = dense_strategy(run), run.setting.experiment.sampling.clients.groups
    assert groups is not None
    drawn = run.setting.experiment.sampling.clients.rate is not None
    return largest_shift(tuple(matrix[:, 0].tolist()), len(matrix) if drawn else groups)


def whitened(run: Noted, call: Call, release: Release) -> torch.Tensor:
    """C times what is released over the sums, for all rounds of the stream so far: its last row is z_t."""
    mine = [
        (other, r) for other, r in run.noisy()
        if other.context.channel.name == call.context.channel.name and other.context.time <= call.context.time
    ]  # fmt: skip
    matrix = dense_strategy(run)
    mine = mine[(len(mine) - 1) // len(matrix) * len(matrix) :]
    rows = torch.stack([at_server(run, *one) for one in mine]) / spread_noise(run, release)
    return torch.from_numpy(matrix[len(mine) - 1, : len(mine)]) @ rows


Law = Callable[[Noted, Call, Release], torch.Tensor]
LAWS: dict[type, Law | None] = {
    CentralMean: at_server,
    AdaptiveMean: adaptively_at_server,
    LocalMean: at_client,
    PooledMean: at_client,
    EveryoneNoisesMean: of_everyone,
    NoiseByTrust: by_trust,
    CorrelatedMean: whitened,
    CorrelatedByTrust: whitened,
    SampleAtServer: one_step_of_all,
    SampleAtClient: own_steps,
    SegmentSums: in_segments,
    ConvexSegments: in_convex_segments,
    Output: perturbed_output,
    Objective: perturbed_objective,
    NoPrivacy: None,
}
"""Mechanism -> its noise in units of its claim; None: it claims no noise."""


@cache
def mechanism_classes() -> frozenset[type]:
    """Every class of the package that has what the contract asks for, registered or not; not the abstract bases."""
    contract = {name for name in vars(Mechanism) if not name.startswith("_")}
    found = set()
    for module in pkgutil.iter_modules(sightline.mechanisms.__path__, "sightline.mechanisms."):
        for kind in vars(importlib.import_module(module.name)).values():
            if not inspect.isclass(kind) or kind is Mechanism or not contract <= set(dir(kind)):
                continue
            # A base resolves to itself and leaves the mean to its subclasses.
            if hasattr(kind, "mean") or kind.at is not UniformMechanism.at:
                found.add(kind)
    return frozenset(found)


def standard_noises(run: Noted) -> list[np.ndarray]:
    """The noise of every noisy release of a run, by the law of its mechanism, in units of its claim."""
    law = LAWS[type(run.setting.mechanism)]
    assert law is not None
    return [law(run, call, release).numpy() for call, release in run.noisy()]


def private_keys() -> set[tuple[str, str, str]]:
    """What of the registry claims noise at all."""
    return {key for key in MECHANISMS if key[1] != "none"}
