"""Lower bounds on epsilon from counts: what guesses that came true say against a claim, at a stated confidence."""

import math

from scipy import stats


def bound_proportions(true: int, false: int, trials: int, *, confidence: float) -> tuple[float, float]:
    """(lower bound on the rate behind `true`, upper bound on that behind `false`), both hold with the confidence.

    Reference: Clopper and Pearson 1934, one-sided, with half of the allowed error on each side.
    """
    error = (1 - confidence) / 2
    lower = float(stats.beta.ppf(error, true, trials - true + 1)) if true else 0.0
    upper = float(stats.beta.ppf(1 - error, false + 1, trials - false)) if false < trials else 1.0
    return lower, upper


def epsilon_of_rates(hit: float, alarm: float, delta: float) -> float:
    """The least epsilon at which a test can have P(yes | in) >= hit and P(yes | out) <= alarm.

    P(S) <= e^epsilon Q(S) + delta for "yes" and, the other way round, for "no"; zero where neither says anything.

    >>> round(epsilon_of_rates(0.75, 0.25, 0.0), 4)
    1.0986
    """
    return max(0.0, _log_ratio(hit - delta, alarm), _log_ratio(1 - alarm - delta, 1 - hit))


def _log_ratio(above: float, below: float) -> float:
    if above <= 0:
        return -math.inf
    return math.inf if below <= 0 else math.log(above / below)


def two_worlds_lower(true: int, false: int, trials: int, *, delta: float, confidence: float) -> float:
    """Lower bound on epsilon from runs with and without the subject: `trials` of each, a fixed test said yes so often.

    >>> round(two_worlds_lower(900, 100, 1000, delta=0.0, confidence=0.95), 2)
    1.99
    """
    return epsilon_of_rates(*bound_proportions(true, false, trials, confidence=confidence), delta)


def one_run_lower(canaries: int, guesses: int, right: int, *, delta: float, confidence: float) -> float:
    """Lower bound on epsilon from one run: each canary was in by a fair coin, `right` of `guesses` were true.

    Nothing is assumed of the mechanism: the canaries may share noise, sampling and each other's company.

    >>> round(one_run_lower(1000, 100, 100, delta=0.0, confidence=0.95), 2)
    3.49
    """
    low, high = 0.0, 1.0
    error = 1 - confidence
    if bound_surprise(canaries, guesses, right, epsilon=low, delta=delta) > error:
        return 0.0
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
    r"""How likely so many right guesses are, at most, when the mechanism is (epsilon, delta)-private.

    P[W >= v] <= beta + 2 m delta max_i (P[v - i <= B < v] / i), B ~ Binomial(r, e^epsilon / (1 + e^epsilon)).
    Reference: Steinke, Nasr and Jagielski 2023, "Privacy auditing with one (1) training run", Theorem 5.2.
    """
    chance = 1 / (1 + math.exp(-epsilon))
    beta = float(stats.binom.sf(right - 1, guesses, chance))
    if delta == 0:
        return beta
    below = stats.binom.pmf(range(right - 1, -1, -1), guesses, chance).cumsum()
    steepest = max((float(mass) / (place + 1) for place, mass in enumerate(below)), default=0.0)
    return min(1.0, beta + 2 * canaries * delta * steepest)
