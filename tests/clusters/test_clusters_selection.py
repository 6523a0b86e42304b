"""Private choices: frequencies against the exact softmax, and the guarantee by brute force over all neighbours."""

import itertools

import numpy as np
import pytest
from scipy.special import log_softmax, softmax
from scipy.stats import chisquare

import sightline
from sightline.accounting import epsilon
from sightline.errors import InvalidInput
from sightline.events import Adjacency, Clear, Exponential, Unit
from sightline.mechanisms import choice_sharpness, draw_choice


def exponents(k, eps, unit, adjacency, examples):
    return choice_sharpness(eps, unit=unit, adjacency=adjacency, examples=examples) * np.asarray(k, float)


@pytest.mark.parametrize("right", [(3, 3), (10, 4, 7), (0, 0, 1, 5), (2,)])
def test_frequencies_are_those_of_the_softmax(right):
    """Chi-square at level 1e-9: one false alarm in a billion seeds."""
    rng = np.random.default_rng(5)
    drawn = [draw_choice(right, sharpness=0.3, rng=rng) for _ in range(40_000)]
    counts = np.bincount(drawn, minlength=len(right))
    if len(right) > 1:
        assert chisquare(counts, 40_000 * softmax(0.3 * np.array(right, float))).pvalue > 1e-9
    assert counts.sum() == 40_000


def neighbours(models, unit, adjacency, examples):
    """Pairs of scores that one subject can make of each other, for every vector of right answers."""
    if unit is Unit.CLIENT:
        everything = list(itertools.product(range(examples + 1), repeat=models))
        others = everything if adjacency is Adjacency.REPLACE else [(0,) * models]
        return itertools.product(everything, others)
    lows = range(examples)
    one = list(itertools.product((0, 1), repeat=models))
    moves = [tuple(a - b for a, b in zip(new, old, strict=True)) for new in one for old in one]
    moves = moves if adjacency is Adjacency.REPLACE else one
    return (
        (k, tuple(a + b for a, b in zip(k, move, strict=True)))
        for k in itertools.product(lows, repeat=models)
        for move in moves
    )


@pytest.mark.parametrize("unit", [Unit.SAMPLE, Unit.CLIENT])
@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("models", [2, 3])
def test_no_neighbour_moves_any_probability_by_more(unit, adjacency, models):
    """Both sides of the claim: epsilon-DP, and a range of log ratios of at most epsilon, which gives epsilon^2/8-zCDP."""
    eps, examples = 0.7, 4
    worst = widest = 0.0
    for one, other in neighbours(models, unit, adjacency, examples):
        logs = [log_softmax(exponents(k, eps, unit, adjacency, examples)) for k in (one, other)]
        ratio = logs[0] - logs[1]
        worst, widest = max(worst, np.abs(ratio).max()), max(widest, np.ptp(ratio))
    assert worst <= eps * (1 + 1e-12)
    assert widest <= eps * (1 + 1e-12)
    assert widest > 0.99 * eps


def test_the_event_covers_the_exact_divergence_of_many_choices():
    """A composition of choices, accounted, against the exact hockey-stick divergence of the worst pair, by enumeration."""
    eps, times, delta = 0.5, 6, 1e-3
    first, second = softmax([eps, 0.0, 0.0]), softmax([0.0, 0.0, 0.0])
    bound = epsilon({Exponential(eps): times}, delta)
    p = q = np.ones(1)
    for _ in range(times):
        p, q = np.outer(p, first).ravel(), np.outer(q, second).ravel()
    for a, b in ((p, q), (q, p)):
        assert np.maximum(a - np.exp(bound) * b, 0).sum() <= delta


def test_choices_stand_in_the_ledger_of_their_choosers(clustered, tmp_path):
    run = sightline.run(clustered(), out=tmp_path / "run")
    choices = [release for release in run.ledger if isinstance(release.event, Exponential)]
    assert len(choices) == 2 * 7
    for release in choices:
        assert release.event == Exponential(1.5)
        assert release.subjects == {release.source}
        assert release.audience == {"server"}
        assert release.inputs


def test_without_privacy_the_best_model_is_chosen_in_the_clear(clustered, tmp_path):
    run = sightline.run(clustered(privacy={"unit": "none"}), out=tmp_path / "run")
    assert run.summary["epsilon"] is None
    assert run.summary["clusters"]["purity"] == 1.0
    assert {type(release.event) for release in run.ledger if release.subjects} == {Clear}


@pytest.mark.parametrize("given", [-1.0, 0.0, float("nan"), "much", True])
def test_strange_epsilons_are_refused(clustered, given):
    with pytest.raises(InvalidInput, match="selection_epsilon"):
        sightline.engine.build_experiment(clustered(**{"algorithm.selection_epsilon": given}))
