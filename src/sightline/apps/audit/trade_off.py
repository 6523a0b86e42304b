"""Tests of a claimed trade-off curve: which amounts of noise do the canaries' counts refute?

A claim is more than one epsilon at one delta: it is a curve, f(a) = the least rate of missed canaries that any test
with false alarms at rate a can have. What is released under the claimed events with all noise multiplied by k has
another curve; the smaller k, the lower. The members of this family that the counts refute are those with k above some
number, and the bound on epsilon is that of the last of them.

Refuting k = 1 refutes the claim and needs no assumption. Reading the rest as a bound on epsilon assumes that the true
curve is in the family: the claimed mechanism, with noise of some other size.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from sightline import accounting
from sightline.accounting.canonical import canonical_form
from sightline.accounting.trade_off import LEAST_DELTA, POINTS, STEEPEST, TradeOff, claimed_curve
from sightline.apps.audit.summed_steps import hides_steps, summed_deltas, summed_epsilon
from sightline.events import Event, Gaussian, Poisson, scale_noise

FURTHEST = 5
"""Members are tried with noise from 2^-5 to 2^5 times the claimed one."""
HALVINGS = 8
"""Of the factor of two between a member that is refuted and one that is not."""


def summed_curve(events: Mapping[Event, int]) -> TradeOff | None:
    """The trade-off curve of sums of sampled steps; None where it would take too long."""
    top = accounting.epsilon(events, LEAST_DELTA)
    epsilons = np.linspace(0.0, min(top, STEEPEST), POINTS)
    deltas = summed_deltas(events, epsilons) if math.isfinite(top) else None
    return None if deltas is None else TradeOff.from_deltas(epsilons, deltas)


@dataclass(frozen=True, eq=False)
class ClaimedFamily:
    """The claimed events with all noise multiplied by k, for every k."""

    events: Mapping[Event, int]
    _curves: dict[float, TradeOff | None] = field(default_factory=dict, repr=False)

    def member(self, factor: float) -> dict[Event, int]:
        """The events with so much more noise."""
        return {scale_noise(event, factor): times for event, times in self.events.items()}

    def curve(self, factor: float) -> TradeOff | None:
        """The member's trade-off curve: of the sums where steps are seen as their sum only."""
        if factor not in self._curves:
            events = self.member(factor)
            self._curves[factor] = summed_curve(events) if hides_steps(events) else claimed_curve(events)
        return self._curves[factor]

    def epsilon(self, factor: float, delta: float) -> float:
        """The member's epsilon, rounded down."""
        events = self.member(factor)
        return summed_epsilon(events, delta) if hides_steps(events) else accounting.interval(events, delta)[0]

    def refuted_by(self, refutes: "Refutes") -> bool:
        """Whether the claim itself is refuted: the curve of all that the ledger says was released."""
        curve = claimed_curve(self.events)
        return curve is not None and refutes(curve)

    @property
    def plain(self) -> bool:
        """Whether all is Gaussian noise, and sampling that treats every subject by itself."""
        inner = (event.event if isinstance(event, Poisson) else event for event in canonical_form(self.events))
        return all(isinstance(event, Gaussian) for event in inner)

    @property
    def sampled(self) -> bool:
        """Whether it is not known when the subject took part."""
        return any(isinstance(event, Poisson) for event in canonical_form(self.events))


Refutes = Callable[[TradeOff], bool]
"""Whether counts say that a curve is not the mechanism's; what refutes a curve refutes every higher one."""


def least_factor(family: ClaimedFamily, refutes: Refutes) -> float:
    """The least multiple of the claimed noise that is refuted, infinite where none is: the noise is less than that."""

    def refuted(power: float) -> bool:
        curve = family.curve(2.0**power)
        return curve is not None and refutes(curve)

    high = 0.0
    if refuted(high):
        while high > -FURTHEST and refuted(high - 1):
            high -= 1
    else:
        while not refuted(high := high + 1):
            if high >= FURTHEST:
                return math.inf
    low = high - 1
    for _ in range(HALVINGS if high > -FURTHEST else 0):
        middle = (low + high) / 2
        low, high = (low, middle) if refuted(middle) else (middle, high)
    return float(2.0**high)


def guesses_refute(curve: TradeOff, canaries: int, guesses: int, right: int, *, error: float) -> bool:
    r"""Whether so many right guesses have a chance below `error` under the curve, whatever the canaries share.

    Each of the m canaries is in with probability 1/2; r of them are guessed, which ones may depend on everything seen.
    Let P_i be the chance of at least i right guesses and h the curve's most hits. "Canary j is guessed rightly, and at
    least i guesses are right", when the bit of j is turned, is "wrongly, and at least i - 1 are right". The curve
    relates the two; summed over the canaries, with h concave, for i = 1 .. r:

        (i P_i + sum_{k > i} P_k) / m  <=  h( ((r - i + 1) P_{i-1} - sum_{k >= i} P_k) / m ).

    So P_{i-1} is at least a function of P_i, P_{i+1}, ... that increases in all of them. From P_v = error and nothing
    above it follows, going down, a lower bound on every P_i; where one is above 1, P_v was less than `error`.
    Reference: the inequality is that of Mahloujifar, Melis and Chaudhuri 2024, "Auditing f-differential privacy in one
    run", for tails of the counts.
    """
    chance, above = error, 0.0
    for count in range(right, 0, -1):
        alarms = curve.least_alarms((count * chance + above) / canaries)
        above += chance
        chance = max(chance, (canaries * alarms + above) / (guesses - count + 1))
        if chance > 1:
            return True
    return False


def rates_refute(curve: TradeOff, *, hits: float, alarms: float) -> bool:
    """Whether a test with at least so many hits and at most so many false alarms is better than the curve allows.

    >>> from sightline.events import Gaussian
    >>> [rates_refute(claimed_curve({Gaussian(z): 1}), hits=0.84, alarms=0.5) for z in (1.0, 1.1)]
    [False, True]
    """
    return hits > curve.most_hits(alarms)
