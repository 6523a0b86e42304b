"""C1, C2, C3 and the bound: against the two lemmas they are the sum of, and on a quadratic that the theorem is about."""

import json
import math

import pytest
from click.testing import CliRunner

from papers.convergence import command
from papers.theory.upcycled import upcycled_bound, upcycled_constants
from sightline.errors import InvalidInput

GRID = [(0.1, 1.0, 1.0, 1.0, 100, 1.0), (2.0, 1.5, 3.0, 2.0, 9, 0.5), (0.7, 3.0, 0.2, 0.4, 30, 4.0)]


def by_lemmas(big_l, b, mu, rho, k, lam):
    """Lemma B.1 plus Lemma B.2, term by term."""
    u, root = mu / (mu + lam), math.sqrt(2 / k)
    hat = (
        1 / mu - big_l * b / (mu**2 * rho) - big_l * b**2 / (2 * rho**2),
        (big_l**2 / (mu**2 * rho) + (big_l + mu) / mu**2 + big_l * (big_l + rho) * b / rho**2) * u,
        big_l * (big_l + rho) ** 2 / (2 * rho**2) * u**2,
    )
    tilde = (
        2 * b**2 / (k * rho**2) + (2 * big_l * b + rho) / rho * root * b / rho,
        (4 * big_l * b / (k * rho**2) + (2 * big_l * b + rho) / rho * root * big_l / rho
         + 2 * big_l * (big_l + rho) / rho * root * b / rho) * u,
        (2 / k * big_l**2 / rho**2 + 2 * big_l * (big_l + rho) / rho * root * big_l / rho) * u**2,
    )  # fmt: skip
    return hat[0] - tilde[0], hat[1] + tilde[1], hat[2] + tilde[2]


@pytest.mark.parametrize("values", GRID)
def test_they_are_the_sum_of_the_two_lemmas(values):
    names = ("smoothness", "dissimilarity", "mu", "rho", "cohort", "weight")
    found = upcycled_constants(**dict(zip(names, values, strict=True)))
    assert (found.c1, found.c2, found.c3) == pytest.approx(by_lemmas(*values))


def test_the_bound_by_hand_and_its_limit():
    found = upcycled_constants(smoothness=0.1, dissimilarity=1, mu=1, rho=1, cohort=100, weight=1)
    steady = (found.c2 * 0.5 * 2 + found.c3 * 0.25) / found.c1
    assert upcycled_bound(found, rounds=10, gap=3, move=0.5, gradient=2) == pytest.approx(0.3 / found.c1 + 1.1 * steady)
    hopeless = upcycled_constants(smoothness=10, dissimilarity=5, mu=1, rho=1, cohort=3, weight=1)
    assert upcycled_bound(hopeless, rounds=10, gap=3, move=1, gradient=1) is None


def test_it_bounds_a_real_upcycled_run_on_a_quadratic():
    """f(w) = L / 2 w^2, equal clients, everybody, exact proximal steps: the theorem's own setting (K large, B = 1)."""
    big_l, mu, lam, rounds = 0.2, 1.0, 1.0, 40
    found = upcycled_constants(smoothness=big_l, dissimilarity=1, mu=mu, rho=mu + big_l, cohort=10**6, weight=lam)
    before, squares, moves = 1.0, [], []
    for _ in range(rounds):
        after = mu * before / (mu + big_l)
        squares.append((big_l * after) ** 2)
        moves.append(abs(after - before))
        before = after + mu / (mu + lam) * (after - before)
    bound = upcycled_bound(found, rounds=rounds, gap=big_l / 2, move=max(moves), gradient=big_l)
    assert found.converges
    assert 0 < min(squares) <= bound


def test_the_command_says_the_same():
    words = "upcycled --L 0.1 --B 1 --mu 1 --rho 1 --K 100 --lambda 1".split()
    printed = json.loads(CliRunner().invoke(command, [*words, "--json"]).stdout)
    assert printed["C1"] == pytest.approx(0.660294, abs=1e-6)
    assert printed["C2"] == pytest.approx(0.636042, abs=1e-6)
    assert printed["C3"] == pytest.approx(0.0159528, abs=1e-6)
    assert printed["converges"] is True
    assert "bound" in CliRunner().invoke(command, words).stdout


@pytest.mark.parametrize("change", [{"dissimilarity": 0.5}, {"mu": 0.0}, {"cohort": -1}, {"smoothness": math.nan}])
def test_impossible_constants_are_refused(change):
    given = {"smoothness": 1.0, "dissimilarity": 1.0, "mu": 1.0, "rho": 1.0, "cohort": 9.0, "weight": 0.0} | change
    with pytest.raises(InvalidInput):
        upcycled_constants(**given)


def test_corollary_5_8_falls_as_the_root_of_the_rounds():
    """lambda_m = sqrt(m): four times the rounds halve the bound; a constant lambda leaves a floor."""
    numbers = {"smoothness": 0.1, "dissimilarity": 1.0, "mu": 1.0, "rho": 1.0, "cohort": 100.0}

    def bound(rounds, growth):
        sequence = [upcycled_constants(**numbers, weight=m**growth) for m in range(1, rounds + 1)]
        return upcycled_bound(sequence, rounds=rounds, gap=0.0, move=1.0, gradient=1.0)

    assert bound(40_000, 0.5) / bound(10_000, 0.5) == pytest.approx(0.5, abs=0.02)
    assert bound(40_000, 0.0) / bound(10_000, 0.0) == pytest.approx(1.0, abs=0.01)
    fixed = upcycled_constants(**numbers, weight=1.0)
    assert upcycled_bound(fixed, rounds=9, gap=1.0, move=1.0, gradient=1.0) == pytest.approx(
        upcycled_bound([fixed] * 9, rounds=9, gap=1.0, move=1.0, gradient=1.0)
    )
