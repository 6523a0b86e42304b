"""The law of a split release is the worst case, whatever a part makes of the unsplit tensors (docs/partitioning.md)."""

import math

import numpy as np
import pytest

from sightline.accounting import delta
from sightline.events import Gaussian, Poisson, Product, Split

GRID = np.linspace(-7.0, 7.0, 71)
WEIGHT = np.exp(-(GRID**2) / 2) * (GRID[1] - GRID[0]) / math.sqrt(2 * math.pi)
Q_MASS = WEIGHT[:, None, None] * WEIGHT[None, :, None] * WEIGHT[None, None, :]


def true_delta(unsplit, split, epsilon, rate):
    """By quadrature, d = 2: part j moves the common coordinate by unsplit[j] and its own by split[j]; noise is one."""
    ratios = [
        np.exp(u * GRID - u * u / 2)[:, None, None] * np.exp(v * GRID - v * v / 2).reshape(shape)
        for u, v, shape in zip(unsplit, split, [(1, -1, 1), (1, 1, -1)], strict=True)
    ]
    ratio = 1 - rate + rate * (ratios[0] + ratios[1]) / 2
    ahead = float((Q_MASS * np.maximum(ratio - math.exp(epsilon), 0.0)).sum())
    back = float((Q_MASS * np.maximum(1 - math.exp(epsilon) * ratio, 0.0)).sum())
    return max(ahead, back)


@pytest.mark.parametrize("rate", [1.0, 0.2])
@pytest.mark.parametrize("epsilon", [0.2, 1.5])
def test_no_choice_of_the_parts_costs_more_than_the_same_full_step(epsilon, rate):
    inside = Product((Gaussian(1 / 0.7), Split(2, Gaussian(1.0))))
    claimed = delta({Poisson(rate, inside): 1}, epsilon)
    worst = true_delta((0.7, 0.7), (1.0, 1.0), epsilon, rate)
    assert worst == pytest.approx(claimed, rel=1e-2)
    for unsplit in [(0.7, -0.7), (0.7, 0.0), (0.7, 0.3), (-0.7, 0.2)]:
        for split in [(1.0, 1.0), (1.0, 0.4), (0.0, 1.0)]:
            assert true_delta(unsplit, split, epsilon, rate) < worst
