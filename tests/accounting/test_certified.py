"""Certified k of T: moments by enumeration, draws from the law they claim, bounds that miss as rarely as they say."""

import math
from collections import Counter
from itertools import combinations, product

import numpy as np
import pytest

from sightline import accounting
from sightline.accounting import SampledCertificate, certified, certify_balanced
from sightline.accounting.certified import (
    AllocationSchedule,
    Backward,
    Forward,
    SubsetSampler,
    choose_order,
    log_symmetric_mean,
    upper_mean,
    verify_epsilon,
)
from sightline.accounting.likelihood_ratio import gaussian_delta, gaussian_epsilon
from sightline.events import Allocation, Gaussian
from tests.oracle.accounting_schedule import sample_schedule

CASES = [(4, 2, 1.0, 2), (5, 1, 0.7, 4), (5, 2, 0.8, 3), (5, 3, 1.3, 3), (4, 3, 2.0, 4), (6, 2, 0.5, 3), (3, 3, 1.0, 4), (4, 1, 0.6, 5), (7, 5, 1.5, 2)]  # fmt: skip
TABLE = [
    (391, 5, 0.5334, 1, 1.25e-5, 8.0013, 7.49),
    (30, 4, 0.7, 1, 1e-5, 8.6981, 7.90),
    (10, 5, 2.0, 1, 1e-6, 3.9337, 3.85),
    (100, 5, 1.0, 1, 1e-5, 2.9961, 2.89),
    (100, 70, 3.0, 1, 1e-5, 13.0847, 12.20),
    (1000, 50, 1.0, 1, 1e-5, 10.3831, 10.18),
    (30, 4, 1.0, 2, 1e-5, 6.3055, 5.99),
]
"""Steps, uses, noise, epochs, delta, block bound, certified: the design note's table, computed independently."""
TRUTHS = {391: 7.46, 10: 3.836, 100: 2.88, 1000: 10.13}


def enumerate_subsets(steps, uses, s, order):
    """Weight of every histogram over all tuples of subsets."""
    subsets = list(combinations(range(steps), uses))
    found = Counter()
    for chosen in product(subsets, repeat=order):
        inside = Counter(t for subset in chosen for t in subset)
        counts = Counter(inside.values())
        histogram = (steps - len(inside), *(counts[c] for c in range(1, order + 1)))
        found[histogram] += math.exp(s * s * sum(math.comb(c, 2) for c in inside.values()))
    return found, len(subsets) ** order


@pytest.mark.parametrize(("steps", "uses", "noise", "order"), CASES)
def test_moments_and_draws_are_those_of_enumeration(steps, uses, noise, order):
    sampler = SubsetSampler(AllocationSchedule(steps, uses, 1, 1 / noise), order)
    weights, tuples = enumerate_subsets(steps, uses, 1 / noise, order)
    assert sampler.log_moment == pytest.approx(math.log(math.fsum(weights.values()) / tuples), rel=1e-10, abs=1e-12)
    draws = 20_000
    held = sampler.draw_histograms(draws, np.random.default_rng(5))
    assert set(held) <= set(weights)
    total = math.fsum(weights.values())
    for histogram, weight in weights.items():
        expected = draws * weight / total
        assert abs(held[histogram] - expected) <= 5 * math.sqrt(expected) + 1


@pytest.mark.parametrize(("steps", "uses"), [(5, 2), (6, 5), (4, 4), (7, 3), (40, 25)])
def test_ratios_are_elementary_symmetric_means(steps, uses):
    schedule = AllocationSchedule(steps, uses, 1, 0.8)
    log_x = schedule.log_x(np.random.default_rng(1).normal(0.3, 2, (steps, 30)))
    coefficients = np.ones((1, 30))
    for row in np.exp(log_x):  # multiply by (1 + x u), slow and plain
        coefficients = np.vstack([coefficients, np.zeros((1, 30))]) + np.vstack([np.zeros((1, 30)), coefficients * row])
    exact = np.log(coefficients[uses] / math.comb(steps, uses))
    assert schedule.log_ratios(log_x) == pytest.approx(exact, rel=1e-10)
    assert (schedule.log_bound(log_x) >= exact - 1e-9).all()


def test_huge_ratios_stay_finite():
    x = np.exp(np.random.default_rng(2).normal(0, 60, (200, 20)))
    assert np.isfinite(log_symmetric_mean(x, 7)).all()


def test_all_steps_are_one_gaussian():
    """k = T: both directions against the closed form."""
    schedule, strength, rng = AllocationSchedule(9, 9, 1, 0.5), 1.5, np.random.default_rng(3)
    at = gaussian_epsilon(strength, 1e-4)
    forward = choose_order(schedule, at)
    ratios = forward.draw_ratios(40_000, rng, 0.0)
    exact = gaussian_delta(strength, at)
    assert forward.means(ratios, at) * math.exp(forward.log_range(at)) == pytest.approx(exact, rel=0.03)
    assert exact <= Backward(schedule, at).bound(40_000, rng, math.log(1e9)) <= 2 * exact


def missed(schedule, at, truth, seeds, draws=400):
    """How often a nominal 5 % bound lies below the truth."""
    forward, odds = choose_order(schedule, at), math.log(20)
    wrong = 0
    for seed in seeds:
        ratios = forward.draw_ratios(draws, np.random.default_rng([11, seed]), at)
        wrong += forward.bound(ratios, at, odds, draws) < truth
    return wrong


def test_five_percent_bounds_miss_rarely():
    strength, at = 1.5, 4.0
    assert missed(AllocationSchedule(9, 9, 1, 0.5), at, gaussian_delta(strength, at), range(60)) <= 8


@pytest.mark.slow
def test_five_percent_bounds_miss_rarely_in_three_hundred():
    strength, at = 1.5, 4.0
    assert missed(AllocationSchedule(9, 9, 1, 0.5), at, gaussian_delta(strength, at), range(300)) <= 25
    schedule = AllocationSchedule(12, 4, 1, 0.8)
    forward = choose_order(schedule, 3.0)
    many = forward.draw_ratios(1_000_000, np.random.default_rng(0), 3.0)
    truth = forward.means(many, 3.0) * math.exp(forward.log_range(3.0))
    assert missed(schedule, 3.0, truth, range(300)) <= 25


def test_bounds_of_means_are_chernoffs():
    for mean, draws, odds in ((0.0, 100, 3.0), (0.2, 1000, 20.0), (0.9, 50, 5.0)):
        q = upper_mean(mean, draws, odds)
        rest = (1 - mean) * math.log((1 - mean) / (1 - q)) + (mean * math.log(mean / q) if mean else 0.0)
        assert draws * rest == pytest.approx(odds, rel=1e-6)
    assert upper_mean(1.0, 10, 1.0) == 1.0


def test_draws_never_leave_their_range():
    """X is at most one by its range, forward and backward, whatever was drawn."""
    for steps, uses, noise in ((10, 5, 2.0), (20, 17, 1.5), (30, 4, 0.7)):
        schedule = AllocationSchedule(steps, uses, 1, 1 / noise)
        for order in (2, 3):
            forward = Forward(SubsetSampler(schedule, order))
            ratios = forward.draw_ratios(2000, np.random.default_rng(4), 0.0)
            worst = max(forward.means(np.array([one]), 2.0) for one in ratios)
            assert worst <= 1 + 1e-9


@pytest.mark.parametrize("case", [TABLE[1], TABLE[2]], ids=str)
def test_the_table_in_short(case):
    steps, uses, noise, epochs, delta, block, wanted = case
    found = certify_balanced(noise=noise, steps=steps, uses=uses, epochs=epochs, delta=delta, draws=100_000)
    assert found.certified
    assert wanted - 0.02 <= found.epsilon <= wanted + 0.06
    assert accounting.epsilon({Allocation(steps, uses, Gaussian(noise)): epochs}, delta) == pytest.approx(
        block, abs=2e-4
    )


@pytest.mark.slow
@pytest.mark.parametrize("case", TABLE, ids=str)
def test_the_table(case):
    steps, uses, noise, epochs, delta, _, wanted = case
    scheme = accounting.balanced(noise=noise, steps=steps, uses=uses, epochs=epochs, certified=True)
    assert scheme.epsilon(delta=delta) <= wanted + 0.01
    assert scheme.epsilon(delta=delta) >= TRUTHS.get(steps if uses != 70 else 0, wanted - 0.05)
    assert scheme.list_facts(delta=delta)["beta"] == 1e-9
    assert scheme.interval(delta=delta) == (0.0, scheme.epsilon(delta=delta))


@pytest.mark.slow
def test_no_certificate_lies_below_what_a_million_draws_say():
    rng = np.random.default_rng(8)
    for _ in range(6):
        steps = int(rng.integers(4, 40))
        uses, noise = int(rng.integers(2, steps)), float(rng.uniform(0.7, 3))
        found = certify_balanced(noise=noise, steps=steps, uses=uses, delta=1e-4, draws=50_000)
        true = sample_schedule(steps=steps, uses=uses, noise=noise, draws=300_000, rng=rng, around=found.epsilon).delta(
            found.epsilon
        )
        assert true.low <= 1e-4


def test_what_gains_nothing_is_the_block_bound_at_once():
    for steps, uses, noise in ((1000, 100, 2.0), (2000, 655, 10.17), (20, 1, 1.0), (8, 8, 2.0), (30, 4, 0.1)):
        found = certify_balanced(noise=noise, steps=steps, uses=uses, delta=1e-5)
        block = accounting.balanced(noise=noise, steps=steps, uses=uses).epsilon(delta=1e-5)
        assert found == SampledCertificate(block, 1e-5, False, 0.0, 0, 0)


def test_a_certificate_is_the_same_again_and_composes_as_blocks():
    one = certify_balanced(noise=2.0, steps=10, uses=5, delta=1e-6, draws=20_000, seed=3)
    assert one == certify_balanced(noise=2.0, steps=10, uses=5, delta=1e-6, draws=20_000, seed=3)
    scheme = accounting.balanced(noise=2.0, steps=10, uses=5, certified=True)
    assert scheme.composition == accounting.balanced(noise=2.0, steps=10, uses=5).composition


@pytest.fixture
def silent(monkeypatch):
    """Draws of the forward direction that all say zero: the luckiest that anybody can be."""
    monkeypatch.setattr(Forward, "draw_ratios", lambda self, draws, rng, least: np.full(draws, -np.inf))


@pytest.mark.parametrize("beta", [1e-9, 1e-4])
def test_a_certificate_is_wrong_with_a_chance_of_at_most_beta(silent, beta, monkeypatch):
    """`log_odds = log(20)` survived: 5 % in the place of beta, in each of 4 attempts and 2 directions.

    n draws that all say zero leave a mean q with chance (1 - q)^n: for a delta that is just too large, and over all
    looks that are taken, that chance is at most beta.
    """
    monkeypatch.setattr(certified, "pld_backward_delta", lambda counts, at: 0.0)
    noise, steps, uses, delta, draws = 0.7, 30, 4, 1e-3, 2000
    found = certify_balanced(noise=noise, steps=steps, uses=uses, delta=delta, beta=beta, draws=draws)
    assert found.certified
    schedule = AllocationSchedule(steps, uses, 1, 1 / noise)
    block = accounting.balanced(noise=noise, steps=steps, uses=uses).epsilon(delta=delta)
    most = math.exp(choose_order(schedule, block).log_range(found.epsilon))
    looks = 2 * 4
    assert looks * (1 - min(1.0, delta / most)) ** draws <= beta


def test_both_directions_are_certified(silent):
    """`verify_epsilon` without the backward direction survived: 70 of 100 steps, where it is as large as the other."""
    schedule, event = AllocationSchedule(100, 70, 1, 1 / 3), Allocation(100, 70, Gaussian(3.0))
    forward = choose_order(schedule, 13.0)
    assert not verify_epsilon(forward, event, 11.0, 1e-5, math.log(1e3), 20_000, np.random.default_rng(0))
    found = certify_balanced(noise=3.0, steps=100, uses=70, delta=1e-5, draws=20_000)
    assert not found.certified
    assert found.epsilon == pytest.approx(13.0847, abs=2e-4)
