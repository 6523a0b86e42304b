"""The pace of a round: local steps, step size and participation, when something other than the file decides them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from sightline.errors import invalid, refuse
from sightline.events import Event
from sightline.mechanisms.samplers import CohortSampler, Full, Memoryless, PoissonCohorts


@dataclass(frozen=True)
class LocalSchedule:
    """What one round asks of its clients; chosen from public values only, and never beyond what was planned for.

    Adaptive choice is covered because every choice is dominated by one event that is fixed beforehand: participation is
    claimed at the experiment's own rate, noise follows the sensitivity of the steps that were chosen.
    """

    steps: int | None = None
    """Local steps, tau; None: as the experiment says."""
    learning_rate: float | None = None
    """Step size before any schedule of the algorithm; None: as the experiment says."""
    rates: Mapping[str, float] = field(default_factory=dict)
    """Channel -> the probability that a member takes part; channels not named keep the experiment's.

    Below a server that is not trusted these must not follow released values: who took part is how many noises add up,
    which is counted as it came (`Pooled`).
    """

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 1:
            invalid("pace.steps", self.steps, "is a whole number >= 1")
        if self.learning_rate is not None and not 0 < self.learning_rate < float("inf"):
            invalid("pace.learning_rate", self.learning_rate, "is a positive number")
        for channel, rate in self.rates.items():
            if not 0 < rate <= 1:
                invalid(f"pace.rates.{channel}", rate, "a probability lies in (0, 1]")


@dataclass(frozen=True)
class ThinnedCohorts(Memoryless):
    """Draws fewer than `whole` would, and claims what `whole` claims: a smaller rate reveals no more.

    Guarantees: `hidden_event` does not depend on `rate`, so a rate that was chosen from earlier releases adds nothing
    to what they tell; Poisson(rate) is dominated by Poisson(rate') for every rate' >= rate.
    """

    whole: CohortSampler
    rate: float

    @property
    def population(self) -> int:
        """How many clients there are."""
        return self.whole.population

    @property
    def expected(self) -> float:
        """rate N, the public denominator."""
        return self.rate * self.whole.population

    def draw(self, *, rng: np.random.Generator) -> tuple[int, ...]:
        """One independent coin per client."""
        return PoissonCohorts(self.population, self.rate).draw(rng=rng)

    def hidden_event(self, event: Event) -> Event:
        """The event of the sampler that was planned for."""
        return self.whole.hidden_event(event)


def thin_sampler(whole: CohortSampler, rate: float, channel: str) -> CohortSampler:
    """The sampler at a smaller rate; refused where that is not dominated by what was planned for."""
    most = whole.rate if isinstance(whole, PoissonCohorts) else 1.0
    if not isinstance(whole, PoissonCohorts | Full):
        law = f"{type(whole).__name__} has no rate that could be lowered without another guarantee"
        refuse(f"pace.rates.{channel}", rate, law, 'use sampling.clients.scheme = "poisson" or "full"')
    if rate > most:
        law = f"noise was calibrated for a participation of at most {most:g}"
        refuse(f"pace.rates.{channel}", rate, law, "choose a smaller rate, or raise sampling.clients.rate")
    return whole if rate == most else ThinnedCohorts(whole, rate)
