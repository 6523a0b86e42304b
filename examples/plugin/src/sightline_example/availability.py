"""Members who are not there equally often: each by a probability of its own, and all are told the largest."""

from dataclasses import dataclass

import numpy as np

from sightline.config import ClientSampler
from sightline.errors import invalid
from sightline.events import Adjacency, Event, Poisson
from sightline.mechanisms import Cohorts, Schedules
from sightline.mechanisms.samplers import Memoryless


@dataclass(frozen=True)
class Availability(Memoryless):
    """Every member independently with its own probability; the cohort may be empty.

    Guarantees: everybody is accounted at the largest rate of all, which dominates every smaller one.
    """

    population: int
    rates: tuple[float, ...]

    @property
    def own_rates(self) -> np.ndarray:
        """Member -> its probability: the rates in turn."""
        return np.resize(np.array(self.rates), self.population)

    @property
    def expected(self) -> float:
        """The sum of the probabilities."""
        return float(self.own_rates.sum())

    def draw(self, time: int, rng: np.random.Generator, schedules: Schedules, *, line: int = 0) -> tuple[int, ...]:
        """One independent draw per member."""
        return tuple(np.flatnonzero(rng.random(self.population) < self.own_rates).tolist())

    def hidden_event(self, event: Event) -> Event:
        """Poisson sampling at the largest rate; no amplification when a client is always there."""
        rate = float(self.own_rates.max())
        return Poisson(rate, event) if rate < 1 else event


def build_availability(
    settings: ClientSampler, population: int, adjacency: Adjacency, cohorts: Cohorts
) -> Availability:
    """`options = {rates = [0.9, 0.5]}`: every first member 0.9, every second 0.5."""
    rates = (settings.options or {}).get("rates", [0.5])
    if not all(isinstance(rate, float) and 0 < rate <= 1 for rate in rates):
        invalid("sampling.clients.options.rates", rates, "probabilities lie in (0, 1]", "e.g. [0.9, 0.5]")
    return Availability(population, tuple(rates))


SAMPLER = build_availability
