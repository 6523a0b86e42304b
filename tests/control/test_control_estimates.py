"""Estimates from released values: exact without noise, silent when noise covers them, right in the mean otherwise."""

import math

import numpy as np
import pytest
import torch

from sightline.algorithms.contract import ChannelMean
from sightline.algorithms.hierarchy.control import (
    Slope,
    estimate_diversity,
    estimate_smoothness,
    mean_slope,
    slope_of,
    squared_changes,
)
from sightline.mechanisms import Public
from sightline.topology import Channel


def heard(value, *, reach=1.0, noise_std=0.0, name="edge-0"):
    return ChannelMean(
        Channel(name, (0,), frozenset()), Public(torch.as_tensor(value, dtype=torch.float32)), reach, noise_std
    )


def test_a_release_is_read_as_a_gradient():
    mean = heard([-2.0, 4.0], reach=0.5, noise_std=0.1)
    found = slope_of(mean, mean.value.value)
    assert found.value.tolist() == [4.0, -8.0]
    assert found.variance == pytest.approx(0.04)


def test_the_secant_of_a_quadratic_is_its_smoothness():
    """Gradients of 3/2 |w|^2 at two points."""
    w, v = torch.tensor([1.0, 2.0]), torch.tensor([-1.0, 0.5])
    assert estimate_smoothness(Slope(3 * w, 0.0), Slope(3 * v, 0.0), w - v) == pytest.approx(3.0)
    assert estimate_smoothness(Slope(3 * w, 0.0), Slope(3 * w, 0.0), w - w) == 0.0


def test_known_noise_is_taken_off_and_what_it_covers_is_nothing():
    """20 draws of 5000 coordinates: |g|^2 is found within 5 sd of its noise; a length below the noise is never claimed."""
    rng = np.random.default_rng(0)
    for true, std, visible in ((40.0, 0.1, True), (0.3, 1.0, False)):
        gradient = np.full(5000, true / math.sqrt(5000))
        found = [Slope(torch.tensor(gradient + rng.normal(0, std, 5000)), std**2).square for _ in range(20)]
        if visible:
            sd = math.sqrt(2 * 5000) * std**2 + 2 * std * true
            assert abs(np.mean(found) - true**2) < 5 * sd / math.sqrt(20)
        else:
            assert found == [0.0] * 20


def test_the_diversity_is_the_distance_from_the_mean():
    gradients, shares = [np.array([1.0, 0.0]), np.array([0.0, 1.0]), np.array([4.0, 2.0])], [0.5, 0.25, 0.25]
    centre = sum(share * g for share, g in zip(shares, gradients, strict=True))
    naive = math.sqrt(sum(s * np.sum((g - centre) ** 2) for s, g in zip(shares, gradients, strict=True)))
    found = estimate_diversity([Slope(torch.tensor(g), 0.0) for g in gradients], shares)
    assert found == pytest.approx(naive, rel=1e-6)


def test_the_noise_of_a_difference_from_the_mean_is_counted_once():
    """Var(g_c - sum_d share_d g_d) = (1 - share_c)^2 v_c + sum_others share_d^2 v_d."""
    slopes = [Slope(torch.zeros(3), v) for v in (1.0, 2.0, 5.0)]
    found = mean_slope(slopes, [1 - 0.5, -0.25, -0.25]).variance
    assert found == pytest.approx(0.25 * 1.0 + 0.0625 * 2.0 + 0.0625 * 5.0)


def test_the_gradient_noise_is_half_the_squared_change_between_gatherings():
    gatherings = [[heard([-1.0])], [heard([-4.0])], [heard([-4.0])]]
    ((channel, change),) = squared_changes(gatherings)
    assert (channel.name, change.value.item()) == ("edge-0", pytest.approx((9 / 2 + 0) / 2))
    assert squared_changes(gatherings[:1]) == []
