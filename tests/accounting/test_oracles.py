"""The accountant against computations that share nothing with it."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from scipy.stats import norm

from sightline import accounting
from sightline.accounting.dominating_pairs import native_law
from sightline.accounting.fft import Sum, order_for_delta
from sightline.accounting.likelihood_ratio import gaussian_delta, gaussian_epsilon
from sightline.accounting.moments import ORDERS
from sightline.accounting.pld import direction_epsilon, fit_lattice, forward_losses, tail_for
from sightline.accounting.renyi import backward_moments, forward_moments
from sightline.events import Gaussian, Poisson, Product, Split
from tests.oracle.accounting_quadrature import log_moment, split_delta


@pytest.mark.parametrize(
    ("parts", "noise", "rate"),
    [
        pytest.param(*case, marks=pytest.mark.slow if case[0] == 3 and case != (3, 1.5, 0.6) else ())
        for case in itertools.product((1, 2, 3), (0.7, 1.5, 4.0), (0.05, 0.6))
    ],
)
def test_one_release_against_quadrature(parts, noise, rate):
    for epsilon in (0.01, 0.1, 0.5):
        exact = max(split_delta(parts, noise, rate, epsilon))
        if exact < 1e-9:
            continue
        ours = accounting.delta({Poisson(rate, Split(parts, Gaussian(noise))): 1}, epsilon)
        assert exact * (1 - 1e-7) <= ours <= exact * 1.002


@pytest.mark.parametrize(("noise", "times"), [(2.0, 1), (2.0, 10), (5.0, 400), (0.5, 3), (40.0, 10_000)])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 1e-2])
def test_composition_engine_against_closed_form(noise, times, delta):
    kinds = [(Gaussian(noise), times)]
    fit = fit_lattice(kinds, tail_for(kinds, delta), lambda total: order_for_delta(total, delta))
    engine = direction_epsilon(fit.losses_by_law(forward_losses), delta, fit.order, 0.0)
    exact = gaussian_epsilon(math.sqrt(times) / noise, delta)
    assert exact * (1 - 1e-9) <= engine <= exact * 1.001


@pytest.mark.parametrize("strength", [1e-3, 0.3, 1.0, 8.0, 300.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-6, 0.1])
def test_gaussian_epsilon_against_arbitrary_precision(strength, delta):
    epsilon = gaussian_epsilon(strength, delta)
    with mpmath.workdps(60):
        mu, eps = mpmath.mpf(strength), mpmath.mpf(epsilon)
        exact = mpmath.ncdf(mu / 2 - eps / mu) - mpmath.exp(eps) * mpmath.ncdf(-mu / 2 - eps / mu)
    assert exact <= delta
    if epsilon > 0:
        assert float(exact) == pytest.approx(delta, rel=1e-5)
        assert gaussian_delta(strength, epsilon) == pytest.approx(float(exact), rel=1e-6)


@pytest.mark.parametrize(("noise", "rate", "steps"), [(1.0, 0.01, 1000), (2.05, 0.1, 1000), (0.6, 0.002, 300)])
def test_poisson_against_google(noise, rate, steps):
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    peer = PLDAccountant(value_discretization_interval=1e-3 if steps < 1000 else 2e-4)
    peer.compose(dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise)), steps)
    theirs = peer.get_epsilon(1e-5)
    lower, upper = accounting.poisson(noise=noise, rate=rate, steps=steps).interval(delta=1e-5)
    assert lower <= theirs * (1 + 1e-6)
    assert upper <= theirs * (1 + 3e-4)


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
@pytest.mark.parametrize("noise", [0.8, 3.0])
def test_forward_moments_against_arbitrary_precision(parts, noise):
    ours = forward_moments(Split(parts, Gaussian(noise)))
    with mpmath.workdps(80):
        squared = 1 / mpmath.mpf(noise) ** 2
        most = 24
        series = [mpmath.exp(squared * j * (j - 1) / 2) / mpmath.factorial(j) for j in range(most + 1)]
        power = [mpmath.mpf(1)] + [mpmath.mpf(0)] * most
        for _ in range(parts):
            power = [mpmath.fsum(power[i] * series[a - i] for i in range(a + 1)) for a in range(most + 1)]
        for order in (2, 3, 8, most):
            exact = mpmath.log(power[order] * mpmath.factorial(order) / mpmath.mpf(parts) ** order)
            assert ours[order] >= float(exact) * (1 - 1e-13)
            assert ours[order] == pytest.approx(float(exact), rel=1e-9)


@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("noise", [1.0, 2.0])
def test_backward_moments_against_quadrature(parts, noise):
    ours = backward_moments(Split(parts, Gaussian(noise)))
    for order in (2, 3, 6):
        exact = log_moment(parts, 1 / noise, 1 - order)
        assert exact * (1 - 1e-9) <= ours.moments[order] <= exact * 1.002
    assert ours.missing < 1e-30


def test_poisson_moments_against_quadrature():
    points, weights = np.polynomial.hermite_e.hermegauss(120)
    weights = weights / math.sqrt(2 * math.pi)
    ratio = 0.7 + 0.3 * np.exp(0.5 * points - 0.125)
    ours = forward_moments(Poisson(0.3, Gaussian(2.0)))
    for order in (2, 5, 16):
        assert ours[order] == pytest.approx(math.log(np.dot(weights, ratio**order)), rel=1e-9)


def test_product_under_one_coin_against_quadrature():
    """Unsplit part times a mean of two, sampled once: the law's delta equals a three-dimensional integral."""
    rate, s0, s, epsilon = 0.2, 0.7, 0.9, 0.3
    points, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / math.sqrt(2 * math.pi)
    x = np.exp(s * points - s * s / 2)
    mean = ((x[:, None] + x[None, :]) / 2).ravel()
    both = np.outer(weights, weights).ravel()
    strike = (math.exp(epsilon) - 1 + rate) / (rate * mean)
    d = -np.log(strike) / s0 + s0 / 2
    exact = rate * np.dot(both, mean * (norm.cdf(d) - strike * norm.cdf(d - s0)))
    event = Poisson(rate, Product((Gaussian(1 / s0), Split(2, Gaussian(1 / s)))))
    assert accounting.delta({event: 1}, epsilon) == pytest.approx(exact, rel=2e-3)


def test_cohorts_against_google_moments():
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    from sightline.events import WithoutReplacement

    peer = RdpAccountant(list(range(2, 33)), dp_accounting.NeighboringRelation.REPLACE_ONE)
    inner = dp_accounting.GaussianDpEvent(2.0)
    peer.compose(dp_accounting.SampledWithoutReplacementDpEvent(1000, 50, inner), 200)
    ours = accounting.epsilon({WithoutReplacement(50, 1000, Gaussian(2.0)): 200}, 1e-5)
    assert ours <= peer.get_epsilon(1e-5) * (1 + 1e-6)
    assert ours >= 0.4 * peer.get_epsilon(1e-5)  # exact, where moments are not


def test_law_moments_bound_the_exact_ones():
    """Convex order: every moment of the discretised law is at least the exact one, by very little."""
    law = native_law(Split(5, Gaussian(1.2)), 1e-25)
    for order in (2, 3, 4):
        found = math.log(float(np.dot(law.mass, np.exp(order * law.loss))))
        exact = float(forward_moments(Split(5, Gaussian(1.2)))[order])
        assert exact * (1 - 1e-9) <= found <= exact * 1.003
    assert ORDERS[2] == 2
    assert Sum([(forward_losses(Gaussian(1.2), 0.01, 1e-20), 1)]).infinite < 1e-19


@pytest.mark.parametrize(("noise", "rate"), [(3.0, 0.7), (0.8, 0.05), (2.0, 1.0)])
def test_real_orders_of_sampled_gaussians_equal_quadrature(noise, rate):
    from scipy import integrate, stats

    from sightline.accounting.renyi import LOW_ORDERS, forward_moments, low_moments_of
    from sightline.events import Gaussian, Poisson

    event = Poisson(rate, Gaussian(noise)) if rate < 1 else Gaussian(noise)
    found = dict(zip(LOW_ORDERS.round(2), low_moments_of(event), strict=True))
    for order in (1.25, 1.75, 2.5, 4.35):
        ratio = lambda u: 1 - rate + rate * math.exp(u / noise - 0.5 / noise**2)  # noqa: E731
        exact, _ = integrate.quad(lambda u: stats.norm.pdf(u) * ratio(u) ** order, -12, 12 + order / noise, limit=400)  # noqa: B023
        assert math.log(exact) <= found[order] <= math.log(exact) + 1e-7
    for order in (2, 3, 7):
        assert found[float(order)] == pytest.approx(forward_moments(event)[order], abs=1e-7)
