"""Choices by the exponential mechanism: one law above every pair of bounded range, also when an adversary adapts."""

import math
from functools import cache

import numpy as np
import pytest

from sightline import accounting
from sightline.accounting.dominating_pairs import law_of
from sightline.events import Exponential, Gaussian, Pure


def two_points(eps, t):
    """The worst pair of range [t - eps, t]: (losses, Q-masses)."""
    up = (math.exp(-t) - math.exp(-eps)) / -math.expm1(-eps)
    return (t, up), (t - eps, 1 - up)


@pytest.mark.parametrize("eps", [1e-6, 0.01, 0.3, 2.0, 12.0])
def test_its_law_lies_above_every_pair_of_that_range(eps):
    law = law_of(Exponential(eps), 1e-30)
    ratio = np.exp(law.loss)
    assert law.mass.sum() == pytest.approx(1, abs=1e-14)
    assert np.dot(law.mass, ratio) == pytest.approx(1, abs=1e-13)
    for t in np.linspace(0, eps, 41):
        for x in np.exp(np.linspace(-eps, eps, 173)):
            pair = sum(mass * max(math.exp(loss) - x, 0) for loss, mass in two_points(eps, t))
            assert np.dot(law.mass, np.maximum(ratio - x, 0)) >= pair - 1e-14


@pytest.mark.parametrize(("eps", "times", "at"), [(0.5, 4, 0.8), (0.2, 4, 0.3), (1.5, 3, 2.0)])
def test_no_adversary_that_adapts_gets_more(eps, times, at):
    """By recursion over all strategies that choose each pair's range after seeing what came before."""
    ranges = np.linspace(0, eps, 9)

    def best(end):
        @cache
        def value(left, loss):
            if not left:
                return end(loss)
            return max(sum(m * value(left - 1, loss + step) for step, m in two_points(eps, t)) for t in ranges)

        return value(times, 0.0)

    forward = best(lambda loss: max(math.exp(loss) - math.exp(at), 0.0))
    backward = best(lambda loss: max(1 - math.exp(at + loss), 0.0))
    bound = accounting.delta({Exponential(eps): times}, at)
    assert max(forward, backward) <= bound
    assert bound < accounting.delta({Pure(eps): times}, at)


@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_with_gaussians_it_lies_between_a_true_pair_and_randomised_response(delta):
    """Log ratios of +-eps/2 are a pair that choices attain: the answer must not be below it."""
    eps, times, z = 0.3, 12, 1.4
    found = accounting.epsilon({Exponential(eps): times, Gaussian(z): 1}, delta)
    assert found <= accounting.epsilon({Pure(eps): times, Gaussian(z): 1}, delta)
    assert found >= accounting.epsilon({Pure(eps / 2): times, Gaussian(z): 1}, delta) * (1 - 1e-4)
    lower, upper = accounting.interval({Exponential(eps): times, Gaussian(z): 1}, delta)
    assert lower <= upper == found
