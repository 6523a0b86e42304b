"""Cohorts of a fixed size: no bound below what counting all subsets gives, and not far above the worst case."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from sightline import accounting
from sightline.accounting import Accountant
from sightline.accounting.cohort_laws import cohort_law, cohort_log_moments, halves_of
from sightline.errors import Refused
from sightline.events import FixedCohort, Gaussian, Poisson, Product, Repeat, Split, WithoutReplacement
from tests.oracle.accounting_cohorts import cohort_delta, worst_delta

ZERO_OUT = pytest.mark.parametrize("zero_out", [True, False], ids=["zero_out", "replace"])


def cohort_event(cohort, population, noise, *, zero_out):
    """The event with `noise` relative to the clip norm; replacing moves a sum by two of them."""
    inner = Gaussian(noise if zero_out else noise / 2)
    return (FixedCohort if zero_out else WithoutReplacement)(cohort, population, inner)


@ZERO_OUT
@pytest.mark.parametrize(("cohort", "population"), [(1, 2), (1, 10), (10, 100), (70, 100), (5, 10_000)])
@pytest.mark.parametrize("noise", [0.6, 1.0, 3.0])
def test_one_release_costs_what_the_worst_pair_does(zero_out, cohort, population, noise):
    event = cohort_event(cohort, population, noise, zero_out=zero_out)
    for epsilon in (0.0, 0.1, 1.0, 3.0):
        exact = worst_delta(cohort / population, noise, epsilon, zero_out=zero_out)
        found = accounting.delta({event: 1}, epsilon)
        assert exact - 1e-13 <= found <= exact * (1 + 2e-3) + 1e-11


def random_case(rng, *, zero_out, dimensions):
    """Everybody's update inside the unit ball, often on its border; the subject's neighbour is zero, or anything."""
    population = int(rng.integers(2, 8))
    updates = rng.standard_normal((population, dimensions))
    radius = np.where(rng.random(population) < 0.6, 1.0, rng.random(population))
    updates *= (radius / np.linalg.norm(updates, axis=1))[:, None]
    if rng.random() < 0.3:
        updates[1:] = -updates[0] if rng.random() < 0.7 else updates[0]
    neighbour = np.zeros(dimensions) if zero_out else -updates[0] if rng.random() < 0.5 else updates[-1]
    return updates, neighbour, int(rng.integers(1, population)), float(rng.uniform(0.4, 3))


def check_random_case(rng, *, zero_out, dimensions):
    updates, neighbour, cohort, noise = random_case(rng, zero_out=zero_out, dimensions=dimensions)
    epsilon = float(rng.choice([0.0, rng.uniform(0, 2), rng.uniform(0, 6)]))
    true = cohort_delta(updates, neighbour, cohort, noise, epsilon)
    claimed = accounting.delta({cohort_event(cohort, len(updates), noise, zero_out=zero_out): 1}, epsilon)
    assert true <= claimed * (1 + 1e-6) + (1e-12 if dimensions == 1 else 1e-7)


@ZERO_OUT
@pytest.mark.parametrize("seed", range(12))
def test_no_bound_lies_below_the_count_of_all_subsets(zero_out, seed):
    check_random_case(np.random.default_rng(seed), zero_out=zero_out, dimensions=1)


@pytest.mark.slow
@ZERO_OUT
@pytest.mark.parametrize("block", range(10))
def test_no_bound_lies_below_the_count_of_all_subsets_in_a_thousand_cases(zero_out, block):
    rng = np.random.default_rng([7, block])
    for case in range(100):
        check_random_case(rng, zero_out=zero_out, dimensions=2 if case % 25 == 0 else 1)


@ZERO_OUT
def test_two_releases_cost_at_least_what_the_plane_says(zero_out):
    """Composition: the pair of the half above, twice, by quadrature over both noises; chosen again after the first."""
    share, noise, epsilon = 0.2, 1.1, 1.5
    x = np.linspace(-13, 13, 2601)
    place = -1.0

    def density(*parts):
        return sum(weight * norm.pdf(x, at, noise) for weight, at in parts)

    p = density((1 - share, place), (share, 1.0))
    q = density((1 - share, place), (share, 0.0 if zero_out else place))
    twice = np.maximum(np.outer(p, p) - math.exp(epsilon) * np.outer(q, q), 0.0).sum() * (x[1] - x[0]) ** 2
    found = accounting.delta({cohort_event(20, 100, noise, zero_out=zero_out): 2}, epsilon)
    assert twice * (1 - 1e-6) <= found <= twice * 1.08  # one law for both directions


@ZERO_OUT
@pytest.mark.parametrize(("rate", "noise"), [(0.1, 1.0), (0.9, 0.3), (1e-5, 2.0), (0.5, 1e4), (1e-3, 0.06)])
def test_the_law_is_one(zero_out, rate, noise):
    reach = max(30 / noise, 1e-3)
    law = cohort_law(rate, noise, zero_out=zero_out, step=reach / 3000, tail=1e-15)
    assert law.mass.min() >= 0
    assert math.fsum(law.mass) + law.zero == pytest.approx(1, abs=1e-12)
    assert math.fsum(law.mass * np.exp(law.loss)) + law.infinite == pytest.approx(1, abs=1e-11)
    assert law.zero <= 1e-14
    assert law.infinite <= 1e-14


@ZERO_OUT
def test_places_are_where_the_ratio_says(zero_out):
    for rate in (1e-6, 0.1, 0.8):
        for noise in (0.2, 1.0, 50.0):
            upper, lower = halves_of(rate, noise, zero_out=zero_out)
            for half, losses in ((upper, np.geomspace(1e-9, 8, 60)), (lower, -np.geomspace(1e-9, 8, 60))):
                assert half.log_ratio(half.place_of(losses)) == pytest.approx(losses, rel=1e-7)


@ZERO_OUT
def test_moments_are_those_of_the_law(zero_out):
    rate, noise = 0.3, 1.2
    law = cohort_law(rate, noise, zero_out=zero_out, step=1e-3, tail=1e-25)
    ahead, back = cohort_log_moments(rate, noise, zero_out=zero_out)
    for order in (2, 3, 5):
        for found, power in ((ahead, order), (back, 1 - order)):
            assert found[order] == pytest.approx(math.log(np.dot(law.mass, np.exp(power * law.loss))), rel=1e-4)


@ZERO_OUT
def test_larger_shares_more_releases_and_less_noise_cost_more(zero_out):
    def epsilon(cohort=20, noise=1.5, times=30, accountant=Accountant.PLD):
        event = cohort_event(cohort, 200, noise, zero_out=zero_out)
        return accounting.epsilon({event: times}, 1e-5, accountant=accountant)

    assert (
        epsilon(20)
        < epsilon(40)
        < epsilon(80)
        < epsilon(199)
        <= accounting.epsilon({Gaussian(1.5 if zero_out else 0.75): 30}, 1e-5) * (1 + 1e-4)
    )
    assert epsilon(noise=2.0) < epsilon(noise=1.5) < epsilon(times=60)
    assert epsilon() <= epsilon(accountant=Accountant.RDP)


def test_poissons_number_is_not_valid_here():
    fixed, poisson = FixedCohort(10, 100, Gaussian(1.0)), Poisson(0.1, Gaussian(1.0))
    true = cohort_delta([[1.0], [-1.0], [-1.0], [-1.0], [-1.0]], [0.0], 1, 1.0, 2.0)
    assert accounting.delta({Poisson(0.2, Gaussian(1.0)): 1}, 2.0) < true
    assert accounting.epsilon({poisson: 1}, 1e-5) < accounting.epsilon({fixed: 1}, 1e-5)


def test_whatever_else_is_in_a_cohort_is_not_amplified():
    for inner in (Split(3, Gaussian(1.2)), Product((Gaussian(2.0), Split(2, Gaussian(1.0))))):
        plain = accounting.epsilon({inner: 5}, 1e-5)
        assert accounting.epsilon({FixedCohort(3, 30, inner): 5}, 1e-5) == pytest.approx(plain, rel=2e-4)
    merged = FixedCohort(3, 30, Repeat(4, Gaussian(2.0)))
    assert accounting.epsilon({merged: 5}, 1e-5) == accounting.epsilon({FixedCohort(3, 30, Gaussian(1.0)): 5}, 1e-5)


def test_extremes_stay_bounds():
    few = accounting.epsilon({FixedCohort(10, 10**6, Gaussian(1.0)): 10**4}, 1e-5)
    assert 0 < few < accounting.epsilon({FixedCohort(10, 10**4, Gaussian(1.0)): 10**4}, 1e-5)
    loud = accounting.epsilon({FixedCohort(9, 10, Gaussian(0.01)): 3}, 1e-5)
    assert loud == pytest.approx(accounting.epsilon({Gaussian(0.01): 3}, 1e-5), rel=1e-6)
    lower, upper = accounting.interval({FixedCohort(5, 50, Gaussian(1.0)): 20}, 1e-6)
    assert 0.999 * upper <= lower <= upper


@pytest.mark.parametrize(
    "other", [Poisson(0.1, Gaussian(1.0)), FixedCohort(2, 9, Gaussian(1.0)), Split(2, Gaussian(1.0))]
)
def test_cohorts_under_replace_one_do_not_add_up_with_sampling_under_add_remove(other):
    cohort = WithoutReplacement(2, 9, Gaussian(1.0))
    for accountant in Accountant:
        with pytest.raises(Refused, match="replace-one"):
            accounting.epsilon({cohort: 1, other: 1}, 1e-5, accountant=accountant)
        with pytest.raises(Refused, match="replace-one"):
            accounting.epsilon({cohort: 1, Poisson(0.5, Product((other, other))): 1}, 1e-5, accountant=accountant)
