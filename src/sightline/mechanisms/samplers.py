"""Who takes part. Every sampler states the event that its own coins make of a release."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sightline.config import ClientSampler
from sightline.errors import refuse
from sightline.events import Adjacency, Event, Poisson, WithoutReplacement


@dataclass(frozen=True)
class Cohort:
    """The clients that take part in a round: a secret wherever amplification is claimed."""

    members: tuple[int, ...]


class CohortSampler(Protocol):
    """A way to draw cohorts, and the event that it makes of what the cohort releases."""

    @property
    def population(self) -> int:
        """How many clients there are."""

    @property
    def expected(self) -> float:
        """The expected size of a cohort: the public denominator of every mean."""

    def draw(self, *, rng: np.random.Generator) -> tuple[int, ...]:
        """The places of one round's cohort among the members, in increasing order."""

    def hidden_event(self, event: Event) -> Event:
        """What `event` becomes against an observer who does not see the coins; all clients are its subjects."""


@dataclass(frozen=True)
class Full:
    """Everybody, every round: nothing is hidden, nothing is amplified."""

    population: int

    @property
    def expected(self) -> float:
        """All of them."""
        return float(self.population)

    def draw(self, *, rng: np.random.Generator) -> tuple[int, ...]:
        """All of them."""
        return tuple(range(self.population))

    def hidden_event(self, event: Event) -> Event:
        """The event itself."""
        return event


@dataclass(frozen=True)
class PoissonCohorts:
    """Every client by a coin of its own with probability `rate`; the cohort may be empty."""

    population: int
    rate: float

    @property
    def expected(self) -> float:
        """q N."""
        return self.rate * self.population

    def draw(self, *, rng: np.random.Generator) -> tuple[int, ...]:
        """One independent coin per client."""
        return tuple(int(number) for number in np.flatnonzero(rng.random(self.population) < self.rate))

    def hidden_event(self, event: Event) -> Event:
        """The sampled event: `Poisson(rate, event)`."""
        return Poisson(self.rate, event)


@dataclass(frozen=True)
class FixedCohorts:
    """Exactly `size` clients, uniformly without replacement: not Poisson, and not accounted as if it were.

    Under replace-one adjacency it is amplified as what it is. Under add/remove (zero-out) the size of the cohort ties
    the clients' coins together, no amplification is claimed, and the event is the unsampled one.
    """

    population: int
    size: int
    adjacency: Adjacency

    @property
    def expected(self) -> float:
        """The size."""
        return float(self.size)

    def draw(self, *, rng: np.random.Generator) -> tuple[int, ...]:
        """A uniformly random subset of the given size."""
        return tuple(sorted(int(n) for n in rng.choice(self.population, self.size, replace=False)))

    def hidden_event(self, event: Event) -> Event:
        """`WithoutReplacement` of all but one under replace-one, else the event itself.

        An observer who is a client and was not drawn knows that the cohort came from the others: for it the population
        is one smaller, and that is what is claimed against everybody.
        """
        if self.adjacency is Adjacency.REPLACE and self.size < self.population - 1:
            return WithoutReplacement(self.size, self.population - 1, event)
        return event


def _fixed(settings: ClientSampler, population: int, adjacency: Adjacency) -> CohortSampler:
    return FixedCohorts(population, max(1, round((settings.rate or 1.0) * population)), adjacency)


def _balanced(settings: ClientSampler, population: int, adjacency: Adjacency) -> CohortSampler:
    law = "balanced participation is not in this version"
    refuse("sampling.clients.scheme", "balanced", law, 'use scheme = "poisson" with rate = uses / rounds')


SAMPLERS: dict[str, Callable[[ClientSampler, int, Adjacency], CohortSampler]] = {
    "full": lambda settings, population, adjacency: Full(population),
    "poisson": lambda settings, population, adjacency: PoissonCohorts(population, settings.rate or 1.0),
    "fixed": _fixed,
    "balanced": _balanced,
}


def build_sampler(settings: ClientSampler, *, population: int, adjacency: Adjacency) -> CohortSampler:
    """The sampler of an experiment file."""
    return SAMPLERS[settings.scheme](settings, population, adjacency)
