"""A validation share: held out of training, evaluated by each client's own model, private, and nothing at all by default."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import sightline
from sightline import engine
from sightline.config import parse
from sightline.data import hold_validation, load_federation
from sightline.errors import InvalidInput
from sightline.randomness import Streams

STREAMS = Streams.from_seed(0)


def experiment(algorithm="fedavg", *, unit="sample", **data):
    clustered = {"kind": "clusters", "count": 2} if algorithm == "rdpcfl" else {"kind": "star"}
    return parse(
        {
            "rounds": 2,
            "data": {"clients": 6, "partition": "label_shift", "clusters": [2, 4]} | data,
            "algorithm": {"name": algorithm},
            "topology": clustered,
            "local": {"epochs": 1},
            "privacy": {"unit": unit} | ({} if unit == "none" else {"epsilon": 8.0}),
        }
    )


def rows_of(shard):
    return {x.tobytes() + y.tobytes() for x, y in zip(shard.x, shard.y, strict=True)}


def test_what_is_held_out_and_what_is_trained_on_are_the_training_examples():
    whole = load_federation(experiment().data, streams=STREAMS)
    parted = hold_validation(whole, 0.25, STREAMS)
    for before, after in zip(whole.clients, parted.clients, strict=True):
        assert len(after.validation) == int(np.floor(0.25 * len(before.train) + 0.5))
        assert len(after.train) + len(after.validation) == len(before.train)
        assert rows_of(after.train) | rows_of(after.validation) == rows_of(before.train)
        assert (after.test, after.cluster) == (before.test, before.cluster)
    assert parted.digest() != whole.digest()
    assert "held out" in parted.notes[-1]


def test_by_default_nothing_is_held_out():
    built = engine.build_experiment(experiment())
    assert all(client.validation is None for client in built.federation.clients)
    whole = load_federation(experiment().data, streams=STREAMS)
    assert hold_validation(whole, 0.0, STREAMS) is whole


def test_one_clients_split_does_not_depend_on_the_others():
    whole = load_federation(experiment().data, streams=STREAMS)
    few = replace(whole, clients=whole.clients[:2])
    first, second = (hold_validation(one, 0.2, STREAMS).clients[1] for one in (whole, few))
    assert np.array_equal(first.validation.x, second.validation.x)


def test_examples_at_sites_of_their_own_are_not_held_out():
    whole = load_federation(experiment().data, streams=STREAMS)
    with pytest.raises(InvalidInput, match=r"data\.validation_fraction=0\.1: the examples are at sites of their own"):
        hold_validation(replace(whole, elsewhere=True), 0.1, STREAMS)


@pytest.mark.parametrize("algorithm", ["fedavg", "mrmtl", "rdpcfl"])
def test_rounds_carry_validation_metrics_that_are_said_to_be_private(algorithm, tmp_path):
    run = sightline.run(experiment(algorithm, validation_fraction=0.25), out=tmp_path / "run", progress=False)
    last = run.rounds[-1]
    assert 0 <= last["validation_accuracy"] <= 1
    assert last["validation_loss"] > 0
    assert not [name for name in run.summary if name.startswith("validation")]
    built = engine.build_experiment(experiment(algorithm, validation_fraction=0.25))
    assert any(note.startswith("Validation metrics are of examples that clients hold out") for note in
               engine.metadata.list_caveats(built))  # fmt: skip


def test_the_metric_is_the_mean_over_clients_of_the_global_model(tmp_path):
    wanted = experiment(unit="none", validation_fraction=0.25)
    run = sightline.run(wanted, out=tmp_path / "run", progress=False)
    built = engine.build_experiment(wanted)
    model = run.model().eval()
    losses = []
    for client in built.federation.clients:
        x, y = torch.tensor(client.validation.x), torch.tensor(client.validation.y)
        losses.append(float(torch.nn.functional.cross_entropy(model(x), y).detach()))
    assert run.rounds[-1]["validation_loss"] == pytest.approx(np.mean(losses), rel=1e-5)
