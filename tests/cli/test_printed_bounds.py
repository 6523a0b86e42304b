"""What a person reads and types again is never less than what was computed."""

import json

import pytest
from click.testing import CliRunner

from sightline.accounting import poisson
from sightline.apps.cli.main import run_arguments, sightline


def told(*words):
    """(printed for a person by name, the numbers themselves)."""
    printed, exact = (CliRunner().invoke(sightline, [*words, *more]) for more in ([], ["--json"]))
    assert (printed.exit_code, exact.exit_code) == (0, 0), printed.output
    lines = dict(line.split(maxsplit=1) for line in printed.output.splitlines())
    return lines, json.loads(exact.output)


def test_epsilon_is_rounded_up_and_its_lower_end_down():
    """Of five numbers rounded to the nearest, some would be too small."""
    nearest = []
    for noise in ("1.1", "1.3", "1.7", "1.9", "2.3"):
        words = ("account", "poisson", "--noise", noise, "--rate", "0.1", "--steps", "50", "--delta", "1e-5")
        lines, exact = told(*words, "--interval")
        lower, upper = map(float, lines["interval"].split())
        assert exact["epsilon"] <= float(lines["epsilon"]) < exact["epsilon"] * (1 + 1e-5)
        assert lower <= exact["interval"][0]
        assert upper >= exact["interval"][1]
        nearest.append(float(f"{exact['epsilon']:.6g}") < exact["epsilon"])
    assert any(nearest)


@pytest.mark.parametrize("epsilon", ["1", "2", "3", "5", "8"])
def test_the_printed_noise_meets_the_budget(epsilon):
    words = ("calibrate", "poisson", "--rate", "0.1", "--steps", "50", "--epsilon", epsilon, "--delta", "1e-5")
    lines, exact = told(*words)
    noise = float(lines["noise_multiplier"])
    assert exact["noise_multiplier"] <= noise
    assert poisson(noise=noise, rate=0.1, steps=50).epsilon(delta=1e-5) <= float(epsilon)


def test_groups_are_rounded_up():
    words = ["groups", "--structure", "ring", "--workers", "12", "--groups", "3", "--epochs", "20", "--noise", "2.1"]
    printed, exact = (CliRunner().invoke(sightline, [*words, "--delta", "1e-5", *more]) for more in ([], ["--json"]))
    found = json.loads(exact.output)
    line = next(line for line in printed.output.splitlines() if "worst observer" in line)
    words = line.replace(",", "").split()
    assert float(words[words.index("workers") + 1]) >= found["epsilon_mean"]
    assert float(words[words.index("largest") + 1]) >= found["epsilon_max"]


def test_the_constant_of_a_published_formula_is_refused_in_one_line(capsys):
    words = "calibrate h2fdp --rate 0.05 --steps 10 --epsilon 1 --delta 1e-5 --constant 2"
    assert run_arguments(words.split()) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "no guarantee; python -m papers.published h2fdp" in line
