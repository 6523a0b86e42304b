"""Twin worlds: compute every value again without one subject, and compare both before the value is used.

A claim such as `Gaussian(z)` rests on two facts about code: a subject that was not drawn does not change the value in a
single bit, and one that was drawn moves it by at most the sensitivity, for any model, state and data. Both are checked
while a run is in progress. A world lacks one subject: a client with all its examples, or one example, whose inputs are
NaN (or, for tokens, another example's). It gets the public starting points of the real run, its random streams and its
noise; so any difference is the subject's effect alone:

    not drawn:   value = value'              bit by bit
    drawn:       |value - value'| <= bound   up to the rounding of float32

Un-noised client state evolves separately in each world; state computed from releases is that of the real run, because a
claim is made given everything released before. A failed comparison ends the run before the value is returned. One that
holds proves nothing: it is a test on the user's own model and data, not a certificate.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sightline.data import Client, Federation, Kind, Shard
from sightline.engine.build import BuiltExperiment
from sightline.engine.execution import Compute, LiveExecution
from sightline.errors import invalid, refuse
from sightline.events import Unit
from sightline.mechanisms import (
    CallKind,
    ChannelMechanism,
    ClientExecutor,
    ClientState,
    Cohort,
    NoisedBy,
    NoisedValue,
    NoiseStreams,
    ReleaseContext,
    ReleaseValues,
    StateAccess,
    Updates,
)
from sightline.mechanisms.dp_sgd import batch_plan
from sightline.models.flat import unknown_part
from sightline.randomness import Purpose, Streams
from sightline.topology import client_name
from sightline.training.dispatch import worker_for
from sightline.training.local_work import poisson_batches

MakeWorker = Callable[[BuiltExperiment, Streams, Streams], ClientExecutor]
FIRST_LOOK = 2
"""Number of subjects for the first round of a user's own model if `verify` is not set."""
ROUNDING = 2.0**-20
"""Relative to the bound and to the noised value: float32 rounds both."""


@dataclass(frozen=True)
class Subject:
    """The subject that a world lacks."""

    client: int
    example: int | None = None

    @property
    def name(self) -> str:
        """The name in error messages."""
        return client_name(self.client) + ("" if self.example is None else f", example {self.example}")


@dataclass(eq=False)
class World:
    """A world without its subject: its executor, and the un-noised state that clients keep there."""

    subject: Subject
    worker: ClientExecutor
    kept: dict[str, dict[int, Tensor]] = field(default_factory=dict)

    def recall_state(self, updates: Updates) -> StateAccess | None:
        """Return the members' state in this world."""
        recall = updates.recall
        if recall is None:
            return None
        before = recall.state
        own = {} if before.noised else self.kept.get(recall.memory.name, {})
        state = ClientState({**before.values, **own}, before.sources, before.noised)
        return StateAccess(recall.memory, state, updates.worker.dimension)

    def keep_state(self, recall: StateAccess | None) -> None:
        """Store the members' new state in this world."""
        if recall is not None:
            self.kept.setdefault(recall.memory.name, {}).update(recall.after)


@dataclass
class Comparisons:
    """Statistics of the comparisons so far."""

    count: int = 0
    drawn: int = 0
    largest_share: float = 0.0
    seconds: float = 0.0

    def describe(self, subjects: int) -> str:
        """Return one sentence for the terminal and the report."""
        return (
            f"Twin worlds: {self.count} values were computed again without one of {subjects} subjects, {self.drawn} of "
            f"them with the subject drawn; the largest shift was {self.largest_share:.1%} of the claimed sensitivity "
            f"({self.seconds:.1f} s)."
        )


def draw_subjects(built: BuiltExperiment, count: int, secret: Streams, *, rng: np.random.Generator) -> list[Subject]:
    """Draw distinct subjects at random: clients, or examples of different clients as far as possible.

    Every second example is one that its client's first batch draws: at small rates hardly any other would be.
    """
    clients = [int(n) for n in rng.permutation(len(built.clients)) if len(built.federation.clients[n].train)]
    if built.unit is not Unit.SAMPLE:
        return [Subject(client) for client in clients[:count]]
    result: list[Subject] = []
    sizes = built.federation.sizes
    for _ in range(100 * count):
        if len(result) == count:
            break
        client = clients[len(result) % len(clients)]
        drawn = sorted(drawn_examples(built, secret, client)) if len(result) % 2 == 0 else []
        subject = Subject(client, int(rng.choice(drawn) if drawn else rng.integers(sizes[client])))
        if subject not in result:
            result.append(subject)
    return result


def drawn_examples(
    built: BuiltExperiment, secret: Streams, client: int, *, round: int = 1, use: int = 0, steps: int = 1
) -> frozenset[int]:
    """Return the examples that a client's first batches draw in a training call, by the run's own streams."""
    plan, examples = built.mechanism.facts.private_steps.get(client), int(built.federation.sizes[client])
    if plan is None:
        return frozenset()
    if plan.strategy is not None:  # batches in a fixed order: groups by index take turns
        turns = range(round - 1 + use, round - 1 + use + steps)
        return frozenset(n for turn in turns for n in range(turn % plan.groups, examples, plan.groups))
    rng = secret.rng(Purpose.BATCHES, round=round, participant=client, use=use)
    # If the client noises its own steps, a model with dropout seeds its masks from the stream before the first batch.
    if built.experiment.privacy.place != "server" and worker_for(built.model).dropout:
        rng.integers(2**63)
    drawn: set[int] = set()
    for batch in islice(poisson_batches(examples, plan.rate, steps, rng), steps):
        drawn.update(range(examples) if batch is None else batch.tolist())
    return frozenset(drawn)


def remove_subject(federation: Federation, subject: Subject) -> Federation:
    """Return the same federation without the subject; all other examples keep their positions."""
    client = federation.clients[subject.client]
    train = client.train
    if subject.example is None:
        train = Shard(train.x[:0], train.y[:0])
    else:
        x = train.x.copy()
        # NaN spreads into every value that the example touches, so a single use shows. Tokens have no NaN.
        x[subject.example] = x[subject.example - 1] if federation.kind is Kind.TEXT else np.nan
        train = Shard(x, train.y)
    clients: list[Client] = list(federation.clients)
    clients[subject.client] = replace(client, train=train)
    return replace(federation, clients=tuple(clients))


class TwinWorlds:
    """The worlds of one run, and the statistics of their comparisons."""

    def __init__(
        self, built: BuiltExperiment, make_worker: MakeWorker, public: Streams, secret: Streams, count: int
    ) -> None:
        self.built, self.secret, self.facts = built, secret, built.mechanism.facts
        self.comparisons = Comparisons()
        self._subjects = draw_subjects(built, count, secret, rng=public.rng(Purpose.VERIFICATION))
        self.worlds = [World(one, make_worker(self._setting_without(one), public, secret)) for one in self._subjects]

    def _setting_without(self, subject: Subject) -> BuiltExperiment:
        """Return the experiment without the subject, with its own model if the user's code runs."""
        without, model = remove_subject(self.built.federation, subject), self.built.model
        # A module that keeps state would otherwise keep it for both worlds.
        runs_own_code = worker_for(model).state is not None
        return replace(self.built, federation=without, model=replace(model) if runs_own_code else model)

    def close(self) -> None:
        """Release the resources of training."""
        for world in self.worlds:
            world.worker.close()

    def describe(self) -> str:
        """Return in one sentence what was compared."""
        return self.comparisons.describe(len(self.worlds))

    def compare_values(
        self, updates: Updates, context: ReleaseContext, compute: Compute, values: ReleaseValues
    ) -> None:
        """Compute the values again in every world. Raise `Refused` if a subject moves one by more than is claimed."""
        begun = time.perf_counter()
        mechanism = self.built.mechanism.at(context.channel)
        for world in self.worlds:
            if world.subject.client in context.channel.members:
                self._compare_world(world, mechanism, updates, context, compute, values)
        self.comparisons.seconds += time.perf_counter() - begun

    def _compare_world(
        self, world: World, mechanism: ChannelMechanism, updates: Updates, context: ReleaseContext, compute: Compute,
        released: ReleaseValues,
    ) -> None:  # fmt: skip
        masked = world.subject.example is not None and worker_for(self.built.model).dropout
        if masked and self._is_drawn(world.subject, updates) is not False:
            # Without one example the others of its batch get other dropout masks; the difference is not the subject's.
            return
        if self.facts.noised_value is NoisedValue.GRADIENT and mechanism.noised_by is NoisedBy.CLIENT:
            self._compare_step(world, updates, context)
            return
        if self.facts.noised_value is NoisedValue.UPDATE and mechanism.noised_by is NoisedBy.CLIENT:
            self._compare_output(world, mechanism, updates, context)
            return
        bound = self._bound_shift(mechanism, updates, context)
        if bound is None:
            return
        hides = self.built.unit is Unit.CLIENT and mechanism.noised_by is NoisedBy.SERVER
        twin = move_updates(updates, world, without=world.subject.client if hides else None)
        other = compute(twin, context)
        world.keep_state(twin.recall)
        drawn = self._is_drawn(world.subject, updates)
        for key, value in released.values.items():
            if key in other.values:
                self._compare_pair(value, other.values[key], bound, drawn, world.subject, context)

    def _compare_output(
        self, world: World, mechanism: ChannelMechanism, updates: Updates, context: ReleaseContext
    ) -> None:
        """Compare what the subject sends with what it would send without its data, under the same noise."""
        client, values = world.subject.client, []
        if client not in updates.cohort.members:
            return
        for worker, recall in (
            (updates.worker, copy_recall(updates)),
            (world.worker, world.recall_state(updates)),
        ):
            alone = select_member(updates, client, worker, recall)
            values += [one.value for one in mechanism.client_outputs(alone, context) if one.member == client]
            if worker is world.worker:
                world.keep_state(recall)
        bound = self._clip_norm(self.built.experiment.privacy.clip_norm, context)
        self._compare_pair(values[0], values[1], bound, True, world.subject, context)

    def _compare_step(self, world: World, updates: Updates, context: ReleaseContext) -> None:
        """Compare the first private step of the subject's client, without noise."""
        client = world.subject.client
        # Only the first step: the claim for a later one is conditional on the noised value from which it starts.
        plan = self.facts.private_steps.get(client)
        # An adaptive optimiser's step does not scale with the gradient, so no clip norm bounds the difference.
        adaptive = self.built.experiment.local.adaptive
        if plan is None or adaptive or client not in updates.cohort.members:
            return
        if updates.recall is not None and not updates.recall.state.noised:
            self._raise_broken(world.subject, context, "its client adds un-noised values after the noise")
        plan = replace(batch_plan(plan, updates.task), line=context.line)
        one = replace(plan, steps=1, noise_multiplier=0.0, strategy=None)
        ends = []
        for worker, recall in (
            (updates.worker, copy_recall(updates)),
            (world.worker, world.recall_state(updates)),
        ):
            alone = select_member(updates, client, worker, recall)
            blocks = worker.run(alone.make_call(CallKind.DP_SGD, [one]))
            ends.append(next(iter(blocks))[1][0].clone())
        rate = updates.task.learning_rate or self.built.experiment.local.learning_rate
        bound = rate * self._clip_norm(plan.clip_norm, context) / plan.expected_batch
        drawn = self._is_drawn(world.subject, updates)
        self._compare_pair(ends[0], ends[1], bound, drawn, world.subject, context)

    def _clip_norm(self, clip_norm: float, context: ReleaseContext) -> float:
        # For tokens the subject is replaced by another example, not removed: both may contribute a clip norm.
        twice = 2.0 if self.built.federation.kind is Kind.TEXT and self.built.unit is Unit.SAMPLE else 1.0
        return twice * context.largest_clipped(clip_norm, self.built.splitter)

    def _bound_shift(self, mechanism: ChannelMechanism, updates: Updates, context: ReleaseContext) -> float | None:
        """Return how far the subject may move a value of the channel; None if no clipping bounds it."""
        senders = max(1, len(updates.cohort.members))
        clip_norm = self._clip_norm(self.built.experiment.privacy.clip_norm, context)
        if self.facts.noised_value is NoisedValue.UPDATE:
            # An adaptive clip norm is the mechanism's to know.
            longest = mechanism.largest_output(context, dimension=1, splitter=self.built.splitter)
            return (clip_norm if longest is None else longest) / context.sampler.expected
        plans = self.facts.private_steps
        steps = [plans[n] for n in context.channel.members if n in plans]
        if self.facts.noised_value is NoisedValue.STEPS:
            return 2 * self._clip_norm(max(plan.clip_norm for plan in steps), context) / senders
        if self.facts.noised_value is NoisedValue.GRADIENT:
            share = context.sampler.expected / context.sampler.population
            rate = self.built.experiment.local.learning_rate
            return rate * clip_norm / (share * sum(plan.expected_batch for plan in steps))
        return None

    def _is_drawn(self, subject: Subject, updates: Updates) -> bool | None:
        """Return whether the run's own draws put the subject into the value; None if it is not known here."""
        if subject.client not in updates.cohort.members:
            return False
        if subject.example is None:
            return True
        plan = self.facts.private_steps.get(subject.client)
        if plan is None or plan.allotment is not None or updates.task.batch_size is not None:
            return None
        if updates.task.whole_batch:
            return True
        steps = (updates.task.steps or 1) if self.facts.noised_value is NoisedValue.STEPS else 1
        where = {"round": updates.at.round, "use": updates.at.use, "steps": steps}
        return subject.example in drawn_examples(self.built, self.secret, subject.client, **where)

    def _compare_pair(
        self, value: Tensor, other: Tensor, bound: float, drawn: bool | None, subject: Subject, context: ReleaseContext
    ) -> None:
        """Compare one value and its twin; raise `Refused` if they differ by more than the claim allows."""
        self.comparisons.count += 1
        self.comparisons.drawn += drawn is True
        # Same streams, same noise: if a subject that was not drawn changes a bit, it entered the value all the same.
        if drawn is False:
            if not torch.equal(value, other):
                self._raise_broken(subject, context, "it was not drawn, but the value changes without it")
            return
        shift = float(torch.linalg.vector_norm(value.double() - other.double()))
        self.comparisons.largest_share = max(self.comparisons.largest_share, shift / bound)
        rounding = ROUNDING * (bound + float(torch.linalg.vector_norm(value.double())))
        if not shift <= bound + rounding:
            reason = f"it moves the value by {shift:.6g}, but at most {bound:.6g} is claimed"
            self._raise_broken(subject, context, reason)

    def _raise_broken(self, subject: Subject, context: ReleaseContext, reason: str) -> None:
        way_out = "do not use this model, memory or mechanism: its epsilon would be too small"
        refuse("verify", subject.name, f"round {context.time}, {context.channel.name}: {reason}", way_out)


def copy_recall(updates: Updates) -> StateAccess | None:
    """Return the members' state for reading; what a comparison stores in it is discarded."""
    recall = updates.recall
    return None if recall is None else StateAccess(recall.memory, recall.state, updates.worker.dimension)


def move_updates(updates: Updates, world: World, *, without: int | None) -> Updates:
    """Return the same training call in another world; without the subject in its cohort if that is hidden."""
    members = tuple(member for member in updates.cohort.members if member != without)
    indices = [index for index, member in enumerate(updates.cohort.members) if member != without]
    task = updates.task if len(members) == len(updates.cohort.members) else updates.task.select_clients(indices)
    return replace(
        updates,
        cohort=Cohort(members),
        starts={member: updates.starts[member] for member in members},
        worker=world.worker,
        task=task,
        recall=world.recall_state(updates),
        shared=None,
    )


def select_member(updates: Updates, client: int, worker: ClientExecutor, recall: StateAccess | None) -> Updates:
    """Return the training call of one member."""
    index = updates.cohort.members.index(client)
    return replace(
        updates,
        cohort=Cohort((client,)),
        starts={client: updates.starts[client]},
        worker=worker,
        task=updates.task.select_clients([index]),
        recall=recall,
        shared=None,
    )


def plan_worlds(
    built: BuiltExperiment, make_worker: MakeWorker, public: Streams, secret: Streams, count: int | None, *,
    nodes: bool,
) -> TwinWorlds | None:  # fmt: skip
    """Return as many worlds as asked for; by default two for a user's own module, and None otherwise."""
    if count is not None and count < 0:
        invalid("verify", count, "the number of subjects must be 0 or more")
    if count and built.unit is Unit.NONE:
        invalid(
            "verify",
            count,
            "nothing is claimed, so there is nothing to verify",
            'set privacy.unit = "client" or "sample"',
        )
    if count and nodes:
        invalid("verify", count, "nodes do not share their data", "use --runtime simulator")
    if count is None and not nodes and built.unit is not Unit.NONE and unknown_part(built.model.module()):
        count = FIRST_LOOK
    return TwinWorlds(built, make_worker, public, secret, count) if count else None


class ComparedExecution(LiveExecution):
    """A round of a real run whose values are compared with twin worlds before they are returned."""

    def __init__(
        self, worker: ClientExecutor, secret: Streams, schedules: Any, twins: TwinWorlds,
        noises: NoiseStreams | None = None,
    ) -> None:  # fmt: skip
        super().__init__(worker, secret, schedules, noises)
        self._twins = twins

    def compute_values(self, updates: Updates, context: ReleaseContext, compute: Compute) -> ReleaseValues:
        """Return what the mechanism computes. Raise `Refused` if a subject moves it by more than is claimed."""
        result = compute(updates, context)
        self._twins.compare_values(updates, context, compute, result)
        return result
