"""How a round is executed, live or as a plan: what it asks of clients, and what its work and uploads cost."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, Protocol

import numpy as np
import torch
from typing_extensions import override

from sightline.algorithms.contract import ChannelMean, RoundControl, WorkStats
from sightline.config import Experiment, Local
from sightline.engine.build import BuiltExperiment
from sightline.errors import Refused, invalid, refuse
from sightline.events import Unit
from sightline.ledger import Release
from sightline.mechanisms import (
    Block,
    ClientExecutor,
    Cohort,
    CohortSampler,
    LocalSchedule,
    ModelChoice,
    NoiseStreams,
    Public,
    ReleaseContext,
    ReleaseValues,
    RemoteNodes,
    Schedules,
    Updates,
    active_places,
    effective_steps,
)
from sightline.mechanisms.samplers import thin_sampler
from sightline.randomness import EVERYONE, Streams
from sightline.resources import Cost
from sightline.topology import Channel
from sightline.training import LocalTask, RateSchedule
from sightline.training.call import TrainingCall


def work_stats(
    built: BuiltExperiment, cohort: Cohort, schedule: LocalSchedule, samplers: Sequence[CohortSampler]
) -> WorkStats:
    """Return learning rate, effective steps and share of the clients behind a mean update.

    Guarantees: with unit `client` the cohort is not used, because it may be a secret: plain means over all clients and
    the expected share; under replace-one no number that follows from shard sizes. Otherwise means over the cohort by
    data size, as the mechanisms weigh.
    """
    experiment, sizes, local = built.experiment, built.federation.sizes.tolist(), built.experiment.local
    full = experiment.samples_scheme == "full"
    if schedule.steps is not None:
        local = local.model_copy(update={"steps": schedule.steps, "epochs": None})
    most = max(whole_steps(size, local, full=full) for size in sizes)
    if experiment.privacy.unit == "client":
        weights = dict.fromkeys(built.clients, 1.0)
        share = math.fsum(s.expected for s in samplers) / sum(s.population for s in samplers)
    else:
        weights = {member: float(sizes[member]) for member in cohort.members}
        share = math.fsum(weights.values()) / math.fsum(sizes)
    steps = {n: expected_steps(sizes[n], local, full=full) for n in weights}
    mean = math.fsum(weights[n] * steps[n] for n in weights) / math.fsum(weights.values()) if weights else 0.0
    public = experiment.privacy.unit != "client" or experiment.privacy.adjacency != "replace" or local.steps is not None
    return WorkStats(schedule.learning_rate or local.learning_rate, share, (mean, most) if public else None)


def whole_steps(size: int, local: Local, *, full: bool, epochs: int | None = None) -> float:
    """Return the effective steps of a client of that size that finishes its epochs."""
    if local.steps is not None:
        return effective_steps(local.steps, local.momentum)
    per_epoch = 1 if full else math.ceil(size / local.batch_size)
    return effective_steps((epochs or local.epochs or 1) * per_epoch, local.momentum)


def expected_steps(size: int, local: Local, *, full: bool) -> float:
    """Return the effective steps, with stragglers as the mean over the epochs that a client completes."""
    whole = whole_steps(size, local, full=full)
    if not local.stragglers or local.epochs is None or local.epochs < 2:
        return whole
    partial = [whole_steps(size, local, full=full, epochs=done) for done in range(1, local.epochs)]
    return (1 - local.stragglers) * whole + local.stragglers * math.fsum(partial) / len(partial)


def planned_schedule(built: BuiltExperiment, time: int | None = None) -> LocalSchedule:
    """Return what the experiment file asks of a round; without `time`, at the full learning rate."""
    local = built.experiment.local
    if time is None:
        return LocalSchedule(local.steps, local.learning_rate)
    return LocalSchedule(local.steps, rate_schedule(built.experiment).rate_at(time, local.learning_rate))


def rate_schedule(experiment: Experiment) -> RateSchedule:
    """Return how the experiment's learning rate changes over rounds: public, and the same for all clients."""
    local = experiment.local
    return RateSchedule(
        local.schedule or "constant", experiment.rounds, local.warmup or 0, local.decay_every or 1, local.decay or 1.0
    )


def allow_schedule(built: BuiltExperiment, wanted: LocalSchedule, most_steps: int) -> LocalSchedule:
    """Return the schedule if the guarantee covers it; fields not given are as planned. Raise `Refused` otherwise."""
    planned = planned_schedule(built)
    # In DP-SGD the number of private steps is in the event, so it cannot follow released values. A segment's event is
    # claimed for the largest number of steps instead.
    if built.experiment.privacy.unit == "sample" and built.experiment.privacy.place != "edge":
        reason = "the guarantee for single examples fixes the number of private steps"
        refuse("schedule.steps", wanted.steps, reason, 'use unit = "client", or where = "edge" on a tree')
    steps = wanted.steps or planned.steps
    if steps is not None and steps > most_steps:
        refuse("schedule.steps", steps, f"noise was calibrated for at most {most_steps} local steps", "choose fewer")
    return LocalSchedule(steps, wanted.learning_rate or planned.learning_rate, wanted.rates)


def schedule_fields(schedule: LocalSchedule, planned: LocalSchedule) -> dict[str, Any]:
    """Return the schedule as fields of a local task; empty if it is the experiment's own."""
    given = {"steps": schedule.steps, "learning_rate": schedule.learning_rate}
    return {} if schedule == planned else {name: value for name, value in given.items() if value is not None}


def gradient_reach(task: LocalTask, planned: LocalSchedule) -> float:
    """Return learning rate x local steps: how far a training call moves for a gradient of norm one."""
    rate = task.learning_rate or planned.learning_rate or 1.0
    return float(rate) * float(task.steps or planned.steps or 1)


class ScheduleControl(RoundControl):
    """The `RoundControl` of a round: what it asks of its clients, and at which rates."""

    def __init__(self, built: BuiltExperiment, execution: "Execution", time: int, counts: dict[str, float]) -> None:
        self._built, self._execution, self._time, self._counts = built, execution, time, counts
        self.planned, self._unscheduled = planned_schedule(built, time), planned_schedule(built)
        self.schedule, self.most_steps = self.planned, self.planned.steps
        clipped = built.unit is not Unit.NONE and built.experiment.privacy.sensitivity != "convex"
        self.clip_norm = built.experiment.privacy.clip_norm if clipped else None
        self.period, self.top = built.topology.period, built.topology.top
        self.gathering_channels = built.topology.gathering_channels
        self.channel_means: list[list[ChannelMean]] = []
        self.released: dict[str, Public] = {}
        self._rated = frozenset[str]()

    @override
    def set_schedule(self, wanted: LocalSchedule, *, most_steps: int) -> None:
        self.schedule = self._execution.allow_schedule(self._built, wanted, most_steps)
        self.most_steps, self._rated = most_steps, frozenset(wanted.rates)

    def sets_rate(self, channel: Channel) -> bool:
        """Return whether the algorithm set the channel's rate; also in a plan, which takes the limit in its place."""
        return channel.name in self._rated

    def sampler_of(self, channel: Channel) -> CohortSampler:
        """Return the channel's sampler at the rate of this round."""
        whole, rate = self._built.sampler_of(channel), self.schedule.rates.get(channel.name)
        return whole if rate is None else thin_sampler(whole, rate, channel.name)

    def task_fields(self) -> dict[str, Any]:
        """Return the fields of a local task in which the round differs from the experiment."""
        return schedule_fields(self.schedule, self._unscheduled)

    @override
    def largest_rate(self, channel: Channel) -> float:
        whole = self._built.sampler_of(channel)
        return whole.expected / whole.population

    @override
    def price_rates(self, rates: Mapping[str, float]) -> tuple[Cost, Cost]:
        resources, topology = self._built.resources, self._built.topology
        if resources is None:
            invalid("resources", "missing", "prices need a model of energy and delay", "add a [resources] table")
        channels = topology.channels_at(self._time)
        thinned = [(c, thin_sampler(self._built.sampler_of(c), rates[c.name], c.name)) for c in channels]
        return resources.gathered_typically(thinned), sum(map(resources.cost_of_lifting, topology.uplinks), Cost())

    @override
    def noise_multiplier(self, channel: Channel) -> float:
        # The largest that one of its members needs.
        needed = self._built.mechanism.noise_multipliers(channel.members).values()
        return channel.noise_factor * max(needed, default=1.0)

    @override
    def channel_shares(self, channels: Sequence[Channel]) -> list[float]:
        # By members for unit `client`, else by data: public counts only, for any draw.
        sizes = self._built.federation.sizes.tolist()
        by_data = self._built.experiment.privacy.unit != "client"
        weights = [math.fsum(sizes[n] for n in c.members) if by_data else float(len(c.members)) for c in channels]
        return [weight / math.fsum(weights) for weight in weights]

    @override
    def note_metrics(self, **numbers: float) -> None:
        self._counts.update({name: float(value) for name, value in numbers.items()})


def eligible_members(sampler: CohortSampler, channel: Channel, time: int) -> tuple[int, ...]:
    """Return the members of a channel that may be asked in a round: all, or those whose turn it is."""
    indices = active_places(sampler, time)
    return channel.members if indices is None else tuple(channel.members[index] for index in indices)


Compute = Callable[[Updates, ReleaseContext], ReleaseValues]


class Execution(Protocol):
    """The source of a round's random draws and values; claims and records are the same for every execution."""

    rehearsal: bool
    """Whether this is a plan: no values, no budget, no cost of sending."""
    worker: ClientExecutor
    secret: Streams
    noises: NoiseStreams | None
    """The run's streams of correlated noise; None in a plan."""

    def allow_schedule(self, built: BuiltExperiment, wanted: LocalSchedule, most_steps: int) -> LocalSchedule:
        """Return what the round asks of its clients if an algorithm wants this, within the plan."""

    def draw_members(
        self, sampler: CohortSampler, channel: Channel, time: int, rng: np.random.Generator, *, line: int
    ) -> tuple[int, ...]:
        """Return the members of the channel that take part."""

    def compute_values(self, updates: Updates, context: ReleaseContext, compute: Compute) -> ReleaseValues:
        """Return the values of releases that are already recorded."""

    def share_value(self, release: Release, holder: str, value: torch.Tensor) -> torch.Tensor:
        """Return a released value as the party at work has it, after its holder has sent it to the audience."""

    def collect_choices(self, ballot: ModelChoice, context: ReleaseContext) -> dict[int, int]:
        """Return client -> the model that it chose."""


class LiveExecution:
    """A round of a real run: clients train, cohorts are drawn by the secret streams."""

    rehearsal = False

    def __init__(
        self, worker: ClientExecutor, secret: Streams, schedules: Schedules | None = None,
        noises: NoiseStreams | None = None,
    ) -> None:  # fmt: skip
        self.worker, self.secret = worker, secret
        self._schedules = schedules or Schedules(secret)
        self.noises: NoiseStreams | None = noises or NoiseStreams(secret)

    def allow_schedule(self, built: BuiltExperiment, wanted: LocalSchedule, most_steps: int) -> LocalSchedule:
        """Return the wanted schedule. Raise `Refused` if the guarantee does not cover it."""
        return allow_schedule(built, wanted, most_steps)

    def draw_members(
        self, sampler: CohortSampler, channel: Channel, time: int, rng: np.random.Generator, *, line: int
    ) -> tuple[int, ...]:
        """Draw members with the sampler."""
        return tuple(channel.members[index] for index in sampler.draw(time, rng, self._schedules, line=line))

    def compute_values(self, updates: Updates, context: ReleaseContext, compute: Compute) -> ReleaseValues:
        """Return what the mechanism computes."""
        return compute(updates, context)

    def share_value(self, release: Release, holder: str, value: torch.Tensor) -> torch.Tensor:
        """Return the value: all parties are here."""
        return value

    def collect_choices(self, ballot: ModelChoice, context: ReleaseContext) -> dict[int, int]:
        """Return what the members choose by their own data."""
        return ballot.draw_choices(self.worker, context)


class DryExecution:
    """A round of a plan: all clients take part, the most is asked of each, and nothing is computed.

    Guarantees: no data is touched; its claims cover whatever a live round may claim.
    """

    rehearsal = True

    def __init__(self, sizes: Sequence[int], *, real_nodes: bool = False, dimension: int = 1) -> None:
        self.worker: ClientExecutor = AbsentClients(sizes, real_nodes=real_nodes, dimension=dimension)
        self.secret = Streams.from_seed(0)
        self.noises: NoiseStreams | None = None

    def allow_schedule(self, built: BuiltExperiment, wanted: LocalSchedule, most_steps: int) -> LocalSchedule:
        """Return the most that may be asked for."""
        # Rates of the algorithm are dropped: the plan runs at the experiment's rates, which dominate them.
        return allow_schedule(built, LocalSchedule(most_steps), most_steps)

    def draw_members(
        self, sampler: CohortSampler, channel: Channel, time: int, rng: np.random.Generator, *, line: int
    ) -> tuple[int, ...]:
        """Return all eligible members in the rounds of the busiest client: calibration must hold for it."""
        return eligible_members(sampler, channel, time) if sampler.takes_part_in_plan(time) else ()

    def compute_values(self, updates: Updates, context: ReleaseContext, compute: Compute) -> ReleaseValues:
        """Return zeros for all members."""
        return ReleaseValues(dict.fromkeys((EVERYONE, *updates.cohort.members), torch.zeros(self.worker.dimension)))

    def share_value(self, release: Release, holder: str, value: torch.Tensor) -> torch.Tensor:
        """Return the value: a plan is made for all parties at once."""
        return value

    def collect_choices(self, ballot: ModelChoice, context: ReleaseContext) -> dict[int, int]:
        """Return the first model for every chooser."""
        return dict.fromkeys(ballot.choosers.members, 0)


class AbsentClients:
    """Clients in a plan: their numbers of examples are known, and they never train."""

    def __init__(self, sizes: Sequence[int], *, real_nodes: bool = False, dimension: int = 1) -> None:
        self.sizes, self.dimension = sizes, dimension
        self.nodes: RemoteNodes | None = AbsentNodes() if real_nodes else None

    def close(self) -> None:
        """Do nothing: there are no resources."""

    def run(self, call: TrainingCall) -> Iterator[Block]:
        """Raise `Refused`: a plan never trains."""
        _refuse_values(call.cohort)


class AbsentNodes:
    """Placeholder for real nodes in a plan: claims that need every answer cannot be made for them."""

    steadfast = False

    def request_outputs(self, updates: Updates, context: ReleaseContext) -> NoReturn:
        """Raise `Refused`: a plan asks no node."""
        _refuse_values(updates.cohort.members)

    def request_choices(self, ballot: ModelChoice, context: ReleaseContext) -> NoReturn:
        """Raise `Refused`: a plan asks no node."""
        _refuse_values(ballot.choosers.members)


def _refuse_values(cohort: Sequence[int]) -> NoReturn:
    raise Refused(f"clients={len(cohort)}: a plan computes no values; release updates before you use them")
