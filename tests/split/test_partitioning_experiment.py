"""The partitioning reproduction: figures are judged by their numbers, tables by their runs."""

import json
from pathlib import Path

import pytest

from experiments.partitioning.claims import NOISE, claims
from experiments.partitioning.training.__main__ import PARTS
from sightline import accounting


def runs(gain: float):
    accuracy = {"baseline": 0.5, "published": 0.5 + gain, "ours": 0.6}
    return [
        {"table": "table1", "source": "cifar10", "method": method, "parts": 3, "accuracy": value}
        for method, value in accuracy.items()
    ]


def test_the_gain_of_amplification_is_judged(tmp_path: Path):
    for gain, verdict in ((0.02, "reproduced"), (-0.02, "not reproduced")):
        found = [claim for claim in claims(runs(gain), tmp_path) if claim.result == "Table 1, 3 submodels, CIFAR-10"]
        assert [claim.verdict for claim in found] == [verdict]


def test_a_figure_is_judged_by_its_numbers(tmp_path: Path):
    for poisson, verdict in (([1e-6, 1e-4], "not reproduced"), ([1e-4, 1e-3], "reproduced")):
        curves = {
            "Poisson, moments": [[60, 70], poisson],
            "balanced (3)": [[60, 70], [1e-7, 1e-6 if verdict == "reproduced" else 1e-4]],
        }
        (tmp_path / "figure_4.json").write_text(json.dumps([curves]))
        found = [claim for claim in claims([], tmp_path) if claim.result == "Figure 4"]
        assert [claim.verdict for claim in found] == [verdict]


@pytest.mark.parametrize("claim", NOISE[:3], ids=lambda claim: claim.result)
def test_the_noise_that_is_enough_costs_eight(claim):
    words = claim.command.split()
    option = {name: float(words[words.index(f"--{name}") + 1]) for name in ("parts", "rate", "steps", "noise")}
    scheme = accounting.split(
        noise=option["noise"], parts=int(option["parts"]), rate=option["rate"], steps=int(option["steps"]),
        unsplit_noise=option["noise"],
    )  # fmt: skip
    assert 7.99 < scheme.epsilon(delta=1e-5) <= 8
    assert f"ours {option['noise'] / 5000 * 1e4:.3f}e-4" in claim.here


def test_every_cell_has_a_key_of_its_own():
    keys = [cell.key for part in PARTS.values() for cell in part()]
    assert len(set(keys)) == len(keys) == 42 + 21 + 6
