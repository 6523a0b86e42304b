"""Adaptive control of intervals, participation and step size around any algorithm on a tree (Section 5)."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from sightline.algorithms.contract import Algorithm, Round, State
from sightline.algorithms.control_costs import participation_rates, price_interval, with_noise
from sightline.algorithms.control_estimates import Slope, estimate_diversity, estimate_smoothness, of_round, sgd_noise
from sightline.algorithms.control_search import Choice, Prospects, candidate_intervals, search_choice
from sightline.algorithms.control_settings import Control, check_control
from sightline.algorithms.theory_h2fdp import largest_gamma
from sightline.config import Experiment
from sightline.mechanisms import LocalSchedule, Public

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
    """Of the noise in a coordinate of the last gradient."""

    @classmethod
    def read(cls, state: State, beta: float) -> "Progress":
        """From the state; before the first round nothing is done."""
        return cls(*state[PREFIX].value.tolist()) if PREFIX in state else cls(0.0, beta)

    def to_vector(self, sources: frozenset[int]) -> Public:
        """As a vector that a checkpoint can keep: in single precision from the start, so that resuming is exact."""
        return Public(torch.tensor([self.steps_done, self.beta, self.variance]), sources)


def wrap_control(base: Algorithm, control: Control, experiment: Experiment) -> Algorithm:
    """The algorithm with its pace chosen before every round.

    Guarantees: choices depend on released values and public facts only; nobody takes part more often, no interval is
    longer and there are no more intervals than the noise was calibrated for.
    """
    check_control(experiment, base, control)
    tau, rounds = int(experiment.local.steps or 1), experiment.rounds
    total = rounds * tau
    first = control.smoothness or largest_gamma(tau, rounds, experiment.local.learning_rate)
    tables: list[Prospects] = []  # costs do not change during a run

    def round_(state: State, r: Round, settings: Any) -> State:
        known = Progress.read(state, first)
        aggregations = base.aggregations(settings, tau)
        left = max(1, total - int(known.steps_done))
        taus = candidate_intervals(
            left=left, rounds_left=rounds - r.time + 1, tau_max=control.tau_max, aggregations=aggregations
        )
        if not tables:
            tables.append(price_interval(r, aggregations))
        here = with_noise(tables[0], r)
        choice = search_choice(here, control.weights, left=left, taus=taus, planned_tau=tau, planned_steps=total)
        gamma = min(experiment.local.learning_rate, largest_gamma(choice.tau, rounds, known.beta))
        r.set_pace(
            LocalSchedule(choice.tau, gamma, participation_rates(r, choice.trusted, choice.untrusted)),
            most_steps=control.tau_max,
        )
        after = base.round({n: v for n, v in state.items() if not n.startswith(PREFIX)}, r, settings)
        note_decision(r, choice, gamma)
        return dict(after) | update_control(
            state, r, base, replace(known, steps_done=known.steps_done + choice.tau), control
        )

    return replace(
        base,
        round=round_,
        finished=lambda state: Progress.read(state, first).steps_done >= total,
        ending=f"algorithm.control chose longer intervals: all {total} planned local steps were done",
        says=" ".join(filter(None, (base.says, SAYS))),
    )


def note_decision(r: Round, choice: Choice, gamma: float) -> None:
    """Write the decision into the round's metrics: everything in it is public."""
    r.note_metrics(
        tau=choice.tau,
        devices_trusted=choice.trusted,
        devices_untrusted=choice.untrusted,
        step_size=gamma,
        energy_term=choice.energy,
        delay_term=choice.delay,
        accuracy_term=choice.accuracy,
    )


def update_control(state: State, r: Round, base: Algorithm, now: Progress, control: Control) -> dict[str, Public]:
    """The next state of control: steps done, the gradient that the round's releases show, and where it was taken."""
    start = base.models(state, r.clients)
    if not r.heard or not isinstance(start, Public):
        return {PREFIX: now.to_vector(frozenset())}
    shares = [r.channel_shares([heard.channel for heard in gathering]) for gathering in r.heard]
    slope = of_round(r.heard, shares)
    beta = secant_smoothness(state, slope, start, now)
    zeta, sigma = estimate_diversity(r.heard[-1], shares[-1]), sgd_noise(r.heard)
    r.note_metrics(smoothness_seen=beta, diversity_seen=zeta, sgd_noise_seen=sigma)
    largest = max(now.beta, beta) if control.estimated else now.beta
    sources = start.sources.union(*(heard.value.sources for gathering in r.heard for heard in gathering))
    return {
        PREFIX: Progress(now.steps_done, largest, slope.variance).to_vector(sources),
        GRADIENT: Public(slope.value, sources),
        POINT: start,
    }


def secant_smoothness(state: State, slope: Slope, start: Public, now: Progress) -> float:
    """The smoothness between this round's start and the last one's; zero in the first round."""
    if GRADIENT not in state:
        return 0.0
    before = Slope(state[GRADIENT].value, now.variance)
    return estimate_smoothness(slope, before, start.value - state[POINT].value)
