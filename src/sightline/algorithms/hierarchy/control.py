"""Adaptive control of intervals, participation and step size around any algorithm on a tree (Section 5)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sightline.algorithms.contract import Algorithm, ChannelMean, Round, State, with_facts
from sightline.algorithms.hierarchy.control_search import (
    Choice,
    Control,
    Floats,
    Prospects,
    candidate_counts,
    candidate_intervals,
    check_control,
    search_choice,
)
from sightline.config import Experiment
from sightline.mechanisms import LocalSchedule, Public, combine_public
from sightline.topology import Channel


def participation_rates(r: Round, trusted: int, untrusted: int) -> dict[str, float]:
    """Return the participation rate of each channel for these numbers of devices per subnet, capped at the plan's."""
    wanted = {True: trusted, False: untrusted}
    asked = {}
    for channel in (*r.channels, *r.control.gathering_channels):
        subnets = sum(set(edge.members) <= set(channel.members) for edge in r.channels)
        # Never above the planned rate: releases claim the planned rate's event, which dominates lower rates only.
        rate = subnets * wanted[channel.trusted] / len(channel.members)
        asked[channel.name] = min(r.control.largest_rate(channel), rate)
    return asked


def price_interval(r: Round, aggregations: int) -> Prospects:
    """Return energy and delay of an interval: each local aggregation gathers once, and the edges send up once."""

    def cost(trusted: int, untrusted: int) -> tuple[float, float]:
        gathering, lifting = r.control.price_rates(participation_rates(r, trusted, untrusted))
        whole = gathering.times(aggregations) + lifting
        return whole.energy_joule, whole.delay_seconds

    mine, others = candidate_counts(most_devices(r, trusted=True)), candidate_counts(most_devices(r, trusted=False))
    table = cost_table(mine, others, cost)
    return Prospects(mine, others, table[..., 0], table[..., 1], np.zeros((len(mine), len(others))))


def with_noise(costs: Prospects, r: Round) -> Prospects:
    """Return the prospects with term (b) of Theorem 4.3: sum_c share_c^2 z_c^2 / s_c^2, / s_c for an untrusted edge."""
    shares = dict(zip((c.name for c in r.channels), r.control.channel_shares(r.channels), strict=True))

    def noise(trusted: int, untrusted: int) -> tuple[float]:
        asked = participation_rates(r, trusted, untrusted)
        return (
            math.fsum(
                (shares[c.name] * r.control.noise_multiplier(c)) ** 2
                / (asked[c.name] * len(c.members)) ** (2 if c.trusted else 1)
                for c in r.channels
            ),
        )

    return replace(costs, noise=cost_table(costs.trusted, costs.untrusted, noise)[..., 0])


def most_devices(r: Round, *, trusted: bool) -> int:
    """Return the largest number of devices that any of these subnets may ask; zero without such subnets."""
    result = [r.control.largest_rate(c) * len(c.members) for c in r.channels if c.trusted is trusted]
    return max(1, math.floor(max(result) + 1e-9)) if result else 0


def cost_table(
    rows: tuple[int, ...], columns: tuple[int, ...], value: Callable[[int, int], tuple[float, ...]]
) -> Floats:
    """Return the cost of every pair of a row and a column: one entry per row, column and part of the cost."""
    return np.array([[value(row, column) for column in columns] for row in rows])


CLEAR = 3.0
"""A squared length counts if it exceeds its noise by this many standard deviations."""


@dataclass(frozen=True, eq=False)
class Slope:
    """A gradient read off a release: minus the mean update over (learning rate x steps), and its noise."""

    # The paper estimates from raw gradients, which no party that decides may see. Releasing them would cost privacy,
    # and a public decision would carry them on. Reading released means costs nothing.
    value: Tensor
    variance: float
    """Variance of the privacy noise in one coordinate."""

    def minus(self, other: "Slope") -> "Slope":
        """Return the difference of two slopes with independent noises."""
        return Slope(self.value - other.value, self.variance + other.variance)

    @property
    def square(self) -> float:
        """The squared length without the noise's share; zero if it does not stand out from the noise."""
        dimension = self.value.numel()
        seen = float(self.value.double().square().sum())
        left = seen - dimension * self.variance
        spread = math.sqrt(2 * dimension) * self.variance + 2 * math.sqrt(self.variance * max(left, 0.0))
        return left if left > CLEAR * spread else 0.0


def slope_of(mean: ChannelMean, value: Tensor) -> Slope:
    """Return the gradient behind one release with this value."""
    reach = max(mean.reach, 1e-30)
    return Slope(value / -reach, (mean.noise_std / reach) ** 2)


def mean_slope(slopes: Sequence[Slope], shares: Sequence[float]) -> Slope:
    """Return the weighted mean of independent slopes."""
    value = torch.zeros_like(slopes[0].value)
    for one, share in zip(slopes, shares, strict=True):
        value = value.add(one.value, alpha=share)
    return Slope(value, math.fsum(share**2 * one.variance for one, share in zip(slopes, shares, strict=True)))


def estimate_smoothness(now: Slope, before: Slope, move: Tensor) -> float:
    """Return |g - g'| / |w - w'|, the secant, a lower estimate of beta; zero if noise covers it."""
    distance = float(move.double().square().sum())
    return math.sqrt(now.minus(before).square / distance) if distance > 0 else 0.0


def estimate_diversity(channels: Sequence[Slope], shares: Sequence[float]) -> float:
    """Return zeta: the root mean squared distance of the channels' gradients from the global one."""
    result = []
    for index in range(len(channels)):
        against_mean = [float(other == index) - share for other, share in enumerate(shares)]
        result.append(shares[index] * mean_slope(channels, against_mean).square)
    return math.sqrt(math.fsum(result))


def squared_changes(gatherings: Sequence[Sequence[ChannelMean]]) -> list[tuple[Channel, Public]]:
    """Return, for each subnet, half the mean squared change of its gradient between the gatherings of a round.

    The root of their mean is sigma, an upper estimate of the noise of a subnet's mean: drift between gatherings is
    counted as noise. Empty with one gathering.
    """
    result = []
    for channel in {mean.channel.name: mean.channel for gathering in gatherings for mean in gathering}.values():
        own = [mean for gathering in gatherings for mean in gathering if mean.channel.name == channel.name]
        if len(own) > 1:
            result.append((channel, combine_public(partial(_squared_change, own), *(mean.value for mean in own))))
    return result


def _squared_change(means: Sequence[ChannelMean], *values: Tensor) -> Tensor:
    slopes = [slope_of(mean, value) for mean, value in zip(means, values, strict=True)]
    changes = [after.minus(before).square / 2 for before, after in pairwise(slopes)]
    return torch.tensor([math.fsum(changes) / len(changes)])


PREFIX = "pace of control"
GRADIENT, POINT = f"{PREFIX} gradient", f"{PREFIX} point"
SAYS = (
    "Control: before each interval its length, the devices that take part and the step size are chosen from released "
    "values. The noise is calibrated for the most that may be chosen, so that every choice is covered."
)


@dataclass(frozen=True)
class Progress:
    """What control remembers: public numbers, checkpointed with the model."""

    steps_done: float
    beta: float
    variance: float = 0.0
    """Variance of the noise in a coordinate of the last gradient."""

    @classmethod
    def read(cls, state: State, beta: float) -> "Progress":
        """Read the progress from the state; zero steps before the first round."""
        return cls(*state[PREFIX].value.tolist()) if PREFIX in state else cls(0.0, beta)

    def to_vector(self, sources: frozenset[int]) -> Public:
        """Return the progress as a vector that a checkpoint can keep."""
        # Single precision from the start, so that a resumed run computes with the same numbers.
        return Public(torch.tensor([self.steps_done, self.beta, self.variance]), sources)


def largest_gamma(tau: float, rounds: int, smoothness: float) -> float:
    """Return the largest step size that Theorem 4.3 allows: min(1/tau, 1/K_g) / beta."""
    return min(1 / tau, 1 / rounds) / smoothness


def wrap_control(base: Algorithm, control: Control, experiment: Experiment) -> Algorithm:
    """Return the algorithm with its schedule chosen before every round.

    Guarantees: choices depend on released values and public facts only; participation, the length of an interval and
    the number of intervals never exceed what the noise was calibrated for.
    """
    check_control(experiment, base, control)
    tau, rounds = int(experiment.local.steps or 1), experiment.rounds
    total = rounds * tau
    first = control.smoothness or largest_gamma(tau, rounds, experiment.local.learning_rate)
    tables: list[Prospects] = []  # costs do not change during a run

    def round_(state: State, r: Round, settings: Any) -> State:
        known = Progress.read(state, first)
        aggregations = base.facts.aggregations(settings, tau)
        left = max(1, total - int(known.steps_done))
        # Lengths and rates follow public costs and noise alone; estimates from released values only ever shorten the
        # step. So when the run ends, and how often a client is asked, does not depend on private data.
        taus = candidate_intervals(
            left=left, rounds_left=rounds - r.time + 1, tau_max=control.tau_max, aggregations=aggregations
        )
        if not tables:
            tables.append(price_interval(r, aggregations))
        here = with_noise(tables[0], r)
        choice = search_choice(here, control.weights, left=left, taus=taus, planned_tau=tau, planned_steps=total)
        # The noise multiplier stays z: the noise is z times the sensitivity eta m G of the chosen steps.
        gamma = min(experiment.local.learning_rate, largest_gamma(choice.tau, rounds, known.beta))
        r.control.set_schedule(
            LocalSchedule(choice.tau, gamma, participation_rates(r, choice.trusted, choice.untrusted)),
            most_steps=control.tau_max,
        )
        after = base.round({n: v for n, v in state.items() if not n.startswith(PREFIX)}, r, settings)
        note_decision(r, choice, gamma)
        return dict(after) | update_control(
            state, r, base, replace(known, steps_done=known.steps_done + choice.tau), control
        )

    return with_facts(
        replace(base, round=round_),
        finished=lambda state: Progress.read(state, first).steps_done >= total,
        ending=f"algorithm.control chose longer intervals: all {total} planned local steps were done",
        says=" ".join(filter(None, (base.facts.says, SAYS))),
    )


def note_decision(r: Round, choice: Choice, gamma: float) -> None:
    """Write the decision into the round's metrics; all of it is public."""
    r.control.note_metrics(
        tau=choice.tau,
        devices_trusted=choice.trusted,
        devices_untrusted=choice.untrusted,
        step_size=gamma,
        energy_term=choice.energy,
        delay_term=choice.delay,
        accuracy_term=choice.accuracy,
    )


def update_control(state: State, r: Round, base: Algorithm, now: Progress, control: Control) -> dict[str, Public]:
    """Return the next state of control: steps done, the gradient of the round at the cloud, and its point."""
    start = base.models(state, r.clients)
    means = r.control.channel_means
    if not means or not isinstance(start, Public):
        return {PREFIX: now.to_vector(frozenset())}
    # The cloud estimates from the gathering that it receives; earlier ones of the round stay at the edges.
    last, shares = means[-1], r.control.channel_shares([mean.channel for mean in means[-1]])
    values = [mean.value for mean in last]
    slopes = partial(_slopes_of, last)
    gradient = combine_public(lambda *seen: mean_slope(slopes(seen), shares).value, *values)
    variance = mean_slope(slopes([torch.zeros(1)] * len(last)), shares).variance
    diversity = combine_public(lambda *seen: torch.tensor([estimate_diversity(slopes(seen), shares)]), *values)
    estimates = [secant_smoothness(state, gradient, variance, start, now), diversity, sgd_noise(r, means)]
    seen = publish_estimates(r, estimates)
    beta, zeta, sigma = (float(value.value[0]) for value in seen)
    r.control.note_metrics(smoothness_seen=beta, diversity_seen=zeta, sgd_noise_seen=sigma)
    largest = max(now.beta, beta) if control.estimated else now.beta
    after = Progress(now.steps_done, largest, variance).to_vector(seen[0].sources)
    return {PREFIX: after, GRADIENT: gradient, POINT: start}


def _slopes_of(means: Sequence[ChannelMean], values: Sequence[Tensor]) -> list[Slope]:
    return [slope_of(mean, value) for mean, value in zip(means, values, strict=True)]


def secant_smoothness(state: State, gradient: Public, variance: float, start: Public, now: Progress) -> Public:
    """Return the smoothness between this round's start and the last one's; zero in the first round."""
    if GRADIENT not in state:
        return combine_public(lambda _: torch.zeros(1), gradient)

    def secant(here: Tensor, there: Tensor, to: Tensor, point: Tensor) -> Tensor:
        return torch.tensor([estimate_smoothness(Slope(here, variance), Slope(there, now.variance), to - point)])

    return combine_public(secant, gradient, state[GRADIENT], start, state[POINT])


def sgd_noise(r: Round, means: Sequence[Sequence[ChannelMean]]) -> Public:
    """Return sigma at the cloud, from the change that each edge measures and sends up; zero with one gathering."""
    changes = squared_changes(means)
    sent = [(value, c, c.above, "how much an edge's gradient changed, sent up") for c, value in changes if c.above]
    if not sent:
        return Public(torch.zeros(1))
    return combine_public(lambda *seen: torch.stack(seen).mean(0).sqrt(), *r.show(sent))


def publish_estimates(r: Round, estimates: Sequence[Public]) -> list[Public]:
    """Return the cloud's estimates of smoothness, diversity and SGD noise, held by everyone."""
    # Everyone plans the next round by them. They come from releases that the public model comes from too, so every
    # observer is already charged for them.
    cloud, names = r.control.top, ("smoothness", "diversity", "SGD noise")
    what = [f"the cloud's estimate of {name}" for name in names]
    return r.show([(value, cloud, cloud.audience, text) for value, text in zip(estimates, what, strict=True)])
