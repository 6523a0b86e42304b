"""The pieces of the engine: mass, mean, convex order, ends, cache."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline.accounting import epsilon, fft
from sightline.accounting.dominating_pairs import lattice_law, mean_of_copies, native_law
from sightline.accounting.fft import (
    Sum,
    backward_losses_of,
    compose_losses,
    forward_losses_of,
    order_for_epsilon,
)
from sightline.accounting.likelihood_ratio import (
    MOST_POINTS,
    Law,
    LawCache,
    gaussian_law,
    multiply_laws,
    on_step,
    resplit_atoms,
    sampled_points,
    trim_law,
)
from sightline.accounting.lower_bounds import lower_law
from sightline.events import Allocation, Gaussian, Poisson, Product, Pure, Split


def mass_and_mean(law):
    return law.mass.sum() + law.zero, float(np.dot(law.mass, np.exp(law.loss))) + law.infinite


def calls(law, strikes):
    """E[(L - K)_+] at strikes, the P-mass at infinity included."""
    values = np.exp(law.loss)
    return np.array([np.dot(law.mass, np.maximum(values - k, 0.0)) for k in strikes]) + law.infinite


laws = st.builds(
    lambda noise, rate, step, tail: gaussian_law(noise, step / noise * rate, tail, rate=rate),
    st.floats(0.3, 100.0),
    st.floats(0.2, 1 - 1e-6) | st.just(1.0),
    st.floats(0.05, 0.2),
    st.sampled_from([1e-12, 1e-20]),
)


@pytest.mark.parametrize("noise", [0.3, 1.0, 10.0])
def test_a_rate_next_to_one_costs_no_less_than_one(noise):
    """There the mean of a law is off by 3e-10: upwards."""
    almost = Poisson(math.nextafter(1.0, 0.0), Gaussian(noise))
    for steps in (1, 10):
        assert epsilon({almost: steps}, 1e-5) >= epsilon({Gaussian(noise): steps}, 1e-5)


@given(laws)
def test_gaussian_laws_keep_mass_and_mean(law):
    assert mass_and_mean(law) == pytest.approx((1.0, 1.0), abs=1e-10)
    assert law.mass.min() >= 0
    assert 0 <= law.infinite < 1e-11
    assert 0 <= law.zero < 1e-11


@settings(max_examples=25)
@given(laws, st.floats(1.3, 6.0), st.floats(0.01, 1.0), st.integers(2, 9))
def test_every_operation_keeps_mass_and_mean(law, factor, rate, copies):
    coarse = on_step(law, law.step * factor)
    for made in (
        coarse,
        trim_law(coarse, 1e-6),
        sampled_points(coarse, rate).on_lattice(coarse.step),
        multiply_laws(coarse, coarse),
    ):
        assert mass_and_mean(made) == pytest.approx((1.0, 1.0), abs=1e-9)
    assert mass_and_mean(mean_of_copies(trim_law(coarse, 1e-12), copies, 1e-12)) == pytest.approx((1.0, 1.0), abs=1e-9)


@settings(max_examples=25)
@given(st.floats(0.4, 5.0), st.floats(0.2, 1.0))
def test_coarser_is_larger_in_convex_order(noise, rate):
    fine = gaussian_law(noise, 0.004 / noise * rate, 1e-15, rate=rate)
    strikes = np.exp(np.linspace(fine.start, fine.loss[-1], 60))
    assert np.all(calls(on_step(fine, 9 * fine.step), strikes) >= calls(fine, strikes) - 1e-13)


@pytest.mark.parametrize(
    "event",
    [
        Gaussian(1.0),
        Poisson(0.1, Gaussian(0.8)),
        Split(3, Gaussian(1.0)),
        Split(6, Pure(0.7)),
        Poisson(0.2, Product((Gaussian(2.0), Split(3, Gaussian(1.0))))),
        Allocation(7, 2, Gaussian(1.5)),
        Split(3, Poisson(0.5, Gaussian(1.0))),
    ],
    ids=repr,
)
def test_native_laws_keep_mass_and_mean(event):
    assert mass_and_mean(native_law(event, 1e-20)) == pytest.approx((1.0, 1.0), abs=1e-9)


@pytest.mark.parametrize("event", [Gaussian(1.0), Poisson(0.1, Gaussian(0.8)), Split(3, Gaussian(1.0))], ids=repr)
def test_lower_laws_are_below_in_convex_order(event):
    upper = lattice_law(event, 0.01, 1e-20)
    lower = lower_law(event, 0.01)
    assert mass_and_mean(lower) == pytest.approx((1.0, 1.0), abs=1e-9)
    strikes = np.exp(np.linspace(upper.start, upper.loss[-1], 80))
    high, low = calls(upper, strikes), calls(lower, strikes)
    assert np.all(low <= high + 1e-13)
    assert np.all(high - low <= 2e-3 * high + 1e-4)


def test_dropping_the_top_in_reverse_would_be_wrong():
    """Gaussian s=1, four-fold, cut at L > e, eps=1: true .5099; with the Q-mass above dropped .4655."""
    whole = gaussian_law(1.0, 0.01, 1e-15)
    kept = whole.loss <= 1.0
    cut = trim_above(whole, int(kept.sum()))
    dropped = Law(whole.start, whole.step, whole.mass[kept], whole.zero, cut.infinite)
    found = [delta_backward(law, 4, 1.0) for law in (whole, cut, dropped)]
    assert found[0] == pytest.approx(0.5099, abs=2e-4)
    assert found[1] >= found[0] - 1e-9
    assert found[2] == pytest.approx(0.4655, abs=2e-3)


def trim_above(law, size):
    mass = law.mass[:size].copy()
    above = law.mass[size:]
    mass[-1] += above.sum()
    ratio = np.exp(law.loss)
    excess = float(np.dot(above, ratio[size:] - ratio[size - 1]))
    return Law(law.start, law.step, mass, law.zero, law.infinite + excess)


def delta_backward(law, times, epsilon):
    total = Sum([(backward_losses_of(law), times)])
    return compose_losses(total, order_for_epsilon(total, epsilon)).delta(epsilon)


def test_composition_agrees_with_direct_convolution():
    law = gaussian_law(2.0, 0.05, 1e-15, rate=0.4)
    direct = multiply_laws(multiply_laws(law, law), law)
    for side in (forward_losses_of, backward_losses_of):
        losses = side(direct)
        epsilon = 0.7
        exact = losses.infinite + np.dot(losses.mass, np.maximum(-np.expm1(epsilon - losses.loss), 0.0))
        total = Sum([(side(law), 3)])
        assert compose_losses(total, order_for_epsilon(total, epsilon)).delta(epsilon) == pytest.approx(exact, rel=1e-7)


def test_resplit_keeps_each_atom():
    law = resplit_atoms(np.array([0.0, 0.013, 0.2]), np.array([0.5, 0.3, 0.2]), 0.05)
    assert law.mass.sum() == pytest.approx(1.0)
    exact = 0.5 + 0.3 * math.exp(0.013) + 0.2 * math.exp(0.2)
    assert np.dot(law.mass, np.exp(law.loss)) == pytest.approx(exact, rel=1e-14)


def test_the_cache_is_bounded_by_points():
    made = LawCache(lambda size: Law(0.0, 1.0, np.zeros(size)))
    for size in range(MOST_POINTS // 4, MOST_POINTS // 4 + 10):
        assert made(size) is made(size)
    assert made.points <= MOST_POINTS
    assert len(made.held) <= 4


@pytest.mark.parametrize(
    ("event", "step"),
    [(Poisson(0.9, Gaussian(0.3)), 0.05), (Poisson(0.5, Gaussian(0.375)), 0.044), (Poisson(1e-4, Gaussian(1.0)), 1e-5)],
    ids=repr,
)
def test_lower_laws_of_concentrated_ratios(event, step):
    lower, upper = lower_law(event, step), lattice_law(event, step, 1e-20)
    assert mass_and_mean(lower) == pytest.approx((1.0, 1.0), abs=1e-9)
    assert lower.mass.min() >= 0
    strikes = np.exp(np.linspace(upper.start, upper.loss[-1], 80))
    assert np.all(calls(lower, strikes) <= calls(upper, strikes) + 1e-12)


@pytest.mark.parametrize("step", [1e-4, 1e-2, 0.3])
@pytest.mark.parametrize("size", [1, 5000, fft.SHORT, fft.SHORT + 1])
def test_short_curves_have_the_bits_of_scipys_filter(step, size):
    from scipy.signal import lfilter

    gains, ratio = np.random.default_rng(size).random(size), math.exp(-step)
    found = fft.decay_and_add(gains, ratio)
    assert np.array_equal(found, lfilter([1.0], [1.0, -ratio], gains))
