"""Extreme inputs: a correct finite answer or a clear refusal; never NaN, never a silent zero, in seconds."""

import itertools
import math

import pytest

from sightline import accounting
from sightline.accounting import Accountant
from sightline.errors import InvalidInput
from sightline.events import Allocation, Exponential, Gaussian, Poisson, Pure, Split

CORNERS = list(itertools.product((0.2, 1e4), (1e-7, 1e-3, 1.0), (1, 10**7), (1e-12, 0.1)))


def long(*values):
    """A case of a sweep whose shorter cases show the same thing."""
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "delta"),
    [long(*corner) if corner in ((1e4, 1e-7, 10**7, 0.1), (1e4, 1e-3, 10**7, 0.1)) else corner for corner in CORNERS],
)
def test_corners_are_finite_and_below_the_moments(noise, rate, steps, delta):
    event = Poisson(rate, Gaussian(noise))
    epsilon = accounting.epsilon({event: steps}, delta)
    assert 0 <= epsilon < math.inf
    assert epsilon <= accounting.epsilon({event: steps}, delta, accountant=Accountant.RDP) * (1 + 1e-9)
    if epsilon == 0:
        assert accounting.delta({event: steps}, 0.0) <= delta


@pytest.mark.parametrize(("noise", "rate"), [(1.0, 1e-3), (0.5, 1e-4), (5.0, 0.01), (0.3, 1e-5)])
def test_a_million_steps(noise, rate):
    epsilon = accounting.poisson(noise=noise, rate=rate, steps=10**6).epsilon(delta=1e-5)
    assert 0 < epsilon < math.inf


@pytest.mark.parametrize(
    "event", [long(Split(5000, Gaussian(0.5))), long(Split(3000, Gaussian(0.25))), Split(2000, Gaussian(30.0))]
)
def test_thousands_of_parts(event):
    sampled = accounting.epsilon({Poisson(0.1, event): 100}, 1e-6)
    assert 0 < sampled <= accounting.epsilon({Poisson(0.1, event.event): 100}, 1e-6)


@pytest.mark.parametrize(
    ("steps", "uses", "noise"), [(10**6, 5000, 1.0), long(10**6, 1, 0.5), (10**4, 1, 0.5), (4001, 4000, 8.0)]
)
def test_thousands_of_uses(steps, uses, noise):
    epsilon = accounting.epsilon({Allocation(steps, uses, Gaussian(noise)): 1}, 1e-6)
    assert 0 < epsilon <= accounting.epsilon({Gaussian(noise): uses}, 1e-6) * (1 + 1e-3)


@pytest.mark.parametrize("noise", [1e-3, 0.03, 0.06])
def test_hardly_any_noise_is_answered_from_above(noise):
    epsilon = accounting.epsilon({Poisson(0.5, Gaussian(noise)): 1}, 1e-5)
    exact = accounting.epsilon({Gaussian(noise): 1}, 1e-5)
    assert 0.2 * exact < epsilon < math.inf


def test_small_deltas_are_tilted():
    for delta in (1e-15, 1e-20, 1e-28):
        lower, upper = accounting.interval({Poisson(0.1, Gaussian(1.0)): 100}, delta)
        assert upper * 0.997 < lower <= upper


def test_choices_add_up_at_most():
    assert accounting.epsilon({Exponential(0.1): 1}, 1e-5) <= 0.1
    assert accounting.epsilon({Pure(2.0): 3}, 1e-9) == pytest.approx(6.0, rel=1e-3)
    assert accounting.epsilon({Exponential(0.01): 10_000}, 1e-5) < 5


@pytest.mark.parametrize("target", [0.05, 1.0, 8.0])
@pytest.mark.parametrize(
    "scheme",
    [
        accounting.gaussian(noise=1.0, steps=20),
        accounting.poisson(noise=1.0, rate=0.01, steps=5000),
        accounting.balanced(noise=1.0, steps=20, uses=5, epochs=2),
        long(accounting.balanced(noise=1.0, steps=200, uses=30, epochs=2)),
        accounting.split(noise=1.0, parts=4, rate=0.1, steps=300, unsplit_noise=2.0),
    ],
    ids=lambda scheme: scheme.name,
)
def test_calibration_meets_the_budget_from_below(scheme, target):
    found = scheme.calibrated(epsilon=target, delta=1e-6)
    assert target * (1 - 2e-4) <= found.epsilon(delta=1e-6) <= target
    assert found.with_noise(found.noise_multiplier * 0.999).epsilon(delta=1e-6) > target * (1 - 5e-4)


def test_calibration_takes_few_evaluations():
    seen = []

    def composition(noise):
        seen.append(noise)
        return {Poisson(0.1, Gaussian(noise)): 1000}

    accounting.calibrate(composition, epsilon=8.0, delta=1e-5)
    assert len(seen) <= 20


def test_budgets_out_of_reach_are_refused():
    with pytest.raises(InvalidInput, match="no amount of noise"):
        accounting.calibrate(lambda z: {Pure(2.0): 1, Gaussian(z): 1}, epsilon=1.0, delta=1e-5)
    with pytest.raises(InvalidInput, match="positive"):
        accounting.calibrate(lambda z: {Gaussian(z): 1}, epsilon=0.0, delta=1e-5)
