"""Noise calibration: the least noise multiplier that meets a privacy budget; and what a budget lets a test achieve.

Calibration rounds to the private side. The trade-off curve gives the error rates of the best test between two
neighbouring data sets.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from sightline.accounting.accountant import Accountant, check_delta
from sightline.accounting.accountant import delta as delta_of
from sightline.accounting.accountant import epsilon as epsilon_of
from sightline.accounting.compositions import Composition, canonical_form
from sightline.accounting.filters import bound_delta_curve
from sightline.accounting.likelihood_ratio import Array
from sightline.accounting.pld import only_gaussian
from sightline.errors import invalid
from sightline.events import Event, scale_noise

LEAST_NOISE, MOST_NOISE = 1e-2, 1e6
# Relative width at which the search stops; the upper end is returned.
DIGITS = 1e-6


def calibrate(
    composition_for: Callable[[float], Composition],
    *,
    epsilon: float,
    delta: float,
    accountant: Accountant = Accountant.PLD,
) -> float:
    """Return the smallest noise multiplier z whose composition costs at most (epsilon, delta).

    Guarantees: the composition at the returned z was evaluated and costs at most epsilon.

    >>> from sightline.events import Gaussian
    >>> round(calibrate(lambda z: {Gaussian(z): 1}, epsilon=4.3772, delta=1e-5), 3)
    1.0
    """
    check_delta(delta)
    if not (epsilon > 0 and math.isfinite(epsilon)):
        invalid("epsilon", epsilon, "a budget must be positive and finite")

    def excess(noise: float) -> float:
        """Return log(cost / budget): negative if the noise is enough."""
        cost = epsilon_of(composition_for(noise), delta, accountant=accountant)
        return math.log(cost / epsilon) if 0 < cost < math.inf else (-30.0 if cost == 0 else 30.0)

    low, high = bracket_noise(excess, epsilon)
    return narrow_bracket(excess, low, high)


Point = tuple[float, float]


def bracket_noise(excess: Callable[[float], float], epsilon: float) -> tuple[Point, Point]:
    """Return two nearby noise multipliers, one too small and one large enough. Raises if no noise is enough."""
    noise = 1.0
    here = (noise, excess(noise))
    while here[1] > 0:
        # Epsilon falls about like a power of the noise, so the excess in logarithms predicts the next factor.
        grow = min(max(2 ** (here[1] / math.log(2)), 1.3), 8.0) if here[1] < 3 else 4.0
        noise *= grow
        if noise > MOST_NOISE:
            invalid(
                "epsilon", epsilon, "no amount of noise meets this budget", "raise it, or remove releases without noise"
            )
        before, here = here, (noise, excess(noise))
        if here[1] <= 0:
            return before, here
    while here[1] <= 0:
        if noise <= LEAST_NOISE:
            return here, here
        noise = max(noise / (4.0 if here[1] < -2 else 1.6), LEAST_NOISE)
        before, here = here, (noise, excess(noise))
    return here, before


def narrow_bracket(excess: Callable[[float], float], low: Point, high: Point) -> float:
    """Return the private end of the bracket after regula falsi in log-log coordinates with the Illinois rule."""
    (x0, f0), (x1, f1) = (math.log(low[0]), low[1]), (math.log(high[0]), high[1])
    if x0 == x1:
        return high[0]
    side = 0
    for _ in range(20):
        if x1 - x0 < DIGITS:
            break
        x = x1 - f1 * (x1 - x0) / (f1 - f0) if f1 != f0 else (x0 + x1) / 2
        # Step slightly past the predicted root: the private end then closes in too, and the bracket shrinks on both
        # sides.
        x = min(max(x + DIGITS / 4, x0 + (x1 - x0) * 0.01), x1 - (x1 - x0) * 1e-3)
        f = excess(math.exp(x))
        if f <= 0:
            x1, f1 = x, f
            f0 = f0 / 2 if side == 1 else f0
            side = 1
        else:
            x0, f0 = x, f
            f1 = f1 / 2 if side == -1 else f1
            side = -1
    # x1 is the end whose cost was evaluated and found within the budget; never return an unevaluated midpoint.
    return math.exp(x1)


@dataclass(frozen=True)
class BudgetLine:
    """One kind of release: `event` at noise one, `times` times; `weight` is its noise over the common noise."""

    name: str
    event: Event
    times: int
    weight: float = 1.0

    def at(self, noise: float) -> Event:
        """Return the event at a common noise; private choices and pure releases keep their own epsilon."""
        return scale_noise(self.event, self.weight * noise)


@dataclass(frozen=True)
class Budget:
    """The noise that spends (epsilon, delta) over all lines together."""

    noise_multiplier: float
    epsilon: float
    delta: float
    lines: tuple[BudgetLine, ...]

    @property
    def composition(self) -> Composition:
        """Return all releases at the common noise."""
        return join_lines(self.lines, self.noise_multiplier)

    def noise_of(self, name: str) -> float:
        """Return the noise multiplier of one line."""
        return next(line.weight * self.noise_multiplier for line in self.lines if line.name == name)

    def epsilons_alone(self) -> dict[str, float]:
        """Return epsilon of each line by itself at delta; their sum exceeds the total."""
        return {line.name: epsilon_of({line.at(self.noise_multiplier): line.times}, self.delta) for line in self.lines}


def share_budget(
    lines: Sequence[BudgetLine], *, epsilon: float, delta: float, accountant: Accountant = Accountant.PLD
) -> Budget:
    """Return the budget at the least common noise at which all lines together cost at most (epsilon, delta).

    >>> from sightline.events import Exponential, Gaussian, Poisson
    >>> lines = [BudgetLine("first", Gaussian(1.0), 1, 4.0), BudgetLine("later", Poisson(0.1, Gaussian(1.0)), 50)]
    >>> round(share_budget([*lines, BudgetLine("choose", Exponential(0.1), 3)], epsilon=2.0, delta=1e-5).epsilon, 2)
    2.0
    """
    noise = calibrate(lambda z: join_lines(lines, z), epsilon=epsilon, delta=delta, accountant=accountant)
    spent = epsilon_of(join_lines(lines, noise), delta, accountant=accountant)
    return Budget(noise, spent, delta, tuple(lines))


def join_lines(lines: Sequence[BudgetLine], noise: float) -> dict[Event, int]:
    """Return all lines as one composition."""
    counts: dict[Event, int] = {}
    for line in lines:
        event = line.at(noise)
        counts[event] = counts.get(event, 0) + line.times
    return counts


# The curve of a claim uses deltas above this: an audit cannot count rates below it.
LEAST_DELTA = 1e-8
POINTS = 200
# Larger epsilons are not distinguished: their exponentials overflow.
STEEPEST = 600.0


@dataclass(frozen=True, eq=False)
class TradeOff:
    """Lines that bound the hit rate of the best test: hits <= offset + slope x false alarms, for each line."""

    offset: Array
    slope: Array

    @classmethod
    def from_deltas(cls, epsilons: Array, deltas: Array) -> "TradeOff":
        """Return the lines P(S) <= e^epsilon Q(S) + delta for the answer "yes" and, with P and Q exchanged, for "no".

        >>> curve = TradeOff.from_deltas(np.array([np.log(3)]), np.array([0.0]))
        >>> round(curve.most_hits(0.25), 4), round(curve.least_alarms(0.75), 4)
        (0.75, 0.25)
        """
        ratio, kept = np.exp(epsilons), 1 - deltas
        return cls(np.concatenate([deltas, 1 - kept / ratio]), np.concatenate([ratio, 1 / ratio]))

    def most_hits(self, alarms: float) -> float:
        """Return the largest rate at which "yes" can be right if it is wrong at rate `alarms`."""
        return min(1.0, float((self.offset + self.slope * alarms).min()))

    def least_alarms(self, hits: float) -> float:
        """Return the least rate at which "yes" is wrong if it is right at rate `hits`."""
        return max(0.0, float(((hits - self.offset) / self.slope).max()))


def power_at_most(epsilon: float, delta: float, false_alarms: float = 0.05) -> float:
    """Return the best power of a test between neighbouring data sets: min(e^eps a + delta, 1 - e^-eps (1 - a - delta)).

    Reference: Kairouz, Oh, Viswanath, "The composition theorem for differential privacy", Theorem 2.1.
    """
    # exp overflows above 709.
    grown = math.exp(min(epsilon, 700.0)) * false_alarms + delta
    return min(1.0, grown, 1 - math.exp(-epsilon) * (1 - false_alarms - delta))


def claimed_curve(events: Mapping[Event, int]) -> TradeOff | None:
    """Return the trade-off curve that a composition proves; None if nothing finite is known about it.

    Guarantees: no test can have more hits than the lines allow.
    """
    counts = canonical_form(events)
    strength = only_gaussian(counts)
    if strength is not None:
        reach = strength * (strength / 2 + float(-ndtri(LEAST_DELTA)))
        epsilons = np.linspace(0.0, min(reach, STEEPEST), POINTS)
        return TradeOff.from_deltas(epsilons, np.array([delta_of(counts, float(e)) for e in epsilons]))
    curve = bound_delta_curve(counts, LEAST_DELTA)
    if curve is None:
        return None
    few = np.unique(np.linspace(0, len(curve.epsilons) - 1, POINTS).astype(int))
    few = few[curve.epsilons[few] <= STEEPEST]
    return TradeOff.from_deltas(curve.epsilons[few], curve.deltas[few])
