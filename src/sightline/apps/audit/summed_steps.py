"""What is really seen of several sampled steps when only their sum is: less than the composition that is claimed.

A client that takes T private steps and sends the end of them shows one number along a canary: the number of steps that
drew it, under the noise of all of them. The ledger claims the composition of the T steps, which is more than that. An
attack on the sum is measured against the law of the sum, or it would read a bound on epsilon off a curve that is not
the mechanism's.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy import fft, stats
from scipy.special import logsumexp, ndtr

from sightline.accounting.likelihood_ratio import Array
from sightline.events import Event, Gaussian, Poisson, Repeat

ROUNDED = 0.01
"""By how much rounding may move the loss of all releases together."""
REACH = 6.8
"""Standard deviations of noise that are told apart: beyond them, all is lost or nothing, on the safe side."""
CELLS = 6000
MOST_POINTS = 2**21


@dataclass(frozen=True)
class SummedSteps:
    """One release of a sum of `steps` steps, each with the subject in it with probability `rate`."""

    steps: int
    rate: float
    noise_multiplier: float

    def cells(self) -> tuple[Array, Array, Array]:
        """(losses at the ends of cells, masses with the subject, masses without it); the ends of the line are cut."""
        std = self.noise_multiplier * math.sqrt(self.steps)
        hits = np.arange(self.steps + 1)
        chance = stats.binom.pmf(hits, self.steps, self.rate)
        hits, chance = hits[chance > 0], chance[chance > 0]
        ends = np.linspace(-REACH * std, self.steps + REACH * std, CELLS)
        with_it = sum(p * np.diff(ndtr((ends - b) / std)) for b, p in zip(hits, chance, strict=True))
        tilted = (ends[:, None] * hits - hits**2 / 2) / std**2 + np.log(chance)
        return np.asarray(logsumexp(tilted, axis=1)), np.asarray(with_it), np.diff(ndtr(ends / std))


def releases_in(events: Mapping[Event, int]) -> dict[SummedSteps, int]:
    """Gaussians, sampled or not, and sums of them, with how many there are of each."""
    return {_as_sum(event): times for event, times in events.items()}


def _as_sum(event: Event) -> SummedSteps:
    steps, inner = (event.times, event.event) if isinstance(event, Repeat) else (1, event)
    rate, noised = (inner.rate, inner.event) if isinstance(inner, Poisson) else (1.0, inner)
    if not isinstance(noised, Gaussian):
        raise TypeError(f"no sum of sampled Gaussians: {event}")
    return SummedSteps(steps, rate, noised.noise_multiplier)


def hides_steps(events: Iterable[Event]) -> bool:
    """Whether steps that were sampled one by one are seen as one sum."""
    return any(isinstance(event, Repeat) and event.times > 1 and isinstance(event.event, Poisson) for event in events)


@dataclass(frozen=True, eq=False)
class RoundedLosses:
    """Masses of a loss at step x (low, low + 1, ...), and of an infinite one: all rounded up, or all down."""

    step: float
    low: int
    mass: Array
    infinite: float

    def deltas(self, epsilons: Array) -> Array:
        """E[1 - e^(epsilon - loss)] where that is positive."""
        first = max(0, 1 - self.low)
        loss = self.step * (self.low + np.arange(first, len(self.mass)))
        mass = np.clip(self.mass[first:], 0.0, None)
        above = np.append(np.cumsum(mass[::-1])[::-1], 0.0)
        tilted = np.append(np.cumsum((mass * np.exp(-loss))[::-1])[::-1], 0.0)
        place = np.searchsorted(loss, epsilons, side="right")
        return np.asarray(self.infinite + np.maximum(above[place] - np.exp(epsilons) * tilted[place], 0.0))


def compose_sums(releases: Mapping[SummedSteps, int], *, up: bool) -> tuple[RoundedLosses, RoundedLosses] | None:
    """The losses of all releases together, with and without the subject; None where they would be too many points."""
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
    return RoundedLosses(step, low, fft.irfft(product, padded)[:size], max(0.0, 1 - kept) + 1e-12 if up else 0.0)


def _round_losses(release: SummedSteps, step: float, side: int, *, up: bool) -> tuple[int, Array]:
    """(lowest place, masses): a cell goes to its largest loss, rounded up, or to its least, rounded down."""
    ends, *worlds = release.cells()
    losses, mass = (ends, worlds[0]) if side == 0 else (-ends, worlds[1])
    one, other = losses[:-1], losses[1:]
    places = np.ceil(np.maximum(one, other) / step) if up else np.floor(np.minimum(one, other) / step)
    index = places.astype(np.int64)
    low = int(index.min())
    return low, np.bincount(index - low, mass).astype(np.float64)


def summed_deltas(events: Mapping[Event, int], epsilons: Array) -> Array | None:
    """Upper bounds on delta of what is seen, in both directions."""
    sides = compose_sums(releases_in(events), up=True)
    return None if sides is None else np.minimum(1.0, np.maximum(*(side.deltas(epsilons) for side in sides)))


def summed_epsilon(events: Mapping[Event, int], delta: float) -> float:
    """A lower bound on epsilon of what is seen, at delta."""
    sides = compose_sums(releases_in(events), up=False)
    if sides is None:
        return 0.0
    found = 0.0
    for side in sides:
        epsilons = side.step * np.arange(0, max(1, side.low + len(side.mass)), dtype=np.float64)
        over = np.flatnonzero(side.deltas(epsilons[epsilons < 600]) > delta)
        found = max(found, float(epsilons[over[-1]]) if len(over) else 0.0)
    return found
