"""Example-level privacy in segments: the sum of a device's clipped or convex steps, noised where trust ends."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from typing_extensions import override

from sightline.errors import invalid, refuse
from sightline.events import MOST_COUNTED, Adjacency, ConvexSegment, Event, Gaussian, Poisson, Segment
from sightline.ledger import Release
from sightline.mechanisms.clip_and_noise import (
    Aggregate,
    FiniteOnly,
    FloatSum,
    sum_and_noise,
    sum_sensitivity,
    with_gaussian_noise,
)
from sightline.mechanisms.contract import (
    MechanismFacts,
    NoisedBy,
    NoisedByClients,
    NoisedValue,
    ReleaseContext,
    ReleaseValues,
    only_sums,
)
from sightline.mechanisms.updates import ClientOutput, Updates
from sightline.randomness import EVERYONE
from sightline.topology import Channel, client_name
from sightline.training.call import PrivateSteps

ROUNDING = 1e-5
"""Relative to a step's largest effect: what single precision may add to the effect of a first draw."""
RARE = 1e-6
"""Below this rate 1 - rate loses digits that matter."""


def segment_rate(rate: float, steps: int) -> float:
    """Return the probability that an example is in at least one of `steps` independent Poisson batches.

    >>> segment_rate(0.1, 1), round(segment_rate(0.1, 2), 6), segment_rate(1.0, 5)
    (0.1, 0.19, 1.0)
    """
    if not 0 < rate <= 1:
        invalid("rate", rate, "must be in (0, 1]")
    if not 1 <= steps <= MOST_COUNTED:
        invalid("segment", steps, f"a segment must have 1 to {MOST_COUNTED:.0e} steps")
    # Round up by 1e-12: a rate that is claimed too small would understate the cost.
    if rate < RARE and steps > 1:
        return min(1.0, -math.expm1(steps * math.log1p(-rate)) * (1 + 1e-12))
    return rate if steps == 1 else 1 - (1 - rate) ** steps


@dataclass(frozen=True)
class SegmentSums(NoisedByClients):
    """-eta sum of m steps, each in the ball of radius G, + N(0, (z 2 eta m G)^2).

    A step is the sum of the batch's gradients, each clipped to C, over the expected batch b (fixed and public), and
    then scaled onto the ball.

    Guarantees: for every example of a member, `Segment(m, q, C / 2 G b, Gaussian(z))`. Until its first draw the path is
    the same without it; that draw moves the step by at most eta C / b; every later step lies in the ball whatever came
    before, and moves by at most 2 eta G. Draws are fresh in every segment and nothing un-noised outlives it.
    Participation is not claimed to hide anything.
    """

    plans: Mapping[int, PrivateSteps]
    """Each client's batches: clip norm, rate and expected size."""
    multipliers: Mapping[int, float] = field(default_factory=dict)
    noised_by: NoisedBy = field(default=NoisedBy.CLIENT, kw_only=True)
    """Set by `at`: a trusted server noises the sum, other servers' members noise their own."""

    mean_of = "noisy sums of clipped steps"

    @property
    def facts(self) -> MechanismFacts:
        """The sum of a device's clipped steps is noised."""
        return MechanismFacts(NoisedValue.STEPS, private_steps=self.plans)

    def at(self, channel: Channel) -> Self:
        """Return the mechanism noised by the channel's server if it is trusted, else by its members."""
        return replace(self, noised_by=NoisedBy.SERVER if channel.trusted else NoisedBy.CLIENT)

    def noise_multipliers(self, clients: Iterable[int]) -> dict[int, float]:
        """Return what each client needs; a trusted server takes the largest of its members."""
        return {n: self._noise_of((n,)) for n in clients}

    def with_noise(self, multipliers: Mapping[int, float]) -> "SegmentSums":
        """Return the same mechanism; a trusted server takes the largest noise that one of its members needs."""
        return replace(self, multipliers=dict(multipliers))

    def claim_mean(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """Claim a trusted server's noisy sum, or one release per member and their mean."""
        if self.noised_by is NoisedBy.CLIENT:
            return super().claim_mean(updates, context)
        published = context.make_release(
            source=context.channel.name,
            event=self._segment_event(updates, context, context.channel.members),
            audience=context.channel.audience,
            what="noisy sum of clipped steps",
            subjects=frozenset(map(client_name, updates.cohort.members)),
            inputs=updates.sources,
            coins_known_to=frozenset({context.channel.name}),
        )
        return context.handed_over(updates), published

    def mean(self, updates: Updates, context: ReleaseContext) -> ReleaseValues:
        """Return the mean over the members, noised once by the trusted server or by each member."""
        if self.noised_by is NoisedBy.SERVER:
            noise = self._noise_of(context.channel.members)
            total, rejected = self._add_noise(updates, context, self._local_steps(updates), noise, EVERYONE)
        else:
            outcome = self.compute_each(updates, context)
            rejected = outcome.rejected
            total = sum(outcome.values.values(), torch.zeros(updates.worker.dimension))
        count = max(1, len(updates.cohort.members))
        return ReleaseValues({EVERYONE: total / count}, rejected, self._mean_std(updates, context, count))

    def _mean_std(self, updates: Updates, context: ReleaseContext, count: int) -> float:
        """Return the standard deviation of the noise in the mean: one noise of the server, or one of each member."""
        if self.noised_by is NoisedBy.SERVER:
            members = context.channel.members
            return self._noise_of(members) * self._sensitivity(updates, context, members) / count
        stds = (self._noise_of((n,)) * self._sensitivity(updates, context, (n,)) for n in updates.cohort.members)
        return math.sqrt(math.fsum(std**2 for std in stds)) / count

    def _sensitivity(self, updates: Updates, context: ReleaseContext, members: tuple[int, ...]) -> float:
        """Return the sensitivity to which the noise multiplier refers."""
        clip_norm = next(iter(self.plans.values())).clip_norm * context.channel.clip_factor
        return sum_sensitivity(clip_norm, Adjacency.REPLACE)

    def claim_each(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """Claim one release per member. Raise `Refused` below a trusted server, which protects sums."""
        if self.noised_by is NoisedBy.SERVER:
            only_sums()
        return super().claim_each(updates, context)

    @override
    def client_outputs(self, updates: Updates, context: ReleaseContext) -> Iterator[ClientOutput]:
        for member, update in self._local_steps(updates):
            value, rejected = self._add_noise(updates, context, [(member, update)], self._noise_of((member,)), member)
            yield ClientOutput(member, value, bool(rejected))

    def _noise_of(self, members: tuple[int, ...]) -> float:
        return max((self.multipliers.get(n, self.plans[n].noise_multiplier) for n in members), default=1.0)

    def _segment_event(self, updates: Updates, context: ReleaseContext, members: tuple[int, ...]) -> Event:
        """Return the event of a segment, with the most steps that the round may ask for."""
        steps, most = _steps_of(updates)
        plans = [self.plans[n] for n in members]
        reach = max(plan.clip_norm for plan in self.plans.values()) * context.channel.clip_factor
        length = _check_ball(updates, reach) * steps / (2 * reach)
        first = max(length * plan.clip_norm / plan.expected_batch for plan in plans) + ROUNDING
        # Steps may be chosen from released values. The claim at the largest number dominates every choice and is fixed
        # in advance, so the choice itself reveals nothing more.
        return Segment(most, max(plan.rate for plan in plans), min(1.0, first), Gaussian(self._noise_of(members)))

    def _local_steps(self, updates: Updates) -> list[tuple[int, torch.Tensor]]:
        return list(updates.train_segments(self._private_plans))

    def _private_plans(self, updates: Updates) -> list[PrivateSteps]:
        """Return the members' steps of this segment, without noise in each."""
        steps = self._planned_steps(updates)
        return [replace(self.plans[n], noise_multiplier=0.0, steps=steps[n]) for n in updates.cohort.members]

    def _planned_steps(self, updates: Updates) -> dict[int, int]:
        """Return each member's steps in this segment. Raise `Refused` for steps that the claim does not cover."""
        return dict.fromkeys(updates.cohort.members, _steps_of(updates)[0])

    def _add_noise(
        self,
        updates: Updates,
        context: ReleaseContext,
        sums: list[tuple[int, torch.Tensor]],
        noise: float,
        participant: int,
    ) -> tuple[torch.Tensor, int]:
        clip_norm = next(iter(self.plans.values())).clip_norm * context.channel.clip_factor
        return sum_and_noise(
            sums,
            FloatSum(updates.worker.dimension),
            clip_norm=clip_norm,
            noise_multiplier=noise,
            adjacency=Adjacency.REPLACE,  # both ends of the difference may lie anywhere in the ball
            rng=context.noise(participant),
        )

    def _claim_sent(self, updates: Updates, context: ReleaseContext, audience: frozenset[str]) -> tuple[Release, ...]:
        return tuple(
            context.sent_by(
                member,
                updates,
                event=self._segment_event(updates, context, (member,)),
                audience=audience,
                what="own noisy sum of clipped steps",
            )
            for member in updates.cohort.members
        )


def _check_ball(updates: Updates, reach: float) -> float:
    """Return the step length. Raise `Refused` unless all steps of the segment stay within the noised reach.

    A site gets these numbers from a party it does not trust: a longer path would move the sum by more than is claimed.
    """
    task = updates.task
    if task.step_norm is None or task.learning_rate is None:
        reason = "a segment's bound needs the length of every step"
        refuse(
            "step_norm", task.step_norm, reason, 'give step_norm and learning_rate, as algorithm.name = "h2fdp" does'
        )
    if not (task.steps or 1) * task.learning_rate * task.step_norm <= reach * (1 + ROUNDING):
        reason = f"{task.steps} steps of learning_rate={task.learning_rate:g} reach beyond the clip norm {reach:g}"
        refuse("step_norm", f"{task.step_norm:g}", reason, "scale steps onto a smaller ball")
    return task.learning_rate


def _steps_of(updates: Updates) -> tuple[int, int]:
    """Return (the steps of the segment, the most steps that its rate is claimed for). Raise `Refused` beyond them.

    A site gets both from a party it does not trust. More steps would draw an example more often than is claimed. So
    would a vector that the client keeps: it comes from un-noised steps, through which an example that was drawn once is
    in every later sum.
    """
    if updates.recall is not None:
        reason = "client state carries examples of earlier segments into this one, whether they were drawn or not"
        refuse("algorithm.name", "with client memory", reason, 'use algorithm.name = "h2fdp"')
    steps, most = updates.task.steps, updates.task.most_steps
    if steps is None or most is None:
        reason = "one example's effect on an update of many unclipped steps has no bound"
        refuse("privacy.where", "edge", reason, 'use algorithm.name = "h2fdp", where = "client", or unit = "client"')
    if not 1 <= steps <= most:
        refuse("steps", steps, f"the rate of a segment is claimed for 1 to most_steps={most}", "ask for fewer steps")
    return steps, most


WHOLE = 1.0
"""The largest norm of the features; the constant feature of the bias is 1."""
LIPSCHITZ, SMOOTH = 2.0, 1.0
"""Constants of one example's loss: sqrt 2 R and R^2 / 2 with R^2 = 2."""
CONVEX_ROUNDING = 1e-4
"""Relative excess over LIPSCHITZ that covers single precision."""
ALLOWED = {"steps", "most_steps", "learning_rate", "proximal"}
"""What a call may ask of convex steps: numbers that do not depend on private values."""


def convex_plan(plan: PrivateSteps, examples: int, *, drawn: bool, steps: int | None = None) -> PrivateSteps:
    """Return the plan over index groups that take turns, so that an example is in few steps of a segment.

    Drawn in secret: min(m, N / b) groups, from which a step draws b in expectation; with m q <= 1 every example has one
    draw and one use in a segment. In a fixed order: N / b groups, of which a step uses one whole.

    >>> plan = convex_plan(PrivateSteps(1.0, 1.0, 0.05, 5, 30.0), 600, drawn=True)
    >>> plan.groups, plan.rate
    (5, 0.25)
    """
    # Groups by index bound the others in a batch for certain, so the step-size limit always holds and delta gets no
    # tail.
    most = max(1, int(examples / plan.expected_batch * (1 + 1e-12)))
    groups = min(steps or plan.steps, most) if drawn else max(1, math.ceil(examples / plan.expected_batch))
    rate = min(1.0, groups * plan.rate) if drawn else 1.0
    return replace(plan, clip_norm=LIPSCHITZ * (1 + CONVEX_ROUNDING), rate=rate, groups=groups)


@dataclass(frozen=True)
class ConvexTerms:
    """The numbers in the bound."""

    learning_rate: float
    weight_decay: float
    sizes: Mapping[int, int]
    by_client: bool
    """Whether every member adds its own noise, whatever server gathers."""
    adjacency: Adjacency = Adjacency.ADD_REMOVE


@dataclass(frozen=True)
class ConvexSegments(SegmentSums):
    """-eta / b sum of the gradients of m batches, not clipped, + N(0, (z D)^2), D = 2 eta / b.

    Guarantees: for every example of a member, `ConvexSegment(k, rate, Gaussian(z))`, with k the number of turns of its
    group in a segment; with one turn `Poisson(rate, Gaussian(z))`. Each draw of the example drives the path with it and
    the path without it apart by at most D, and no step on the others drives them further: the objective is convex and
    smooth, eta is small enough for every batch that its group can give, and L2 and proximal terms do not depend on
    data. Clipped gradients would not be gradients of any convex function.
    """

    terms: ConvexTerms = field(kw_only=True)
    noise_std: float | None = None
    """An absolute amount of noise, instead of multiples of D."""

    @property
    @override
    def facts(self) -> MechanismFacts:
        return MechanismFacts(NoisedValue.PATH, private_steps=self.plans)

    def at(self, channel: Channel) -> Self:
        """Return the mechanism noised by the channel's server if it is trusted and the experiment lets it."""
        return self if self.terms.by_client else super().at(channel)

    def _sensitivity(self, updates: Updates, context: ReleaseContext, members: tuple[int, ...]) -> float:
        """Return D of the member with the smallest batch, twice that under replace-one."""
        eta = updates.task.learning_rate or self.terms.learning_rate
        alone = eta * max(self.plans[n].clip_norm / self.plans[n].expected_batch for n in members)
        return sum_sensitivity(alone, self.terms.adjacency)

    def _multiplier(self, updates: Updates, context: ReleaseContext, members: tuple[int, ...]) -> float:
        if self.noise_std is not None:
            return self.noise_std / self._sensitivity(updates, context, members)
        return self._noise_of(members)

    def _segment_event(self, updates: Updates, context: ReleaseContext, members: tuple[int, ...]) -> Event:
        self._check_contraction(updates, members)
        noise = Gaussian(self._multiplier(updates, context, members))
        _, most = self._step_counts(updates)
        rate = max(self.plans[n].rate for n in members)
        if self.terms.adjacency is Adjacency.REPLACE and min(self.plans[n].rate for n in members) < 1:
            reason = "hidden draws of convex steps are accounted under add/remove only"
            refuse("privacy.adjacency", "replace", reason, 'use adjacency = "add_remove", or mechanism = "output"')
        turns = max(math.ceil(most[n] / self.plans[n].groups) for n in members)
        if turns == 1:
            return Poisson(rate, noise) if rate < 1 else noise
        return ConvexSegment(turns, rate, noise)

    def _check_contraction(self, updates: Updates, members: tuple[int, ...]) -> None:
        """Raise `Refused` unless steps are proved not to drive two paths apart."""
        asked = set(updates.task.named_fields())
        if updates.recall is not None or asked - ALLOWED:
            reason = "convex steps are proved only for the data's loss with public L2 or proximal terms"
            what = ", ".join(sorted(asked - ALLOWED)) or "client memory"
            refuse("algorithm.name", f"with {what}", reason, "use h2fdp, fedavg, fedavgm, fedyogi or fedprox")
        eta = updates.task.learning_rate or self.terms.learning_rate
        curvature = self.terms.weight_decay + updates.task.proximal
        # A gradient step on a smooth convex function is non-expansive for eta <= 2 / smoothness; beyond, no bound
        # holds.
        for n in members:
            others = math.ceil(self.terms.sizes[n] / self.plans[n].groups) - 1
            smooth = curvature + SMOOTH * others / self.plans[n].expected_batch
            if eta * smooth > 2:
                reason = (
                    f"client {n}: two paths diverge at step sizes above 2 / (lambda + others / b) = {2 / smooth:.4g}"
                )
                refuse(
                    "learning_rate",
                    f"{eta:g}",
                    reason,
                    "use a smaller local.learning_rate or a larger local.batch_size",
                )

    def _step_counts(self, updates: Updates) -> tuple[dict[int, int], dict[int, int]]:
        """Return (each member's steps, the most steps that its rate is claimed for)."""
        task, members = updates.task, self.plans
        if task.steps is not None and task.steps > (task.most_steps or task.steps):
            reason = f"the rate of a segment is claimed for 1 to most_steps={task.most_steps}"
            refuse("steps", task.steps, reason, "ask for fewer steps")
        steps = {n: task.steps or self.plans[n].steps for n in members}
        return steps, {n: task.most_steps or steps[n] for n in members}

    @override
    def _planned_steps(self, updates: Updates) -> dict[int, int]:
        self._check_contraction(updates, updates.cohort.members)
        return self._step_counts(updates)[0]

    def _add_noise(
        self,
        updates: Updates,
        context: ReleaseContext,
        sums: list[tuple[int, torch.Tensor]],
        noise: float,
        participant: int,
    ) -> tuple[torch.Tensor, int]:
        members = context.channel.members if participant == EVERYONE else (participant,)
        finite, total = FiniteOnly(), torch.zeros(updates.worker.dimension, dtype=torch.float64)
        for _, value in finite(sums):
            total += value
        aggregate = Aggregate(total, self._sensitivity(updates, context, members))
        multiplier = self._multiplier(updates, context, members)
        return with_gaussian_noise(
            aggregate, noise_multiplier=multiplier, rng=context.noise(participant)
        ), finite.rejected
