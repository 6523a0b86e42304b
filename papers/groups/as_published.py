"""What the paper prints about overlapping groups and what is no guarantee: here to show why. Nothing trains with it.

Kiani, Boenisch and Draper: the count of Theorem 1, eqs. (17)-(18), and the degradation of Theorem 2, eq. (21), whose
proof takes the noise of a released model as c sigma instead of c sigma / (pi |N_m|), uses the LSI constant of a
Lipschitz map in the wrong direction and convolves dependent variables as if they were independent. And the interval of
DP-OGL+, eqs. (11)-(13), in which workers see each other's raw updates, so that its claimed sensitivity does not hold.
And Lemma 3, the cost of a sampled release: too large at the rate of the experiments, too small at others.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.errors import invalid, refuse
from sightline.mechanisms import clip_update
from sightline.topology import Memberships


def as_published_count(period: int, epochs: int, distance: int, *, releases_each: int) -> int:
    """Eqs. (17) and (18): S (floor((t - 1) / S) - rho); too small whenever S does not divide t - 1.

    >>> as_published_count(2, 4, 1, releases_each=2)
    0
    """
    return releases_each * max(0, (epochs - 1) // period - distance)


def lemma_3_epsilon(releases: int, *, rate: float, noise: float, delta: float) -> float:
    """Releases of (a, 2 rate^2 a / noise^2)-RDP each, converted as Opacus does, at its default orders; none costs 0.

    >>> round(lemma_3_epsilon(199, rate=0.7, noise=2.0, delta=1e-5), 2)
    94.25
    """
    if releases == 0:
        return 0.0
    orders = np.array([*(1 + step / 10 for step in range(1, 100)), *range(12, 64)])
    spent = releases * 2 * rate**2 * orders / noise**2
    converted = spent - np.log(orders * delta) / (orders - 1) + np.log1p(-1 / orders)
    return float(max(0.0, converted.min()))


@dataclass(frozen=True)
class ConvexTraining:
    """What Theorem 2 wants to know: convex, beta-smooth losses, full participation."""

    noise_multiplier: float
    clip_norm: float
    learning_rate: float
    smoothness: float
    steps: int
    """Local iterations L."""

    @property
    def expansion(self) -> float:
        """(1 + (1 + eta beta)^L)^2, eq. (56)."""
        return float((1 + (1 + self.learning_rate * self.smoothness) ** self.steps) ** 2)


def as_published_plus(
    schedule: Memberships,
    period: int,
    epochs: int,
    training: ConvexTraining,
    *,
    subject: int,
    observer: int,
    order: float,
) -> float:
    """Eq. (22), Theorem 2 for DP-OGL+ and an observer outside the subject's groups: no guarantee.

    An interval is one release: the recursion of eq. (21) with period 1, noise of variance S c^2 sigma^2, and S L local
    iterations between two releases.
    """
    groups = schedule.eras[0].groups
    if any(subject in group and observer in group for group in groups):
        refuse("observer", observer, "shares a group with the subject; eq. (22) is for others", "choose another")
    wide = replace(training, clip_norm=training.clip_norm * math.sqrt(period), steps=training.steps * period)
    intervals = -(-(epochs - 1) // period)
    return as_published_degradation(schedule, 1, intervals + 1, wide, subject=subject, observer=observer, order=order)


def as_published_degradation(
    schedule: Memberships,
    period: int,
    epochs: int,
    training: ConvexTraining,
    *,
    subject: int,
    observer: int,
    order: float,
) -> float:
    """The Renyi divergence that Theorem 2 states for a string, read so that it gives eq. (26): no guarantee.

    Releases of the subject's groups that reach the observer, each times the factors mu = a / (a + h c^2 sigma^2) of the
    epochs of the groups on the way; releases of shared groups count in full.
    """
    check_string(schedule)
    if order <= 1:
        invalid("order", order, "an order of Renyi divergence is above 1")
    groups = schedule.eras[0].groups
    mine = [m for m, group in enumerate(groups) if subject in group]
    theirs = [m for m, group in enumerate(groups) if observer in group]
    one = order / (2 * training.noise_multiplier**2)
    factors = mixing_factors(groups, period, epochs, training, order)
    factors[mine] = 1.0
    total = one * (epochs - 1) * len(set(mine) & set(theirs))
    for group in set(mine) - set(theirs):
        target = min(theirs, key=lambda other: abs(other - group))
        total += one * _degraded_releases(factors, group, target, period, epochs)
    return float(total)


def _degraded_releases(factors: NDArray[np.float64], group: int, target: int, period: int, epochs: int) -> float:
    """Releases of a group that reach another one along the string, each times what the way leaves of it."""
    way = 1 if target > group else -1
    total, begun = 0.0, -(-(epochs - 1) // period)
    for interval in range(1, begun + 1 - abs(target - group)):
        left = 1.0
        for hop in range(1, abs(target - group) + 1):
            first = (interval + hop - 1) * period
            left *= float(np.prod(factors[group + way * hop, first : min(first + period, epochs - 1)]))
        total += period * left
    return total


def mixing_factors(
    groups: Sequence[Sequence[int]], period: int, epochs: int, training: ConvexTraining, order: float
) -> NDArray[np.float64]:
    """mu of every (group, epoch) by the recursion of Lemma 12, cases as in its proof, and eq. (67)."""
    scale = (training.clip_norm * training.noise_multiplier) ** 2
    spread = np.zeros(len(groups))  # 1 / b of every group's model
    found = np.zeros((len(groups), max(epochs - 1, 0)))
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        for epoch in range(epochs - 1):
            merging = epoch % period == 0
            added = np.zeros(len(groups))
            for m, group in enumerate(groups):
                starts = [_start_group(spread, groups, worker) if merging else spread[m] for worker in group]
                added[m] = training.expansion * sum(starts)
            width = spread + np.array([len(group) ** 2 for group in groups]) * added
            found[:, epoch] = order / (order + scale / width)
            spread = np.minimum(spread + np.array([len(g) ** 2 for g in groups]) * (scale + added), 1e300)
    return found


def _start_group(spread: NDArray[np.float64], groups: Sequence[Sequence[int]], worker: int) -> float:
    return float(sum(spread[m] for m, group in enumerate(groups) if worker in group))


def check_string(schedule: Memberships) -> None:
    """Definition 7: at most two groups a worker, neighbours share workers, others do not."""
    groups = [set(group) for group in schedule.eras[0].groups]
    near = [[bool(one & other) for other in groups] for one in groups]
    line = all(near[a][b] == (abs(a - b) <= 1) for a in range(len(groups)) for b in range(len(groups)))
    busiest = max(sum(worker in group for group in groups) for worker in range(schedule.workers))
    if len(schedule.eras) > 1 or not line or busiest > 2:
        refuse("structure", "not a string", "Theorem 2 speaks of strings of groups only", 'use structure = "string"')


Train = Callable[[Tensor], Tensor]
"""start -> update of one worker's local training."""


def printed_sum(start: Tensor, workers: Sequence[Train], *, period: int, clip_norm: float, expected: float) -> Tensor:
    """The clipped sum of an interval, eq. (13), when group-mates train on from un-noised models, eq. (11)."""
    model, summed = start, [torch.zeros_like(start) for _ in workers]
    for _ in range(period):
        updates = [train(model) for train in workers]
        summed = [so_far + update for so_far, update in zip(summed, updates, strict=True)]
        model = model + torch.stack(updates).sum(0) / expected
    return _clipped_sum(summed, period, clip_norm, start)


def alone_sum(start: Tensor, workers: Sequence[Train], *, period: int, clip_norm: float) -> Tensor:
    """The clipped sum of an interval when every worker trains alone through it, as `dp_ogl_plus` does."""
    ends = []
    for train in workers:
        model = start
        for _ in range(period):
            model = model + train(model)
        ends.append(model - start)
    return _clipped_sum(ends, period, clip_norm, start)


def _clipped_sum(updates: Sequence[Tensor], period: int, clip_norm: float, start: Tensor) -> Tensor:
    bounded = [clip_update(update, clip_norm=math.sqrt(period) * clip_norm).value for update in updates]
    return torch.stack(bounded).sum(0) if bounded else torch.zeros_like(start)
