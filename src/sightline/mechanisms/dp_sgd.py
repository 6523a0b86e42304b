"""Example-level privacy: DP-SGD at each client, or one clipped gradient sum noised by a trusted server."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor
from typing_extensions import override

from sightline.accounting.strategies import charge_stream, make_strategy
from sightline.config import Correlated, Sampler
from sightline.errors import refuse
from sightline.events import Event, Gaussian, Poisson, Repeat
from sightline.ledger import Release
from sightline.mechanisms.clip_and_noise import Aggregate, with_gaussian_noise
from sightline.mechanisms.contract import (
    MechanismFacts,
    NoisedBy,
    NoisedByClients,
    NoisedValue,
    ReleaseContext,
    ReleaseValues,
    UniformMechanism,
)
from sightline.mechanisms.correlated_noise import describe_strategy
from sightline.mechanisms.submodels import Splitter
from sightline.mechanisms.updates import ClientOutput, Updates
from sightline.randomness import EVERYONE
from sightline.topology import client_name
from sightline.training.call import LocalTask, PrivateSteps
from sightline.training.schedule import Allotment


def event_of(plan: PrivateSteps) -> Event:
    """Return what one client's round reveals about any one of its examples: its steps, each a sampled Gaussian.

    Under a schedule, return what all rounds of an epoch reveal together; they are charged as one, see `joint_of`.
    """
    if plan.strategy is not None:
        return charge_stream(
            plan.strategy, noise=plan.noise_multiplier, separation=plan.groups, uses=-(-plan.steps // plan.groups)
        )
    step: Event = (plan.splitter.event if plan.splitter else Gaussian)(plan.noise_multiplier)
    if plan.allotment is not None:
        return plan.allotment.event(step)
    if plan.rate < 1:
        step = Poisson(plan.rate, step)
    return step if plan.steps == 1 else Repeat(plan.steps, step)


def steps_for(
    examples: int, *, batch_size: int | None, epochs: int | None, steps: int | None, clip_norm: float
) -> PrivateSteps:
    """Return Poisson batches of rate b / N_i and ceil(N_i / b) steps per epoch; without a batch size, full batches.

    The noise multiplier is 1 until the engine sets or calibrates it.
    """
    batch = examples if batch_size is None else min(batch_size, examples)
    count = steps if steps is not None else (epochs or 1) * math.ceil(examples / batch)
    # The expected batch is the public divisor of every step: the realised batch size would reveal the draw.
    return PrivateSteps(clip_norm, 1.0, batch / examples, count, float(batch))


def schedule_steps(plan: PrivateSteps, examples: int, sampler: Sampler, *, rounds: int) -> PrivateSteps:
    """Return the same steps with examples drawn by a hidden schedule over all local steps of the run.

    `batch_size` still sets the steps per round; the expected batch follows from the schedule.
    """
    allotment = Allotment.read("sampling.samples", sampler, rounds * plan.steps)
    expected = allotment.share * examples
    return replace(plan, rate=allotment.share, expected_batch=expected, allotment=allotment)


def correlate_plan(plan: PrivateSteps, examples: int, settings: Correlated) -> PrivateSteps:
    """Return the same steps over fixed batches in a fixed order, with noise correlated over the steps of a round.

    An example is in one batch of every epoch, so its uses are `groups` steps apart; every round is a separate stream.

    >>> plan = correlate_plan(PrivateSteps(1.0, 1.0, 0.1, 20, 10.0), 100, Correlated())
    >>> plan.groups, plan.rate, plan.expected_batch, plan.strategy.bands
    (10, 1.0, 10.0, 10)
    """
    batches = math.ceil(examples / plan.expected_batch * (1 - 1e-12))
    if batches < 2 or plan.steps < 2:
        reason = f"{examples} examples make {batches} batches in an epoch, but a round has {plan.steps} steps: no gain"
        refuse("privacy.noise", "correlated", reason, 'use a smaller local.batch_size, or noise = "independent"')
    uses = -(-plan.steps // batches)
    bands = None if settings.bands is None else min(settings.bands, plan.steps)
    strategy = make_strategy(settings.strategy, steps=plan.steps, separation=batches, uses=uses, bands=bands)
    return replace(plan, rate=1.0, groups=batches, expected_batch=examples / batches, strategy=strategy)


def joint_of(plan: PrivateSteps, context: ReleaseContext, owner: str) -> str:
    """Return the name shared by the releases of one schedule epoch; empty without a schedule."""
    if plan.allotment is None:
        return ""
    return f"{owner} in {context.channel.name}, schedule {plan.epoch(context.time) + 1}"


def batch_plan(plan: PrivateSteps, task: LocalTask) -> PrivateSteps:
    """Return the same number of epochs in batches of the size that a task asks for.

    >>> whole = batch_plan(PrivateSteps(1.0, 1.0, 32 / 100, 2 * 4, 32.0), LocalTask(whole_batch=True))
    >>> whole.rate, whole.steps, whole.expected_batch
    (1.0, 2, 100.0)
    """
    if not task.whole_batch and task.batch_size is None:
        return plan
    if plan.strategy is not None or (plan.allotment is not None and not task.whole_batch):
        reason = "noise and schedule of a client's steps are planned for the experiment's batches"
        way_out = 'use privacy.noise = "independent" and draw examples independently'
        refuse("batch_size", task.batch_size or "whole shard", reason, way_out)
    examples = round(plan.expected_batch / plan.rate)
    batch = examples if task.whole_batch else min(task.batch_size or examples, examples)
    epochs = max(1, plan.steps // math.ceil(examples / plan.expected_batch))
    steps = epochs * math.ceil(examples / batch)
    return replace(plan, rate=batch / examples, steps=steps, expected_batch=float(batch))


@dataclass(frozen=True)
class PrivateStepsMechanism(UniformMechanism):
    """Common base: every client's clipped steps."""

    plans: Mapping[int, PrivateSteps]

    @cached_property
    def facts(self) -> MechanismFacts:
        """Per-example gradients are noised."""
        return MechanismFacts(NoisedValue.GRADIENT, private_steps=self.plans)

    def noise_multipliers(self, clients: Iterable[int]) -> dict[int, float]:
        """Return the noise multipliers of the clients' steps."""
        return {n: self.plans[n].noise_multiplier for n in clients}

    @override
    def in_parts(self, splitter: Splitter) -> Self:
        return replace(self, plans={n: replace(plan, splitter=splitter) for n, plan in self.plans.items()})


@dataclass(frozen=True)
class SampleAtClient(PrivateStepsMechanism, NoisedByClients):
    """Every client trains with DP-SGD and sends the result; the server averages by data size.

    Guarantees: for every example of client i, `Repeat(steps, Poisson(b / N_i, Gaussian(z_i)))` in every round in which
    the client took part, against everyone; under a schedule, one `Allocation` of all its steps; with correlated noise
    over batches in a fixed order, one `Gaussian(z_i / sens)` per round. Sizes are public.
    """

    mean_of = "privately trained models"

    @cached_property
    @override
    def facts(self) -> MechanismFacts:
        noised = all(plan.noise_multiplier > 0 for plan in self.plans.values())
        return MechanismFacts(
            NoisedValue.GRADIENT,
            keeps_noised=noised,
            private_steps=self.plans,
            explain=self._explain,
            describe_stream=self._describe_stream,
        )

    def with_noise(self, multipliers: Mapping[int, float]) -> "SampleAtClient":
        """Return the same steps with each client's own noise."""
        return SampleAtClient({n: replace(plan, noise_multiplier=multipliers[n]) for n, plan in self.plans.items()})

    def _explain(self, curvature: float) -> list[str]:
        """Return a sentence on what correlated noise rests on; nothing for independent noise."""
        if all(plan.strategy is None for plan in self.plans.values()):
            return []
        return [
            "The noise is correlated over the steps of a client's round, whose batches are fixed and in a fixed order: "
            "nothing is claimed to be hidden by sampling. A round is charged as one release."
        ]

    def _describe_stream(self) -> dict[str, Any] | None:
        """Return the stream of the client with the most steps; None for independent noise."""
        longest = max(self.plans.values(), key=lambda plan: plan.steps)
        if longest.strategy is None:
            return None
        uses = -(-longest.steps // longest.groups)
        told = describe_strategy(longest.strategy, separation=longest.groups, uses=uses)
        return told | {"of": "steps of a client's round"}

    @override
    def client_outputs(self, updates: Updates, context: ReleaseContext) -> Iterator[ClientOutput]:
        for member, update in updates.train_privately(self._private_plans(updates, context)):
            yield ClientOutput(member, update)

    def _private_plans(self, updates: Updates, context: ReleaseContext) -> list[PrivateSteps]:
        # Client state enters the steps after clipping and noise, so it must itself come from noised values.
        if updates.recall is not None:
            updates.recall.require_noised()
        plans = [replace(self.plans[member], line=context.line) for member in updates.cohort.members]
        return [batch_plan(plan, updates.task) for plan in plans]

    def _claim_sent(self, updates: Updates, context: ReleaseContext, audience: frozenset[str]) -> tuple[Release, ...]:
        # One row per realised member. Which clients took part hides nothing here: their other examples would give it
        # away.
        return tuple(
            context.sent_by(
                member,
                updates,
                event=event_of(plan),
                audience=audience,
                what="own model after private local steps",
                joint=joint_of(plan, context, client_name(member)),
            )
            for member, plan in zip(updates.cohort.members, self._private_plans(updates, context), strict=True)
        )


@dataclass(frozen=True)
class SampleAtServer(PrivateStepsMechanism):
    """One step for all: -eta (sum of clipped per-example gradients + N(0, (z C)^2)) / expected batch.

    Guarantees: for every example of a member, `Poisson(max_i b / N_i, Gaussian(z))` against everyone but the server.
    Which clients took part is not claimed to hide anything: their other examples would give it away.
    """

    learning_rate: float

    noised_by = NoisedBy.SERVER

    @property
    def plan(self) -> PrivateSteps:
        """The plan of the client whose examples are drawn most often; its event dominates the others'."""
        return max(self.plans.values(), key=lambda plan: plan.rate)

    def with_noise(self, multipliers: Mapping[int, float]) -> "SampleAtServer":
        """Return the same step with the largest noise that any client needs."""
        noise = max(multipliers.values())
        plans = {n: replace(plan, noise_multiplier=noise) for n, plan in self.plans.items()}
        return SampleAtServer(plans, self.learning_rate)

    def claim_mean(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """Claim the hand-over to the server and the noisy gradient for everyone."""
        members = frozenset(client_name(member) for member in updates.cohort.members)
        published = context.make_release(
            source=context.channel.name,
            event=event_of(self.plan),
            audience=context.channel.audience,
            what="noisy mean of clipped gradients",
            subjects=members,
            inputs=updates.sources,
            coins_known_to=frozenset({context.channel.name}),
            joint=joint_of(self.plan, context, "examples"),
        )
        return context.handed_over(updates), published

    def mean(self, updates: Updates, context: ReleaseContext) -> ReleaseValues:
        """Sum the clients' clipped gradient sums, add noise once, take one step."""
        total = torch.zeros(updates.worker.dimension, dtype=torch.float64)
        plans = [replace(self.plans[member], line=context.line) for member in updates.cohort.members]
        for gradient in updates.gradient_sums(plans):
            total += gradient
        noisy = with_gaussian_noise(
            Aggregate(total, self._noise_scale()),
            noise_multiplier=self.plan.noise_multiplier,
            rng=context.noise(EVERYONE),
        )
        # The divisor uses expected batches of all members, not of the drawn cohort: it must be public.
        share = context.sampler.expected / context.sampler.population
        expected = share * sum(self.plans[member].expected_batch for member in context.channel.members)
        learning_rate = updates.task.learning_rate or self.learning_rate
        return ReleaseValues({EVERYONE: noisy * (-learning_rate / expected)})

    def _noise_scale(self) -> float | Tensor:
        plan = self.plan
        return plan.splitter.noise_scale(plan.clip_norm) if plan.splitter else plan.clip_norm
