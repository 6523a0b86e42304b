"""Example-level privacy: DP-SGD at each client, or one clipped gradient sum noised by a trusted server."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from sightline.accounting.strategies import charge_stream, make_strategy
from sightline.config import Correlated, Sampler
from sightline.errors import refuse
from sightline.events import Event, Gaussian, Poisson, Repeat
from sightline.ledger import Release
from sightline.mechanisms.clip_and_noise import Aggregate, FiniteOnly, with_gaussian_noise
from sightline.mechanisms.contract import (
    BaseMechanism,
    NoisedBy,
    NoisedValue,
    ReleaseContext,
    ReleaseValues,
    only_client,
    only_sums,
    weighted_mean,
)
from sightline.mechanisms.correlated_noise import describe_strategy
from sightline.mechanisms.schedule import Allotment
from sightline.mechanisms.submodels import Splitter
from sightline.mechanisms.updates import ClientOutput, PrivateSteps, Updates
from sightline.randomness import EVERYONE
from sightline.topology import client_name


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

    An example is in one batch of every epoch, so its uses are `groups` steps apart; every round is a stream of its own.

    >>> plan = correlate_plan(PrivateSteps(1.0, 1.0, 0.1, 20, 10.0), 100, Correlated())
    >>> plan.groups, plan.rate, plan.expected_batch, plan.strategy.bands
    (10, 1.0, 10.0, 10)
    """
    batches = math.ceil(examples / plan.expected_batch * (1 - 1e-12))
    if batches < 2 or plan.steps < 2:
        law = (
            f"a client of {examples} examples has {batches} batches in an epoch, {plan.steps} steps in a round: no gain"
        )
        refuse("privacy.noise", "correlated", law, 'use a smaller local.batch_size, or noise = "independent"')
    uses = -(-plan.steps // batches)
    bands = None if settings.bands is None else min(settings.bands, plan.steps)
    strategy = make_strategy(settings.strategy, steps=plan.steps, separation=batches, uses=uses, bands=bands)
    return replace(plan, rate=1.0, groups=batches, expected_batch=examples / batches, strategy=strategy)


def joint_of(plan: PrivateSteps, context: ReleaseContext, owner: str) -> str:
    """Return the name shared by the releases of one schedule epoch; empty without a schedule."""
    if plan.allotment is None:
        return ""
    return f"{owner} in {context.channel.name}, schedule {plan.epoch(context.time) + 1}"


def whole_batch(plan: PrivateSteps) -> PrivateSteps:
    """Return the same number of epochs in full batches: one step per epoch, with every example.

    >>> whole = whole_batch(PrivateSteps(1.0, 1.0, 32 / 100, 2 * 4, 32.0))
    >>> whole.rate, whole.steps, whole.expected_batch
    (1.0, 2, 100.0)
    """
    examples = round(plan.expected_batch / plan.rate)
    epochs = max(1, plan.steps // math.ceil(examples / plan.expected_batch))
    return replace(plan, rate=1.0, steps=epochs, expected_batch=float(examples))


def split_plans(plans: Mapping[int, PrivateSteps], splitter: Splitter) -> dict[int, PrivateSteps]:
    """Return the same steps over parts of the model."""
    return {client: replace(plan, splitter=splitter) for client, plan in plans.items()}


@dataclass(frozen=True)
class PrivateStepsMechanism(BaseMechanism):
    """Common base: every client's clipped steps."""

    plans: Mapping[int, PrivateSteps]

    noised_value = NoisedValue.GRADIENT

    def at(self, context: ReleaseContext) -> Self:
        """Return itself for every channel."""
        return self

    def noise_multipliers(self, clients: Iterable[int]) -> dict[int, float]:
        """Return the noise multipliers of the clients' steps."""
        return {n: self.plans[n].noise_multiplier for n in clients}

    def steps_of(self, client: int) -> PrivateSteps | None:
        """Return the client's steps."""
        return self.plans.get(client)


@dataclass(frozen=True)
class SampleAtClient(PrivateStepsMechanism):
    """Every client trains with DP-SGD and sends the result; the server averages by data size.

    Guarantees: for every example of client i, `Repeat(steps, Poisson(b / N_i, Gaussian(z_i)))` in every round in which
    the client took part, against everyone; under a schedule, one `Allocation` of all its steps; with correlated noise
    over batches in a fixed order, one `Gaussian(z_i / sens)` per round. Sizes are public.
    """

    def noised_by(self, context: ReleaseContext) -> NoisedBy:
        """Return `CLIENT`: every member noises each step."""
        return NoisedBy.CLIENT

    @property
    def keeps_noised(self) -> bool:
        """Whether clients see only the results of noised steps."""
        return all(plan.noise_multiplier > 0 for plan in self.plans.values())

    def in_parts(self, splitter: Splitter) -> "SampleAtClient":
        """Return the same steps over parts of the model."""
        return replace(self, plans=split_plans(self.plans, splitter))

    def with_noise(self, multipliers: Mapping[int, float]) -> "SampleAtClient":
        """Return the same steps with each client's own noise."""
        plans = {n: replace(plan, noise_multiplier=multipliers[n]) for n, plan in self.plans.items()}
        return SampleAtClient(plans)

    def explain_guarantee(self, *, rounds: int, delta: float, curvature: float) -> list[str]:
        """Return a sentence on what correlated noise rests on; nothing for independent noise."""
        if all(plan.strategy is None for plan in self.plans.values()):
            return []
        return [
            "The noise is correlated over the steps of a client's round, whose batches are fixed and in a fixed order: "
            "nothing is claimed to be hidden by sampling. A round is charged as one release."
        ]

    def describe_stream(self) -> dict[str, Any] | None:
        """Return the stream of the client with the most steps; None for independent noise."""
        longest = max(self.plans.values(), key=lambda plan: plan.steps)
        if longest.strategy is None:
            return None
        uses = -(-longest.steps // longest.groups)
        told = describe_strategy(longest.strategy, separation=longest.groups, uses=uses)
        return told | {"of": "steps of a client's round"}

    def claim_mean(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """Claim one release per member to the server; the mean is post-processing of them."""
        sent = self._claim_sent(updates, context, frozenset({context.channel.name}))
        inputs = tuple(range(context.next_id, context.next_id + len(sent))) + updates.sources
        return *sent, context.published_mean(inputs, "mean of privately trained models")

    def mean(self, updates: Updates, context: ReleaseContext) -> ReleaseValues:
        """Average the members' models by their data sizes."""
        finite = FiniteOnly()
        models = finite((member, value) for member, value, _ in updates.collect_outputs(self, context))
        return ReleaseValues(
            {EVERYONE: weighted_mean(models, updates.sizes(), updates.worker.dimension)}, finite.rejected
        )

    def claim_each(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """Claim one release per member, to the channel's audience."""
        return self._claim_sent(updates, context, context.channel.audience)

    def compute_each(self, updates: Updates, context: ReleaseContext) -> ReleaseValues:
        """Return every member's privately trained update; one that overflowed counts as zero (post-processing)."""
        finite = FiniteOnly()
        values = dict(finite((member, value) for member, value, _ in updates.collect_outputs(self, context)))
        return ReleaseValues(values, finite.rejected)

    def client_outputs(self, updates: Updates, context: ReleaseContext) -> Iterator[ClientOutput]:
        """Yield each member's update after private steps."""
        for member, update in updates.train_privately(self._private_plans(updates, context)):
            yield ClientOutput(member, update)

    def _private_plans(self, updates: Updates, context: ReleaseContext) -> list[PrivateSteps]:
        # Client state enters the steps after clipping and noise, so it must itself come from noised values.
        if updates.recall is not None:
            updates.recall.require_noised()
        plans = [replace(self.plans[member], line=context.line) for member in updates.cohort.members]
        if updates.task.whole_batch and any(plan.strategy is not None for plan in plans):
            law = "a round in full batches uses every example at every step"
            refuse("privacy.noise", "correlated", law, 'use privacy.noise = "independent"')
        return [whole_batch(plan) for plan in plans] if updates.task.whole_batch else plans

    def _claim_sent(self, updates: Updates, context: ReleaseContext, audience: frozenset[str]) -> tuple[Release, ...]:
        # One row per realised member. Which clients took part hides nothing here: their other examples would give it
        # away.
        return tuple(
            context.make_release(
                source=client_name(member),
                event=event_of(plan),
                audience=audience,
                what="own model after private local steps",
                subjects=only_client(member),
                inputs=tuple(sorted(updates.starts[member].sources)),
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

    def noised_by(self, context: ReleaseContext) -> NoisedBy:
        """Return `SERVER`: the trusted server adds one noise."""
        return NoisedBy.SERVER

    @property
    def plan(self) -> PrivateSteps:
        """The plan of the client whose examples are drawn most often; its event dominates the others'."""
        return max(self.plans.values(), key=lambda plan: plan.rate)

    def in_parts(self, splitter: Splitter) -> "SampleAtServer":
        """Return the same steps over parts of the model."""
        return replace(self, plans=split_plans(self.plans, splitter))

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

    def claim_each(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """Raise `Refused`: a trusted server protects sums, not single clients."""
        only_sums()
        return ()

    def compute_each(self, updates: Updates, context: ReleaseContext) -> ReleaseValues:
        """Raise `Refused`, as `claim_each` does."""
        only_sums()
        return ReleaseValues({})
