"""bfloat16 is for plain steps: near float32, refused where examples are clipped or kernels do not run."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from test_training_equals_oracle import gather, model_of, shard_of

import sightline
from sightline.config import parse
from sightline.engine import loop
from sightline.errors import InvalidInput, Refused
from sightline.training import LocalWork, dp_sgd, train_local
from sightline.training import machine as precision
from sightline.training.dispatch import worker_for
from sightline.training.dp_sgd_settings import DPSGDSettings
from tests.engine.conftest import TINY, changed

RNG = np.random.default_rng
CHAINS = ["linear", "mlp", "cnn", "cnn_small", "cnn_3x3"]
HALF = LocalWork(0.1, batch_size=4, epochs=2, precision="bf16")


@pytest.fixture(autouse=True, scope="module")
def needs_bf16():
    failure = precision.find_failure()
    if failure is not None:
        pytest.skip(failure)


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


def test_examples_are_not_clipped_in_it():
    model = model_of("mlp")
    how = DPSGDSettings(
        clip_norm=0.5, noise_std=[0.5], sample_rates=[0.5], steps=[2], divisors=[4.0], sampling_rngs=[RNG(1)],
        noise_rngs=[RNG(2)],
    )  # fmt: skip
    with pytest.raises(InvalidInput, match=r"local.precision=bf16: examples are clipped in float32; use precision = "):
        dp_sgd(model, model.init(RNG(3)), [shard_of(model, 5, RNG(0))], HALF, how)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"local.compiled": True, "model.name": "linear"}, "compiled training computes in float32"),
        ({"algorithm": {"name": "fedavg", "split": {"parts": 2}}}, "algorithm.split trains in float32"),
        ({"privacy": {"unit": "sample", "mechanism": "objective", "epsilon": 1.0}}, "holds for exact gradients"),
        ({"privacy.unit": "sample"}, r'clipped in float32, .*; use precision = "float32", or unit = "client"$'),
        ({"privacy.unit": "sample", "privacy.where": "server", "local": {"steps": 1}}, "clipped in float32"),
        ({"device": "cuda"}, "local.precision applies only on the CPU"),
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
    yield tmp_path / "sightline" / "paths.json"
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
