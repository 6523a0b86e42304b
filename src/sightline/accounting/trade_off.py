"""The trade-off curve of a composition: the error rates of the best test between two neighbouring data sets."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from sightline.accounting.accountant import delta
from sightline.accounting.compositions import canonical_form
from sightline.accounting.filters import bound_delta_curve
from sightline.accounting.likelihood_ratio import Array
from sightline.accounting.pld import only_gaussian
from sightline.events import Event

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
        return TradeOff.from_deltas(epsilons, np.array([delta(counts, float(e)) for e in epsilons]))
    curve = bound_delta_curve(counts, LEAST_DELTA)
    if curve is None:
        return None
    few = np.unique(np.linspace(0, len(curve.epsilons) - 1, POINTS).astype(int))
    few = few[curve.epsilons[few] <= STEEPEST]
    return TradeOff.from_deltas(curve.epsilons[few], curve.deltas[few])
