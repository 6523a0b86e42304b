"""The user's own module under attack: canary examples before the model of the file, on the path that training takes.

The network of `canary_model.py` tells whether batches, clipping and noise are right for layers that Sightline knows.
What a module of somebody's own does with its examples is told only by the module itself: it stays, and its data are
replaced by ordinary examples that are nobody's, and an outlier that is there or not.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline import engine
from sightline.apps.audit.canary_setup import PLAIN_STEPS, STILL, AskedPair, CanarySetup, worst_sight
from sightline.apps.audit.observer import Observer, Reading, watched_run
from sightline.data import Client, Federation, Kind, Shard
from sightline.engine.build import BuiltExperiment
from sightline.events import Unit
from sightline.mechanisms import CallId, NoisedValue, PrivateSteps
from sightline.mechanisms.updates import RemoteNodes
from sightline.models import FlatModel, probe_inputs, probe_targets
from sightline.randomness import Streams
from sightline.runtimes import Simulator
from sightline.training import clipped_gradient_sum
from sightline.training.dispatch import worker_for

ROUNDS = 2
TRIALS = 100
"""At the most: a module that mixes examples moves sums far, and takes long beside the audit's own network."""
TOGETHER = 64
"""How many ordinary examples stand beside a canary when it is chosen."""
SCALES = (1.0, 10.0, 100.0, 1000.0)
LABELS = 4
ROUNDING = 1e-3
"""Of the clip norm, by which a sum may be off."""


def attacks_own_model(setting: BuiltExperiment) -> bool:
    """Whether the file names a module, or a loss, of the user's own whose examples are clipped apart."""
    steps, model = setting.mechanism.noised_value is NoisedValue.GRADIENT, setting.experiment.model
    own = ":" in model.name or model.loss is not None
    return own and setting.unit is Unit.SAMPLE and steps and setting.splitter is None


@dataclass(frozen=True, eq=False)
class OwnModelStage(CanarySetup):
    """The file's own model with one canary, and the direction in which the canary moves a sum of gradients."""

    direction: Tensor | None = None
    canary: Shard | None = None
    """The example that is in, in the place of the subject's last one, or not: these batches are add/remove."""
    moved: float | None = None
    """By how many clip norms the canary moved a sum before any noise; None when the module draws at random."""

    @property
    def turning(self) -> bool:
        """The user's model is not turned round."""
        return False

    def run(self, inside: Mapping[int, bool], secret: Streams, read: Reading) -> Observer:
        """One run with or without the canary."""
        subject, present, sizes = self.sight.subject, inside[0], self.setting.federation.sizes.tolist()
        canary: Shard = self.canary  # type: ignore[assignment]
        clients = [
            replace(client, train=_first_examples(client.train, 0)) for client in self.setting.federation.clients
        ]
        ordinary = self.setting.federation.clients[subject].train
        clients[subject] = replace(
            clients[subject],
            train=_join_shards(_first_examples(ordinary, len(ordinary) - 1), _first_examples(canary, int(present))),
        )
        setting = replace(self.setting, federation=replace(self.setting.federation, clients=tuple(clients)))
        watch = Observer(self.sight.observer, read, turning=False)
        watched_run(setting, watch, OwnModelClients(setting, secret, sizes), rounds=self.rounds, secret=secret)
        return watch

    def reading_of_one(self, source: str, value: Tensor, round: int) -> Tensor:
        """How far a released vector goes in the canary's direction, and in one that shows only the noise."""
        direction: Tensor = self.direction  # type: ignore[assignment]
        beside = direction.roll(1) - direction * (direction @ direction.roll(1))
        return -torch.stack([value.double() @ direction, value.double() @ beside])


class OwnModelClients(Simulator):
    """The simulator; the subject may have an example less than everybody knows, and the others have none at all."""

    nodes: RemoteNodes | None = None  # type: ignore[assignment]

    def __init__(self, setting: BuiltExperiment, secret: Streams, sizes: Sequence[int]) -> None:
        super().__init__(setting, secret, secret)
        self.sizes = list(sizes)

    def _scheduled_batches(self, client: int, plan: PrivateSteps, at: CallId) -> list[NDArray[np.intp]]:
        """A schedule of all examples that there could be, and of them those that there are."""
        there = len(self._shards[client])
        return [batch[batch < there] for batch in super()._scheduled_batches(client, plan, at)]

    def right_answers(self, cohort: Sequence[int], models: Tensor) -> Iterator[tuple[int, list[int]]]:
        """As every simulator; nobody answers for no examples."""
        for member in cohort:
            if len(self._shards[member]):
                yield from super().right_answers([member], models)
            else:
                yield member, [0] * len(models)


def for_own_model(setting: BuiltExperiment, *, rounds: int, delta: float, pair: AskedPair) -> OwnModelStage:
    """The stage on which the file's own model meets a canary."""
    rounds = min(rounds, ROUNDS)
    sight = worst_sight(setting, engine.plan_releases(setting, rounds=rounds), delta, pair)
    local = PLAIN_STEPS | {"learning_rate": STILL / setting.experiment.privacy.clip_norm, "augment": None}
    still = setting.experiment.model_copy(update={"local": setting.experiment.local.model_copy(update=local)})
    built = engine.build_experiment(still, federation=ordinary_examples(setting))
    if setting.multipliers:
        built = built.with_noise(setting.multipliers)
    quiet = replace(built, topology=setting.topology, samplers=setting.samplers)
    canary, direction, moved = choose_canary(quiet, sight.subject)
    return OwnModelStage(
        quiet, sight, rounds, {sight.subject: (0,)}, (0, 1), direction=direction, canary=canary, moved=moved
    )


def ordinary_examples(setting: BuiltExperiment) -> Federation:
    """As many examples as each client has, all different and nobody's."""
    clients = []
    for number, real in enumerate(setting.federation.clients):
        train = _draw_examples(setting.model, len(real.train), seed=number + 1)
        clients.append(Client(train, _first_examples(train, 1), real.cluster))
    like = setting.federation
    return Federation("canaries", tuple(clients), clients[0].test, like.classes, like.kind, like.vocabulary)


def choose_canary(setting: BuiltExperiment, subject: int) -> tuple[Shard, Tensor, float | None]:
    """The outlier that moves a clipped sum furthest, in which direction, and by how many clip norms."""
    model, clip_norm = setting.model, setting.experiment.privacy.clip_norm
    beside = _first_examples(setting.federation.clients[subject].train, TOGETHER)

    def total(shard: Shard) -> Tensor:
        rng = np.random.default_rng(0)
        return clipped_gradient_sum(model, setting.start, shard.x, shard.y, clip_norm=clip_norm, rng=rng).double()

    without = total(beside)
    moves = [(total(_join_shards(beside, one)) - without, one) for one in _make_outliers(model)]
    furthest, canary = max(moves, key=lambda move: float(move[0].norm()))
    length = float(furthest.norm())
    direction = furthest / length if length else torch.eye(1, model.parameters, dtype=torch.double)[0]
    return canary, direction, None if worker_for(model).dropout else round(length / clip_norm, 6)


def _make_outliers(model: FlatModel) -> Iterator[Shard]:
    """Examples of every size and label."""
    for seed, scale in enumerate(SCALES):
        x = probe_inputs(model, 1, seed=1000 + seed)
        x = x if model.kind is Kind.TEXT else scale * x
        for y in probe_targets(model.task, model.classes, min(max(model.classes, 2), LABELS)).numpy():
            yield Shard(x.numpy(), y[None] if np.ndim(y) else np.array([y]))


def _draw_examples(model: FlatModel, count: int, *, seed: int) -> Shard:
    return Shard(probe_inputs(model, count, seed=seed).numpy(), probe_targets(model.task, model.classes, count).numpy())


def _first_examples(shard: Shard, count: int) -> Shard:
    return shard.take(slice(count))


def _join_shards(first: Shard, second: Shard) -> Shard:
    return Shard(np.concatenate([first.x, second.x]), np.concatenate([first.y, second.y]))
