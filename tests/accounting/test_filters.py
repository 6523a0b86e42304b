"""Filters: valid when each experiment is chosen after the results before it; rules that are not, shown by an attacker."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from sightline import accounting
from sightline.accounting import GaussianBound, GaussianFilter, RenyiFilter
from sightline.accounting.compositions import canonical_form
from sightline.accounting.filters import (
    DeltaCurve,
    bound_delta_curve,
    gaussian_bounds,
    gaussian_curve,
    gaussian_strength,
)
from sightline.errors import InvalidInput
from sightline.events import Allocation, Clear, Exponential, Gaussian, Poisson, Pure, Split, WithoutReplacement
from tests.commands import program

EPSILON, DELTA = 8.0, 1e-5
LOSSES = np.linspace(-12.0, 20.0, 32_001)
WEIGHTS = np.exp(-LOSSES * LOSSES / 2) / math.sqrt(2 * math.pi) * (LOSSES[1] - LOSSES[0])


def gaussian_delta(mu, epsilon):
    """Balle and Wang's formula as it stands; holds at negative epsilons too."""
    return ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)


def bounds_of(events, most_d0=1e-6):
    return gaussian_bounds(tuple(sorted(canonical_form(events).items(), key=repr)), most_d0)


# golden values: design note "accounting", section 5.5


@pytest.mark.parametrize(("epsilon", "mu"), [(8.0, 1.666031), (1.0, 0.268051)])
def test_golden_strengths(epsilon, mu):
    found = gaussian_strength(epsilon, 1e-5)
    assert found == pytest.approx(mu, abs=6e-7)
    assert gaussian_delta(found, epsilon) <= 1e-5 < gaussian_delta(found * (1 + 1e-6), epsilon)


@pytest.mark.parametrize(("order", "budget"), [(8, 6.785891), (16, 7.481849)])
def test_golden_renyi_budgets(order, budget):
    assert RenyiFilter(8.0, 1e-5, order).budget == pytest.approx(budget, abs=6e-7)


def test_golden_reduction():
    curve = bound_delta_curve({Poisson(0.1, Gaussian(2.05)): 1000}, 1e-8)
    found = curve.least_bound(1e-7)
    assert 1.66825 <= found.mu <= 1.6685
    assert 8.004 < accounting.GaussianFilter(8.0, 1e-5).spent_epsilon([found]) < 8.025


# the Gaussian that dominates


def test_gaussians_alone_cost_exactly_their_strength():
    (found,) = bounds_of({Gaussian(2.0): 4, Gaussian(0.5): 1})
    assert math.sqrt(5) <= found.mu <= math.sqrt(5) * (1 + 1e-11)
    assert found.d0 == 0
    assert bounds_of({}) == (GaussianBound(0.0),)


@pytest.mark.parametrize("mu", [1e-4, 0.1, 1.0, 5.0, 12.0])
def test_a_gaussian_given_as_a_curve_comes_back(mu):
    epsilons = np.linspace(0, mu * mu / 2 + 6 * mu, 20_000)
    curve = DeltaCurve(epsilons, np.append(gaussian_delta(mu, epsilons)[:-1], 0.0))
    assert mu * (1 - 1e-9) <= curve.least_bound(1e-12).mu <= mu * 1.001


def test_between_the_points_of_a_coarse_grid_nothing_is_assumed():
    """The worst law with these deltas keeps each of them until the next point."""
    epsilons = np.array([0.0, 0.5, 1.0, 2.0, 4.0, 6.0])
    curve = DeltaCurve(epsilons, np.append(gaussian_delta(1.0, epsilons[:-1]), 1e-8))
    found = curve.least_bound(1e-7)
    fine = np.linspace(0, 6, 5000, endpoint=False)
    worst = curve.deltas[np.searchsorted(epsilons, fine, side="right") - 1]
    assert np.all(worst <= found.d0 + (1 - found.d0) * gaussian_delta(found.mu, fine) + 1e-15)
    assert curve.least_bound(1e-9) is None  # above the last point delta may be 1e-8 for ever


def test_the_curve_of_a_gaussian_is_rounded_down():
    epsilons = np.linspace(0, 40, 2001)
    for mu in (1e-5, 0.01, 1.0, 8.0, 30.0):
        exact = np.exp(log_ndtr(mu / 2 - epsilons / mu)) - np.exp(epsilons + log_ndtr(-mu / 2 - epsilons / mu))
        found = gaussian_curve(mu, epsilons)
        near = exact > 1e-12
        assert np.all(found[near] <= exact[near] * (1 + 1e-9) + 1e-15)
        assert found[near] == pytest.approx(exact[near], rel=1e-3)


def sampled_delta(epsilon, mu, rate, forward):
    """delta of one sampled Gaussian, exactly: one threshold on the output."""
    threshold = np.exp(epsilon if forward else -epsilon)
    ratio = (threshold - 1 + rate) / rate
    with np.errstate(divide="ignore", invalid="ignore"):
        at = np.where(ratio > 0, np.log(np.maximum(ratio, 1e-300)) / mu + mu / 2, -np.inf)
    if forward:  # P(x > at) - e^eps Q(x > at)
        return (1 - rate) * ndtr(-at) + rate * ndtr(mu - at) - np.exp(epsilon) * ndtr(-at)
    return ndtr(at) - np.exp(epsilon) * ((1 - rate) * ndtr(at) + rate * ndtr(at - mu))


def twice_sampled_delta(epsilons, mu, rate, forward):
    """delta of two of them: the second one's at epsilon less the loss of the first, averaged by quadrature."""
    loss = np.log1p(rate * np.expm1(mu * LOSSES[::8] - mu * mu / 2))
    weight = 8 * WEIGHTS[::8] * (np.exp(loss) if forward else 1)
    first = loss if forward else -loss
    return np.array([np.dot(weight, sampled_delta(e - first, mu, rate, forward)) for e in epsilons])


@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.1), (0.6, 0.02), (2.0, 0.7)])
def test_the_gaussian_dominates_the_composed_law_at_every_epsilon(noise, rate):
    """Both directions; and hardly less would do in one of them."""
    epsilons = np.concatenate([np.linspace(0, 1, 60) ** 2, np.linspace(1.01, 9, 60)])
    exact = np.maximum(*(twice_sampled_delta(epsilons, 1 / noise, rate, forward) for forward in (True, False)))
    bounds = bounds_of({Poisson(rate, Gaussian(noise)): 2}, 1e-4)
    assert len(bounds) == 6
    for bound in bounds:
        assert np.all(exact <= bound.d0 + (1 - bound.d0) * gaussian_delta(bound.mu, epsilons) + 1e-13)
        assert np.any(exact > bound.d0 + (1 - bound.d0) * gaussian_delta(0.995 * bound.mu, epsilons))


EXPERIMENTS = [
    {Pure(0.5): 3},
    {Exponential(0.3): 50, Poisson(0.1, Gaussian(3.0)): 100},
    {WithoutReplacement(10, 100, Gaussian(3.0)): 20},
    {Allocation(40, 7, Gaussian(3.0)): 1},
    {Split(3, Gaussian(3.0)): 10, Gaussian(5.0): 2},
    {Poisson(1e-6, Gaussian(2.0)): 1},
]


@pytest.mark.parametrize("events", EXPERIMENTS, ids=str)
def test_every_kind_of_event_is_dominated(events):
    bounds = bounds_of(events)
    assert bounds
    for epsilon in (0.0, 0.3, 1.0, 2.5, 4.0):
        delta = accounting.delta(events, epsilon)
        for bound in bounds[:: len(bounds) - 1 or 1]:
            claimed = gaussian_delta(bound.mu, epsilon) if bound.mu else 0.0
            assert delta <= (bound.d0 + (1 - bound.d0) * claimed) * (1 + 1e-3)


def test_without_noise_there_is_none_and_rare_events_cost_their_chance():
    assert bounds_of({Clear(): 1, Gaussian(9.0): 1}) == ()
    assert GaussianFilter(8.0, 1e-5).price({Clear(): 1}) is None
    rare = GaussianFilter(8.0, 1e-5).price({Poisson(1e-8, Gaussian(1e-3)): 10})
    assert (rare.mu, rare.d0) == (0.0, pytest.approx(1e-7))
    assert GaussianFilter(8.0, 1e-5).price({Poisson(1e-6, Gaussian(1e-3)): 10}) is None


# what is admitted

COSTS = st.lists(
    st.builds(GaussianBound, st.floats(0, 0.2) | st.floats(0, 1.2), st.sampled_from([0.0, 1e-8, 3e-7, 1e-6, 6e-6])),
    max_size=8,
)


@settings(max_examples=200, deadline=None, phases=[Phase.generate])
@given(costs=COSTS, epsilon=st.floats(0.1, 12), share=st.sampled_from([0.01, 0.1, 0.5]))
def test_nothing_is_admitted_that_the_direct_formula_refuses(costs, epsilon, share):
    budget = GaussianFilter(epsilon, 1e-5, share)
    mu, d0 = math.sqrt(sum(one.mu**2 for one in costs)), sum(one.d0 for one in costs)
    if budget.admits(costs):
        assert d0 + (gaussian_delta(mu, epsilon) if mu else 0.0) <= 1e-5
        assert budget.spent_epsilon(costs) <= epsilon * (1 + 1e-6)
        assert all(budget.admits(costs[:count]) for count in range(len(costs)))


def test_a_budget_can_be_filled_to_its_limit():
    budget = GaussianFilter(8.0, 1e-5)
    noise = 1 / budget.most_mu * (1 + 1e-9)
    assert budget.price({Gaussian(2 * noise): 4}) is not None
    assert budget.price({Gaussian(2 * noise): 5}) is None
    assert budget.most_mu == pytest.approx(gaussian_strength(8.0, 0.9e-5), rel=1e-9)


def test_what_is_chosen_fits_beside_what_is_spent():
    budget, events = GaussianFilter(8.0, 1e-5), {Poisson(0.1, Gaussian(4.0)): 300}
    alone = budget.price(events)
    assert 0 < alone.d0 / budget.most_d0 <= alone.mu**2 / budget.most_mu**2
    nearly = GaussianBound(0.1, budget.most_d0 * 0.999)
    beside = budget.price(events, [nearly])
    assert beside.d0 < alone.d0
    assert beside.mu > alone.mu
    assert budget.price(events, [GaussianBound(1.65)]) is None


@pytest.mark.parametrize("changed", [{"epsilon": 0.0}, {"epsilon": math.inf}, {"delta": 0.0}, {"failures": 0.0}])
def test_what_is_no_budget_is_refused(changed):
    with pytest.raises(InvalidInput):
        GaussianFilter(**({"epsilon": 1.0, "delta": 1e-5} | changed))


def test_a_bound_that_is_no_number_is_refused():
    for mu, d0 in ((math.nan, 0.0), (-1.0, 0.0), (1.0, math.nan), (1.0, 1.5)):
        with pytest.raises(InvalidInput):
            GaussianBound(mu, d0)


# Renyi


def test_the_renyi_filter_adds_divergences_of_the_worse_direction():
    budget = RenyiFilter(8.0, 1e-5, order=8)
    assert budget.price({Gaussian(2.0): 3})[0] == pytest.approx(8 * 3 / 8)
    price, missing = budget.price({Poisson(0.2, Gaussian(1.0)): 10})
    ratio = 0.8 + 0.2 * np.exp(LOSSES - 0.5)
    assert price == pytest.approx(10 * math.log(np.dot(WEIGHTS, ratio**8)) / 7, rel=1e-6)
    assert price >= 10 * math.log(np.dot(WEIGHTS, ratio**-7.0)) / 7
    assert missing <= budget.most_missing
    likely = 1 / (1 + math.exp(-2.0))  # the mean of two ratios e^2 or e^-2: here backward is the worse direction
    ratios, chances = np.exp([2.0, -2.0]), np.array([1 - likely, likely])
    mean, chance = (ratios[:, None] + ratios) / 2, chances[:, None] * chances
    forward, backward = (math.log((chance * mean**power).sum()) / 7 for power in (8, -7.0))
    assert forward < backward <= budget.price({Split(2, Pure(2.0)): 1})[0] < 1.2 * backward
    assert budget.admits([(budget.budget * (1 - 1e-9), 0.0)])
    assert not budget.admits([(budget.budget / 2, 0.0), (budget.budget / 2 * (1 + 1e-9), 0.0)])
    assert not budget.admits([(0.0, 1e-5)])
    assert budget.admits([])
    assert not budget.admits([budget.price({Clear(): 1})])


@pytest.mark.parametrize("order", [1, 2.5, 10**6])
def test_an_order_is_fixed_and_whole(order):
    with pytest.raises(InvalidInput, match="must be a whole number from 2"):
        RenyiFilter(8.0, 1e-5, order=order)


# an attacker who looks at the first result and takes the best of what is still allowed


def reached_delta(first_mu, options):
    """The delta that is reached: `options` are functions of the first loss, each the delta of one second choice."""
    loss = first_mu * first_mu / 2 + first_mu * LOSSES  # under P
    return float(np.dot(WEIGHTS, np.max([option(loss) for option in options], axis=0)))


def failing(d0, base=lambda loss: np.maximum(-np.expm1(EPSILON - loss), 0)):
    return lambda loss: d0 + (1 - d0) * base(loss)


def second_gaussian(mu):
    return lambda loss: gaussian_delta(mu, EPSILON - loss)


@pytest.mark.parametrize(("share", "reached"), [(0.5, 1.7547e-5), (0.8, 1.9676e-5)])
def test_every_list_passes_is_no_valid_rule(share, reached):
    """Each of both lists costs 1e-5 exactly; so do all sums with d0 + G_mu <= delta, when one limit is for both."""
    whole = brentq(lambda mu: gaussian_delta(mu, EPSILON) - DELTA, 0.1, 5)
    first = share * whole
    rest, left = math.sqrt(whole**2 - first**2), DELTA - gaussian_delta(first, EPSILON)
    for option in (failing(left), second_gaussian(rest)):
        assert reached_delta(first, [option]) == pytest.approx(DELTA, rel=1e-6)
    assert reached_delta(first, [failing(left), second_gaussian(rest)]) == pytest.approx(reached, rel=1e-4)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8, 0.95])
def test_the_filter_holds_against_the_same_attacker(share):
    budget = GaussianFilter(EPSILON, DELTA)
    first = share * budget.most_mu
    rest = second_gaussian(math.sqrt(budget.most_mu**2 - first**2))
    everything = [failing(budget.most_d0), rest, failing(budget.most_d0, rest)]
    assert 0.99 * DELTA < reached_delta(first, everything) <= DELTA


ORDERS = np.concatenate([np.arange(1.05, 20, 0.05), np.arange(20, 400, 1.0)])
ROOM = EPSILON - np.log(1 / (ORDERS * DELTA)) / (ORDERS - 1) - np.log(1 - 1 / ORDERS)


def rare_loss(rate, height):
    """log P and log Q of a pair that shows, with chance `rate`, a loss of `height`, and else nearly nothing."""
    q = rate * math.exp(-height)
    return np.log([rate, 1 - rate]), np.log([q, 1 - q])


def divergence(one, other):
    exponents = ORDERS[:, None] * one[None, :] + (1 - ORDERS)[:, None] * other[None, :]
    return np.logaddexp.reduce(exponents, axis=1) / (ORDERS - 1)


def largest_rare(height, room):
    """The most frequent such release that fits at some order."""

    def left(log_rate):
        p, q = rare_loss(math.exp(log_rate), height)
        return np.max(room - np.maximum(divergence(p, q), divergence(q, p)))

    return rare_loss(math.exp(brentq(left, -60, -1e-6)), height)


def second_rare(p, q):
    def option(loss):
        return sum(math.exp(p[i]) * np.maximum(-np.expm1(EPSILON - loss - (p[i] - q[i])), 0) for i in range(2))

    return option


def test_some_order_still_fits_is_no_valid_rule():
    squared = 0.1 * brentq(lambda v: np.max(ROOM - ORDERS * v / 2), 0.1, 10)
    room = ROOM - ORDERS * squared / 2
    options = [second_rare(*largest_rare(height, room)) for height in np.arange(3.0, 12.0, 0.5)]
    assert max(reached_delta(math.sqrt(squared), [option]) for option in options) <= DELTA
    assert reached_delta(math.sqrt(squared), options) > 1.5 * DELTA


def test_at_one_order_the_same_attacker_stays_within_delta():
    order = int(np.argmin(np.abs(ORDERS - 8)))
    only = np.where(np.arange(len(ORDERS)) == order, ROOM, -np.inf)
    squared = 0.1 * 2 * ROOM[order] / ORDERS[order]
    options = [second_rare(*largest_rare(height, only - ORDERS * squared / 2)) for height in np.arange(3.0, 12.0, 0.5)]
    assert reached_delta(math.sqrt(squared), options) <= DELTA


def test_the_example_of_the_docs_runs(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "accounting.md").read_text()
    program(re.search(r"```python\n([^`]*GaussianFilter.*?)```", page, re.DOTALL)[1], tmp_path)
