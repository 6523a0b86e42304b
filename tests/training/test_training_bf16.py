"""bfloat16: no example moves a clipped sum by more than C, whatever is rounded; where that is not shown it is refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import training_oracle as oracle
from safetensors.torch import load_file
from test_training_equals_oracle import gather, model_of, shard_of

import sightline
from sightline.config import parse
from sightline.data.federation import Kind
from sightline.engine import loop
from sightline.errors import InvalidInput, Refused
from sightline.models import build_model
from sightline.training import LocalWork, dp_sgd, train_local
from sightline.training import machine as precision
from sightline.training.clipping import clipped_rows
from sightline.training.dispatch import worker_for
from sightline.training.dp_sgd_settings import DPSGDSettings
from sightline.training.fast import bf16_chain
from sightline.training.fast.bf16_chain import ROWS, HalfChainWorker, HalfDense, rows_alike
from sightline.training.gradients import one_by_one
from sightline.training.local_work import Paths
from tests.engine.conftest import TINY, changed

RNG = np.random.default_rng
CHAINS = ["linear", "mlp", "cnn", "cnn_small", "cnn_3x3"]
HALF = LocalWork(0.1, batch_size=4, epochs=2, precision="bf16")


@pytest.fixture(autouse=True, scope="module")
def needs_bf16():
    failure = precision.find_failure()
    if failure is not None:
        pytest.skip(failure)


def half(model, record="unfold"):
    worker = worker_for(model, record, "bf16")
    assert type(worker) is HalfChainWorker
    return worker


def clipped(worker, vector, x, y, clip, views=1):
    worker.weights.copy_(vector)
    worker.clipped_sum(worker.inputs(x), torch.from_numpy(y), clip, views=views)
    return worker.gradient.clone()


def adversarial(model, n, seed=0):
    """Examples of every size, twins, and some that are nearly another's negative; weights that cancel and saturate."""
    rng = RNG(seed)
    shard = shard_of(model, n, rng)
    x = shard.x * np.exp(rng.normal(0, 4, n)).astype(np.float32).reshape(-1, *[1] * len(model.input_shape))
    x[1], x[3] = x[0], -x[2]
    return x, shard.y, (4 * model.init(rng))


@pytest.mark.parametrize("record", ["unfold", "grouped"])
@pytest.mark.parametrize("case", CHAINS)
def test_one_example_moves_the_sum_by_at_most_the_clip_norm(case, record):
    model = model_of(case)
    worker, (x, y, vector) = half(model, record), adversarial(model, 6)
    for clip_norm in (1e-3, 0.5):
        whole = clipped(worker, vector, x, y, clip_norm)
        for j in range(6):
            rest = np.delete(np.arange(6), j)
            without = clipped(worker, vector, x[rest], y[rest], clip_norm)
            assert float((whole - without).double().norm()) <= clip_norm * (1 + 1e-5)
            alone = clipped(worker, vector, x[j : j + 1], y[j : j + 1], clip_norm)
            assert float(alone.double().norm()) <= clip_norm
            torch.testing.assert_close(without + alone, whole, rtol=0, atol=2e-6 * clip_norm)


def cancelling(n, inputs):
    """Rows of small numbers and a few huge ones of both signs: the order in which they are added decides the sum."""
    rng = RNG(0)
    x = rng.standard_normal((n, inputs), dtype=np.float32)
    return np.where(rng.random(x.shape) < 8 / inputs, np.float32(2**20) * rng.choice([-1, 1], x.shape), x)


@pytest.mark.parametrize(("inputs", "hidden"), [(128, 32), (2000, 64)])
def test_others_do_not_move_an_example_by_a_rounding_of_bfloat16(inputs, hidden):
    """The sum is that of every example alone; with batches as they come it was .05 C away from it."""
    model = build_model("mlp", input_shape=(inputs,), classes=10, kind=Kind.VECTOR, settings={"hidden": [hidden]})
    worker, x, y, vector = half(model), cancelling(33, inputs), RNG(1).integers(10, size=33), model.init(RNG(2))
    vector[: inputs * hidden] = vector[: inputs * hidden].sign()
    whole = clipped(worker, vector, x, y, 0.3).double()
    alone = sum(clipped(worker, vector, x[j : j + 1], y[j : j + 1], 0.3).double() for j in range(33))
    assert float((whole - alone).norm()) <= 1e-5 * 0.3


@pytest.mark.parametrize("case", CHAINS)
def test_it_is_the_clipped_sum_up_to_bfloat16(case):
    model, rng = model_of(case), RNG(0)
    shard, vector = shard_of(model, 12, rng), model.init(rng)
    module = oracle.load(model.module(), vector)
    labels = np.repeat(shard.y[:4], 3)
    rows = one_by_one(module, model, vector, torch.from_numpy(shard.x), torch.from_numpy(shard.y))
    views = one_by_one(module, model, vector, torch.from_numpy(shard.x), torch.from_numpy(labels))
    for clip_norm in (0.05, 1e4):
        expected = clipped_rows(rows, clip_norm)
        found = clipped(half(model), vector, shard.x, shard.y, clip_norm)
        assert 0 < float((found - expected).norm()) <= 0.1 * float(expected.norm())
        means = clipped_rows(views.view(4, 3, -1).mean(1), clip_norm)
        found = clipped(half(model), vector, shard.x, shard.y[:4], clip_norm, views=3)
        assert 0 < float((found - means).norm()) <= 0.1 * float(means.norm())


def test_a_broken_example_contributes_zero():
    model, rng = model_of("cnn"), RNG(0)
    shard, vector = shard_of(model, 6, rng), model.init(rng)
    bad = shard.x.copy()
    bad[1], bad[4] = np.nan, np.inf
    keep, worker = np.array([0, 2, 3, 5]), half(model)
    good = clipped(worker, vector, shard.x[keep], shard.y[keep], 0.3)
    torch.testing.assert_close(clipped(worker, vector, bad, shard.y, 0.3), good)
    assert torch.equal(clipped(worker, vector * torch.nan, shard.x, shard.y, 0.3), torch.zeros_like(vector))


@pytest.mark.parametrize("clip_norm", [1e-5, 1e-12])
@pytest.mark.parametrize("record", ["unfold", "grouped"])
def test_a_factor_that_underflows_does_not_hide_a_gradient(record, clip_norm):
    model, rng = model_of("cnn"), RNG(0)
    shard, start, worker = shard_of(model, 1, rng), model.init(rng), half(model, record)
    first, weight, bias = model.layout[0], model.layout[-2], model.layout[-1]
    for big in (1e8, 1e15, 1e18):
        for certain in (46.0, 53.0, 55.0):
            vector = start.clone()
            vector[first.start : first.stop] *= big
            vector[weight.start : weight.stop] = 0
            vector[bias.start : bias.stop] = 0
            vector[bias.start + int(shard.y[0])] = certain
            found = clipped(worker, vector, shard.x, shard.y, clip_norm)
            assert float(found.double().norm()) <= clip_norm * (1 + 1e-4)


class Moody(HalfDense):
    """A kernel whose later rows are added up in another order."""

    def forward(self, x):
        whole = super().forward(x)
        backwards = torch.mm(self.x.float().flip(1), self.kernel.float().flip(1).t()).bfloat16()
        return torch.cat([whole[:20], backwards[20:]])


def test_rows_that_depend_on_their_place_are_refused(monkeypatch):
    model = model_of("mlp")
    assert rows_alike(HalfChainWorker(model), ROWS)
    monkeypatch.setitem(bf16_chain.HALF, bf16_chain.Dense, Moody)
    worker, shard = HalfChainWorker(model), shard_of(model, 4, RNG(0))
    with pytest.raises(InvalidInput, match=r"local.precision=bf16: on this machine .* its place in the batch; use"):
        clipped(worker, model.init(RNG(0)), shard.x, shard.y, 1.0)


def test_weights_are_as_they_were_after_the_question():
    model = model_of("mlp")
    worker = HalfChainWorker(model)
    worker.weights.copy_(model.init(RNG(0)))
    rows_alike(worker, ROWS)
    assert torch.equal(worker.weights, model.init(RNG(0)))


@pytest.mark.parametrize("case", [*CHAINS, "resnet", "bilstm"])
def test_plain_steps_are_near_those_of_float32(case):
    model, rng = model_of(case), RNG(0)
    shards, start = [shard_of(model, n, rng) for n in (5, 9)], model.init(rng)
    exact, ends = (
        gather(train_local(model, start, shards, replace(HALF, precision=kind), rngs=[RNG(0), RNG(1)]), 2, len(start))
        for kind in ("float32", "bf16")
    )
    assert 0 < float((ends - exact).norm()) <= 0.2 * float((exact - start).norm())
    assert ends.dtype == torch.float32
    folded = replace(HALF, paths=Paths(plain="folded"))
    again = gather(train_local(model, start, shards, folded, rngs=[RNG(0), RNG(1)]), 2, len(start))
    assert float((again - ends).norm()) <= 1e-5 * float((exact - start).norm())


def private(model, shard, **changes):
    how = {"clip_norm": 0.5, "noise_std": [0.5], "sample_rates": [0.5], "steps": [2], "divisors": [4.0],
           "sampling_rngs": [RNG(1)], "noise_rngs": [RNG(2)]}  # fmt: skip
    return list(dp_sgd(model, model.init(RNG(3)), [shard], HALF, DPSGDSettings(**how | changes)))


def test_other_models_are_not_clipped_in_it():
    model = model_of("resnet")
    with pytest.raises(InvalidInput, match=r"local.precision=bf16: per-example clipping in it is for chains"):
        private(model, shard_of(model, 5, RNG(0)))
    chain = model_of("mlp")
    ((_, ends),) = private(chain, shard_of(chain, 5, RNG(0)))
    assert bool(ends.isfinite().all())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"local.compiled": True, "model.name": "linear"}, "compiled code computes in float32"),
        ({"algorithm": {"name": "fedavg", "split": {"parts": 2}}}, "parts of algorithm.split are trained in float32"),
        ({"privacy": {"unit": "sample", "mechanism": "objective", "epsilon": 1.0}}, "on the gradients themselves"),
        ({"privacy.unit": "sample", "privacy.where": "server", "local": {"steps": 1}}, "the server noises"),
        ({"device": "cuda"}, "local.precision is chosen on the CPU"),
    ],
)
def test_where_it_is_not_proved_it_is_refused(changes, message):
    with pytest.raises((InvalidInput, Refused), match=message) as error:
        parse(changed(TINY, changes | {"local.precision": "bf16"}))
    assert "\n" not in str(error.value)


def test_a_run_goes_on_in_its_precision(tmp_path, monkeypatch):
    changes = {"model": {"name": "mlp", "hidden": [4]}, "rounds": 2}
    models = {}
    for kind in ("float32", "bf16"):
        experiment = parse(changed(TINY, changes | {"local.precision": kind}))
        models[kind] = load_file(sightline.run(experiment, out=tmp_path / kind).directory / "model.safetensors")
    assert any(not torch.equal(models["bf16"][name], exact) for name, exact in models["float32"].items())
    real = loop.save_checkpoint

    def stopping(directory, checkpoint, vouch):
        if checkpoint.round == 2:
            raise KeyboardInterrupt
        real(directory, checkpoint, vouch)

    monkeypatch.setattr(loop, "save_checkpoint", stopping)
    with pytest.raises(KeyboardInterrupt):
        sightline.run(experiment, out=tmp_path / "broken")
    monkeypatch.undo()
    run = sightline.run(tmp_path / "broken", resume=True)
    assert run.experiment.local.precision == "bf16"
    again = load_file(run.directory / "model.safetensors")
    assert all(torch.equal(models["bf16"][name], again[name]) for name in again)


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    precision.find_failure.cache_clear()
    yield tmp_path / "sightline" / "bf16.json"
    precision.find_failure.cache_clear()


def trial(monkeypatch, words):
    precision.find_failure.cache_clear()
    monkeypatch.setattr(precision, "TRIAL", words)


def test_a_machine_whose_kernels_die_is_refused_in_one_line(fresh, monkeypatch):
    trial(monkeypatch, "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    model = model_of("mlp")
    for _ in range(2):
        with pytest.raises(InvalidInput, match=r"local.precision=bf16: .*signal 4.*; use precision = \"float32\"$"):
            worker_for(model, precision="bf16")
    trial(monkeypatch, "print('computed')")  # what killed a process once is not tried again
    with pytest.raises(InvalidInput, match="kills its process"):
        precision.check_bf16()


def test_what_may_pass_is_tried_again(fresh, monkeypatch):
    trial(monkeypatch, "raise MemoryError('for now')")
    with pytest.raises(InvalidInput, match="MemoryError: for now"):
        precision.check_bf16()
    trial(monkeypatch, "print('computed')")
    precision.check_bf16()
    trial(monkeypatch, "raise MemoryError")
    precision.check_bf16()  # kept
    fresh.write_text("[1")
    trial(monkeypatch, "print('computed')")
    precision.check_bf16()
