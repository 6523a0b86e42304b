"""Theorem 4.3: against the formula written out in one piece, and on quadratics that the theorem is about."""

import json
import math

import pytest
from click.testing import CliRunner

from papers.convergence import command
from papers.theory.hierarchy import (
    Hierarchy,
    corrected_terms,
    deviation_path,
    model_dispersion,
    privacy_noise,
    published_terms,
)
from sightline import accounting
from sightline.errors import InvalidInput

PAPER = {
    "smoothness": 2.0, "clip_norm": 1.5, "sgd_noise": 0.3, "between": 0.7, "within": 0.4, "devices": (5.0, 3.0, 8.0),
    "trusted": 0.5, "tau": 12, "local_aggregations": 3, "rounds": 40, "parameters": 100, "rate": 0.1, "epsilon": 2.0,
    "delta": 1e-5, "gap": 1.7, "c2": 1.1, "v2": 0.9,
}  # fmt: skip


def in_one_piece(beta, G, sigma, zeta, zeta_c, s, p, tau, K_l, K_g, M, q, eps, delta, gap, gamma, c2, v2):
    """Equation (33) and Proposition 4.2, symbol by symbol."""
    N = len(s)
    x = [p * c2**2 / n**2 + (1 - p) * v2**2 / n for n in s]
    grow = (1 + 2 * gamma * beta) ** (tau - 1) + 1
    B1 = (2 * sigma + zeta_c) ** 2 * grow**2
    B2 = 0.0
    for n in range(N):
        front = 2 * tau * G * q * math.sqrt(M * K_l * math.log(1 / delta)) / (eps * N)
        inside = front * (math.sqrt(sum(x)) + N * math.sqrt(x[n])) + 2 * B1 + 2 * sigma + zeta
        B2 += (inside * grow + 2 * B1 + 2 * sigma + zeta) ** 2 / N
    B2 *= (1 + gamma * beta) ** (2 * (tau - 1))
    a1 = 2 * gamma * gap / (tau * math.sqrt(K_g + 1))
    a2 = beta * gamma / math.sqrt(K_g + 1) * (beta * tau * (B1 + B2) + G**2 + tau * sigma**2)
    b = 4 * tau * (K_l**3 + 1) * M * q**2 * G**2 * math.log(1 / delta) / (N**2 * eps**2) * sum(x)
    return a1, a2, b, B1, B2


@pytest.mark.parametrize("change", [{}, {"trusted": 0.0}, {"trusted": 1.0, "devices": (4.0,)}, {"gamma": 0.001}])
def test_the_terms_are_the_papers(change):
    h = Hierarchy(**PAPER | change)
    whole = in_one_piece(
        h.smoothness, h.clip_norm, h.sgd_noise, h.between, h.within, h.devices, h.trusted, h.tau, h.local_aggregations,
        h.rounds, h.parameters, h.rate, h.epsilon, h.delta, h.gap, h.step, h.c2, h.v2,
    )  # fmt: skip
    found = published_terms(h)
    assert (found.a1, found.a2, found.b, *model_dispersion(h)) == pytest.approx(whole, rel=1e-12)
    assert found.bound == pytest.approx(sum(whole[:3]))


def descent(h, start):
    """The theorem's own run without any noise: F = beta / 2 w^2, tau steps of eta_k an interval."""
    w, squares, gaps = start, [], []
    for k in range(h.rounds):
        squares.append((h.smoothness * w) ** 2)
        gaps.append(h.smoothness / 2 * w**2)
        for _ in range(h.tau):
            w -= h.step / math.sqrt(k + 1) * h.smoothness * w
    return sum(squares) / len(squares), max(gaps)


def test_as_printed_it_is_no_bound_and_corrected_it_is():
    """Short steps hardly move, so the mean gradient stays; the printed first term vanishes with gamma."""
    for gamma in (1e-6, 1e-4, None):
        h = Hierarchy(**PAPER | {"sgd_noise": 0.0, "between": 0.0, "within": 0.0, "c2": 0.0, "v2": 0.0, "gamma": gamma,
                                 "clip_norm": 2.0})  # fmt: skip
        mean, gap = descent(h, start=1.0)
        h = Hierarchy(**{**vars(h), "gap": gap})
        assert mean <= corrected_terms(h).bound
        if gamma == 1e-6:
            assert mean > 1000 * published_terms(h).bound


def test_the_constant_is_the_accountants():
    h = Hierarchy(**PAPER | {"c2": None, "v2": None})
    rate, segments = 0.1, 120
    sigma_over_delta = h.at_edges * 0.1 * math.sqrt(segments * math.log(1e5)) / 2.0  # eq. (15)
    spent = accounting.segment(noise=sigma_over_delta, steps=4, rate=rate, segments=segments).epsilon(delta=1e-5)
    assert 0.999 * 2.0 < spent <= 2.0
    assert h.at_devices == h.at_edges


def test_more_trust_and_larger_subnets_mean_less_noise():
    noise = [privacy_noise(Hierarchy(**PAPER | {"trusted": p, "v2": 1.1})) for p in (0.0, 0.5, 1.0)]
    assert noise[0] > noise[1] > noise[2]
    many, large = ((5.0,) * 10, (25.0,) * 2)
    same = {"trusted": 1.0, "v2": 1.1}
    assert privacy_noise(Hierarchy(**PAPER | same | {"devices": large})) < privacy_noise(
        Hierarchy(**PAPER | same | {"devices": many})
    )


WORDS = "h2fdp --beta 2 --G 1.5 --sigma 0.3 --zeta 0.7 --zeta-c 0.4 --rate 0.1 --subnets 3 --devices 5,3,8 --tau 12 \
--local-aggregations 3 --rounds 40 --parameters 100 --epsilon 2 --gap 1.7 --c2 1.1 --v2 0.9".split()


def test_the_command_says_the_same():
    printed = json.loads(CliRunner().invoke(command, [*WORDS, "--json"]).stdout)
    found, right = published_terms(Hierarchy(**PAPER)), corrected_terms(Hierarchy(**PAPER))
    assert (printed["a1"], printed["a2"], printed["b"], printed["bound"]) == (found.a1, found.a2, found.b, found.bound)
    assert printed["bound_corrected"] == right.bound
    text = CliRunner().invoke(command, WORDS).stdout
    assert {line.split()[0] for line in text.splitlines()} == set(printed)


@pytest.mark.parametrize("change", [{"gamma": 1.0}, {"smoothness": 0.0}, {"trusted": 1.5}, {"devices": (0.5,)}, {"rate": 0.0},
                                    {"delta": 1.0}, {"tau": 0}, {"gap": math.nan}, {"devices": ()}, {"c2": -1.0}])  # fmt: skip
def test_impossible_constants_are_refused(change):
    with pytest.raises(InvalidInput):
        Hierarchy(**PAPER | change)


@pytest.mark.parametrize("words", [["--devices", "5,3"], ["--devices", "five"], ["--subnets", "0"]])
def test_impossible_sizes_are_refused(words):
    assert isinstance(CliRunner().invoke(command, [*WORDS, *words]).exception, InvalidInput)


def test_lemma_41_follows_its_recursion_by_hand():
    """Two subnets, tau = 4, an aggregation after two steps: every number written out."""
    h = Hierarchy(**PAPER | {"devices": (2.0, 4.0), "tau": 4, "local_aggregations": 2, "gamma": 0.01, "trusted": 0.25})
    eta, beta, sigma, z = 0.01, h.smoothness, h.sgd_noise, h.noise_multiplier
    first = eta * (2 * sigma + h.within)
    drift = eta * (2 * beta * first + 2 * sigma + h.between)
    spread = [(2 * z * eta * 2 * h.clip_norm) ** 2 * (0.25 / s**2 + 0.75 / s) for s in (2, 4)]
    shared = math.sqrt(h.parameters * sum(spread)) / 2
    one = drift
    two = [(1 + 2 * eta * beta) * one + drift + shared + math.sqrt(h.parameters * v) for v in spread]
    three = [(1 + eta * beta) * was + eta * beta * sum(two) / 2 + drift for was in two]
    path = deviation_path(h)
    assert path == [pytest.approx(row) for row in ((first, one), (0.0, max(two)), (first, max(three)))]
    assert deviation_path(h, as_printed=True)[0][1] == pytest.approx(
        eta * (2 * beta * first**2 + 2 * sigma + h.between)
    )
