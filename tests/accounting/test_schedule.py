"""True k-of-T by Monte Carlo, and what the block bound gives away."""

import itertools
import math

import numpy as np
import pytest

from sightline import accounting
from sightline.errors import InvalidInput
from tests.oracle.accounting_schedule import log_symmetric_mean, sample_schedule


def test_symmetric_mean_against_all_subsets():
    observed = np.random.default_rng(0).standard_normal((7, 5))
    ratio = np.exp(0.8 * observed - 0.32)
    for uses in (1, 3, 7):
        subsets = list(itertools.combinations(range(7), uses))
        naive = sum(np.prod(ratio[list(chosen)], axis=0) for chosen in subsets) / len(subsets)
        assert np.allclose(np.exp(log_symmetric_mean(observed, uses, 0.8)), naive)


def test_weights_are_those_of_a_probability():
    sample = sample_schedule(steps=12, uses=3, noise=1.5, draws=20_000, rng=np.random.default_rng(1), around=4.0)
    assert sample.weight.max() <= 3
    assert sample.weight.mean() == pytest.approx(1.0, abs=0.03)


def test_one_use_agrees_with_the_law():
    """For k = 1 the law is exact up to the grid, so the confidence interval must hold it."""
    exact = accounting.balanced(noise=1.0, steps=20, uses=1)
    epsilon = exact.epsilon(delta=1e-4)
    sample = sample_schedule(steps=20, uses=1, noise=1.0, draws=60_000, rng=np.random.default_rng(2), around=epsilon)
    estimate = sample.delta(epsilon)
    assert estimate.low <= 1e-4 <= estimate.high
    assert estimate.high < 1.3e-4


@pytest.mark.parametrize(("steps", "uses", "noise"), [(10, 5, 2.0), (10, 4, 2.0), (50, 7, 0.9)])
def test_the_block_bound_gives_something_away_but_is_a_bound(steps, uses, noise):
    bound = accounting.balanced(noise=noise, steps=steps, uses=uses).epsilon(delta=1e-6)
    rng = np.random.default_rng(3)
    sample = sample_schedule(steps=steps, uses=uses, noise=noise, draws=60_000, rng=rng, around=bound)
    estimate = sample.delta(bound)
    assert estimate.high < 1e-6
    assert 0.1e-6 < estimate.value < 0.8e-6
    assert sample.epsilon(1e-6).high < bound


def test_unequal_blocks_can_exceed_poisson():
    """T=100, k=70, z=3: 13.09 against 12.44; "at most Poisson" is a law only when k divides T."""
    ours = accounting.balanced(noise=3.0, steps=100, uses=70).epsilon(delta=1e-5)
    poisson = accounting.poisson(noise=3.0, rate=0.7, steps=100).epsilon(delta=1e-5)
    assert ours == pytest.approx(13.09, abs=0.02)
    assert poisson == pytest.approx(12.44, abs=0.01)


@pytest.mark.parametrize(("uses", "block"), [(1, 5), (4, 3), (10, 10), (50, 2), (7, 11)])
@pytest.mark.parametrize("noise", [0.8, 2.0, 6.0])
def test_at_most_poisson_when_uses_divide_steps(uses, block, noise):
    balanced = accounting.balanced(noise=noise, steps=uses * block, uses=uses).epsilon(delta=1e-5)
    poisson = accounting.poisson(noise=noise, rate=1 / block, steps=uses * block).epsilon(delta=1e-5)
    assert balanced <= poisson * (1 + 2e-4)


def test_epochs_compose():
    once = accounting.balanced(noise=2.0, steps=10, uses=4)
    many = accounting.balanced(noise=2.0, steps=10, uses=4, epochs=5)
    assert once.epsilon(delta=1e-5) < many.epsilon(delta=1e-5)
    joint = accounting.balanced(noise=2.0, steps=50, uses=20).epsilon(delta=1e-5)
    assert many.epsilon(delta=1e-5) == pytest.approx(joint, rel=1e-3)


def test_bad_uses_are_refused():
    with pytest.raises(InvalidInput, match="uses"):
        sample_schedule(steps=3, uses=4, noise=1.0, draws=10, rng=np.random.default_rng(0), around=1.0)


@pytest.mark.slow
def test_true_schedules_stay_below_the_bound_on_a_grid():
    for steps, uses, noise in itertools.product((12, 40, 100), (2, 5, 9), (0.8, 1.5, 3.0)):
        bound = accounting.balanced(noise=noise, steps=steps, uses=uses).epsilon(delta=1e-5)
        rng = np.random.default_rng(steps * 1000 + uses)
        sample = sample_schedule(steps=steps, uses=uses, noise=noise, draws=200_000, rng=rng, around=bound)
        assert sample.delta(bound).low <= 1e-5
        assert math.isfinite(sample.epsilon(1e-5).value)
