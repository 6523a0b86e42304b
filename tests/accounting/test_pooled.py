"""Noises that add up: against quadrature and simulation, and who may know which of them."""

import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from sightline import accounting
from sightline.accounting import Accountant
from sightline.accounting.dominating_pairs import native_law
from sightline.events import (
    Clear,
    FixedCohort,
    Gaussian,
    Poisson,
    Pooled,
    PooledDraws,
    Split,
    against_coalition,
    against_outsider,
    with_known_coins,
)


def drawn_delta(clients, rate, noise, epsilon):
    """The mixture over public draws, term by term."""
    total = 0.0
    for others in range(clients - 1):
        s = 1 / (noise * math.sqrt(others + 1))
        gain = norm.cdf(s / 2 - epsilon / s) - math.exp(epsilon) * norm.cdf(-s / 2 - epsilon / s)
        total += rate * binom.pmf(others, clients - 2, rate) * gain
    return total


@pytest.mark.parametrize(("clients", "rate", "noise"), [(2, 0.5, 1.0), (5, 0.3, 0.7), (100, 0.1, 1.0), (300, 0.9, 0.4)])
def test_public_draws_cost_the_mean_over_them(clients, rate, noise):
    scheme = accounting.pooled(noise=noise, clients=clients, rate=rate, steps=1)
    for epsilon in (0.0, 0.5, 2.0):
        exact = drawn_delta(clients, rate, noise, epsilon)
        assert exact * (1 - 1e-12) - 1e-15 <= scheme.delta(epsilon=epsilon) <= exact * 1.002 + 1e-12


@pytest.mark.slow
def test_no_bound_lies_below_its_mean_in_a_thousand_cases():
    rng = np.random.default_rng(6)
    for _ in range(1000):
        clients, rate = int(rng.integers(2, 25)), float(rng.uniform(0.01, 0.99))
        noise, epsilon = float(rng.uniform(0.3, 4)), float(rng.uniform(0, 4))
        law = native_law(PooledDraws(rate, clients - 2, Gaussian(noise)), 1e-14)
        found = np.dot(law.mass, np.maximum(np.exp(law.loss) - math.exp(epsilon), 0)) + law.infinite
        assert found >= drawn_delta(clients, rate, noise, epsilon) * (1 - 1e-10) - 1e-16


def test_many_clients_are_taken_together_on_the_safe_side():
    exact = drawn_delta(4000, 0.5, 0.2, 0.01)
    found = accounting.pooled(noise=0.2, clients=4000, rate=0.5, steps=1).delta(epsilon=0.01)
    assert exact <= found <= exact * 1.03


def test_composition_against_simulation():
    """Two rounds: the losses of drawn rounds add up."""
    rng, clients, rate, noise, epsilon, draws = np.random.default_rng(0), 6, 0.5, 0.8, 1.0, 400_000
    loss = np.zeros(draws)
    for _ in range(2):
        s = 1 / (noise * np.sqrt(rng.binomial(clients - 2, rate, draws) + 1))
        loss += np.where(rng.random(draws) < rate, s * rng.standard_normal(draws) + s * s / 2, 0.0)
    gains = -np.expm1(np.minimum(epsilon - loss, 0.0))
    found = accounting.pooled(noise=noise, clients=clients, rate=rate, steps=2).delta(epsilon=epsilon)
    assert found == pytest.approx(gains.mean(), abs=5 * gains.std() / math.sqrt(draws))


def test_moments_bound_the_law():
    scheme = accounting.pooled(noise=1.0, clients=30, rate=0.3, steps=20)
    lower, upper = scheme.interval(delta=1e-5)
    assert 0.999 * upper <= lower <= upper <= scheme.epsilon(delta=1e-5, accountant=Accountant.RDP)


def test_everyones_noise_hides_the_draws():
    whole = accounting.pooled(noise=1.0, clients=100, rate=0.1, steps=50, everyone=True)
    assert whole.composition == {Poisson(0.1, Pooled(99, Gaussian(1.0))): 50}
    plain = accounting.epsilon({Poisson(0.1, Gaussian(math.sqrt(99))): 50}, 1e-5)
    assert whole.epsilon(delta=1e-5) == pytest.approx(plain, rel=1e-6)


def test_hidden_draws_of_noisy_senders_are_not_amplified():
    """Why everybody must send: with k hidden senders the variance tells how many there are; Poisson's bound fails."""
    rate, noise, others, epsilon = 0.5, 0.6, 1, 1.2
    x = np.linspace(-12, 12, 24_001)

    def density(taking_part):
        found = 0.0
        for k in range(others + 1):
            for own, chance in ((0, 1 - rate), (1, rate)):
                mean = taking_part * own
                std = noise * math.sqrt(max(k + own, 1e-12) + 1e-6)
                found = found + binom.pmf(k, others, rate) * chance * norm.pdf(x, mean, std)
        return found

    p, q = density(1.0), density(0.0)
    true = np.maximum(p - math.exp(epsilon) * q, 0).sum() * (x[1] - x[0])
    assert true > accounting.delta({Poisson(rate, Pooled(others + 1, Gaussian(noise))): 1}, epsilon)


def test_who_knows_which_noise():
    held = Pooled(9, Gaussian(1.0))
    assert with_known_coins(held) == Gaussian(1.0)
    assert against_outsider(held) == Pooled(10, Gaussian(1.0))
    assert against_coalition(held, 0, 2) == Pooled(8, Gaussian(1.0))
    assert against_coalition(held, 0, 40) == Pooled(1, Gaussian(1.0))
    assert against_coalition(PooledDraws(0.5, 9, Gaussian(1.0)), 0, 3) == PooledDraws(0.5, 7, Gaussian(1.0))
    hidden = FixedCohort(3, 9, Pooled(9, Gaussian(1.0)))
    assert against_coalition(hidden, 2, 3) == FixedCohort(3, 7, Pooled(7, Gaussian(1.0)))
    assert accounting.epsilon({PooledDraws(0.5, 9, Clear()): 1}, 1e-5) == math.inf
    assert accounting.epsilon({PooledDraws(0.5, 9, Split(2, Gaussian(1.0))): 1}, 1e-5) == accounting.epsilon(
        {Split(2, Gaussian(1.0)): 1}, 1e-5
    )


@pytest.mark.parametrize("numbers", [{"clients": 1}, {"clients": 0}, {"rate": 0.0}, {"rate": 1.5}, {"steps": 0}])
def test_impossible_numbers_are_refused(numbers):
    from sightline.errors import InvalidInput

    with pytest.raises(InvalidInput):
        accounting.pooled(**({"noise": 1.0, "clients": 9, "rate": 0.5, "steps": 2} | numbers))


def test_noises_of_nodes_that_may_not_answer_do_not_add_up():
    """`all_answer` dropped in `PooledMean` survived: a silent node adds no noise, and the pool is smaller."""
    from sightline.engine import plan_releases
    from tests.laws.combinations import Combination, built

    setting = built(Combination(where="client"))
    assert plan_releases(setting).composition("client-0", "client-1") == {Pooled(5, Gaussian(1.0)): 4}
    assert plan_releases(setting, real_nodes=True).composition("client-0", "client-1") == {Gaussian(1.0): 4}
