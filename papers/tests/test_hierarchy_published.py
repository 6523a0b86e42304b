"""Proposition 3.1 is a calculator with a notice, and what it prints is not enough."""

import json

import pytest

from papers.published import NOTICE, command, h2fdp_noise
from sightline import accounting
from sightline.apps.cli.main import run_arguments
from sightline.errors import InvalidInput
from sightline.mechanisms import segment_rate


def test_the_printed_noise_costs_more_than_it_says():
    printed = h2fdp_noise(rate=0.05, steps=800, epsilon=1.0, delta=1e-5)
    assert printed == pytest.approx(2 * 0.05 * (800 * 11.512925) ** 0.5, rel=1e-6)
    really = accounting.poisson(noise=printed, rate=segment_rate(0.05, 5), steps=800).epsilon(delta=1e-5)
    assert really > 2.5


def test_a_segments_rate_by_counting():
    """Every way in which m batches can draw an example or not, summed."""
    q, m = 0.3, 4
    drawn = sum(
        q ** bin(ways).count("1") * (1 - q) ** (m - bin(ways).count("1")) for ways in range(2**m) if ways
    )  # fmt: skip
    assert segment_rate(q, m) == pytest.approx(drawn, rel=1e-12)


def test_the_command_prints_the_true_cost_with_the_notice(capsys):
    words = "h2fdp --rate 0.05 --segment 5 --steps 100 --epsilon 2 --delta 1e-5 --json"
    assert run_arguments(words.split(), command) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["costs"] > 2
    assert answer["notice"] == NOTICE


@pytest.mark.parametrize("wrong", [{"rate": 0.0}, {"epsilon": -1.0}, {"delta": 1.0}, {"steps": 0}])
def test_nonsense_is_refused(wrong):
    with pytest.raises(InvalidInput):
        h2fdp_noise(**{"rate": 0.05, "steps": 10, "epsilon": 1.0, "delta": 1e-5} | wrong)
