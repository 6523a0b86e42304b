"""Cohort samplers: each draws cohorts and states the event that its draws make of a release."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln
from typing_extensions import override

from sightline.config import ClientSampler
from sightline.errors import SightlineError, invalid, refuse
from sightline.events import Adjacency, Event, FixedCohort, Poisson, WithoutReplacement
from sightline.plugins import SAMPLER, locate_plugin, refuse_plugin
from sightline.randomness import Purpose, Streams
from sightline.training.schedule import Allotment, Schedules


@dataclass(frozen=True)
class Cohort:
    """The clients that take part in a round; secret wherever amplification is claimed."""

    members: tuple[int, ...]


@dataclass(frozen=True)
class Cohorts:
    """How many cohorts each channel draws in a run, and every how many rounds."""

    count: int
    spacing: int = 1
    seed: int = 0
    """The experiment's seed, for what is public and drawn once for the whole run."""


ONE_COHORT = Cohorts(1)


class CohortSampler(Protocol):
    """A way to draw cohorts, and the event that it makes of the cohort's release."""

    @property
    def population(self) -> int:
        """The number of clients."""

    @property
    def expected(self) -> float:
        """The expected cohort size: the public denominator of every mean."""

    def draw(self, time: int, rng: np.random.Generator, schedules: Schedules, *, line: int = 0) -> tuple[int, ...]:
        """Return the indices of a round's cohort among the members of channel `line`, in increasing order.

        `rng` is the round's own stream; draws made ahead for many rounds come from `schedules`.
        """

    def hidden_event(self, event: Event) -> Event:
        """Return the event against an observer that does not see the draws; all clients are its subjects."""

    def joint_name(self, time: int) -> str:
        """Return the name shared by the rounds that one hidden event covers; empty if every round has its own."""

    def takes_part_in_plan(self, time: int) -> bool:
        """Return whether the busiest client takes part in a round; a plan in which all do so is the worst case."""

    def chance_of_none(self, some: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the probability that none of `some` given members is in a cohort."""

    def load(self, cohorts: Cohorts) -> dict[str, float] | None:
        """Return how often a member is used over a run, as a distribution and never the draws; None if trivial."""


class IndependentMembers:
    """Mixin for samplers that draw members independently."""

    def chance_of_none(self: CohortSampler, some: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return (1 - q)^some, with q the probability that a member is drawn."""
        return np.asarray((1 - self.expected / self.population) ** some.astype(np.float64))


class Memoryless(IndependentMembers):
    """Mixin for samplers whose rounds are independent."""

    def joint_name(self, time: int) -> str:
        """Return an empty name: every round is charged by itself."""
        return ""

    def takes_part_in_plan(self, time: int) -> bool:
        """Return True: any client may be drawn every time."""
        return True

    def load(self, cohorts: Cohorts) -> dict[str, float] | None:
        """Return None."""
        return None


@dataclass(frozen=True)
class Full(Memoryless):
    """All clients in every round: nothing is hidden, nothing is amplified."""

    population: int

    @property
    def expected(self) -> float:
        """The whole population."""
        return float(self.population)

    def draw(self, time: int, rng: np.random.Generator, schedules: Schedules, *, line: int = 0) -> tuple[int, ...]:
        """Return all indices."""
        return tuple(range(self.population))

    def hidden_event(self, event: Event) -> Event:
        """Return the event itself."""
        return event


@dataclass(frozen=True)
class PoissonCohorts(Memoryless):
    """Every client independently with probability `rate`; the cohort may be empty."""

    population: int
    rate: float

    @property
    def expected(self) -> float:
        """q N."""
        return self.rate * self.population

    def draw(self, time: int, rng: np.random.Generator, schedules: Schedules, *, line: int = 0) -> tuple[int, ...]:
        """Draw every client independently."""
        return tuple(int(number) for number in np.flatnonzero(rng.random(self.population) < self.rate))

    def hidden_event(self, event: Event) -> Event:
        """Return `Poisson(rate, event)`."""
        return Poisson(self.rate, event)

    @override
    def load(self, cohorts: Cohorts) -> dict[str, float] | None:
        return {"steps": cohorts.count, "rate": self.rate}


@dataclass(frozen=True)
class FixedCohorts(Memoryless):
    """Exactly `size` clients, uniformly without replacement: not Poisson, and not accounted as if it were.

    Every client keeps its place: under add/remove, a client that is zeroed out may be drawn and adds nothing.
    """

    population: int
    size: int
    adjacency: Adjacency
    hidden: bool = True
    """Whether the draw stays secret; false if clients remember it and later train by what they remember."""

    @property
    def expected(self) -> float:
        """The size."""
        return float(self.size)

    def draw(self, time: int, rng: np.random.Generator, schedules: Schedules, *, line: int = 0) -> tuple[int, ...]:
        """Draw a uniformly random subset of the given size."""
        return tuple(sorted(int(n) for n in rng.choice(self.population, self.size, replace=False)))

    def hidden_event(self, event: Event) -> Event:
        """Return `FixedCohort` over all but one under add/remove, `WithoutReplacement` under replace-one.

        A client that was not drawn knows that the cohort came from the others: for such an observer the population is
        one smaller, and that is claimed against everyone. If nothing is hidden the event itself is returned.
        """
        if not self.hidden or self.size >= self.population - 1:
            return event
        # Never Poisson's numbers: with the subject in the cohort some other client is not, so the draws are dependent.
        kind = WithoutReplacement if self.adjacency is Adjacency.REPLACE else FixedCohort
        return kind(self.size, self.population - 1, event)

    def chance_of_none(self, some: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return C(n - some, m) / C(n, m): members are drawn without replacement."""
        population, size = self.population, self.size
        left = population - some.astype(np.float64)
        possible = left >= size
        left = np.where(possible, left, size)
        chance = gammaln(left + 1) - gammaln(left - size + 1) + gammaln(population - size + 1) - gammaln(population + 1)
        return np.where(possible, np.exp(chance), 0.0)


@dataclass(frozen=True)
class ScheduledCohorts(IndependentMembers):
    """Every client in exactly k of T rounds, by a hidden schedule drawn once per epoch.

    One event covers all rounds of an epoch, see `Allotment.event`.
    """

    population: int
    allotment: Allotment
    spacing: int = 1
    """Rounds from one cohort to the next."""
    epochs: int = 1
    """Number of consecutive schedules in a run."""

    @property
    def expected(self) -> float:
        """N k / T."""
        return self.allotment.share * self.population

    def step(self, time: int) -> int:
        """Return the step of the schedule for a round, from 0."""
        return time // self.spacing - 1

    def draw(self, time: int, rng: np.random.Generator, schedules: Schedules, *, line: int = 0) -> tuple[int, ...]:
        """Return the members that the channel's schedule uses in this round."""
        # The schedule has its own stream per epoch: the round's own `rng` knows nothing of the other rounds.
        used = schedules.members_used(self.step(time), self.allotment, members=self.population, line=line)
        return tuple(used.tolist())

    def hidden_event(self, event: Event) -> Event:
        """Return the event of a whole epoch."""
        return self.allotment.event(event)

    def joint_name(self, time: int) -> str:
        """Return the name of the schedule epoch that the round belongs to."""
        return f"schedule {self.step(time) // self.allotment.steps + 1}"

    def takes_part_in_plan(self, time: int) -> bool:
        """Return True for the first k rounds of every epoch."""
        # The first rounds are the worst case: what is sent early flows furthest.
        return self.step(time) % self.allotment.steps < self.allotment.uses

    def load(self, cohorts: Cohorts) -> dict[str, float] | None:
        """Return the load of the schedule."""
        return self.allotment.load(self.epochs)


@dataclass(frozen=True)
class TurnsCohorts(IndependentMembers):
    """Public groups that take turns: step t uses group t mod b of b, all of it or hidden draws out of it.

    Guarantees: the groups are a public random partition that never changes, of sizes as equal as possible, so a client
    is used at least b steps apart and in at most ceil(T / b) of T steps. Releases are about the group whose turn it is
    and about no other client; with a `rate` each of its members is drawn independently, afresh for every release.
    """

    population: int
    groups: int
    rate: float | None = None
    """The probability that a member of the group is drawn; None: all of them, and nothing is hidden."""
    spacing: int = 1
    """Rounds from one cohort to the next."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.groups > self.population:
            reason = f"a channel of {self.population} members cannot fill them"
            invalid("sampling.clients.groups", self.groups, reason, "use fewer groups")

    @property
    def expected(self) -> float:
        """N / b, or q N / b: the same in all rounds."""
        # Group sizes may differ by one. One public denominator for all rounds lets correlated noise cancel across
        # rounds.
        return (self.rate or 1.0) * self.population / self.groups

    def step(self, time: int) -> int:
        """Return the number of the channel's cohort in a round, from 0."""
        return time // self.spacing - 1

    @cached_property
    def places(self) -> tuple[tuple[int, ...], ...]:
        """The indices of every group's members, in increasing order (public)."""
        # From the seed, never from the secret root: the partition is public and must be the same after a restart.
        streams = Streams.from_seed(self.seed)
        order = streams.rng(Purpose.ASSIGNMENT, participant=self.population, use=self.groups).permutation(
            self.population
        )
        return tuple(tuple(sorted(order[number :: self.groups].tolist())) for number in range(self.groups))

    def active_places(self, time: int) -> tuple[int, ...]:
        """Return the indices of the group whose turn it is; no other client may be asked."""
        return self.places[self.step(time) % self.groups]

    def draw(self, time: int, rng: np.random.Generator, schedules: Schedules, *, line: int = 0) -> tuple[int, ...]:
        """Return the group whose turn it is, or independent draws of its members."""
        active = self.active_places(time)
        if self.rate is None:
            return active
        return tuple(index for index, draw in zip(active, rng.random(len(active)), strict=True) if draw < self.rate)

    def hidden_event(self, event: Event) -> Event:
        """Return the event itself for the group whose turn it is, or `Poisson(rate, event)`."""
        return event if self.rate is None else Poisson(self.rate, event)

    def joint_name(self, time: int) -> str:
        """Return an empty name: every round is charged by itself."""
        return ""

    def takes_part_in_plan(self, time: int) -> bool:
        """Return True: turns are public."""
        return True

    def load(self, cohorts: Cohorts) -> dict[str, float] | None:
        """Return one draw per turn of the group; None without a rate."""
        turns = -(-cohorts.count // self.groups)
        return None if self.rate is None else {"steps": turns, "rate": self.rate}


def active_places(sampler: CohortSampler, time: int) -> tuple[int, ...] | None:
    """Return the indices from which a round's cohort is drawn; None if all clients may be asked."""
    return sampler.active_places(time) if isinstance(sampler, TurnsCohorts) else None


def _build_turns(settings: ClientSampler, population: int, adjacency: Adjacency, cohorts: Cohorts) -> CohortSampler:
    return TurnsCohorts(population, settings.groups or 1, settings.rate, cohorts.spacing, cohorts.seed)


def _build_fixed(settings: ClientSampler, population: int, adjacency: Adjacency, cohorts: Cohorts) -> CohortSampler:
    return FixedCohorts(population, max(1, round((settings.rate or 1.0) * population)), adjacency)


def _build_scheduled(settings: ClientSampler, population: int, adjacency: Adjacency, cohorts: Cohorts) -> CohortSampler:
    allotment = Allotment.read("sampling.clients", settings, cohorts.count)
    return ScheduledCohorts(population, allotment, cohorts.spacing, settings.epochs or 1)


BuildSampler = Callable[[ClientSampler, int, Adjacency, Cohorts], CohortSampler]
"""(its section of the experiment file, number of clients, adjacency, number of cohorts) -> the sampler."""

SAMPLERS: dict[str, BuildSampler] = {
    "full": lambda settings, population, adjacency, cohorts: Full(population),
    "poisson": lambda settings, population, adjacency, cohorts: PoissonCohorts(population, settings.rate or 1.0),
    "fixed": _build_fixed,
    "balanced": _build_scheduled,
    "check_ins": _build_scheduled,
    "turns": _build_turns,
}


def build_sampler(
    settings: ClientSampler,
    *,
    population: int,
    adjacency: Adjacency,
    cohorts: Cohorts = ONE_COHORT,
) -> CohortSampler:
    """Build the sampler of an experiment file; `cohorts` says how many cohorts it will draw, for schedules.

    `engine.build` checks a plugin's.
    """
    build = find_sampler(settings.scheme)
    try:
        return build(settings, population, adjacency, cohorts)
    except SightlineError:
        raise
    except Exception as error:
        if settings.scheme in SAMPLERS:
            raise
        refuse_plugin(SAMPLER, settings.scheme, error)


def reveal_cohorts(sampler: CohortSampler) -> CohortSampler:
    """Return the sampler for clients that train by state, which reveals who was in a cohort of fixed size."""
    return replace(sampler, hidden=False) if isinstance(sampler, FixedCohorts) else sampler


def find_sampler(scheme: str) -> BuildSampler:
    """Return the builder of a sampler: a built-in one, or a plugin's."""
    plugin = locate_plugin(SAMPLER, scheme, SAMPLERS)
    if plugin is None:
        return SAMPLERS[scheme]
    result = plugin.load_object()
    if not callable(result):
        plugin.refuse_type(result, "a function (settings, population, adjacency, cohorts) -> sampler")
    return result  # type: ignore[no-any-return]


@dataclass(frozen=True)
class LocalSchedule:
    """What one round asks of its clients; chosen from public values only, and never beyond what was planned.

    Adaptive choice is covered because every choice is dominated by one event that is fixed in advance: participation is
    claimed at the experiment's own rate, noise follows the sensitivity of the chosen steps.
    """

    steps: int | None = None
    """Local steps, tau; None: those of the experiment."""
    learning_rate: float | None = None
    """Step size before any schedule of the algorithm; None: that of the experiment."""
    rates: Mapping[str, float] = field(default_factory=dict)
    """Channel -> the probability that a member takes part; other channels keep the experiment's rate.

    Below an untrusted server, releases at such rates claim `Gaussian(z)`: the number of noises that add up may have
    followed from released values. How often a client is asked must not follow them, unless the whole plan is charged.
    """

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 1:
            invalid("schedule.steps", self.steps, "must be a whole number >= 1")
        if self.learning_rate is not None and not 0 < self.learning_rate < float("inf"):
            invalid("schedule.learning_rate", self.learning_rate, "must be positive")
        for channel, rate in self.rates.items():
            if not 0 < rate <= 1:
                invalid(f"schedule.rates.{channel}", rate, "must be in (0, 1]")


@dataclass(frozen=True)
class ThinnedCohorts(Memoryless):
    """Draws fewer clients than `whole` would, and claims what `whole` claims: a smaller rate reveals no more.

    Guarantees: `hidden_event` does not depend on `rate`, so a rate that was chosen from earlier releases adds nothing
    to what they reveal; Poisson(rate) is dominated by Poisson(rate') for every rate' >= rate.
    """

    whole: CohortSampler
    rate: float

    @property
    def population(self) -> int:
        """The number of clients."""
        return self.whole.population

    @property
    def expected(self) -> float:
        """rate N, the public denominator."""
        return self.rate * self.whole.population

    def draw(self, time: int, rng: np.random.Generator, schedules: Schedules, *, line: int = 0) -> tuple[int, ...]:
        """Draw every client independently."""
        return PoissonCohorts(self.population, self.rate).draw(time, rng, schedules, line=line)

    def hidden_event(self, event: Event) -> Event:
        """Return the event of the planned sampler."""
        # Why domination holds: the likelihood ratio at q is (1 - q/q') + (q/q') L', which is below L' in convex order.
        return self.whole.hidden_event(event)


def thin_sampler(whole: CohortSampler, rate: float, channel: str) -> CohortSampler:
    """Return the sampler at a smaller rate. Raise `Refused` if the planned event does not dominate it."""
    # Fixed cohorts and schedules have no order of domination by rate, and a higher rate would cost more than planned.
    most = whole.rate if isinstance(whole, PoissonCohorts) else 1.0
    if not isinstance(whole, PoissonCohorts | Full):
        reason = f"{type(whole).__name__} has no rate that can be lowered within the same guarantee"
        refuse(f"schedule.rates.{channel}", rate, reason, 'use sampling.clients.scheme = "poisson" or "full"')
    if rate > most:
        reason = f"noise was calibrated for a participation of at most {most:g}"
        refuse(f"schedule.rates.{channel}", rate, reason, "choose a smaller rate, or raise sampling.clients.rate")
    return whole if rate == most else ThinnedCohorts(whole, rate)
