"""What the papers get wrong, shown by numbers (papers/docs/errata.md explains each in plain words)."""

import math

import numpy as np
import pytest

from papers.published import gaussian_moments, objective_epsilon, output_epsilon
from papers.theory.hierarchy import Hierarchy, deviation_path
from sightline import accounting
from sightline.accounting.moments import ORDERS, sampled_moments
from sightline.accounting.renyi import backward_moments, forward_moments
from sightline.events import Gaussian, Poisson, Product, Split
from tests.oracle.accounting_quadrature import log_inverse_mean, log_moment


def reverse_bound(parts, strength, order, *, dimensions=None):
    """The second term of Theorem 3.1 for k = 1 (Lemma 3.18), with d or another number of inflated dimensions.

    a s^2/(2 d) + log(e^(a s^2 (d-1)/d^2 n) / (a e^(s^2 (d-1)/d^2) + 1 - a)^n) / (2 (a - 1)); below the truth for n = d.
    """
    n = parts if dimensions is None else dimensions
    inflation = strength**2 * (parts - 1) / (parts * n)
    tail = order * inflation * n - n * math.log(order * math.exp(inflation) + 1 - order)
    return order * strength**2 / (2 * parts) + tail / (2 * (order - 1))


def test_1_the_closed_reverse_bound_is_below_the_truth():
    """Partitioning paper, Theorem 3.1, second term: d=2, s=.3, a=2."""
    true = log_moment(2, 0.3, -1)
    printed = reverse_bound(2, 0.3, 2)
    assert true == pytest.approx(0.045932, abs=1e-6)
    assert printed == pytest.approx(0.045495, abs=1e-6)
    assert backward_moments(Split(2, Gaussian(1 / 0.3))).moments[2] >= true * (1 - 1e-9) > printed


def test_1_one_dimension_less_does_not_save_it():
    """d=10, s=1, a=2: true .14372 (by a Laplace transform), bound with d - 1 inflated dimensions .1409."""
    assert reverse_bound(10, 1.0, 2, dimensions=9) == pytest.approx(0.1409, abs=1e-4)
    upper = float(backward_moments(Split(10, Gaussian(1.0))).moments[2])
    true = log_inverse_mean(10, 1.0)
    assert true == pytest.approx(0.14372, abs=1e-5)
    assert reverse_bound(10, 1.0, 2, dimensions=9) < true * 0.99
    assert true * (1 - 1e-9) <= upper <= true * 1.001


def test_1_epsilon_is_not_harmed_because_forward_dominates():
    for parts, noise in ((2, 1 / 0.3), (10, 1.0), (3, 1.3)):
        event = Split(parts, Gaussian(noise))
        assert np.all(forward_moments(event)[2:40] >= backward_moments(event).moments[2:40])


@pytest.mark.parametrize(("epochs", "period"), [(4, 2), (6, 4), (12, 5)])
def test_2_floor_counts_too_few_releases(epochs, period):
    """DP-OGL, Theorem 1: examples 2 and 3 of the paper (t=4, S=2) need the ceiling."""
    floor, ceiling = (epochs - 1) // period, math.ceil((epochs - 1) / period)
    assert ceiling == floor + 1
    if (epochs, period) == (4, 2):
        assert ceiling == 2 != floor  # DP-OGL+ at distance 0: the paper's example says 2 - rho


def test_3_the_quadratic_rule_fails_at_high_rates():
    """DP-OGL, Lemma 3: 2 q^2 a / s^2 at q = .7 is worse than no sampling at all."""
    noise, rate, order = 2.0, 0.7, 8
    rule = 2 * rate**2 * order / noise**2
    assert rule > order / (2 * noise**2)
    exact = forward_moments(Poisson(rate, Gaussian(noise)))[order] / (order - 1)
    assert exact < order / (2 * noise**2)


def test_3_and_is_no_bound_for_small_noise():
    noise, rate, order = 0.5, 0.01, 16
    exact = forward_moments(Poisson(rate, Gaussian(noise)))[order] / (order - 1)
    assert exact > 2 * rate**2 * order / noise**2


def test_5_clipping_a_model_bounds_its_norm_not_its_change():
    """Upcycled-FL, Theorem 6.2: two data sets that differ in one sample can move a clipped model by 2 tau."""
    tau, size = 1.0, 1000
    features = np.zeros((size, 1))
    features[0] = 1e9
    fits = []
    for sign in (1.0, -1.0):
        targets = np.zeros(size)
        targets[0] = sign * 1e12
        model = np.linalg.lstsq(features, targets, rcond=None)[0]
        fits.append(model * min(1.0, tau / np.linalg.norm(model)))
    change = float(np.linalg.norm(fits[0] - fits[1]))
    assert change == pytest.approx(2 * tau)
    assert change > tau / size


@pytest.mark.parametrize(("rate", "steps", "target", "spent"), [(0.01, 1000, 4.0, 10.6), (0.05, 400, 8.0, 9.4)])
def test_7_the_asymptotic_rule_is_not_a_bound(rate, steps, target, spent):
    """H2FDP, Prop. 3.1: sigma = c q sqrt(T log(1/delta)) / eps with c = 2 (epsilon well below q T) spends more than eps."""
    noise = 2 * rate * math.sqrt(steps * math.log(1e5)) / target
    assert target < rate * steps
    assert accounting.poisson(noise=noise, rate=rate, steps=steps).epsilon(delta=1e-5) == pytest.approx(spent, abs=0.1)


def test_8_replacing_needs_twice_the_sensitivity_and_parts_do_not_share_delta():
    """R-DPCFL, Theorem 5.1: sensitivity c under replacement, and two (eps, delta) parts called one (eps, delta)."""
    delta, part = 1e-5, accounting.gaussian(noise=1.0, steps=1).calibrated(epsilon=2.0, delta=1e-5)
    both = accounting.epsilon({Gaussian(part.noise_multiplier): 2}, delta)
    assert both > 2.0
    assert accounting.epsilon({Gaussian(part.noise_multiplier / 2): 1}, delta) > 4.0


def test_10_two_coins_in_place_of_one_are_too_cheap():
    """Partial splitting, Sec. 3.2.2: noise 1.4 per unit clip of each part, d=2, g=.1, order 4."""
    noise, rate, order = 1.4, 0.1, 4
    apart = sampled_moments(gaussian_moments(noise), rate) + forward_moments(Poisson(rate, Split(2, Gaussian(noise))))
    joint = forward_moments(Poisson(rate, Product((Gaussian(noise), Split(2, Gaussian(noise))))))
    assert joint[order] / (order - 1) == pytest.approx(0.0343, abs=1e-4)
    assert apart[order] / (order - 1) == pytest.approx(0.0226, abs=1e-4)
    assert len(ORDERS) == len(joint)


def test_adding_the_two_parts_costs_too_little_epsilon():
    sampled = accounting.split(noise=1.4, parts=2, rate=0.1, steps=500, unsplit_noise=1.4).epsilon(delta=1e-5)
    apart = accounting.epsilon({Poisson(0.1, Gaussian(1.4)): 500, Poisson(0.1, Split(2, Gaussian(1.4))): 500}, 1e-5)
    assert sampled > 1.1 * apart


def test_google_drops_repetitions_of_randomised_response():
    """dp_accounting 0.6.0 under PLD: repeating costs nothing; here it costs what listing costs."""
    from sightline.events import Pure

    assert accounting.epsilon({Pure(0.5): 4}, 1e-9) > 3 * accounting.epsilon({Pure(0.5): 1}, 1e-9)


def test_4_a_released_model_has_less_noise_than_the_lemmas_take():
    """Lemmas 1, 12, 13 reckon with c sigma; what is released is the noisy sum over pi |N_m| expected workers."""
    import torch

    from sightline.mechanisms import Aggregate, with_gaussian_noise

    clip_norm, noise, expected = 0.5, 2.0, 0.7 * 26
    nothing = Aggregate(torch.zeros(100_000, dtype=torch.float64), clip_norm)
    released = with_gaussian_noise(nothing, noise_multiplier=noise, rng=np.random.default_rng(0)) / expected
    assert float(released.std()) == pytest.approx(clip_norm * noise / expected, rel=0.02)
    assert float(released.std()) < clip_norm * noise / 10


def test_6_softmax_does_not_have_the_constants_of_a_scalar_model():
    """|x| <= 1: the gradient reaches sqrt 2 (a scalar model's 1), one Hessian's trace stays below 1 - 1/K."""
    rng = np.random.default_rng(0)
    classes = 10
    gradients, traces = [], []
    for scale in (0.0, 1.0, 30.0):
        for _ in range(200):
            logits = scale * rng.standard_normal(classes)
            p = np.exp(logits - logits.max())
            p /= p.sum()
            gradients.append(np.linalg.norm(p - np.eye(classes)[rng.integers(classes)]))
            traces.append(np.trace(np.diag(p) - np.outer(p, p)))
    assert 1.41 < max(gradients) <= math.sqrt(2) + 1e-12
    assert 0.89 < max(traces) <= 1 - 1 / classes + 1e-12


def test_12_a_variance_in_the_place_of_a_standard_deviation_is_too_little_noise():
    said, drawn = (accounting.gaussian(noise=noise, steps=1).epsilon(delta=1e-5) for noise in (0.8, 0.8**2))
    assert said == pytest.approx(5.68, abs=0.005)
    assert drawn == pytest.approx(7.41, abs=0.005)


def test_15_one_setting_of_upcycled_has_two_printed_epsilons():
    """Theorem 6.2 at clip 10 gives 1.59 / 1.40 and .77 / .68, for clients of 197 and of 399 examples."""
    for examples, plain, upcycled in ((197, 1.592, 1.402), (399, 0.773, 0.682)):
        numbers = {"clip_norm": 10.0, "size": examples, "delta": 1e-5}
        assert output_epsilon(rounds=40, noise_std=1.0, **numbers) == pytest.approx(plain, abs=5e-4)
        assert output_epsilon(rounds=20, noise_std=0.8, **numbers) == pytest.approx(upcycled, abs=5e-4)


def test_15_the_pair_of_figure_4_follows_with_gradients_of_one_and_a_curvature_of_a_ninth():
    """Two equations, two unknowns: 80 releases at alpha 10 cost 7.36, 40 at alpha 20 cost 7.25; mean client, mu = 1/2."""
    size, mu = 6726 / 30, 0.5
    equations = np.array([[80 * 2 * 10 * mu, 80 * 2.8], [40 * 2 * 20 * mu, 40 * 2.8]]) / (size * mu)
    u1, u2 = np.linalg.solve(equations, [7.36, 7.25])
    assert u1 == pytest.approx(1.0, abs=1e-3)
    assert u2 == pytest.approx(0.110, abs=1e-3)
    for rounds, rate, printed in ((80, 10.0, 7.36), (40, 20.0, 7.25)):
        found = objective_epsilon(rounds=rounds, rate=rate, curvature=mu, size=size, u1=1.0, u2=0.11)
        assert found == pytest.approx(printed, abs=0.005)


def test_16_a_squared_distance_among_roots_is_not_in_the_units_of_the_model():
    """H2FDP, equation (31): ten times the gradients and their bounds must give ten times the deviation."""
    numbers = {
        "smoothness": 2.0, "clip_norm": 1.5, "sgd_noise": 0.3, "between": 0.7, "within": 0.4, "devices": (5.0, 5.0),
        "trusted": 0.5, "tau": 12, "local_aggregations": 3, "rounds": 40, "parameters": 100, "rate": 0.1, "epsilon": 2.0,
        "delta": 1e-5, "gap": 1.7, "gamma": 0.01,
    }  # fmt: skip
    tenfold = numbers | {name: 10 * numbers[name] for name in ("clip_norm", "sgd_noise", "between", "within")}
    one, ten = (deviation_path(Hierarchy(**given))[2][1] for given in (numbers, tenfold))
    assert ten == pytest.approx(10 * one)
    one, ten = (deviation_path(Hierarchy(**given), as_printed=True)[2][1] for given in (numbers, tenfold))
    assert ten > 10.1 * one
