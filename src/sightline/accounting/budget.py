"""One budget for unlike releases: round one, later rounds, selections, found by one calibration instead of a fixed
split.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sightline.accounting.accountant import Accountant
from sightline.accounting.accountant import epsilon as epsilon_of
from sightline.accounting.calibration import calibrate
from sightline.accounting.canonical import Composition
from sightline.events import Event, scale_noise


@dataclass(frozen=True)
class BudgetLine:
    """One kind of release: `event` at noise one, `times` times; `weight` is its noise over the common one."""

    name: str
    event: Event
    times: int
    weight: float = 1.0

    def at(self, noise: float) -> Event:
        """The event at a common noise; choices and pure releases keep their own epsilon."""
        return scale_noise(self.event, self.weight * noise)


@dataclass(frozen=True)
class Budget:
    """The noise that spends (epsilon, delta) over all lines together, and what each would cost alone."""

    noise_multiplier: float
    epsilon: float
    delta: float
    lines: tuple[BudgetLine, ...]

    @property
    def composition(self) -> Composition:
        """All releases at the common noise."""
        return join_lines(self.lines, self.noise_multiplier)

    def noise_of(self, name: str) -> float:
        """The noise multiplier of one line."""
        return next(line.weight * self.noise_multiplier for line in self.lines if line.name == name)

    def epsilons_alone(self) -> dict[str, float]:
        """Epsilon of each line by itself at delta; they sum to more than the total."""
        return {line.name: epsilon_of({line.at(self.noise_multiplier): line.times}, self.delta) for line in self.lines}


def share_budget(
    lines: Sequence[BudgetLine], *, epsilon: float, delta: float, accountant: Accountant = Accountant.PLD
) -> Budget:
    """The least common noise at which all lines together cost at most (epsilon, delta).

    >>> from sightline.events import Exponential, Gaussian, Poisson
    >>> lines = [BudgetLine("first", Gaussian(1.0), 1, 4.0), BudgetLine("later", Poisson(0.1, Gaussian(1.0)), 50)]
    >>> round(share_budget([*lines, BudgetLine("choose", Exponential(0.1), 3)], epsilon=2.0, delta=1e-5).epsilon, 2)
    2.0
    """
    noise = calibrate(lambda z: join_lines(lines, z), epsilon=epsilon, delta=delta, accountant=accountant)
    spent = epsilon_of(join_lines(lines, noise), delta, accountant=accountant)
    return Budget(noise, spent, delta, tuple(lines))


def join_lines(lines: Sequence[BudgetLine], noise: float) -> dict[Event, int]:
    """All lines as one composition."""
    counts: dict[Event, int] = {}
    for line in lines:
        event = line.at(noise)
        counts[event] = counts.get(event, 0) + line.times
    return counts
