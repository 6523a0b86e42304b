"""Search for interval, participation and step size (Section 5.2), and the settings of `algorithm.control`."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.algorithms.contract import Algorithm
from sightline.config import Experiment
from sightline.errors import did_you_mean, invalid, refuse

Floats = NDArray[np.float64]

MOST_CANDIDATES = 24
"""Largest number of participation counts to try; above it they grow geometrically from 1 to the largest."""


@dataclass(frozen=True)
class Weights:
    """alpha_1, alpha_2, alpha_3 of problem P."""

    energy: float
    delay: float
    accuracy: float


@dataclass(frozen=True, eq=False)
class Prospects:
    """Costs of one interval for every pair (devices per trusted subnet, devices per untrusted subnet).

    Rows are trusted, columns untrusted counts. Full participation (last row and column) is the reference of all terms.
    """

    trusted: tuple[int, ...]
    untrusted: tuple[int, ...]
    energy: Floats
    """Joule of an interval of any length."""
    delay: Floats
    """Seconds of an interval."""
    noise: Floats
    """Term (b) of Theorem 4.3 up to a factor, per local step."""


@dataclass(frozen=True)
class Choice:
    """The result of the search, and the three terms of the objective there."""

    tau: int
    trusted: int
    untrusted: int
    energy: float
    delay: float
    accuracy: float

    @property
    def objective(self) -> float:
        """The minimised weighted sum."""
        return self.energy + self.delay + self.accuracy


def search_choice(
    prospects: Prospects, weights: Weights, *, left: int, taus: Iterable[int], planned_tau: int, planned_steps: int
) -> Choice:
    """Return the (tau, s, s') that minimises a1 (left / tau) E(s) + a2 (left / tau) D(s) + a3 tau nu(s).

    Every term is divided by the cost of the plan (`planned_steps` in intervals of `planned_tau`, full participation):
    phi of the paper, for all three, so that weights of 1 mean equal importance in any units.

    Guarantees: no candidate has a smaller objective; among equals, the shortest interval with the fewest devices.
    """
    e, d, n = (relative_to_full(table) for table in (prospects.energy, prospects.delay, prospects.noise))
    best: tuple[float, Choice] | None = None
    for tau in taus:
        share, length = left / tau * planned_tau / planned_steps, tau / planned_tau
        terms = weights.energy * share * e, weights.delay * share * d, weights.accuracy * length * n
        total = terms[0] + terms[1] + terms[2]
        row, column = np.unravel_index(int(np.argmin(total)), total.shape)
        least = float(total[row, column])
        if best is None or least < best[0]:
            who = prospects.trusted[row], prospects.untrusted[column]
            best = least, Choice(tau, *who, *(float(term[row, column]) for term in terms))
    if best is None:
        raise ValueError("no interval to choose from")
    return best[1]


def relative_to_full(table: Floats) -> Floats:
    """Divide by the value at full participation; a cost that is zero there is zero everywhere."""
    whole = float(table[-1, -1])
    return table / whole if whole > 0 else np.zeros_like(table)


def candidate_counts(most: int) -> tuple[int, ...]:
    """Return participation counts to try: 1 .. most, thinned if there are many; (0,) if there are no devices.

    >>> candidate_counts(5), candidate_counts(0), len(candidate_counts(1000)), candidate_counts(1000)[-1]
    ((1, 2, 3, 4, 5), (0,), 22, 1000)
    """
    if most <= MOST_CANDIDATES:
        return tuple(range(1, most + 1)) or (0,)
    spread = np.geomspace(1, most, MOST_CANDIDATES)
    return tuple(int(value) for value in np.unique(np.round(spread).astype(np.int64)))


def candidate_intervals(*, left: int, rounds_left: int, tau_max: int, aggregations: int) -> Sequence[int]:
    """Return the lengths tau to choose from: multiples of the local aggregations, up to tau_max and the steps left.

    Never so short that the remaining steps would need more intervals than the noise was calibrated for.

    >>> list(candidate_intervals(left=100, rounds_left=10, tau_max=40, aggregations=4))
    [12, 16, 20, 24, 28, 32, 36, 40]
    """
    most = max(aggregations, min(tau_max, -(-left // aggregations) * aggregations))
    # The paper's (34) has no such lower bound and can need more intervals than its noise was computed for.
    needed = -(-left // max(1, rounds_left))
    result = [tau for tau in range(aggregations, most + 1, aggregations) if tau >= needed]
    return result or [most - most % aggregations or aggregations]


KEYS = ["energy", "delay", "accuracy", "tau_max", "smoothness"]
EXAMPLE = "e.g. control = {energy = 1, delay = 1, accuracy = 1, tau_max = 40}"


@dataclass(frozen=True)
class Control:
    """Settings of adaptive control (Section 5): weights of the three aims, and limits."""

    weights: Weights
    tau_max: int
    # With the noise of epsilon = 1 estimates rarely stand out, so the default is derived from the learning rate.
    smoothness: float | None = None
    """beta as given; None: the one for which the experiment's learning rate is the largest that Theorem 4.3 allows."""
    estimated: bool = False
    """Whether beta follows the run's estimates, upwards only."""

    @classmethod
    def read(cls, given: Any) -> "Control":
        """Read the settings from the experiment file. Raise for unknown keys and values out of range."""
        if not isinstance(given, Mapping):
            invalid("algorithm.control", given, "must be a table", EXAMPLE)
        for key, value in given.items():
            if key not in KEYS:
                invalid(f"algorithm.control.{key}", value, "no such key", did_you_mean(str(key), KEYS))
        weights = [_read_weight(key, given.get(key, 1.0)) for key in ("energy", "delay", "accuracy")]
        if not weights[2] > 0:
            reason = "without a weight on accuracy, the cheapest choice is almost no training"
            invalid("algorithm.control.accuracy", weights[2], reason, "give a positive weight")
        tau_max = given.get("tau_max", 40)
        if isinstance(tau_max, bool) or not isinstance(tau_max, int) or tau_max < 1:
            invalid("algorithm.control.tau_max", tau_max, "must be a whole number >= 1", EXAMPLE)
        beta = given.get("smoothness")
        if beta == "estimate":
            return cls(Weights(*weights), tau_max, estimated=True)
        if beta is not None and not _read_weight("smoothness", beta) > 0:
            invalid("algorithm.control.smoothness", beta, 'must be a positive number, or "estimate"')
        return cls(Weights(*weights), tau_max, beta if beta is None else float(beta))


def _read_weight(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value >= 0):
        invalid(f"algorithm.control.{key}", value, "must be a number >= 0", EXAMPLE)
    return float(value)


def check_control(experiment: Experiment, algorithm: Algorithm, control: Control) -> None:
    """Raise for experiments in which control has nothing to choose, or no guarantee."""
    name, scheme, steps = "algorithm.control", experiment.sampling.clients.scheme, experiment.local.steps
    if experiment.topology.kind != "tree":
        reason = "control chooses between trusted and untrusted subnets"
        invalid(name, experiment.topology.kind, reason, 'use topology.kind = "tree"')
    if experiment.resources is None:
        invalid(name, "no [resources]", "energy and delay need a model", 'add [resources] model = "wireless"')
    if algorithm.facts.personal:
        invalid(name, algorithm.name, "control needs one model for all", "choose another algorithm")
    if steps is None:
        invalid(name, "local.epochs", "control chooses the number of local steps", "give local.steps")
    if control.tau_max < steps:
        reason = f"the largest interval must be at least the first, local.steps={steps}"
        invalid(f"{name}.tau_max", control.tau_max, reason, "raise it, or lower local.steps")
    if experiment.privacy.unit == "none":
        reason = "control weighs the accuracy lost to privacy noise against costs, and there is no noise"
        refuse(name, 'unit = "none"', reason, "remove control, or add privacy")
    # A thinned Poisson cohort is dominated by the planned one. Fixed cohorts and schedules have no such order.
    if scheme not in ("full", "poisson"):
        reason = f"the guarantee of the planned {scheme} cohort does not cover smaller cohorts"
        refuse(name, f'scheme = "{scheme}"', reason, 'use sampling.clients.scheme = "full" or "poisson"')
