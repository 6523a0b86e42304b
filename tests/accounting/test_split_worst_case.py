"""The law of a split release is the worst case, whatever a part makes of the unsplit tensors (docs/partitioning.md)."""

import math

import numpy as np
import pytest

from sightline.accounting import delta
from sightline.config import Split as SplitSettings
from sightline.data import Kind
from sightline.events import Gaussian, Poisson, Product, Split
from sightline.models import build_model, split_model

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


RATE, UNSPLIT, EPSILONS = 0.5, 0.7, (0.2, 1.0)
NOISE = np.random.default_rng(0).standard_normal((100_000, 5))


def sampled_deltas(weights, moves, epsilon):
    """Return (deltas, standard errors) of both directions: E_P (1 - e^eps / L)+ and E_Q (1 - e^eps L)+.

    With probability weights[k] the subject moves the five coordinates by moves[k]; the noise is one.
    """
    weights, moves = np.array(weights) / sum(weights), np.array(moves)

    def losses(noise, sign):
        inside = np.exp(noise @ moves.T - (moves**2).sum(1) / 2) @ weights
        return np.maximum(1 - np.exp(epsilon - sign * np.log(1 - RATE + RATE * inside)), 0.0)

    ahead = (1 - RATE) * losses(NOISE, 1)
    for weight, move in zip(weights, moves, strict=True):
        ahead += RATE * weight * losses(NOISE + move, 1)
    both = np.array([ahead, losses(NOISE, -1)])
    return both.mean(1), both.std(1) / math.sqrt(len(NOISE))


def claimed_delta(parts, epsilon):
    inside = Product((Gaussian(1 / UNSPLIT), Split(parts, Gaussian(1.0))))
    return delta({Poisson(RATE, inside): 1}, epsilon)


def claimed_parts(ways, **weights):
    """Return d of the code for partitions of six tensors into `ways` parts each."""
    model = build_model("mlp", input_shape=(3,), classes=2, kind=Kind.VECTOR, settings={"hidden": [4, 4, 4]})
    names = [f"{layer}.{word}" for layer in ("hidden0", "hidden1", "hidden2") for word in ("weight", "bias")]
    parts = [[names[part::count] for part in range(count)] for count in ways]
    settings = SplitSettings.model_validate({"parts": parts, **weights})
    return split_model(model, settings, rng=np.random.default_rng(0)).parts


def moves_of(*axes, unsplit=None):
    """One move per part: full length along the sum of its axes, and along the unsplit coordinate 4."""
    moves = np.zeros((len(axes), 5))
    for row, own in zip(moves, axes, strict=True):
        row[list(own)] = 1 / math.sqrt(len(own))
    moves[:, 4] = UNSPLIT if unsplit is None else unsplit
    return moves


APART = moves_of([0], [1], [2], [3])
PAIRS, CROSSED = moves_of([0, 1], [2, 3]), moves_of([0, 2], [1, 3])
TURNED = moves_of([0, 2], [1, 3], unsplit=[-UNSPLIT, 0.1])
DRAWS = {
    "one half": ((5, 2, 2, 1), APART, [4], {"part_weights": [0.5, 0.2, 0.2, 0.1]}, 2),
    "above one third": ((4, 3, 2, 1), APART, [4], {"part_weights": [0.4, 0.3, 0.2, 0.1]}, 2),
    "above one half": ((9, 1), PAIRS, [2], {"part_weights": [9, 1]}, 1),
    "crossed partitions": ((7, 7, 3, 3), np.vstack([PAIRS, CROSSED]), [2, 2], {"partition_weights": [0.7, 0.3]}, 2),
    "partitions alike": ((7, 7, 3, 3), np.vstack([PAIRS, PAIRS]), [2, 2], {"partition_weights": [0.7, 0.3]}, 2),
    "unsplit by part": ((7, 7, 3, 3), np.vstack([PAIRS, TURNED]), [2, 2], {"partition_weights": [0.7, 0.3]}, 2),
    "two parts or four": ((18, 18, 1, 1, 1, 1), np.vstack([PAIRS, APART]), [2, 4], {"partition_weights": [9, 1]}, 2),
}  # fmt: skip
MORE_WOULD_BE_WRONG = ("above one half", "partitions alike", "two parts or four")


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("case", DRAWS)
def test_weighted_draws_and_mixtures_cost_at_most_what_the_fewest_equal_parts_do(case, epsilon):
    weights, moves, ways, settings, parts = DRAWS[case]
    assert claimed_parts(ways, **settings) == parts
    found, error = sampled_deltas(weights, moves, epsilon)
    assert found[0] <= claimed_delta(parts, epsilon) + 4 * error[0]
    equal, _ = sampled_deltas((1,) * parts, APART[:parts], epsilon)
    assert (found <= equal + 4 * error).all(), "in each direction, with the same noise"
    if case in MORE_WOULD_BE_WRONG:
        assert found[0] > claimed_delta(parts + 1, epsilon) + 4 * error[0], "the comparison finds no wrong count"
