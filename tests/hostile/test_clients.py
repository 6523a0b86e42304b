"""Hostile clients of the simulator: a user's own data or model that breaks training breaks nobody else's guarantee."""

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import sightline
from sightline.config import parse
from sightline.errors import InvalidInput

CLIENTS = 6
PRIVACY = {"unit": "client", "noise_multiplier": 1.0, "clip_norm": 0.4, "delta": 1e-3}
TREE = {"kind": "tree", "subnets": [2, 1, 3], "trusted": ["edge-0", "edge-1"]}
PLACES = {
    "central": {"privacy": PRIVACY},
    "local": {"privacy": PRIVACY | {"where": "client"}},
    "edge": {"privacy": PRIVACY | {"where": "edge"}, "topology": TREE},
}


def people(*, clients, rng, bad="", who=1):
    """Clients of whom one has examples that no training survives."""
    worst = {"": 1.0, "huge": 1e30, "zero": 0.0, "large": 3e38}[bad]
    for number in range(clients):
        scale = worst if number == who else 1.0
        x = np.clip(rng.standard_normal((12, 4)) * scale, -3e38, 3e38).astype(np.float32)
        yield x, rng.integers(0, 2, 12), rng.standard_normal((2, 4)).astype(np.float32), rng.integers(0, 2, 2)


class Poisoned(torch.nn.Module):
    """A model whose gradient is not a number."""

    def __init__(self, input_shape, classes, fill=float("nan")):
        super().__init__()
        self.layer, self.fill = torch.nn.Linear(input_shape[0], classes), fill

    def forward(self, x):
        return self.layer(x) * self.fill if self.training else self.layer(x)


def poisoned(input_shape, classes):
    return Poisoned(input_shape, classes)


def wrong_shape(input_shape, classes):
    return torch.nn.Linear(input_shape[0], classes + 1)


def halves(input_shape, classes):
    return torch.nn.Linear(input_shape[0], classes).double()


def experiment(place, *, bad="", model="linear"):
    return parse(
        {
            "rounds": 2,
            "data": {"source": "tests.hostile.test_clients:people", "clients": CLIENTS, "partition": "natural",
                     "classes": 2, "options": {"bad": bad}},
            "model": {"name": model},
            "local": {"epochs": 1, "batch_size": 4, "learning_rate": 1e6 if bad else 0.1},
            "sampling": {"clients": {"scheme": "full"}},
        }
        | PLACES[place]
    )  # fmt: skip


def seen(run):
    tensors = load_file(run.directory / "model.safetensors")
    assert all(np.isfinite(value).all() for value in tensors.values())
    return [release.body() for release in run.ledger], run.epsilon


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("bad", ["huge", "large", "zero"])
def test_a_client_that_breaks_its_training_breaks_nobody_elses_guarantee(bad, place, tmp_path):
    honest = sightline.run(experiment(place), out=tmp_path / "honest")
    run = sightline.run(experiment(place, bad=bad), out=tmp_path / "bad")
    assert seen(run) == seen(honest)
    assert run.summary["rounds_done"] == 2
    assert bool(run.summary["rejected_updates"]) == (bad != "zero")


@pytest.mark.parametrize("place", PLACES)
def test_a_model_that_trains_to_nothing_counts_as_zeros(place, tmp_path):
    honest = sightline.run(experiment(place), out=tmp_path / "honest")
    run = sightline.run(experiment(place, model="tests.hostile.test_clients:poisoned"), out=tmp_path / "bad")
    assert seen(run) == seen(honest)
    assert run.summary["rejected_updates"] == 2 * CLIENTS


@pytest.mark.parametrize("model", ["wrong_shape", "halves"])
def test_a_model_of_another_shape_or_type_is_one_line_before_anything_runs(model, tmp_path):
    with pytest.raises(InvalidInput) as caught:
        sightline.run(experiment("central", model=f"tests.hostile.test_clients:{model}"), out=tmp_path / "bad")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "bad").exists()
