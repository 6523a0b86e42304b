"""What the shortcuts that the groups paper prints are worth."""

import math

import numpy as np
import pytest
import torch

from papers.groups.as_published import (
    ConvexTraining,
    alone_sum,
    as_published_count,
    as_published_degradation,
    as_published_plus,
    mixing_factors,
    printed_sum,
)
from sightline.errors import Refused
from sightline.topology import STRUCTURES, constant_memberships


def quadratic(target, rate):
    return lambda model: rate * (target - model)


def test_the_printed_dp_ogl_plus_has_49_times_its_claimed_sensitivity():
    """26 workers, S = 2: one worker's raw first update drags all others to the other side of their optimum."""
    others = [quadratic(torch.tensor([100.0]), 0.5) for _ in range(25)]
    everyone = [*others, quadratic(torch.tensor([1e6]), 0.5)]
    start, claimed = torch.zeros(1), math.sqrt(2) * 1.0
    printed = [
        printed_sum(start, workers, period=2, clip_norm=1.0, expected=26.0) for workers in (everyone, others)
    ]  # fmt: skip
    alone = [alone_sum(start, workers, period=2, clip_norm=1.0) for workers in (everyone, others)]
    assert abs(printed[0] - printed[1]).item() / claimed == pytest.approx(49, rel=1e-4)
    assert abs(alone[0] - alone[1]).item() / claimed <= 1 + 1e-6


TRAINING = ConvexTraining(noise_multiplier=2.0, clip_norm=0.05, learning_rate=0.1, smoothness=1.0, steps=2)


def test_the_printed_degradation_of_example_2():
    string = constant_memberships(3, STRUCTURES["string"](3, 2))
    mu = mixing_factors(string.eras[0].groups, 2, 4, TRAINING, 2.0)
    one = 2.0 / (2 * 2.0**2)

    def estimate(subject, observer):
        return as_published_degradation(string, 2, 4, TRAINING, subject=subject, observer=observer, order=2.0)

    assert estimate(0, 1) == pytest.approx(3 * one)
    assert estimate(0, 2) == pytest.approx(2 * one * mu[1, 2])
    assert estimate(1, 0) == pytest.approx(5 * one)
    assert 0 < mu[1, 2] < 1


def test_the_printed_degradation_of_dp_ogl_plus_counts_intervals():
    """Eq. (22): no factor S, and blocks with noise of variance S c^2 sigma^2."""
    string = constant_memberships(3, STRUCTURES["string"](3, 2))
    wide = ConvexTraining(
        noise_multiplier=2.0, clip_norm=0.05 * math.sqrt(2), learning_rate=0.1, smoothness=1.0, steps=4
    )
    mu = mixing_factors(string.eras[0].groups, 1, 4, wide, 2.0)
    one = 2.0 / (2 * 2.0**2)
    found = as_published_plus(string, 2, 7, TRAINING, subject=0, observer=2, order=2.0)
    assert found == pytest.approx(one * (mu[1, 1] + mu[1, 2]))
    with pytest.raises(Refused, match="shares a group"):
        as_published_plus(string, 2, 7, TRAINING, subject=0, observer=1, order=2.0)


def test_a_median_is_moved_further_than_the_noise_is_made_for():
    """Section V-C keeps its bounds for median aggregation; noise for a mean of n updates covers c / n."""
    clip_norm, n = 1.0, 11
    updates = [-clip_norm] * (n // 2) + [clip_norm] * (n // 2)
    with_worker, without = np.median([*updates, clip_norm]), np.median([*updates, -clip_norm])
    assert abs(with_worker - without) == 2 * clip_norm
    assert abs(np.mean([*updates, clip_norm]) - np.mean([*updates, -clip_norm])) == pytest.approx(2 * clip_norm / n)


def test_the_published_forms_are_kept_to_where_they_are_printed():
    assert as_published_count(10, 200, 1, releases_each=10) == 180 < 190
    with pytest.raises(Refused, match="string"):
        as_published_degradation(
            constant_memberships(12, STRUCTURES["ring"](12, 4)), 2, 4, TRAINING, subject=0, observer=5, order=2.0
        )
