"""A free step after every round: what it does to the model, and that it does nothing to the ledger."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import sightline
from sightline.algorithms import REGISTRY
from sightline.algorithms.wrappers import Upcycle, wrap_upcycle
from sightline.errors import InvalidInput
from sightline.mechanisms import Public

ALL = ["fedavg", "fedavgm", "fedprox", "scaffold", "feddyn", "pfedme", "fedadagrad", "fedadam", "fedyogi"]
NONE = {"privacy": {"unit": "none"}}


def left(run):
    ledger = [release.body() for release in run.ledger]
    return (run.directory / "model.safetensors").read_bytes(), ledger


@pytest.mark.parametrize("name", [*ALL, "local"])
def test_u_zero_is_the_algorithm_bit_for_bit(tiny, tmp_path, name):
    plain = sightline.run(tiny(**{"algorithm.name": name}, **NONE), out=tmp_path / "plain")
    zero = sightline.run(tiny(algorithm={"name": name, "upcycle": 0.0}, **NONE), out=tmp_path / "zero")
    assert left(plain) == left(zero)


@pytest.mark.parametrize("name", ALL)
def test_the_free_step_releases_and_sends_nothing(tiny, tmp_path, name):
    plain = sightline.run(tiny(algorithm={"name": name}), out=tmp_path / "plain")
    upcycled = sightline.run(tiny(algorithm={"name": name, "upcycle": 0.5}), out=tmp_path / "upcycled")
    assert left(plain)[1] == left(upcycled)[1]
    assert left(plain)[0] != left(upcycled)[0]
    for key in ("epsilon", "releases", "uplink_floats", "rounds_done"):
        assert plain.summary[key] == upcycled.summary[key]
    assert "costs no privacy" in upcycled.report.read_text()


def test_at_equal_iterations_it_halves_releases_traffic_and_spends_less(tiny, tmp_path):
    plain = sightline.run(tiny(rounds=8), out=tmp_path / "plain").summary
    upcycled = sightline.run(tiny(rounds=4, algorithm={"name": "fedavg", "upcycle": 0.5}), out=tmp_path / "up").summary
    assert 2 * upcycled["releases"] == plain["releases"]
    assert 2 * upcycled["uplink_floats"] == plain["uplink_floats"]
    assert upcycled["epsilon"] < plain["epsilon"]


def test_a_calibrated_run_of_an_algorithm_with_memory_meets_its_target(tiny, tmp_path):
    target = {"privacy": {"unit": "client", "epsilon": 3.0}}
    for name in ("scaffold", "feddyn", "pfedme"):
        run = sightline.run(tiny(algorithm={"name": name, "upcycle": 0.5}, **target), out=tmp_path / name)
        assert 2.99 < run.epsilon <= 3.0


def test_without_a_model_of_its_own_it_is_refused_before_anything_is_released():
    mixed = replace(REGISTRY["fedavg"], models=lambda state, clients: 1.0 * state["model"])
    with pytest.raises(InvalidInput, match="no single model to update"):
        wrap_upcycle(mixed, Upcycle.read(0.5)).init(Public(torch.zeros(2)), range(3), None)


def test_u_by_hand():
    assert Upcycle.read(0.7).u(9) == 0.7
    assert Upcycle.read({"mu": 0.5, "lambda": 1.5}).u(9) == 0.25
    grown = [Upcycle.read({"mu": 1, "lambda": 1, "growth": 0.5}).u(m) for m in (1, 4, 100)]
    np.testing.assert_allclose(grown, [1 / 2, 1 / 3, 1 / 11])


@pytest.mark.parametrize(
    ("given", "law"),
    [
        (-0.1, "number >= 0"),
        ("a", "number >= 0"),
        (True, "number >= 0"),
        (float("inf"), "number >= 0"),
        ({"mu": 1.0}, "lambda"),
        ({"mu": 0.0, "lambda": 1.0}, "positive"),
        ({"mu": 1.0, "lamda": 1.0}, 'did you mean "lambda"'),
        ({"mu": 1.0, "lambda": -1.0}, "number >= 0"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(given, law):
    with pytest.raises(InvalidInput, match=law) as caught:
        Upcycle.read(given)
    assert "\n" not in str(caught.value)
