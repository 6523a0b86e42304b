r"""Privacy filters: budgets that hold for adaptively chosen experiments.

An accountant composes a list of events that is fixed beforehand. Over the life of a data set there is no such list: the
next experiment depends on what the last one showed. A *filter* is a stopping rule that is valid for every such choice.
The rule "the list so far costs at most epsilon" is not a filter: a caller that picks the next experiment after looking
can then exceed delta by a factor of nearly two (`tests/accounting/test_filters.py` computes it).

Two valid filters:

- `GaussianFilter`: every experiment, composed tightly, is dominated by a Gaussian of strength mu that fails altogether
  with probability d0. The sums of mu^2 and of d0 have limits of their own, both fixed beforehand.
- `RenyiFilter`: the sum of Renyi divergences at one order, fixed beforehand.
"""

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy.special import erfcx, ndtr

from sightline.accounting.accountant import chance_to_take_part, check_delta, epsilon, moments_may_win, summed_epsilon
from sightline.accounting.compositions import Composition, canonical_form, kinds_in
from sightline.accounting.dominating_pairs import NoLaw
from sightline.accounting.fft import TooFine
from sightline.accounting.likelihood_ratio import Array, gaussian_delta, gaussian_epsilon
from sightline.accounting.moments import MOST_ORDER
from sightline.accounting.pld import only_gaussian, pld_delta_curve
from sightline.accounting.renyi import composed_backward, composed_forward, renyi_delta_curve
from sightline.errors import invalid
from sightline.events import Clear, Event

# Epsilons at which a composed law is compared with a Gaussian.
POINTS = 2**15
FIRST_POINTS = 256
# Moments are evaluated at every SPARSE-th of these epsilons.
SPARSE = 16
# Deltas around which the composed law is transformed, besides the values of d0 and those between.
ANCHORS = (0.3, 0.05, 2e-3)
# Values of d0 to try, as shares of the filter's limit for all of them.
SHARES = (1e-4, 1e-3, 0.01, 0.03, 0.1, 0.3)
UP = 1 + 1e-12
# A larger mu is not a meaningful guarantee.
STRONGEST = 1e3


@dataclass(frozen=True, order=True)
class GaussianBound:
    """A Gaussian of strength `mu` (one over its noise multiplier) that fails altogether with probability `d0`."""

    mu: float
    d0: float = 0.0

    def __post_init__(self) -> None:
        if not (self.mu >= 0 and 0 <= self.d0 <= 1):
            invalid("bound", f"({self.mu}, {self.d0})", "mu must be >= 0 and d0 a probability")


def gaussian_strength(epsilon: float, delta: float) -> float:
    """Return the largest mu whose Gaussian is within (epsilon, delta), rounded down.

    >>> round(gaussian_strength(8.0, 1e-5), 6)
    1.666031
    """
    check_delta(delta)
    if not (epsilon >= 0 and math.isfinite(epsilon)):
        invalid("epsilon", epsilon, "a budget must be >= 0 and finite")
    low, high = 0.0, 1.0
    while gaussian_delta(high, epsilon) <= delta:
        low, high = high, 2 * high
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(middle, epsilon) <= delta else (low, middle)
    # The margin covers the rounding of `gaussian_delta`: a filter's limit must not be too large.
    return low * (1 - 1e-10)


def gaussian_curve(mu: float, epsilons: Array) -> Array:
    """Return delta of a Gaussian of strength mu at many epsilons, rounded down."""
    near, far = (epsilons / mu - mu / 2), (epsilons / mu + mu / 2)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        scale = np.exp(-near * near / 2) / 2
        taken = scale * erfcx(far / math.sqrt(2))
        given = np.where(near < -5, ndtr(-near), scale * erfcx(near / math.sqrt(2)))
    return np.asarray(np.maximum(given - taken - 1e-12 * (given + taken), 0.0))


@dataclass(frozen=True, eq=False)
class DeltaCurve:
    """Upper bounds on delta, both directions, at increasing epsilons that begin with zero."""

    epsilons: Array
    deltas: Array

    def least_bound(self, d0: float) -> GaussianBound | None:
        """Return the least mu with delta <= d0 + (1 - d0) G_mu at all epsilons >= 0; None if there is none.

        Between two points delta is at most what it is at the lower one, and G_mu at least what it is at the upper one;
        above the last point delta is at most d0.
        """
        if not self.deltas[-1] <= d0:
            return None
        above = self.deltas[:-1] > d0
        goals, ends = (self.deltas[:-1][above] - d0) / (1 - d0) * UP, self.epsilons[1:][above]
        # Solve on a few goals, then add the goals that the result breaks, until none is broken: the final mu meets
        # every goal.
        mu, worst = 0.0, np.arange(len(goals))[:: max(1, len(goals) // FIRST_POINTS)]
        while len(worst):
            mu = _least_strength(goals[worst], ends[worst], mu)
            if mu > STRONGEST:
                return None
            broken = np.flatnonzero(gaussian_curve(mu, ends) < goals)
            worst = broken[:: max(1, len(broken) // FIRST_POINTS)]
        return GaussianBound(mu * UP, d0)


def _least_strength(goals: Array, epsilons: Array, low: float) -> float:
    """Return the least mu above `low`, rounded up, at which the Gaussian's delta reaches all goals."""
    high = max(2 * low, 1e-6)
    while high <= STRONGEST and np.any(gaussian_curve(high, epsilons) < goals):
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if np.any(gaussian_curve(middle, epsilons) < goals) else (low, middle)
    return high


def bound_delta_curve(counts: Composition, least: float) -> DeltaCurve | None:
    """Return delta of a canonical composition, down to about `least`; None if no epsilon reaches that."""
    top = epsilon(counts, least)
    if not math.isfinite(top):
        return None
    epsilons = np.linspace(0.0, 1.0, POINTS) ** 1.5 * max(top, 1e-9) * (1 + 1e-9)
    deltas = np.where(epsilons >= summed_epsilon(counts), 0.0, 1.0)
    # `epsilon` proved this delta at the last point.
    deltas[-1] = min(deltas[-1], least)
    steps = np.geomspace(ANCHORS[-1], least, max(2, math.ceil(-math.log10(least) / 2)))
    anchors = (*ANCHORS, *(float(step) for step in steps[1:]))
    has_law = False
    with suppress(NoLaw, TooFine):
        deltas = np.minimum(deltas, pld_delta_curve(counts, epsilons, anchors))
        has_law = True
    if not has_law or moments_may_win(counts):
        # Each value is repeated to the right: delta falls with epsilon, so the value at a lower epsilon is an upper
        # bound.
        result = renyi_delta_curve(counts, epsilons[::SPARSE])
        deltas = np.minimum(deltas, np.repeat(result, SPARSE)[:POINTS])
    return DeltaCurve(epsilons, np.minimum.accumulate(deltas))


@lru_cache(maxsize=256)
def gaussian_bounds(events: tuple[tuple[Event, int], ...], most_d0: float) -> tuple[GaussianBound, ...]:
    """Return Gaussians that dominate a canonical composition, one per value of d0; empty if an event has no noise."""
    counts = dict(events)
    if not counts:
        return (GaussianBound(0.0),)
    if any(Clear in kinds_in(event) for event in counts):
        return ()
    strength = only_gaussian(counts)
    if strength is not None:
        return (GaussianBound(strength * UP),)
    # A subject that is almost never drawn is covered by d0 alone, with mu = 0.
    chance = chance_to_take_part(counts)
    absent = (GaussianBound(0.0, chance),) if chance <= most_d0 else ()
    curve = bound_delta_curve(counts, SHARES[0] * most_d0)
    if curve is None:
        return absent
    tried = (curve.least_bound(d0) for d0 in (0.0, *(share * most_d0 for share in SHARES)))
    return absent + tuple(bound for bound in tried if bound is not None)


@dataclass(frozen=True)
class GaussianFilter:
    r"""A budget (epsilon, delta) for experiments that are chosen one after the other, each after the results before it.

    An experiment costs (mu, d0): both directions of its composed law lie below d0 + (1 - d0) G_mu at every epsilon. A
    share `failures` of delta is set aside for the d0; the rest, at epsilon, is the strength that all mu^2 may add up
    to.

    Guarantees: whatever is chosen, everything admitted is (epsilon, delta)-private. Without failures the product of
    likelihood ratios is a Brownian martingale stopped at the sum of mu^2, and convex functions of it grow until the
    limit; failures add up to at most their limit. Both limits are fixed beforehand: if d0 and mu could be exchanged for
    one another after looking, delta would be exceeded although every list passed.

    >>> from sightline.events import Gaussian
    >>> budget = GaussianFilter(8.0, 1e-5)
    >>> first = budget.price({Gaussian(2.0): 4})
    >>> first.mu, budget.admits([first]), budget.admits([first, first, first])
    (1.000000000001, True, False)
    """

    epsilon: float
    delta: float
    failures: float = 0.1

    def __post_init__(self) -> None:
        check_delta(self.delta)
        if not 0 < self.failures < 1:
            invalid("failures", self.failures, "a share of delta must lie in (0, 1)")
        if not (self.epsilon > 0 and math.isfinite(self.epsilon)):
            invalid("epsilon", self.epsilon, "a budget must be positive and finite")

    @property
    def most_d0(self) -> float:
        """Return the limit for the sum of all d0."""
        return self.failures * self.delta

    @cached_property
    def most_mu(self) -> float:
        """Return the strength of one Gaussian that uses everything not set aside for failures."""
        return gaussian_strength(self.epsilon, self.delta * (1 - self.failures) * (1 - 1e-12))

    def price(self, events: Composition, spent: Iterable[GaussianBound] = ()) -> GaussianBound | None:
        """Return the admissible bound on an experiment that leaves most of the budget; None if none is admissible."""
        held = tuple(spent)
        counts = tuple(sorted(canonical_form(events).items(), key=repr))
        fitting = (bound for bound in gaussian_bounds(counts, self.most_d0) if self.admits([*held, bound]))
        return min(fitting, key=lambda bound: (self.used_share([bound]), bound), default=None)

    def used_share(self, bounds: Sequence[GaussianBound]) -> float:
        """Return the larger of the used shares of the two limits, rounded up."""
        mu_squared, d0 = add_bounds(bounds)
        return max(mu_squared / self.most_mu**2, d0 / self.most_d0)

    def admits(self, bounds: Sequence[GaussianBound]) -> bool:
        """Return whether all bounds together are within both limits."""
        return self.used_share(bounds) <= 1

    def spent_epsilon(self, bounds: Sequence[GaussianBound]) -> float:
        """Return the epsilon at the filter's delta that these would cost if fixed beforehand, for display only."""
        # This number follows the choices made so far, so it is an odometer and not a guarantee. The guarantee is the
        # filter's own (epsilon, delta).
        mu_squared, d0 = add_bounds(bounds)
        return math.inf if d0 >= self.delta else gaussian_epsilon(math.sqrt(mu_squared), self.delta - d0)


def add_bounds(bounds: Sequence[GaussianBound]) -> tuple[float, float]:
    """Return the sums of mu^2 and of d0, rounded up."""
    return math.fsum(one.mu**2 for one in bounds) * UP, math.fsum(one.d0 for one in bounds) * UP


@dataclass(frozen=True)
class RenyiFilter:
    """A budget (epsilon, delta) by Renyi divergences at one order, which is fixed beforehand.

    All divergences may add up to B(a) = epsilon - log(1/(a delta))/(a - 1) - log(1 - 1/a); then the whole is (epsilon,
    delta)-private. Events that are reserved and do not happen may be given back. The rule "at some order it still fits"
    is not valid.

    >>> round(RenyiFilter(8.0, 1e-5, order=8).budget, 4)
    6.7859
    """

    epsilon: float
    delta: float
    order: int

    def __post_init__(self) -> None:
        check_delta(self.delta)
        if not (isinstance(self.order, int) and 2 <= self.order <= MOST_ORDER):
            invalid("order", self.order, f"must be a whole number from 2 to {MOST_ORDER}")
        if not (self.epsilon > 0 and math.isfinite(self.epsilon)):
            invalid("epsilon", self.epsilon, "a budget must be positive and finite")

    @property
    def most_missing(self) -> float:
        """Return the mass that laws may leave out of their backward moments, over all events; it is taken off delta."""
        return 1e-9 * self.delta

    @property
    def budget(self) -> float:
        """Return the limit for the sum of divergences; not positive if this order cannot reach the target."""
        a, rest = self.order, self.delta - self.most_missing
        return self.epsilon + math.log(a * rest) / (a - 1) - math.log1p(-1 / a)

    def price(self, events: Composition) -> tuple[float, float]:
        """Return the larger of both directions' divergences and the mass they leave out; infinite without noise."""
        counts = canonical_form(events)
        if any(Clear in kinds_in(event) for event in counts):
            return math.inf, 0.0
        back = composed_backward(counts)
        moment = max(float(composed_forward(counts)[self.order]), float(back.moments[self.order]), 0.0)
        return moment / (self.order - 1) * (1 + 1e-9), back.missing

    def admits(self, prices: Sequence[tuple[float, float]]) -> bool:
        """Return whether all prices together are within the budget."""
        divergence, missing = (math.fsum(column) * UP for column in zip(*prices, strict=True)) if prices else (0.0, 0.0)
        return divergence <= self.budget and missing <= self.most_missing
