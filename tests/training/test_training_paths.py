"""The exact paths of private steps: per-example gradients by grouped convolutions."""

import sys
import types

import numpy as np
import pytest
import torch
import training_oracle as oracle
from test_training_equals_oracle import CASES, close, gather, model_of, shard_of
from torch import nn

from sightline.data import Kind
from sightline.models import build_model
from sightline.training import LocalWork, clipped_gradient_sum, dp_sgd, train_local
from sightline.training.clipping import Balls, clipped_rows, clipped_rows_apart
from sightline.training.dispatch import worker_for
from sightline.training.dp_sgd_settings import DPSGDSettings
from sightline.training.fast import chains
from sightline.training.fast.chains import ChainWorker, GroupedConvolution, ProductConvolution
from sightline.training.gradients import one_by_one
from sightline.training.local_work import Paths

RNG = np.random.default_rng
GROUPED = Paths(record="grouped")
SHAPE = (2, 7, 9)
CHAINS = {
    "strided": lambda: [nn.Conv2d(2, 6, 3, stride=2, padding=1, bias=False), nn.ReLU(), nn.Conv2d(6, 3, (3, 2), stride=(1, 2)), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3)],
    "padded": lambda: [nn.Conv2d(2, 5, 4, padding=(2, 3)), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(5, 4, 3, padding=2, stride=3, bias=False), nn.Flatten(), nn.Linear(24, 3, bias=False)],
    "deep": lambda: [nn.Conv2d(2, 8, 1), nn.Conv2d(8, 7, 3), nn.ReLU(), nn.Conv2d(7, 2, (1, 3), padding=(0, 1)), nn.Flatten(), nn.Linear(70, 3)],
}  # fmt: skip


@pytest.fixture(params=CHAINS)
def chain(request, monkeypatch):
    module = types.ModuleType("odd_chains")
    module.make = lambda **_: nn.Sequential(*CHAINS[request.param]())
    monkeypatch.setitem(sys.modules, "odd_chains", module)
    return build_model("odd_chains:make", input_shape=SHAPE, classes=3, kind=Kind.IMAGE, settings={})


def grouped(model):
    worker = worker_for(model, "grouped")
    assert type(worker) is ChainWorker
    assert any(isinstance(layer, GroupedConvolution | ProductConvolution) for layer in worker.layers)
    return worker


def clipped(worker, vector, x, y, clip, views=1):
    worker.weights.copy_(vector)
    worker.clipped_sum(worker.inputs(x), torch.from_numpy(y), clip, views=views)
    return worker.gradient.clone()


def rows_of(model, vector, x, y):
    module = oracle.load(model.module(), vector)
    return one_by_one(module, model, vector, torch.from_numpy(x), torch.from_numpy(y))


def test_grouped_gradients_are_those_of_every_example_alone(chain):
    shard, vector = shard_of(chain, 7, RNG(0)), 2 * chain.init(RNG(1))
    rows = rows_of(chain, vector, shard.x, shard.y)
    worker = grouped(chain)
    for clip_norm in (0.1, 1e4):
        found = clipped(worker, vector, shard.x, shard.y, clip_norm)
        torch.testing.assert_close(found, clipped_rows(rows, clip_norm), rtol=1e-3, atol=1e-5)
    for radii in ((0.4, 0.1), (1e4, 0.02)):
        balls = Balls(radii, {slot.name: place % 2 for place, slot in enumerate(chain.layout)})
        expected = clipped_rows_apart(rows, balls, chain.layout)
        found = clipped(worker, vector, shard.x, shard.y, balls)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


def test_views_chunks_and_broken_examples(chain, monkeypatch):
    worker, vector = grouped(chain), 2 * chain.init(RNG(1))
    shard = shard_of(chain, 12, RNG(0))
    labels = np.repeat(shard.y[:4], 3)
    means = rows_of(chain, vector, shard.x, labels).view(4, 3, -1).mean(1)
    found = clipped(worker, vector, shard.x, shard.y[:4], 0.2, views=3)
    torch.testing.assert_close(found, clipped_rows(means, 0.2), rtol=1e-3, atol=1e-5)
    whole = clipped(worker, vector, shard.x, shard.y, 0.2)
    monkeypatch.setattr(worker, "per_chunk", 5)
    torch.testing.assert_close(clipped(worker, vector, shard.x, shard.y, 0.2), whole)
    bad = shard.x.copy()
    bad[1, 0, 2, 2], bad[7] = np.nan, np.inf
    keep = np.delete(np.arange(12), [1, 7])
    good = clipped(worker, vector, shard.x[keep], shard.y[keep], 0.2)
    torch.testing.assert_close(clipped(worker, vector, bad, shard.y, 0.2), good)
    assert torch.equal(clipped(worker, vector * torch.nan, shard.x, shard.y, 0.2), torch.zeros_like(vector))


@pytest.mark.parametrize("case", ["cnn", "cnn_small", "cnn_3x3"])
def test_one_example_moves_a_grouped_sum_by_at_most_the_clip_norm(case):
    model, rng = model_of(case), RNG(0)
    shard, vector, worker = shard_of(model, 8, rng), 3 * model.init(rng), grouped(model)
    for clip_norm in (0.01, 0.5):
        whole = clipped(worker, vector, shard.x, shard.y, clip_norm)
        for j in range(8):
            rest = np.delete(np.arange(8), j)
            without = clipped(worker, vector, shard.x[rest], shard.y[rest], clip_norm)
            assert float((whole - without).norm()) <= clip_norm * (1 + 1e-5)
        one = clipped(worker, vector, shard.x[:1], shard.y[:1], 1e-4)
        assert float(one.double().norm()) <= 1e-4


def private(model, shard, paths, **changes):
    how = {"clip_norm": 0.5, "noise_std": [0.5], "sample_rates": [0.5], "steps": [3], "divisors": [4.0],
           "sampling_rngs": [RNG(1)], "noise_rngs": [RNG(2)]}  # fmt: skip
    blocks = dp_sgd(model, model.init(RNG(3)), [shard], LocalWork(0.1, paths=paths), DPSGDSettings(**how | changes))
    return gather(blocks, 1, model.parameters)[0]


def test_dp_sgd_takes_the_record_that_its_work_names(monkeypatch):
    model = model_of("cnn")
    shard, asked = shard_of(model, 9, RNG(0)), []
    exact = private(model, shard, Paths())
    monkeypatch.setattr(GroupedConvolution, "record", spy(asked, GroupedConvolution.record))
    by_rule = clipped_gradient_sum(model, model.init(RNG(3)), shard.x, shard.y, clip_norm=0.5)
    assert torch.equal(private(model, shard, Paths()), exact)
    assert asked == []
    close(private(model, shard, GROUPED), exact, model.init(RNG(3)))
    assert asked
    assert torch.equal(clipped_gradient_sum(model, model.init(RNG(3)), shard.x, shard.y, clip_norm=0.5), by_rule)


def spy(asked, real):
    def seen(self, *given):
        asked.append(self.name)
        return real(self, *given)

    return seen


def test_models_without_convolutions_have_one_record():
    for case in ("mlp", "resnet", "bilstm"):
        model = model_of(case)
        assert worker_for(model, "grouped") is worker_for(model)


def run(model, shards, work, **options):
    rngs = [RNG(i) for i in range(len(shards))]
    start = model.init(RNG(9))
    return gather(train_local(model, start, shards, work, rngs=rngs, **options), len(shards), model.parameters)


@pytest.mark.parametrize("case", [case for case in CASES if "cnn" not in case])
def test_other_models_have_one_path_of_plain_steps(case):
    model = model_of(case)
    shards, work = [shard_of(model, n, RNG(n)) for n in (5, 3)], LocalWork(0.1, batch_size=4, epochs=1)
    by_rule = run(model, shards, work)
    looped = run(model, shards, LocalWork(0.1, batch_size=4, epochs=1, paths=Paths(plain="loop", record="grouped")))
    assert torch.equal(by_rule, looped)


def test_chunks_of_a_grouped_record_are_bounded(monkeypatch):
    monkeypatch.setattr(chains, "CHUNK_BYTES", 1)
    assert ChainWorker(model_of("cnn"), "grouped").per_chunk == 8
