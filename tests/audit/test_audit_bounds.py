"""The bounds of an audit are bounds: they stay below the truth as often as they say, and come close to it."""

import math

import numpy as np
import pytest
from scipy import stats

from sightline.apps.audit import one_run_lower, two_worlds_lower
from sightline.apps.audit.attack import bound_proportions, bound_surprise, epsilon_of_rates


def test_clopper_pearson_is_scipys():
    for true, false, trials in [(0, 0, 20), (7, 3, 20), (20, 20, 20), (500, 10, 1000)]:
        lower, upper = bound_proportions(true, false, trials, confidence=0.95)
        assert lower == pytest.approx(stats.binomtest(true, trials).proportion_ci(0.95, "exact").low)
        assert upper == pytest.approx(stats.binomtest(false, trials).proportion_ci(0.95, "exact").high)


def test_two_worlds_of_randomised_response_stay_below_its_epsilon():
    """Coverage: 400 audits at 90% of a mechanism whose epsilon is known; more than 60 misses have odds below 1e-3."""
    epsilon, rng = 1.0, np.random.default_rng(0)
    honest = math.exp(epsilon) / (1 + math.exp(epsilon))
    counts = rng.binomial(200, honest, 400), rng.binomial(200, 1 - honest, 400)
    found = [two_worlds_lower(int(a), int(b), 200, delta=0.0, confidence=0.9) for a, b in zip(*counts, strict=True)]
    assert sum(one > epsilon for one in found) <= 60
    assert np.mean(found) > 0.6


def test_one_run_of_randomised_response_stays_below_its_epsilon():
    """The same for guesses in one run: each is right with exactly the probability that the theorem allows."""
    epsilon, rng = 1.0, np.random.default_rng(1)
    right = rng.binomial(100, math.exp(epsilon) / (1 + math.exp(epsilon)), 400)
    found = {int(v): one_run_lower(100, 100, int(v), delta=0.0, confidence=0.9) for v in set(right)}
    assert sum(found[int(v)] > epsilon for v in right) <= 60
    assert np.mean([found[int(v)] for v in right]) > 0.5


def test_the_price_of_delta_is_the_theorems():
    """Against a plain loop over the formula."""
    m, r, v, epsilon, delta = 500, 40, 35, 0.7, 1e-4
    chance = math.exp(epsilon) / (1 + math.exp(epsilon))
    masses = [sum(stats.binom.pmf(v - j, r, chance) for j in range(1, i + 1)) / i for i in range(1, v + 1)]
    expected = stats.binom.sf(v - 1, r, chance) + 2 * m * delta * max(masses)
    assert bound_surprise(m, r, v, epsilon=epsilon, delta=delta) == pytest.approx(expected)


def test_more_delta_says_less():
    assert one_run_lower(1000, 100, 100, delta=1e-5, confidence=0.95) < one_run_lower(
        1000, 100, 100, delta=0.0, confidence=0.95
    )
    assert epsilon_of_rates(0.3, 0.1, 0.0) > epsilon_of_rates(0.3, 0.1, 0.05) > epsilon_of_rates(0.3, 0.1, 0.3) == 0


def test_a_gaussian_is_never_accused_by_its_own_rates():
    """The exact rates of every threshold test of a Gaussian give at most its exact epsilon."""
    shift, delta = 1.0, 0.01
    exact = 0.0
    for epsilon in np.linspace(0, 8, 801):
        if (
            stats.norm.cdf(shift / 2 - epsilon / shift)
            - math.exp(epsilon) * stats.norm.cdf(-shift / 2 - epsilon / shift)
            <= delta
        ):
            exact = epsilon
            break
    for level in np.linspace(-4, 6, 101):
        assert epsilon_of_rates(stats.norm.sf(level - shift), stats.norm.sf(level), delta) <= exact + 0.01
