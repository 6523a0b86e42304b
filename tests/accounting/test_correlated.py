"""Correlated noise against whole matrices, every participation, exact fractions, quadrature, and another library."""

import json
import math
import tomllib
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline import accounting
from sightline.accounting import (
    Strategy,
    charge_stream,
    charge_turns,
    compute_errors,
    compute_sensitivity,
    error_rows,
    make_strategy,
    measure_gain,
    redo_multiplier,
)
from sightline.accounting.strategies import (
    column_norm,
    divide_by_strategy,
    invert_strategy,
    make_buffers,
    weigh_coefficients,
)
from sightline.apps.cli.account import account_command as account
from sightline.apps.cli.account import calibrate_command as calibrate
from sightline.errors import InvalidInput, Refused
from sightline.events import Gaussian, Poisson
from tests.oracle.correlated_dense import (
    dense_matrix,
    exact_square,
    largest_move,
    largest_row,
    sampled_delta,
    stream_bands,
    stream_buffers,
)

GOLDEN = tomllib.loads((Path(__file__).parents[1] / "golden" / "correlated.toml").read_text())
Z8 = 0.6002292
"""The noise multiplier of one Gaussian at (8, 1e-5)."""


def cases(kind):
    return [pytest.param(row, id=f"{row['steps']}-{row['separation']}-{row['uses']}") for row in GOLDEN[kind]]


def turns_of(row):
    return {"separation": row["separation"], "uses": row["uses"]}


@pytest.mark.parametrize("row", cases("row"))
def test_golden_values_of_the_design(row):
    turns = turns_of(row)
    bsr = make_strategy("bsr", steps=row["steps"], **turns)
    assert compute_sensitivity(bsr, **turns) == pytest.approx(row["sensitivity"], abs=1e-6)
    assert compute_errors(bsr) == pytest.approx((row["mean"], row["max"]), abs=1e-6)
    assert measure_gain(bsr, **turns) == pytest.approx(row["gain"], abs=6e-4)
    band = make_strategy("band", steps=row["steps"], **turns)
    assert measure_gain(band, **turns) == pytest.approx(row["optimised_gain"], abs=6e-4)
    found = accounting.SCHEMES["correlated"].calibrated({"steps": row["steps"], **turns}, epsilon=8.0, delta=1e-5)
    assert found.noise_multiplier == pytest.approx(row["noise"], abs=1e-5)
    assert found.events[0][0].noise_multiplier == pytest.approx(Z8, rel=2e-6)


def test_golden_values_of_a_whole_square_root_and_of_buffers():
    root = make_strategy("bsr", steps=64, separation=64, uses=1)
    assert compute_sensitivity(root, separation=64, uses=1) == pytest.approx(1.54559, abs=5e-6)
    assert compute_errors(root) == pytest.approx((2.08111, 2.38885), abs=5e-6)
    buffers = make_buffers((0.25, 0.25), (0.95, 0.6), steps=64)
    assert compute_sensitivity(buffers, separation=16, uses=4) == pytest.approx(3.3875745, abs=1e-6)
    assert compute_errors(buffers) == pytest.approx((2.3568286, 3.1211347), abs=1e-6)
    stream = accounting.correlated(noise=2.5, steps=100, separation=10, uses=10)
    assert stream.epsilon(delta=1e-5) == pytest.approx(8.1567, abs=5e-5)


@pytest.mark.parametrize("row", cases("peer"))
def test_another_library_finds_the_same(row):
    turns = turns_of(row)
    bsr = make_strategy("bsr", steps=row["steps"], **turns)
    assert compute_sensitivity(bsr, **turns) == pytest.approx(row["sensitivity"], rel=1e-12)
    assert compute_errors(bsr) == pytest.approx((row["mean"], row["max"]), rel=1e-11)
    for name, key in (("band", "optimised"), ("blt", "buffers")):
        if key in row:
            found = make_strategy(name, steps=row["steps"], **turns)
            rms = math.sqrt(compute_errors(found)[0]) * compute_sensitivity(found, **turns)
            assert rms <= row[key] * (1 + 1e-6)


def test_the_other_library_itself():
    """Where jax_privacy is installed; the golden values above were computed by it."""
    toeplitz = pytest.importorskip("jax_privacy.matrix_factorization.toeplitz", reason="pip install jax_privacy")
    numbers = pytest.importorskip("jax.numpy")
    turns = {"separation": 7, "uses": 5}
    for name in ("bsr", "band"):
        found = make_strategy(name, steps=40, bands=6, **turns)
        column = numbers.array(found.coefficients)
        squared = toeplitz.minsep_sensitivity_squared(column, 7, 5, n=40)
        assert compute_sensitivity(found, **turns) == pytest.approx(float(squared) ** 0.5, rel=1e-5)
        rows = np.array(toeplitz.per_query_error(strategy_coef=column, n=40))
        assert error_rows(found) == pytest.approx(rows, rel=1e-4)
    theirs = toeplitz.optimize_banded_toeplitz(40, 6)
    squared = float(toeplitz.minsep_sensitivity_squared(theirs, 7, 5, n=40))
    error = float(numbers.mean(toeplitz.per_query_error(strategy_coef=theirs, n=40)))
    ours = compute_sensitivity(found, **turns) ** 2 * compute_errors(found)[0]
    assert ours <= 1.01 * squared * error


monotone = st.lists(st.floats(0, 1), min_size=0, max_size=8).map(lambda one: (1.0, *sorted(one, reverse=True)))


@settings(max_examples=60, deadline=None)
@given(column=monotone, more=st.integers(0, 3), separation=st.integers(2, 5), uses=st.integers(1, 5))
def test_the_sensitivity_is_the_largest_over_every_participation(column, more, separation, uses):
    steps = min(len(column) + more, 10)
    strategy = Strategy("band", steps, column[:steps], min(len(column), steps))
    found = compute_sensitivity(strategy, separation=separation, uses=uses)
    matrix = dense_matrix(strategy.coefficients, steps)
    assert found == pytest.approx(largest_move(matrix, separation, uses), rel=1e-12)
    assert Fraction(found) ** 2 >= exact_square(strategy.coefficients, steps, separation, uses)
    again = redo_multiplier(strategy, separation=separation, uses=uses)
    assert again == pytest.approx(largest_row(matrix, separation, uses), rel=1e-12)
    moved = matrix[:, 0]
    assert Fraction(column_norm(strategy)) ** 2 >= sum(Fraction(one) ** 2 for one in moved)


@settings(max_examples=30, deadline=None)
@given(column=monotone, seed=st.integers(0, 2**32 - 1), separation=st.integers(2, 4))
def test_updates_in_other_directions_only_lower_it(column, seed, separation):
    rng, steps = np.random.default_rng(seed), len(column) + 2
    strategy = Strategy("band", steps, column, len(column))
    sums = np.zeros((steps, 3))
    for time in range(int(rng.integers(separation)), steps, separation):
        direction = rng.standard_normal(3)
        sums[time] = direction / np.linalg.norm(direction)
    moved = np.linalg.norm(dense_matrix(column, steps) @ sums)
    assert moved <= compute_sensitivity(strategy, separation=separation, uses=steps)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(
    weights=st.tuples(st.floats(0, 0.5), st.floats(0, 0.5)),
    decays=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    steps=st.integers(2, 11),
    separation=st.integers(2, 6),
    uses=st.integers(1, 6),
)
def test_buffers_are_monotone_and_bounded_too(weights, decays, steps, separation, uses):
    strategy = make_buffers(weights, decays, steps=steps)
    found = compute_sensitivity(strategy, separation=separation, uses=uses)
    matrix = dense_matrix(strategy.coefficients, steps)
    assert found == pytest.approx(largest_move(matrix, separation, uses), rel=1e-12)
    assert Fraction(found) ** 2 >= exact_square(strategy.coefficients, steps, separation, uses)


@pytest.mark.parametrize("uses", [3, 150])
def test_the_bound_of_long_streams_is_not_below_exact_fractions(uses):
    for strategy in (
        make_strategy("bsr", steps=300, separation=2, uses=uses, bands=200),
        make_buffers((0.3, 0.2), (0.999, 0.7), steps=300),
    ):
        found = Fraction(compute_sensitivity(strategy, separation=2, uses=uses)) ** 2
        exact = exact_square(strategy.coefficients, 300, 2, uses)
        assert exact <= found <= exact * (1 + Fraction(1, 10**11))


def test_coefficients_that_rise_are_refused_because_the_formula_is_wrong_for_them():
    column = (1.0, 0.0, 0.0, 0.9, 0.0, 0.0, 0.0, 0.0)
    matrix = dense_matrix(column, 8)
    assert np.linalg.norm(matrix[:, [0, 2]].sum(1)) == pytest.approx(1.90263, abs=1e-5)
    assert largest_move(matrix, 2, 2) == pytest.approx(2.32809, abs=1e-5)
    with pytest.raises(Refused, match=r"coefficients\[3\]=0.9: coefficients must not rise"):
        Strategy("band", 8, column, 8)


def every_strategy():
    turns = {"steps": 40, "separation": 8, "uses": 5}
    yield make_strategy("bsr", **turns)
    yield make_strategy("bsr", bands=40, **turns)
    yield make_strategy("band", **turns)
    yield make_strategy("blt", **turns)
    yield make_buffers((0.4, 0.1, 0.3), (0.9, 0.2, 0.99), steps=40)


@pytest.mark.parametrize(
    "strategy", list(every_strategy()), ids=lambda one: f"{one.name}-{one.bands}-{len(one.weights)}"
)
def test_errors_and_noise_are_those_of_the_whole_matrices(strategy):
    matrix = dense_matrix(strategy.coefficients, 40)
    inverse = np.linalg.inv(matrix)
    assert invert_strategy(strategy) == pytest.approx(inverse[:, 0], abs=1e-12)
    momentum = [(1 - 0.9 ** (lag + 1)) / (1 - 0.9) for lag in range(40)]
    for workload in (None, momentum):
        rows = ((dense_matrix(workload or [1.0] * 40, 40) @ inverse) ** 2).sum(1)
        assert error_rows(strategy, workload) == pytest.approx(rows, rel=1e-12)
        assert compute_errors(strategy, workload) == pytest.approx((rows.mean(), rows.max()), rel=1e-12)
    rows = np.random.default_rng(3).standard_normal((40, 5))
    dense = np.linalg.solve(matrix, rows)
    assert stream_bands(strategy.coefficients, rows) == pytest.approx(dense, abs=1e-12)
    assert divide_by_strategy(strategy, rows[:, 0]) == pytest.approx(dense[:, 0], abs=1e-12)
    if strategy.weights:
        assert stream_buffers(strategy.weights, strategy.decays, rows) == pytest.approx(dense, abs=1e-12)


def test_the_gradient_of_the_search_is_that_of_its_cost():
    rng = np.random.default_rng(1)
    column = np.append(1.0, np.sort(rng.random(6))[::-1])
    workload = rng.random(30)
    _, slope = weigh_coefficients(column, 30, 4, 5, workload)
    for place in range(1, 7):
        step = np.zeros(7)
        step[place] = 1e-6
        up, down = (weigh_coefficients(column + sign * step, 30, 4, 5, workload)[0] for sign in (1, -1))
        assert slope[place] == pytest.approx((up - down) / 2e-6, rel=1e-6, abs=1e-8)


def test_what_is_optimised_is_better_and_is_found_again():
    turns = {"separation": 10, "uses": 10}
    bsr, band, again = (make_strategy(name, steps=100, **turns) for name in ("bsr", "band", "band"))
    assert band == again
    assert measure_gain(band, **turns) > 1.02 * measure_gain(bsr, **turns)
    momentum = [(1 - 0.95 ** (lag + 1)) / (1 - 0.95) for lag in range(100)]
    adapted = make_strategy("band", steps=100, workload=momentum, **turns)
    assert measure_gain(adapted, workload=momentum, **turns) > measure_gain(band, workload=momentum, **turns)
    assert measure_gain(adapted, **turns) < measure_gain(band, **turns)


def test_hidden_draws_cost_what_quadrature_says_and_only_with_few_bands():
    """Four rounds, two groups: with two bands the draws reach disjoint rows; with three they would not."""
    noise, rate, delta = 1.5, 0.4, 1e-3
    bsr = make_strategy("bsr", steps=4, separation=2, uses=2, bands=2)
    event, times = charge_turns(bsr, noise=noise, groups=2, rate=rate)
    assert times == 2
    epsilon = accounting.epsilon({event: times}, delta)
    columns = dense_matrix(bsr.coefficients, 4)[:, [0, 2]].T
    truth = sampled_delta(*columns, noise=noise, rate=rate, epsilon=epsilon)
    assert truth <= delta <= 1.01 * truth
    wide = make_strategy("bsr", steps=4, separation=2, uses=2, bands=4)
    norm = column_norm(wide)
    columns = dense_matrix(wide.coefficients, 4)[:, [0, 2]].T
    epsilon = accounting.epsilon({Poisson(rate, Gaussian(noise / norm)): 2}, delta)
    assert sampled_delta(*columns, noise=noise, rate=rate, epsilon=epsilon) > 1.5 * delta
    with pytest.raises(Refused, match=r"groups=2: hidden draws amplify privacy only .* bsr has 4 bands"):
        charge_turns(wide, noise=noise, groups=2, rate=rate)


@pytest.mark.parametrize(("steps", "groups", "times"), [(100, 10, 10), (101, 10, 11), (9, 10, 1), (20, 7, 3)])
def test_every_turn_of_a_group_is_charged(steps, groups, times):
    bsr = make_strategy("bsr", steps=steps, separation=groups, uses=1)
    _, charged = charge_turns(bsr, noise=1.0, groups=groups, rate=0.5)
    assert charged == times == max(len(range(first, steps, groups)) for first in range(groups))


def test_draws_that_are_sure_cost_the_stream():
    """Rate one is no sampling: as many Gaussians as turns are the one of the stream, up to the last, shorter columns."""
    bsr = make_strategy("bsr", steps=100, separation=10, uses=10)
    event, times = charge_turns(bsr, noise=2.5, groups=10, rate=1.0)
    whole = charge_stream(bsr, noise=2.5, separation=10, uses=10).noise_multiplier
    assert event.event.noise_multiplier / math.sqrt(times) == pytest.approx(whole, rel=1e-12)
    plain = accounting.correlated(noise=2.5, steps=100, separation=10, uses=10)
    hidden = accounting.correlated(noise=2.5, steps=100, separation=10, uses=10, rate=0.5)
    assert hidden.epsilon(delta=1e-5) < plain.epsilon(delta=1e-5)
    assert hidden.measure_gain() == pytest.approx(plain.measure_gain(), rel=1e-9)


@pytest.mark.parametrize(
    ("numbers", "law"),
    [
        ({"separation": 1}, "separation=1: a client that takes part in every round gains nothing"),
        ({"bands": 1}, "bands=1: one band is independent noise"),
        ({"bands": 41}, "bands=41: must be a whole number from 2 to the number of steps"),
        ({"strategy": "blt", "bands": 4}, "bands=4: does not apply to strategy"),
        ({"strategy": "blt", "rate": 0.5}, "groups=8: hidden draws amplify privacy only .* blt has unlimited bands"),
        ({"bands": 20, "rate": 0.5}, "groups=8: hidden draws amplify privacy only .* bsr has 20 bands"),
        ({"strategy": "tree"}, "strategy=tree: unknown strategy"),
        ({"noise": 0.0}, "noise=0.0: noise must be positive"),
        ({"noise": math.inf}, "noise=inf"),
        ({"uses": 0}, "uses=0"),
        ({"steps": 10_000_000}, "steps=10000000: must be a whole number from 1"),
        ({"rate": 1.5}, "rate=1.5"),
        ({"rate": 0.0}, "rate=0.0"),
    ],
)
def test_what_has_no_bound_or_no_gain_is_refused(numbers, law):
    plain = {"noise": 1.0, "steps": 40, "separation": 8, "uses": 5}
    with pytest.raises(InvalidInput, match=law):
        accounting.correlated(**plain | numbers)


@pytest.mark.parametrize(
    ("column", "law"),
    [
        ((0.9, 0.5), r"coefficients\[0\]=0.9"),
        ((1.0, -0.1), "not be negative"),
        ((1.0, math.nan), "not be negative"),
        ((1.0, 0.5, 0.6), "rise"),
        ((1.0,) * 5, r"len\(coefficients\)=5"),
        ((), r"len\(coefficients\)=0"),
    ],
)
def test_columns_that_are_no_strategy_are_refused(column, law):
    with pytest.raises(InvalidInput, match=law):
        Strategy("band", 4, column, len(column))


def test_buffers_that_do_not_belong_to_the_coefficients_are_refused():
    with pytest.raises(InvalidInput, match="weights w and decays t generate"):
        Strategy("blt", 3, (1.0, 0.5, 0.2), None, (0.5,), (0.5,))
    with pytest.raises(Refused, match="weights"):
        make_buffers((1.2,), (0.5,), steps=4)
    with pytest.raises(Refused, match="rise"):
        make_buffers((0.8, 0.8), (0.5, 0.4), steps=4)
    for workload in ([1.0] * 3, [0.0] * 4, [math.inf] * 4):
        with pytest.raises(InvalidInput, match="workload"):
            make_strategy("band", steps=4, separation=2, uses=2, workload=workload)


def asked(command, *words):
    result = CliRunner().invoke(command, [*words, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_commands_print_what_the_library_says():
    turns = "--steps 100 --separation 10 --uses 10".split()
    found = asked(account, "correlated", "--noise", "2.5", *turns, "--delta", "1e-5")
    assert found["epsilon"] == pytest.approx(8.1567, abs=5e-5)
    assert found["sensitivity"] == pytest.approx(4.232427, abs=1e-6)
    assert (found["mean_squared_error"], found["max_squared_error"]) == pytest.approx((5.156537, 9.143911), abs=1e-6)
    assert found["gain"] == pytest.approx(2.338, abs=6e-4)
    assert found["noise_std"] == 2.5
    assert found["stream_multiplier"] == pytest.approx(2.5 / 4.232427, rel=1e-6)
    assert found["events"] == [
        {"times": 1, "event": {"kind": "gaussian", "noise_multiplier": found["stream_multiplier"]}}
    ]
    derived = asked(account, "correlated", "--noise", "2.5", *turns[:4], "--delta", "1e-5")
    assert derived == found
    budget = asked(calibrate, "correlated", *turns, "--epsilon", "8", "--delta", "1e-5", "--strategy", "blt")
    assert budget["epsilon"] <= 8
    assert budget["noise_std"] == pytest.approx(Z8 * budget["sensitivity"], rel=2e-6)
    assert len(budget["weights"]) == len(budget["decays"])
    hidden = asked(account, "correlated", "--noise", "2.5", *turns, "--rate", "0.5", "--delta", "1e-5")
    assert hidden["epsilon"] < found["epsilon"]
    assert hidden["turns"] == hidden["events"][0]["times"] == 10


def test_with_hidden_draws_every_turn_of_the_group_is_charged():
    whole = {"steps": 100, "separation": 10, "rate": 0.5, "noise": 2.5}
    ((event, times),) = accounting.correlated(**whole, uses=10).events
    assert times == 10
    assert event.rate == 0.5
    with pytest.raises(Refused, match="all 10 turns of its group"):
        accounting.correlated(**whole, uses=3)
