"""Privacy of single examples in segments of convex, smooth steps that are not clipped: softmax regression.

Features have norm <= 1, so |(x, 1)| <= R = sqrt 2 with the bias: one example's loss is 2-Lipschitz (sqrt 2 R) and
1-smooth (R^2 / 2). While eta (lambda + |batch| / b) <= 2 a step on the others is non-expansive: two paths never move
further apart than the subject's own draws have driven them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from sightline.errors import refuse
from sightline.events import Adjacency, ConvexSegment, Event, Gaussian, Poisson
from sightline.mechanisms.clip_and_noise import Aggregate, FiniteOnly, sum_sensitivity, with_gaussian_noise
from sightline.mechanisms.contract import NoisedValue, ReleaseContext
from sightline.mechanisms.segments import SegmentSums
from sightline.mechanisms.updates import PrivateSteps, Updates
from sightline.randomness import EVERYONE

WHOLE = 1.0
"""The norm that features may have; the constant feature of the bias is 1."""
LIPSCHITZ, SMOOTH = 2.0, 1.0
"""Of one example's loss: sqrt 2 R and R^2 / 2 with R^2 = 2."""
ROUNDING = 1e-4
"""How much more than LIPSCHITZ a draw is counted as: single precision."""
ALLOWED = {"steps", "most_steps", "learning_rate", "proximal"}
"""What a call may ask of convex steps: numbers, none of which depends on private values."""


def convex_plan(plan: PrivateSteps, examples: int, *, drawn: bool, steps: int | None = None) -> PrivateSteps:
    """The plan over index groups that take turns, so that an example is in as few steps of a segment as may be.

    Drawn in secret: min(m, N / b) groups, from which a step draws b in expectation; with m q <= 1 every example has one
    draw and one use in a segment. In a fixed order: N / b groups, of which a step uses one whole.

    >>> plan = convex_plan(PrivateSteps(1.0, 1.0, 0.05, 5, 30.0), 600, drawn=True)
    >>> plan.groups, plan.rate
    (5, 0.25)
    """
    most = max(1, int(examples / plan.expected_batch * (1 + 1e-12)))
    groups = min(steps or plan.steps, most) if drawn else max(1, math.ceil(examples / plan.expected_batch))
    rate = min(1.0, groups * plan.rate) if drawn else 1.0
    return replace(plan, clip_norm=LIPSCHITZ * (1 + ROUNDING), rate=rate, groups=groups)


@dataclass(frozen=True)
class ConvexFacts:
    """The numbers that the bound is made of."""

    learning_rate: float
    weight_decay: float
    sizes: Mapping[int, int]
    by_client: bool
    """Whether every member adds its own noise, whoever gathers."""
    adjacency: Adjacency = Adjacency.ADD_REMOVE


@dataclass(frozen=True)
class ConvexSegments(SegmentSums):
    r"""-eta / b sum of the gradients of m batches, not clipped, + N(0, (z D)^2), D = 2 eta / b.

    Guarantees: for every example of a member, `ConvexSegment(k, rate, Gaussian(z))`, k being how often its group has
    its turn in a segment; with one turn `Poisson(rate, Gaussian(z))`. Each draw of the example drives the path with it
    and the path without it apart by at most D, and no step on the others drives them further: the objective is convex
    and smooth, eta is small enough for every batch that its group can give, L2 and proximal terms do not depend on
    data, and gradients that are clipped would not be gradients of anything convex.
    """

    facts: ConvexFacts = field(kw_only=True)
    noise_std: float | None = None
    """An absolute amount of noise, in place of multiples of D."""

    noised_value = NoisedValue.PATH

    def _at_server(self, context: ReleaseContext) -> bool:
        return context.channel.trusted and not self.facts.by_client

    def _sensitivity(self, updates: Updates, context: ReleaseContext, members: tuple[int, ...]) -> float:
        """D of the member with the smallest batch, twice that under replace-one."""
        eta = updates.task.learning_rate or self.facts.learning_rate
        alone = eta * max(self.plans[n].clip_norm / self.plans[n].expected_batch for n in members)
        return sum_sensitivity(alone, self.facts.adjacency)

    def _multiplier(self, updates: Updates, context: ReleaseContext, members: tuple[int, ...]) -> float:
        if self.noise_std is not None:
            return self.noise_std / self._sensitivity(updates, context, members)
        return self._noise_of(members)

    def _segment_event(self, updates: Updates, context: ReleaseContext, members: tuple[int, ...]) -> Event:
        self._check_contraction(updates, members)
        noise = Gaussian(self._multiplier(updates, context, members))
        _, most = self._step_counts(updates)
        rate = max(self.plans[n].rate for n in members)
        if self.facts.adjacency is Adjacency.REPLACE and min(self.plans[n].rate for n in members) < 1:
            law = "hidden draws of convex steps are accounted as add/remove"
            refuse("privacy.adjacency", "replace", law, 'use adjacency = "add_remove", or mechanism = "output"')
        turns = max(math.ceil(most[n] / self.plans[n].groups) for n in members)
        if turns == 1:
            return Poisson(rate, noise) if rate < 1 else noise
        return ConvexSegment(turns, rate, noise)

    def _check_contraction(self, updates: Updates, members: tuple[int, ...]) -> None:
        """Refuse what is not proven to keep two paths as close as they are."""
        asked = set(updates.task.named_fields())
        if updates.recall is not None or asked - ALLOWED:
            law = "convex steps are proved for the data's loss and public L2 or proximal terms only"
            what = ", ".join(sorted(asked - ALLOWED)) or "client memory"
            refuse("algorithm.name", f"with {what}", law, "use h2fdp, fedavg, fedavgm, fedyogi or fedprox")
        eta = updates.task.learning_rate or self.facts.learning_rate
        curvature = self.facts.weight_decay + updates.task.proximal
        for n in members:
            others = math.ceil(self.facts.sizes[n] / self.plans[n].groups) - 1
            smooth = curvature + SMOOTH * others / self.plans[n].expected_batch
            if eta * smooth > 2:
                law = f"client {n}: beyond 2 / (lambda + others / b) = {2 / smooth:.4g} steps drive paths apart"
                refuse(
                    "learning_rate", f"{eta:g}", law, "use a smaller local.learning_rate or a larger local.batch_size"
                )

    def _step_counts(self, updates: Updates) -> tuple[dict[int, int], dict[int, int]]:
        """(each member's steps, the most that its rate is claimed for)."""
        task, members = updates.task, self.plans
        if task.steps is not None and task.steps > (task.most_steps or task.steps):
            law = f"the rate of a segment is claimed for 1 to most_steps={task.most_steps}"
            refuse("steps", task.steps, law, "ask for fewer steps")
        steps = {n: task.steps or self.plans[n].steps for n in members}
        return steps, {n: task.most_steps or steps[n] for n in members}

    def _private_plans(self, updates: Updates) -> list[PrivateSteps]:
        self._check_contraction(updates, updates.cohort.members)
        steps, _ = self._step_counts(updates)
        return [replace(self.plans[n], noise_multiplier=0.0, steps=steps[n]) for n in updates.cohort.members]

    def _add_noise(
        self, updates: Updates, context: ReleaseContext, sums: list[torch.Tensor], noise: float, participant: int
    ) -> tuple[torch.Tensor, int]:
        members = context.channel.members if participant == EVERYONE else (participant,)
        finite, total = FiniteOnly(), torch.zeros(updates.worker.dimension, dtype=torch.float64)
        for _, value in finite((place, one) for place, one in enumerate(sums)):
            total += value
        aggregate = Aggregate(total, self._sensitivity(updates, context, members))
        multiplier = self._multiplier(updates, context, members)
        return with_gaussian_noise(
            aggregate, noise_multiplier=multiplier, rng=context.noise(participant)
        ), finite.rejected
