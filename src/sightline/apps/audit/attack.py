"""Attack scores tuned on runs of both worlds, and the lower bounds on epsilon that their counts prove."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats


def bound_proportions(true: int, false: int, trials: int, *, confidence: float) -> tuple[float, float]:
    """Return (lower bound on the rate behind `true`, upper bound on the rate behind `false`), holding jointly.

    Reference: Clopper and Pearson 1934, one-sided, with half of the allowed error on each side.
    """
    # Two rates are bounded, each with half of the error, so that both hold together.
    error = (1 - confidence) / 2
    lower = float(stats.beta.ppf(error, true, trials - true + 1)) if true else 0.0
    upper = float(stats.beta.ppf(1 - error, false + 1, trials - false)) if false < trials else 1.0
    return lower, upper


def epsilon_of_rates(hit: float, alarm: float, delta: float) -> float:
    """Return the least epsilon at which a test can have P(yes | in) >= hit and P(yes | out) <= alarm.

    P(S) <= e^epsilon Q(S) + delta for "yes" and, with the worlds exchanged, for "no"; 0 if neither gives a bound.

    >>> round(epsilon_of_rates(0.75, 0.25, 0.0), 4)
    1.0986
    """
    return max(0.0, _log_ratio(hit - delta, alarm), _log_ratio(1 - alarm - delta, 1 - hit))


def _log_ratio(above: float, below: float) -> float:
    if above <= 0:
        return -math.inf
    return math.inf if below <= 0 else math.log(above / below)


def two_worlds_lower(true: int, false: int, trials: int, *, delta: float, confidence: float) -> float:
    """Return a lower bound on epsilon from `trials` runs with and `trials` without the subject, for a fixed test.

    >>> round(two_worlds_lower(900, 100, 1000, delta=0.0, confidence=0.95), 2)
    1.99
    """
    return epsilon_of_rates(*bound_proportions(true, false, trials, confidence=confidence), delta)


def one_run_lower(canaries: int, guesses: int, right: int, *, delta: float, confidence: float) -> float:
    """Return a lower bound on epsilon from one run: canaries in with probability 1/2, `right` of `guesses` true.

    Nothing is assumed about the mechanism: the canaries may share noise and sampling.

    >>> round(one_run_lower(1000, 100, 100, delta=0.0, confidence=0.95), 2)
    3.49
    """
    low, high = 0.0, 1.0
    error = 1 - confidence
    if bound_surprise(canaries, guesses, right, epsilon=low, delta=delta) > error:
        return 0.0
    # The probability bound increases with epsilon: double while epsilon is refuted, up to a cap, then bisect.
    while bound_surprise(canaries, guesses, right, epsilon=high, delta=delta) <= error and high < 64:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        if bound_surprise(canaries, guesses, right, epsilon=middle, delta=delta) <= error:
            low = middle
        else:
            high = middle
    return low


def bound_surprise(canaries: int, guesses: int, right: int, *, epsilon: float, delta: float) -> float:
    r"""Return an upper bound on the probability of at least `right` right guesses under (epsilon, delta)-privacy.

    P[W >= v] <= beta + 2 m delta max_i (P[v - i <= B < v] / i), B ~ Binomial(r, e^epsilon / (1 + e^epsilon)).
    Reference: Steinke, Nasr and Jagielski 2023, "Privacy auditing with one (1) training run", Theorem 5.2.
    """
    chance = 1 / (1 + math.exp(-epsilon))
    beta = float(stats.binom.sf(right - 1, guesses, chance))
    if delta == 0:
        return beta
    below = stats.binom.pmf(range(right - 1, -1, -1), guesses, chance).cumsum()
    steepest = max((float(mass) / (index + 1) for index, mass in enumerate(below)), default=0.0)
    return min(1.0, beta + 2 * canaries * delta * steepest)


Runs = NDArray[np.float64]
"""(runs, values seen, numbers read of each value)."""
Score = Callable[[Runs], NDArray[np.float64]]

THRESHOLDS = 64
LEANINGS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Candidate shifts of a canary in standard deviations of the noise; each is tried."""
LITTLE = 1e-6
"""Ridge added to the covariance of a discriminant: noise that was used twice cancels down to it."""


@dataclass(frozen=True, eq=False)
class Attack:
    """A score with a threshold: "in" if the score is at least the threshold."""

    name: str
    score: Score
    threshold: float

    def says_in(self, runs: Runs) -> int:
        """Return in how many of the runs the attack says that the subject is in."""
        return int((self.score(runs) >= self.threshold).sum())


@dataclass(frozen=True, eq=False)
class MarkedValues:
    """What the attacker knows about the numbers that it reads."""

    carries: NDArray[np.bool_]
    """By value: whether the subject itself is in it."""
    tells: NDArray[np.bool_]
    """(values, numbers): which of them can tell something about the subject, also if computed from others."""
    shared: tuple[float, ...] = ()
    """For the last numbers of each value: the factor by which each moves with whichever other number moves."""
    turns: NDArray[np.float64] | None = None
    """(turns, values): if subjects take turns, how much of every value belongs to each turn (`turns.turn_weights`)."""


def fit_attack(inside: Runs, outside: Runs, marks: MarkedValues, *, delta: float, confidence: float) -> Attack:
    """Return the best attack on tuning runs, which are used for nothing else."""
    best, most = Attack("sum", lambda runs: runs.sum(axis=(1, 2)), 0.0), -1.0
    for name, score in candidate_scores(inside, outside, marks):
        yes, no = score(inside), score(outside)
        # Thresholds at quantiles of both worlds: evenly spaced ones would miss the tails of skewed scores.
        levels = np.quantile(np.concatenate([yes, no]), np.linspace(0, 1, THRESHOLDS))
        for level in np.unique(levels):
            counts = int((yes >= level).sum()), int((no >= level).sum())
            lower = two_worlds_lower(*counts, min(len(yes), len(no)), delta=delta, confidence=confidence)
            if lower > most:
                best, most = Attack(name, score, float(level)), lower
    return best


def candidate_scores(inside: Runs, outside: Runs, marks: MarkedValues) -> Iterator[tuple[str, Score]]:
    """Yield the candidate scores that may tell the worlds apart."""
    scale, carries = outside.std(axis=0), marks.carries
    # Values without noise have no spread; dividing by 1 keeps them finite and perfectly telling.
    scale[scale <= 1e-12 * max(1e-300, float(scale.max(initial=0.0)))] = 1.0
    yield "sum", lambda runs: (runs / scale)[:, carries].sum(axis=(1, 2))
    yield "first", lambda runs: (runs / scale)[:, carries, 0].sum(axis=1)
    for leaning in LEANINGS:
        yield f"mixture {leaning:g}", _mixture_score(scale, marks, leaning)
    if marks.turns is not None and len(marks.turns):
        yield from turn_scores(outside, marks.turns)
    if carries.sum() > 1:
        yield "spread", lambda runs: (runs / scale)[:, carries, 0].std(axis=1)
    for name, some in {"discriminant": np.ones_like(marks.tells), "own discriminant": marks.tells}.items():
        # A discriminant with more numbers than a quarter of the runs would fit the noise.
        if 0 < 4 * int(some.sum()) <= len(outside):
            yield name, _discriminant_score((inside / scale)[:, some], (outside / scale)[:, some], scale, some)


def turn_scores(outside: Runs, turns: NDArray[np.float64]) -> Iterator[tuple[str, Score]]:
    """Yield the likelihood ratio over the subject's turns: of all together, and of each drawn or not."""
    spread = np.maximum((outside[:, :, 0] @ turns.T).std(axis=0), 1e-300)
    yield "turns", lambda runs: (runs[:, :, 0] @ turns.T).sum(axis=1)
    for leaning in LEANINGS:
        yield f"drawn turns {leaning:g}", _drawn_score(turns / spread[:, None], leaning)


def _drawn_score(turns: NDArray[np.float64], leaning: float) -> Score:
    def score(runs: Runs) -> NDArray[np.float64]:
        # Clipped to +-700, since exp overflows above 709.
        standing = np.clip((runs[:, :, 0] @ turns.T) * leaning - leaning**2 / 2, -700, 700)
        return np.asarray(np.log1p(np.exp(standing)).sum(axis=1))

    return score


def _mixture_score(scale: NDArray[np.float64], marks: MarkedValues, leaning: float) -> Score:
    """Return the log-likelihood ratio if one random number per value, or none, stands out with the shared ones."""
    together = np.array(marks.shared) * leaning
    own = scale.shape[1] - len(together)

    def score(runs: Runs) -> NDArray[np.float64]:
        values = (runs / scale)[:, marks.carries]
        alone = values[..., :own] * leaning - leaning**2 / 2
        shared = (values[..., own:] * together - together**2 / 2).sum(axis=2, keepdims=True)
        standing = np.clip(alone + shared, -700, 700)
        return np.asarray(np.log1p(np.exp(standing).mean(axis=2)).sum(axis=1))

    return score


def _discriminant_score(
    yes: NDArray[np.float64], no: NDArray[np.float64], scale: NDArray[np.float64], some: NDArray[np.bool_]
) -> Score:
    """Return Fisher's linear discriminant of some of the numbers: it finds sums in which reused noise cancels."""
    spread = np.cov(no, rowvar=False).reshape(no.shape[1], no.shape[1])
    spread += LITTLE * np.eye(len(spread))
    weights = np.linalg.solve(spread, yes.mean(axis=0) - no.mean(axis=0))
    return lambda runs: np.asarray((runs / scale)[:, some] @ weights)
