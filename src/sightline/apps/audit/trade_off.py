"""Tests of a claimed trade-off curve: which amounts of noise the canaries' counts refute."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from scipy import fft, stats
from scipy.special import logsumexp, ndtr

from sightline import accounting
from sightline.accounting.calibration import LEAST_DELTA, POINTS, STEEPEST, TradeOff, claimed_curve
from sightline.accounting.compositions import canonical_form
from sightline.accounting.likelihood_ratio import Array
from sightline.events import Event, Gaussian, Poisson, Repeat, scale_noise

ROUNDED = 0.01
"""Limit of the total rounding error of the loss of all releases together."""
REACH = 6.8
"""Standard deviations of noise that are resolved; beyond them the tail is rounded to the safe side."""
CELLS = 6000
MOST_POINTS = 2**21


@dataclass(frozen=True)
class SummedSteps:
    """One release of a sum of `steps` steps, each with the subject in it with probability `rate`."""

    steps: int
    rate: float
    noise_multiplier: float

    def cells(self) -> tuple[Array, Array, Array]:
        """Return (losses at the ends of cells, masses with the subject, masses without it), with the tails cut off."""
        std = self.noise_multiplier * math.sqrt(self.steps)
        hits = np.arange(self.steps + 1)
        chance = stats.binom.pmf(hits, self.steps, self.rate)
        hits, chance = hits[chance > 0], chance[chance > 0]
        ends = np.linspace(-REACH * std, self.steps + REACH * std, CELLS)
        with_it = sum(p * np.diff(ndtr((ends - b) / std)) for b, p in zip(hits, chance, strict=True))
        tilted = (ends[:, None] * hits - hits**2 / 2) / std**2 + np.log(chance)
        return np.asarray(logsumexp(tilted, axis=1)), np.asarray(with_it), np.diff(ndtr(ends / std))


def releases_in(events: Mapping[Event, int]) -> dict[SummedSteps, int]:
    """Return the sums of Gaussians, sampled or not, with their counts."""
    return {_as_sum(event): times for event, times in events.items()}


def _as_sum(event: Event) -> SummedSteps:
    steps, inner = (event.times, event.event) if isinstance(event, Repeat) else (1, event)
    rate, noised = (inner.rate, inner.event) if isinstance(inner, Poisson) else (1.0, inner)
    if not isinstance(noised, Gaussian):
        raise TypeError(f"no sum of sampled Gaussians: {event}")
    return SummedSteps(steps, rate, noised.noise_multiplier)


def hides_steps(events: Iterable[Event]) -> bool:
    """Return whether steps that were sampled one by one are seen as one sum."""
    return any(isinstance(event, Repeat) and event.times > 1 and isinstance(event.event, Poisson) for event in events)


@dataclass(frozen=True, eq=False)
class RoundedLosses:
    """Masses of a loss at step x (low, low + 1, ...), and of an infinite one, all rounded up or all rounded down."""

    step: float
    low: int
    mass: Array
    infinite: float

    def deltas(self, epsilons: Array) -> Array:
        """Return E[1 - e^(epsilon - loss)] over the positive part."""
        first = max(0, 1 - self.low)
        loss = self.step * (self.low + np.arange(first, len(self.mass)))
        # The FFT leaves tiny negative masses.
        mass = np.clip(self.mass[first:], 0.0, None)
        above = np.append(np.cumsum(mass[::-1])[::-1], 0.0)
        tilted = np.append(np.cumsum((mass * np.exp(-loss))[::-1])[::-1], 0.0)
        index = np.searchsorted(loss, epsilons, side="right")
        return np.asarray(self.infinite + np.maximum(above[index] - np.exp(epsilons) * tilted[index], 0.0))


def compose_sums(releases: Mapping[SummedSteps, int], *, up: bool) -> tuple[RoundedLosses, RoundedLosses] | None:
    """Return the losses of all releases together, with and without the subject, or None for too many points."""
    # Rounding errors of the releases add up: their total stays below ROUNDED.
    step = ROUNDED / sum(releases.values())
    sides = (_compose_side(releases, step, 0, up=up), _compose_side(releases, step, 1, up=up))
    return None if sides[0] is None or sides[1] is None else (sides[0], sides[1])


def _compose_side(releases: Mapping[SummedSteps, int], step: float, side: int, *, up: bool) -> RoundedLosses | None:
    parts = [(*_round_losses(release, step, side, up=up), times) for release, times in releases.items()]
    size = sum(times * (len(mass) - 1) for _, mass, times in parts) + 1
    if size > MOST_POINTS:
        return None
    padded = fft.next_fast_len(size, real=True)
    product = np.ones(padded // 2 + 1, dtype=np.complex128)
    for _, mass, times in parts:
        product *= fft.rfft(mass, padded) ** times
    kept = math.prod(float(mass.sum()) ** times for _, mass, times in parts)
    low = sum(times * first for first, _, times in parts)
    # Mass that was cut off counts as infinite loss in an upper bound, with an allowance for the error of the FFT.
    return RoundedLosses(step, low, fft.irfft(product, padded)[:size], max(0.0, 1 - kept) + 1e-12 if up else 0.0)


def _round_losses(release: SummedSteps, step: float, side: int, *, up: bool) -> tuple[int, Array]:
    """Return (lowest index, masses): a cell gets its largest loss, rounded up, or its least, rounded down."""
    ends, *worlds = release.cells()
    losses, mass = (ends, worlds[0]) if side == 0 else (-ends, worlds[1])
    one, other = losses[:-1], losses[1:]
    places = np.ceil(np.maximum(one, other) / step) if up else np.floor(np.minimum(one, other) / step)
    index = places.astype(np.int64)
    low = int(index.min())
    return low, np.bincount(index - low, mass).astype(np.float64)


def summed_deltas(events: Mapping[Event, int], epsilons: Array) -> Array | None:
    """Return upper bounds on delta of what is seen, in both directions."""
    sides = compose_sums(releases_in(events), up=True)
    return None if sides is None else np.minimum(1.0, np.maximum(*(side.deltas(epsilons) for side in sides)))


def summed_epsilon(events: Mapping[Event, int], delta: float) -> float:
    """Return a lower bound on epsilon of what is seen, at delta."""
    sides = compose_sums(releases_in(events), up=False)
    if sides is None:
        return 0.0
    epsilon = 0.0
    for side in sides:
        epsilons = side.step * np.arange(0, max(1, side.low + len(side.mass)), dtype=np.float64)
        over = np.flatnonzero(side.deltas(epsilons[epsilons < 600]) > delta)
        epsilon = max(epsilon, float(epsilons[over[-1]]) if len(over) else 0.0)
    return epsilon


FURTHEST = 5
"""Noise is tried from 2^-5 to 2^5 times the claimed one."""
HALVINGS = 8
"""Bisections of the factor of two between a refuted noise level and one that is not."""


def summed_curve(events: Mapping[Event, int]) -> TradeOff | None:
    """Return the trade-off curve of sums of sampled steps, or None if it would take too long."""
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
        """Return the events with their noise multiplied by `factor`."""
        return {scale_noise(event, factor): times for event, times in self.events.items()}

    def curve(self, factor: float) -> TradeOff | None:
        """Return the member's trade-off curve, of the sums where steps are seen only as their sum."""
        if factor not in self._curves:
            events = self.member(factor)
            self._curves[factor] = summed_curve(events) if hides_steps(events) else claimed_curve(events)
        return self._curves[factor]

    def epsilon(self, factor: float, delta: float) -> float:
        """Return the member's epsilon, rounded down."""
        events = self.member(factor)
        return summed_epsilon(events, delta) if hides_steps(events) else accounting.interval(events, delta)[0]

    def refuted_by(self, refutes: "Refutes") -> bool:
        """Return whether the claim itself is refuted: the curve of everything that the ledger says was released."""
        curve = claimed_curve(self.events)
        return curve is not None and refutes(curve)

    @property
    def plain(self) -> bool:
        """Return whether everything is Gaussian noise, with sampling that treats every subject independently."""
        inner = (event.event if isinstance(event, Poisson) else event for event in canonical_form(self.events))
        return all(isinstance(event, Gaussian) for event in inner)

    @property
    def sampled(self) -> bool:
        """Return whether it is hidden when the subject took part."""
        return any(isinstance(event, Poisson) for event in canonical_form(self.events))


Refutes = Callable[[TradeOff], bool]
"""Returns whether counts refute a curve; what refutes a curve refutes every higher one."""


def least_factor(family: ClaimedFamily, refutes: Refutes) -> float:
    """Return the least multiple of the claimed noise that is refuted, or infinity: the true noise is below it."""

    def refuted(power: float) -> bool:
        curve = family.curve(2.0**power)
        return curve is not None and refutes(curve)

    # Bisection is valid because refutation is monotone in the noise: more noise is a higher curve.
    high = 0.0
    if refuted(high):
        # Powers of two first, bisection after: every curve is expensive and is cached.
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
    r"""Return whether `right` right guesses have probability below `error` under the curve, for dependent canaries too.

    Each of the m canaries is in with probability 1/2; r of them are guessed, and the choice may depend on everything
    seen. Let P_i be the probability of at least i right guesses and h the curve's most hits. "Canary j is guessed
    rightly, and at least i guesses are right" becomes, when the bit of j is flipped, "wrongly, and at least i - 1 are
    right". The curve relates the two; summed over the canaries, with h concave, for i = 1 .. r:

        (i P_i + sum_{k > i} P_k) / m  <=  h( ((r - i + 1) P_{i-1} - sum_{k >= i} P_k) / m ).

    So P_{i-1} is at least a function of P_i, P_{i+1}, ... that increases in all of them. From P_v = error and nothing
    above it, a lower bound on every P_i follows, going down; if one exceeds 1, P_v was less than `error`. Reference:
    the inequality is that of Mahloujifar, Melis and Chaudhuri 2024, "Auditing f-differential privacy in one run", for
    tails of the counts.
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
    """Return whether a test with at least these hits and at most these false alarms is better than the curve allows.

    >>> from sightline.events import Gaussian
    >>> [rates_refute(claimed_curve({Gaussian(z): 1}), hits=0.84, alarms=0.5) for z in (1.0, 1.1)]
    [False, True]
    """
    return hits > curve.most_hits(alarms)
