"""How a round is executed: live, on clients and with random draws, or dry, as the worst case that a plan counts."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, Protocol

import numpy as np
import torch

from sightline.engine.build import BuiltExperiment
from sightline.engine.round_work import allow_schedule
from sightline.errors import Refused
from sightline.mechanisms import (
    Block,
    ClientExecutor,
    CohortSampler,
    LocalSchedule,
    ModelChoice,
    ReleaseContext,
    ReleaseValues,
    RemoteNodes,
    Schedules,
    Updates,
)
from sightline.randomness import EVERYONE, Streams
from sightline.topology import Channel

Compute = Callable[[Updates, ReleaseContext], ReleaseValues]


class Execution(Protocol):
    """Where a round's random draws and values come from; what it claims and records is the same everywhere."""

    rehearsal: bool
    """Whether this is a plan: no values, no budget, nothing sent that would cost something."""
    worker: ClientExecutor
    secret: Streams

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

    def __init__(self, worker: ClientExecutor, secret: Streams, schedules: Schedules | None = None) -> None:
        self.worker, self.secret = worker, secret
        self._schedules = schedules or Schedules(secret)

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

    def allow_schedule(self, setting: BuiltExperiment, wanted: LocalSchedule, most_steps: int) -> LocalSchedule:
        """The most that may be asked for: calibration must hold whatever will be wanted."""
        return allow_schedule(setting, LocalSchedule(most_steps), most_steps)

    def draw_members(
        self, sampler: CohortSampler, channel: Channel, time: int, rng: np.random.Generator, *, line: int
    ) -> tuple[int, ...]:
        """Everybody, in the rounds of the busiest client: calibration must hold for it."""
        return channel.members if sampler.takes_part_in_plan(time) else ()

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
