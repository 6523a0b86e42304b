"""The mean of the models of all rounds: what it is, and that it does nothing to the ledger."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import sightline
from sightline.algorithms import REGISTRY
from sightline.algorithms.wrappers import wrap_average
from sightline.errors import InvalidInput
from sightline.mechanisms import Public


def left(run):
    return (run.directory / "model.safetensors").read_bytes(), [release.body() for release in run.ledger]


def test_nothing_kept_is_the_last_model_bit_for_bit(tiny, tmp_path):
    plain = sightline.run(tiny(), out=tmp_path / "plain")
    last = sightline.run(tiny(algorithm={"name": "fedavg", "average": 0.0}), out=tmp_path / "last")
    assert left(plain) == left(last)


@pytest.mark.parametrize("name", ["fedavg", "fedavgm", "scaffold"])
def test_a_mean_releases_and_sends_nothing(tiny, tmp_path, name):
    plain = sightline.run(tiny(algorithm={"name": name}), out=tmp_path / "plain")
    mean = sightline.run(tiny(algorithm={"name": name, "average": 0.5}), out=tmp_path / "mean")
    assert left(plain)[1] == left(mean)[1]
    assert left(plain)[0] != left(mean)[0]
    for key in ("epsilon", "releases", "uplink_floats", "rounds_done"):
        assert plain.summary[key] == mean.summary[key]
    assert "made of what was released" in mean.report.read_text()


class Walk:
    """A round in which the model becomes what the test says."""

    def __init__(self, time):
        self.time, self.clients = time, range(1)


def test_weights_fall_by_the_decay_and_add_up_to_one():
    values = np.random.default_rng(0).normal(size=(6, 3))
    moved = replace(
        REGISTRY["fedavg"],
        round=lambda state, r, settings: {"model": Public(torch.tensor(values[r.time - 1]), frozenset({r.time}))},
    )
    averaged = wrap_average(moved, 0.8)
    state = averaged.init(Public(torch.full((3,), 1e9, dtype=torch.float64)), range(1), None)
    for time in range(1, 7):
        state = averaged.round(state, Walk(time), None)
        weights = 0.8 ** np.arange(time)[::-1]
        expected = weights @ values[:time] / weights.sum()
        found = averaged.models(state, range(1))
        np.testing.assert_allclose(found.value.numpy(), expected, atol=1e-12 if time > 1 else 1e-7)
    assert set(found.sources) == set(range(1, 7))  # it carries the releases of all of them


def test_a_resumed_run_has_the_same_mean(tiny, tmp_path):
    settings = tiny(rounds=4, algorithm={"name": "fedavgm", "average": 0.7})
    whole = sightline.run(settings, out=tmp_path / "whole")

    def stop(row):
        if row["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sightline.run(settings, out=tmp_path / "broken", on_round=stop)
    again = sightline.run(settings, out=tmp_path / "broken", resume=True)
    assert left(again) == left(whole)


@pytest.mark.parametrize("decay", [1.0, -0.1, True, "much"])
def test_a_decay_is_a_share(tiny, decay):
    with pytest.raises(InvalidInput, match=r"algorithm\.average"):
        sightline.run(tiny(algorithm={"name": "fedavg", "average": decay}))


def test_many_models_are_not_averaged(tiny):
    with pytest.raises(InvalidInput, match="many models"):
        sightline.run(tiny(algorithm={"name": "local", "average": 0.5}, privacy={"unit": "none"}))
