"""How a round is executed: live or dry, what it asks of its clients, what its work and uploads amount to."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, Protocol

import numpy as np
import torch

from sightline.algorithms.contract import WorkStats
from sightline.config import Experiment, Local
from sightline.engine.build import BuiltExperiment
from sightline.errors import Refused, invalid, refuse
from sightline.mechanisms import (
    Block,
    ClientExecutor,
    Cohort,
    CohortSampler,
    LocalSchedule,
    ModelChoice,
    NoiseStreams,
    ReleaseContext,
    ReleaseValues,
    RemoteNodes,
    Schedules,
    Updates,
    active_places,
    effective_steps,
)
from sightline.randomness import EVERYONE, Streams
from sightline.resources import Cost
from sightline.topology import Channel
from sightline.training import LocalTask, RateSchedule


def effort_of(
    setting: BuiltExperiment, cohort: Cohort, pace: LocalSchedule, samplers: Sequence[CohortSampler]
) -> WorkStats:
    """Learning rate, effective steps and share of the clients behind a mean update.

    Guarantees: with unit `client` the cohort is not looked at, because it may be a secret: plain means over everybody
    and the expected share; under replace-one no number that follows from the sizes of shards. Otherwise means over the
    cohort by data size, as the mechanisms weigh.
    """
    experiment, sizes, local = setting.experiment, setting.federation.sizes.tolist(), setting.experiment.local
    full = experiment.samples_scheme == "full"
    if pace.steps is not None:
        local = local.model_copy(update={"steps": pace.steps, "epochs": None})
    most = max(whole_steps(size, local, full=full) for size in sizes)
    if experiment.privacy.unit == "client":
        weights = dict.fromkeys(setting.clients, 1.0)
        share = math.fsum(s.expected for s in samplers) / sum(s.population for s in samplers)
    else:
        weights = {member: float(sizes[member]) for member in cohort.members}
        share = math.fsum(weights.values()) / math.fsum(sizes)
    steps = {n: expected_steps(sizes[n], local, full=full) for n in weights}
    mean = math.fsum(weights[n] * steps[n] for n in weights) / math.fsum(weights.values()) if weights else 0.0
    public = experiment.privacy.unit != "client" or experiment.privacy.adjacency != "replace" or local.steps is not None
    return WorkStats(pace.learning_rate or local.learning_rate, share, (mean, most) if public else None)


def whole_steps(size: int, local: Local, *, full: bool, epochs: int | None = None) -> float:
    """Effective steps of a client of that size that finishes its epochs."""
    if local.steps is not None:
        return effective_steps(local.steps, local.momentum)
    per_epoch = 1 if full else math.ceil(size / local.batch_size)
    return effective_steps((epochs or local.epochs or 1) * per_epoch, local.momentum)


def expected_steps(size: int, local: Local, *, full: bool) -> float:
    """The same; with stragglers the mean over how many epochs the client manages."""
    whole = whole_steps(size, local, full=full)
    if not local.stragglers or local.epochs is None or local.epochs < 2:
        return whole
    some = [whole_steps(size, local, full=full, epochs=done) for done in range(1, local.epochs)]
    return (1 - local.stragglers) * whole + local.stragglers * math.fsum(some) / len(some)


def planned_schedule(setting: BuiltExperiment, time: int | None = None) -> LocalSchedule:
    """What the experiment file asks of a round; without its time, of rounds at the full learning rate."""
    local = setting.experiment.local
    if time is None:
        return LocalSchedule(local.steps, local.learning_rate)
    return LocalSchedule(local.steps, rate_schedule(setting.experiment).rate_at(time, local.learning_rate))


def rate_schedule(experiment: Experiment) -> RateSchedule:
    """How the experiment's learning rate goes over its rounds: public, and the same for everybody."""
    local = experiment.local
    return RateSchedule(
        local.schedule or "constant", experiment.rounds, local.warmup or 0, local.decay_every or 1, local.decay or 1.0
    )


def allow_schedule(setting: BuiltExperiment, wanted: LocalSchedule, most_steps: int) -> LocalSchedule:
    """The pace, when the guarantee covers it: what is not named is as planned."""
    planned = planned_schedule(setting)
    if setting.experiment.privacy.unit == "sample" and setting.experiment.privacy.place != "edge":
        law = "the number of private steps is part of the guarantee of single examples"
        refuse("pace.steps", wanted.steps, law, 'use unit = "client", or where = "edge" on a tree')
    steps = wanted.steps or planned.steps
    if steps is not None and steps > most_steps:
        refuse("pace.steps", steps, f"noise was calibrated for at most {most_steps} local steps", "choose fewer")
    return LocalSchedule(steps, wanted.learning_rate or planned.learning_rate, wanted.rates)


def schedule_fields(pace: LocalSchedule, planned: LocalSchedule) -> dict[str, Any]:
    """The pace as fields of a local task; nothing where the experiment's own, at its full learning rate, holds."""
    found = {"steps": pace.steps, "learning_rate": pace.learning_rate}
    return {} if pace == planned else {name: value for name, value in found.items() if value is not None}


def gradient_reach(task: LocalTask, planned: LocalSchedule) -> float:
    """How far a training call goes for a gradient of one: learning rate x local steps."""
    rate = task.learning_rate or planned.learning_rate or 1.0
    return float(rate) * float(task.steps or planned.steps or 1)


def noise_at(setting: BuiltExperiment, channel: Channel) -> float:
    """z of what a channel releases: the largest that one of its members needs."""
    return channel.noise_factor * max(setting.mechanism.noise_multipliers(channel.members).values(), default=1.0)


def shares_of(setting: BuiltExperiment, channels: Sequence[Channel]) -> list[float]:
    """How much of a mean over channels is each channel's: by members for unit `client`, else by their data.

    Guarantees: a function of public counts only, whoever was drawn.
    """
    sizes = setting.federation.sizes.tolist()
    by_data = setting.experiment.privacy.unit != "client"
    weights = [math.fsum(sizes[n] for n in c.members) if by_data else float(len(c.members)) for c in channels]
    return [weight / math.fsum(weights) for weight in weights]


class CostMeter:
    """Counts energy and delay of one round into its metrics, where the experiment has a model of them."""

    def __init__(self, setting: BuiltExperiment, time: int, counts: dict[str, float], *, counting: bool) -> None:
        self._resources, self._topology = setting.resources, setting.topology
        self._time, self._counts = time, counts
        self._gatherings = 0
        self._counting = counting and self._resources is not None
        if self._counting:
            self._charge_cost(Cost())

    def charge_gathering(self, contexts: Sequence[ReleaseContext]) -> None:
        """One upload by the cohorts of these channels: its mean cost, which tells nobody who took part."""
        if self._resources is None or not self._counting:
            return
        many = [(context.channel, context.sampler) for context in contexts]
        self._charge_cost(self._resources.cost_of_gathering(many, round=self._time, use=self._gatherings))
        self._gatherings += 1

    def charge_lifting(self) -> None:
        """What the edges have is sent up to the top, level by level."""
        if self._resources is not None and self._counting:
            for nodes in self._topology.uplinks:
                self._charge_cost(self._resources.cost_of_lifting(nodes, round=self._time))

    def price_samplers(self, many: Sequence[tuple[Channel, CohortSampler]]) -> tuple[Cost, Cost]:
        """(one gathering by these samplers, one way up to the top), as they can be known beforehand."""
        if self._resources is None:
            invalid("resources", "missing", "a price needs a model of energy and delay", "add a [resources] table")
        up = Cost()
        for nodes in self._topology.uplinks:
            up += self._resources.cost_of_lifting(nodes)
        return self._resources.gathered_typically(many), up

    def note_metrics(self, numbers: Mapping[str, float]) -> None:
        """Public numbers of the round for its metrics."""
        self._counts.update({name: float(value) for name, value in numbers.items()})

    def _charge_cost(self, cost: Cost) -> None:
        for name, value in (("energy_joule", cost.energy_joule), ("delay_seconds", cost.delay_seconds)):
            self._counts[name] = self._counts.get(name, 0.0) + value


def eligible_members(sampler: CohortSampler, channel: Channel, time: int) -> tuple[int, ...]:
    """Who of a channel may be asked in a round: its members, or those whose turn it is."""
    places = active_places(sampler, time)
    return channel.members if places is None else tuple(channel.members[place] for place in places)


Compute = Callable[[Updates, ReleaseContext], ReleaseValues]


class Execution(Protocol):
    """Where a round's random draws and values come from; what it claims and records is the same everywhere."""

    rehearsal: bool
    """Whether this is a plan: no values, no budget, nothing sent that would cost something."""
    worker: ClientExecutor
    secret: Streams
    noises: NoiseStreams | None
    """The run's streams of correlated noise."""

    def allow_schedule(self, setting: BuiltExperiment, wanted: LocalSchedule, most_steps: int) -> LocalSchedule:
        """What the round asks of its clients when an algorithm wants this, within what was planned for."""

    def draw_members(
        self, sampler: CohortSampler, channel: Channel, time: int, rng: np.random.Generator, *, line: int
    ) -> tuple[int, ...]:
        """Who of the channel's members takes part."""

    def compute_values(self, updates: Updates, context: ReleaseContext, compute: Compute) -> ReleaseValues:
        """The values of releases that are recorded already."""

    def collect_choices(self, ballot: ModelChoice, context: ReleaseContext) -> dict[int, int]:
        """Which model each member chose."""


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

    def allow_schedule(self, setting: BuiltExperiment, wanted: LocalSchedule, most_steps: int) -> LocalSchedule:
        """As wanted, when the guarantee covers it."""
        return allow_schedule(setting, wanted, most_steps)

    def draw_members(
        self, sampler: CohortSampler, channel: Channel, time: int, rng: np.random.Generator, *, line: int
    ) -> tuple[int, ...]:
        """As the sampler draws."""
        return tuple(channel.members[place] for place in sampler.draw(time, rng, self._schedules, line=line))

    def compute_values(self, updates: Updates, context: ReleaseContext, compute: Compute) -> ReleaseValues:
        """What the mechanism computes."""
        return compute(updates, context)

    def collect_choices(self, ballot: ModelChoice, context: ReleaseContext) -> dict[int, int]:
        """What the members choose by their own data."""
        return ballot.draw_choices(self.worker, context)


class DryExecution:
    """A round of a plan: everybody takes part, the most is asked of everybody, and nothing is computed.

    Guarantees: no data is touched; what is claimed in it covers whatever a live round may claim.
    """

    rehearsal = True

    def __init__(self, sizes: Sequence[int], *, real_nodes: bool = False, dimension: int = 1) -> None:
        self.worker: ClientExecutor = AbsentClients(sizes, real_nodes=real_nodes, dimension=dimension)
        self.secret = Streams.from_seed(0)
        self.noises: NoiseStreams | None = None

    def allow_schedule(self, setting: BuiltExperiment, wanted: LocalSchedule, most_steps: int) -> LocalSchedule:
        """The most that may be asked for: calibration must hold whatever will be wanted."""
        return allow_schedule(setting, LocalSchedule(most_steps), most_steps)

    def draw_members(
        self, sampler: CohortSampler, channel: Channel, time: int, rng: np.random.Generator, *, line: int
    ) -> tuple[int, ...]:
        """Everybody who may be asked, in the rounds of the busiest client: calibration must hold for it."""
        return eligible_members(sampler, channel, time) if sampler.takes_part_in_plan(time) else ()

    def compute_values(self, updates: Updates, context: ReleaseContext, compute: Compute) -> ReleaseValues:
        """Nothing, for everybody."""
        return ReleaseValues(dict.fromkeys((EVERYONE, *updates.cohort.members), torch.zeros(self.worker.dimension)))

    def collect_choices(self, ballot: ModelChoice, context: ReleaseContext) -> dict[int, int]:
        """Everybody chooses the first."""
        return dict.fromkeys(ballot.choosers.members, 0)


class AbsentClients:
    """Clients of whom a plan knows how many examples they have, and nothing else: they never train."""

    def __init__(self, sizes: Sequence[int], *, real_nodes: bool = False, dimension: int = 1) -> None:
        self.sizes, self.dimension = sizes, dimension
        self.nodes: RemoteNodes | None = AbsentNodes() if real_nodes else None

    def close(self) -> None:
        """Nothing to let go."""

    def train(self, cohort: Sequence[int], *_: Any, **__: Any) -> Iterator[Block]:
        """Refused: a plan never trains."""
        _refuse_values(cohort)

    dp_sgd = gradient_sums = minimise = train

    def right_answers(self, cohort: Sequence[int], models: torch.Tensor) -> Iterator[tuple[int, list[int]]]:
        """Refused: a plan never evaluates."""
        _refuse_values(cohort)


class AbsentNodes:
    """Stands where real nodes would be: what rests on everybody's answer cannot be claimed of them."""

    steadfast = False

    def request_outputs(self, updates: Updates, context: ReleaseContext) -> NoReturn:
        """Refused: a plan asks nobody."""
        _refuse_values(updates.cohort.members)

    def request_choices(self, ballot: ModelChoice, context: ReleaseContext) -> NoReturn:
        """Refused: a plan asks nobody."""
        _refuse_values(ballot.choosers.members)


def _refuse_values(cohort: Sequence[int]) -> NoReturn:
    raise Refused(f"clients={len(cohort)}: a plan has no values; release before you compute")
