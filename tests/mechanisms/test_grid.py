"""Integer arithmetic: the norm bound in integers, the exact sum, and the law of the rounded Gaussian."""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sightline.events import Adjacency
from sightline.mechanisms import integer_noise as sampler
from sightline.mechanisms.clip_and_noise import UNITS, GridSum, on_grid, sum_and_noise
from sightline.mechanisms.integer_noise import rounded_gaussian


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=seed))


def rounded_magnitude(tail: mpmath.mpf, sigma: float) -> int:
    """round(sigma Q^-1(tail)) by long arithmetic, the other way round than the sampler decides it."""
    with mpmath.workprec(400):
        quantile = mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * tail)
        return int(mpmath.floor(mpmath.mpf(sigma) * quantile + mpmath.mpf(1) / 2))


@pytest.mark.parametrize("sigma", [0.2, 1.0, 6.5])
def test_frequencies_are_those_of_the_rounded_gaussian(sigma: float):
    draws = 400_000
    noise = rounded_gaussian(sigma, draws, rng(7))
    values = np.arange(-math.ceil(4 * sigma), math.ceil(4 * sigma) + 1)
    expected = draws * (stats.norm.cdf((values + 0.5) / sigma) - stats.norm.cdf((values - 0.5) / sigma))
    counts = np.array([(noise == value).sum() for value in values])
    often = expected > 10
    statistic = ((counts - expected)[often] ** 2 / expected[often]).sum()
    assert stats.chi2.sf(statistic, often.sum() - 1) > 1e-6


def test_at_the_scale_in_use_it_is_a_gaussian():
    sigma = 1.1 * UNITS
    assert stats.kstest(rounded_gaussian(sigma, 200_000, rng(3)) / sigma, "norm").pvalue > 1e-6


@pytest.mark.parametrize("sigma", [0.7, 1.1 * UNITS])
def test_the_fast_pass_agrees_with_long_arithmetic(sigma: float):
    first = np.unique(np.concatenate([2 ** np.arange(1, 53), rng(1).integers(1, 1 << 53, size=300)])).astype(np.uint64)
    least, most = sampler._bracket_magnitude(first, sigma)
    for word, low, high in zip(first, least, most, strict=True):
        with mpmath.workprec(400):
            shortest, longest = (rounded_magnitude(mpmath.ldexp(int(word) + end, -54), sigma) for end in (1, 0))
        assert low <= shortest <= longest <= high
        if low == high:
            assert sampler._settle_magnitude(int(word), 0 if sigma < 1 else int(low), sigma, rng()) == low


def test_the_quantile_is_far_more_exact_than_the_sampler_needs():
    tails = np.exp(-np.linspace(0.7, 37, 400))
    for tail, quantile in zip(tails, -sampler.ndtri(tails), strict=True):
        with mpmath.workprec(200):
            exact = mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * mpmath.mpf(float(tail)))
            assert abs(quantile - exact) < exact * sampler.QUANTILE_ERROR / 100


def test_open_roundings_are_settled_by_more_bits():
    """A word whose interval holds a border: the bits that follow decide, in the right proportion."""
    sigma, source = 1.1 * UNITS, rng(5)
    border = mpmath.mpf(UNITS) + mpmath.mpf(1) / 2
    with mpmath.workprec(200):
        tail = mpmath.ldexp(mpmath.erfc(border / sigma / mpmath.sqrt(2)) / 2, 54)
        word, share_beyond = int(tail), float(tail - int(tail))
    settled = [sampler._settle_magnitude(word, UNITS - 3, sigma, source) for _ in range(400)]
    assert set(settled) == {UNITS, UNITS + 1}
    beyond = sum(value == UNITS + 1 for value in settled)
    assert stats.binomtest(beyond, 400, share_beyond).pvalue > 1e-6


def test_the_far_tail_is_not_cut_off():
    """Below the first 53 bits there is still a tail: P(first = 0) = 2^-53 and |X| > 8.2 there."""
    least, most = sampler._bracket_magnitude(np.zeros(1, dtype=np.uint64), 10.0)
    assert (least[0], most[0]) == (0, np.inf)
    assert all(82 <= sampler._settle_magnitude(0, 0, 10.0, rng(seed)) < 120 for seed in range(20))


@given(st.integers(0, 2**32), st.floats(1e-6, 1e6), st.floats(1e-3, 1e9))
def test_integer_norms_never_exceed_the_clip_norm(seed: int, clip_norm: float, size: float):
    update = torch.from_numpy(rng(seed).standard_normal(50) * size).float()
    steps, rejected = on_grid(update, clip_norm=clip_norm)
    assert not rejected
    assert sum(int(step) ** 2 for step in steps) <= UNITS**2
    wanted = update.double() * min(1.0, clip_norm / update.double().norm().item())
    assert np.abs(steps * (clip_norm / UNITS) - wanted.numpy()).max() <= 3e-6 * clip_norm


def test_a_vector_on_the_border_is_shrunk_until_its_integers_fit():
    steps, _ = on_grid(torch.tensor([1.0 + 1e-7, 0.0], dtype=torch.float64), clip_norm=1.0)
    assert int(steps @ steps) <= UNITS**2
    steps, _ = on_grid(torch.tensor([1.0, 0.0]), clip_norm=1.0)
    assert steps.tolist() == [UNITS, 0]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_broken_updates_count_as_zero(bad: float):
    steps, rejected = on_grid(torch.tensor([bad, 1.0]), clip_norm=1.0)
    assert rejected
    assert steps.tolist() == [0, 0]


@pytest.mark.parametrize(("adjacency", "sensitivity"), [(Adjacency.ADD_REMOVE, 1.5), (Adjacency.REPLACE, 3.0)])
def test_the_noisy_sum_is_the_clipped_sum_plus_noise_of_the_claimed_scale(adjacency: Adjacency, sensitivity: float):
    dimension = 100_000
    updates = [torch.full((dimension,), 1e-4), torch.full((dimension,), math.nan), torch.full((dimension,), 1.0)]
    value, rejected = sum_and_noise(
        enumerate(updates), GridSum(dimension), clip_norm=1.5, noise_multiplier=0.8, adjacency=adjacency, rng=rng(2)
    )
    assert rejected == 1
    noise = value.double().numpy() - 1e-4 - 1.5 / math.sqrt(dimension)
    assert stats.kstest(noise / (0.8 * sensitivity), "norm").pvalue > 1e-6


def test_neighbouring_sums_differ_by_integers_within_the_bound():
    updates = [torch.from_numpy(rng(seed).standard_normal(30)).float() for seed in range(20)]
    steps = [on_grid(update, clip_norm=1.0)[0] for update in updates]
    whole, without = sum(steps), sum(steps[1:])
    moved = whole - without
    assert int(moved @ moved) <= UNITS**2
