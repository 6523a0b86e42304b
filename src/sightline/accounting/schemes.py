"""The schemes by name: what a training run does to a subject, as one frozen value with its cost."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from sightline import shown
from sightline.accounting.accountant import Accountant, interval
from sightline.accounting.accountant import delta as delta_of
from sightline.accounting.accountant import epsilon as epsilon_of
from sightline.accounting.calibration import calibrate
from sightline.errors import invalid
from sightline.events import (
    MOST_COUNTED,
    Allocation,
    Event,
    Exponential,
    Gaussian,
    Poisson,
    Product,
    Split,
    scale_noise,
)

DELTAS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-8)
"""At which a notebook shows what a scheme costs."""


@dataclass(frozen=True)
class Scheme:
    """A named composition whose Gaussian noise is `noise_multiplier` (other noises keep their ratio to it)."""

    name: str
    noise_multiplier: float
    events: tuple[tuple[Event, int], ...]

    @property
    def composition(self) -> Mapping[Event, int]:
        """The multiset of events."""
        return MappingProxyType(dict(self.events))

    def epsilon(self, *, delta: float, accountant: Accountant = Accountant.PLD) -> float:
        """Upper bound on epsilon at delta."""
        return epsilon_of(self.composition, delta, accountant=accountant)

    def delta(self, *, epsilon: float, accountant: Accountant = Accountant.PLD) -> float:
        """Upper bound on delta at epsilon."""
        return delta_of(self.composition, epsilon, accountant=accountant)

    def interval(self, *, delta: float) -> tuple[float, float]:
        """Lower and upper bound from opposite roundings: what the grid leaves open."""
        return interval(self.composition, delta)

    def with_noise(self, noise_multiplier: float) -> "Scheme":
        """The same scheme with another noise; an unsplit part's noise is scaled along."""
        factor = noise_multiplier / self.noise_multiplier
        return Scheme(self.name, noise_multiplier, tuple((scale_noise(event, factor), n) for event, n in self.events))

    def calibrated(self, *, epsilon: float, delta: float, accountant: Accountant = Accountant.PLD) -> "Scheme":
        """The scheme with the least noise that costs at most (epsilon, delta).

        >>> round(gaussian(noise=1, steps=4).calibrated(epsilon=8.0, delta=1e-5).noise_multiplier, 2)
        1.2
        """
        noise = calibrate(lambda z: self.with_noise(z).composition, epsilon=epsilon, delta=delta, accountant=accountant)
        return self.with_noise(noise)

    def _repr_html_(self) -> str:
        events = shown.html_table(
            f"{self.name}, noise multiplier {self.noise_multiplier:.6g}", ("event", "times"), self.events
        )
        costs = [(f"{delta:g}", shown.rounded_up(self.epsilon(delta=delta))) for delta in DELTAS]
        return events + shown.html_table("upper bounds", ("delta", "epsilon"), costs)


def gaussian(*, noise: float, steps: int) -> Scheme:
    """Every step uses every subject: local releases, full participation."""
    return Scheme("gaussian", noise, ((Gaussian(noise), check_count("steps", steps)),))


def poisson(*, noise: float, rate: float, steps: int) -> Scheme:
    """Each step uses each subject with probability `rate`, independently."""
    return Scheme("poisson", noise, ((Poisson(rate, Gaussian(noise)), check_count("steps", steps)),))


def balanced(*, noise: float, steps: int, uses: int, epochs: int = 1) -> Scheme:
    """Each subject is used in exactly `uses` of `steps` steps, uniformly at random, anew in each of `epochs` epochs.

    >>> round(balanced(noise=2.0, steps=1000, uses=100).epsilon(delta=1e-5), 2)
    8.06
    """
    event = Allocation(check_count("steps", steps), uses, Gaussian(noise))
    return Scheme("balanced", noise, ((event, check_count("epochs", epochs)),))


def split(*, noise: float, parts: int, rate: float, steps: int, unsplit_noise: float | None = None) -> Scheme:
    """Each subject trains one of `parts` disjoint parts of the model; with `unsplit_noise`, and a common part beside
    it.

    One Poisson draw decides on both parts, so their product is sampled, not each by itself.
    """
    inner: Event = Split(parts, Gaussian(noise))
    if unsplit_noise is not None:
        inner = Product((Gaussian(unsplit_noise), inner))
    return Scheme("split", noise, ((Poisson(rate, inner), check_count("steps", steps)),))


def dropout(*, noise: float, rate: float, steps: int, unsplit_noise: float | None = None) -> Scheme:
    """Dropout with probability one half, one mask per subject and release: splitting into two parts."""
    scheme = split(noise=noise, parts=2, rate=rate, steps=steps, unsplit_noise=unsplit_noise)
    return Scheme("dropout", scheme.noise_multiplier, scheme.events)


def check_ins(*, noise: float, steps: int, chance: float) -> Scheme:
    """Random check-ins: each subject opts in with probability `chance`, then takes part once, at a random step."""
    event = Poisson(chance, Allocation(check_count("steps", steps), 1, Gaussian(noise)))
    return Scheme("check_ins", noise, ((event, 1),))


def clustered(
    *, noise: float, samples: int, batch_size: int, rounds: int, selections: int, selection_epsilon: float
) -> Scheme:
    """An example of a clustered client: one full-batch step, then epochs of Poisson batches, and private choices.

    >>> scheme = clustered(noise=2.0, samples=1000, batch_size=50, rounds=10, selections=1, selection_epsilon=0.1)
    >>> [times for _, times in scheme.events]
    [1, 180, 1]
    """
    batch, rounds = (
        min(check_count("batch_size", batch_size), check_count("samples", samples)),
        check_count("rounds", rounds),
    )
    events: list[tuple[Event, int]] = [(Gaussian(noise), 1)]
    if rounds > 1:
        events.append((Poisson(batch / samples, Gaussian(noise)), (rounds - 1) * -(-samples // batch)))
    if selections:
        events.append((Exponential(selection_epsilon), check_count("selections", selections)))
    return Scheme("clustered", noise, tuple(events))


def check_count(name: str, value: int) -> int:
    """A whole number of at least one, and not too large to count to."""
    if not (1 <= value <= MOST_COUNTED and int(value) == value):
        invalid(name, value, f"a whole number from 1 to {MOST_COUNTED:.0e}")
    return int(value)
