"""Clustered algorithms, run by the engine with all their noise, end where a naive loop ends."""

import numpy as np
import pytest

import sightline
from sightline import engine
from sightline.engine.checkpoint import load_checkpoint
from tests.oracle import clustered_naive as naive


def both(clustered, tmp_path, **changes):
    """(run, last checkpoint, the naive clients, the start)."""
    experiment = clustered(**changes)
    setting = engine.build_experiment(experiment)
    run = sightline.run(experiment, out=tmp_path / "run")
    clients = naive.Naive(
        setting.federation, seed=0, clip_norm=1.0, noise=0.8, learning_rate=0.5, batch_size=16, sharpness=1.5
    )
    return run, load_checkpoint(run.directory), clients, setting.start.numpy().astype(float)


def assert_same(run, end, models, path):
    assert [row["clusters"]["assignment"] for row in run.rounds] == path
    for m, model in enumerate(models):
        np.testing.assert_allclose(end.state[f"cluster-{m}"].value.numpy(), model, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("noisy", [{}, {"seed": 0, "data.train_samples": 90}])
def test_rdpcfl(clustered, tmp_path, noisy):
    run, end, clients, start = both(clustered, tmp_path, **noisy)
    assert_same(run, end, *naive.rdpcfl(clients, start, rounds=8, count=3, choices=2))
    hows = [row["clusters"]["how"] for row in run.rounds]
    assert hows == sorted(hows, key=["drawn", "chosen", "kept"].index)
    assert hows.count("chosen") == 2


def test_ifca(clustered, tmp_path):
    changes = {"algorithm.name": "ifca", "rounds": 6}
    run, end, clients, start = both(clustered, tmp_path, **changes)
    assert_same(run, end, *naive.ifca(clients, start, rounds=6, count=3, choices=2))


def test_oracle_clusters_are_fedavg_in_each_cluster(clustered, tmp_path):
    changes = {"algorithm": {"name": "oracle_clusters"}, "rounds": 4}
    run, end, clients, start = both(clustered, tmp_path, **changes)
    models = [start] * 3
    for time in range(1, 5):
        models = clients.train(time, [0, 0, 1, 1, 2, 2, 2], models, first_use=0)
    assert_same(run, end, models, [[0, 0, 1, 1, 2, 2, 2]] * 4)


@pytest.mark.parametrize("penalty", [0.0, 0.7])
def test_mrmtl(clustered, tmp_path, penalty):
    changes = {"topology": {"kind": "star"}, "algorithm": {"name": "mrmtl", "penalty": penalty}, "rounds": 3}
    _, end, clients, start = both(clustered, tmp_path, **changes)

    own = dict.fromkeys(range(7), start)
    for time in range(1, 4):
        centre = sum(own.values()) / 7

        def pull(w, centre=centre):
            return penalty * (w - centre)

        own = {n: clients.dp_sgd(n, time, own[n], use=0, pull=pull) for n in range(7)}
    for n, model in own.items():
        np.testing.assert_allclose(end.state[f"client-{n}"].value.numpy(), model, rtol=2e-3, atol=2e-4)
