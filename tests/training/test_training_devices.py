"""Devices: nothing is left behind on the host, nothing is asked back in a step, and what cannot run is refused."""

import os
import subprocess
import sys
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import fake_device
import numpy as np
import pytest
import strange_modules as strange
import torch

import sightline
from sightline.api import _training_device
from sightline.config import parse
from sightline.data import Kind, Shard
from sightline.engine import RunRecord, build_experiment
from sightline.engine.checkpoint import check_identity, describe_identity, list_changes
from sightline.errors import InvalidInput, Refused
from sightline.models import build_model
from sightline.training import LocalWork, clipped_gradient_sum, dispatch, evaluate_model, train_local
from sightline.training import dispatch as devices
from sightline.training.clipping import SLACK, clip_factors, clipped_rows, row_norms, scaled_sum
from sightline.training.gradients import GradientWorker
from tests.commands import command

FILE = {
    "name": "small", "rounds": 3, "data": {"source": "digits", "clients": 4, "train_samples": 80},
    "model": {"name": "mlp", "hidden": [6]},
}  # fmt: skip
CLIENT = FILE | {"privacy": {"unit": "client", "noise_multiplier": 1.0, "delta": 1e-5}}
SAMPLE = FILE | {"privacy": {"unit": "sample", "noise_multiplier": 1.0, "delta": 1e-5}}


@pytest.fixture
def nothing_there(monkeypatch):
    """A machine without any device but the CPU."""
    monkeypatch.setattr(devices, "is_available", lambda kind: False)


@pytest.fixture
def away(monkeypatch):
    """Workers that act as on another device, and compute here."""
    monkeypatch.setattr(GradientWorker, "away", True)
    monkeypatch.setattr(dispatch, "choose_worker", GradientWorker)


def run_small(file, folder, **more):
    done = sightline.run(file | more, out=folder, progress=False)
    return done, (folder / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_steps_move_every_tensor_and_ask_for_no_number():
    program = Path(fake_device.__file__)
    found = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, check=True, timeout=300,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    said = dict.fromkeys(f"none {name} passes" for name in fake_device.MODELS)
    said |= dict.fromkeys(f"{mistake} mlp FakeTensorDeviceMismatchError" for mistake in fake_device.MISTAKES[:-1])
    assert found.stdout.split("\n")[:-1] == [*said, "number mlp DataDependentOutputException"]


def test_a_run_on_the_cpu_has_the_bits_of_one_that_does_not_say_where(nothing_there, tmp_path):
    _, bits = run_small(CLIENT, tmp_path / "plain")
    _, same = run_small(CLIENT, tmp_path / "named", device="cpu")
    assert sha256(bits).digest() == sha256(same).digest()
    assert "device" not in (tmp_path / "plain" / "config.toml").read_text()
    assert 'device = "cpu"' in (tmp_path / "named" / "config.toml").read_text()
    assert "<dt>device</dt>" in (tmp_path / "named" / "report.html").read_text().replace("\n", "")


@pytest.mark.parametrize("file", [CLIENT, SAMPLE], ids=["client", "sample"])
def test_the_path_of_devices_gives_the_same_model_up_to_rounding(file, nothing_there, tmp_path, request):
    here, _ = run_small(file, tmp_path / "here")
    request.getfixturevalue("away")
    there, _ = run_small(file, tmp_path / "there")
    for name, tensor in here.state_dict().items():
        torch.testing.assert_close(there.state_dict()[name], tensor, rtol=1e-3, atol=1e-4)


def test_a_device_that_is_not_there_is_one_line_and_exit_code_2(nothing_there, tmp_path):
    (tmp_path / "small.toml").write_text('rounds = 1\ndevice = "cuda"\n')
    found = command("run", "small.toml", cwd=tmp_path)
    assert found.returncode == 2
    assert found.stderr.strip().endswith('device=cuda: torch does not find this device; use device = "cpu", or omit it')
    assert found.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"device": "tpu"}, "device=tpu: should be 'auto', 'cpu', 'cuda' or 'mps'"),
        (
            {"device": "cuda", "local": {"compiled": True}, "model": {"name": "linear"}},
            "compiled training runs only on",
        ),
        (
            {"device": "mps", "algorithm": {"name": "fedavg", "split": {"parts": 2}}},
            "algorithm.split trains only on the CPU",
        ),
    ],
)
def test_what_runs_on_the_cpu_only_is_refused_elsewhere(more, said):
    with pytest.raises(InvalidInput, match=said.replace(".", r"\.")):
        parse(FILE | more)


def test_nodes_of_other_runtimes_train_on_the_cpu():
    assert _training_device(parse(FILE | {"device": "auto"}), "flower") == "cpu"
    with pytest.raises(InvalidInput, match="runtime=flower: its nodes train on the CPU"):
        _training_device(parse(FILE | {"device": "mps"}), "flower")


def test_auto_takes_the_first_device_that_clips_right(monkeypatch):
    there, wrong, set_up = {"cuda", "mps"}, set(), []
    monkeypatch.setattr(devices, "is_available", lambda kind: kind in there)
    monkeypatch.setattr(devices, "require_float32", lambda: set_up.append(1))
    monkeypatch.setattr(devices, "find_clipping_problem", lambda device: "long" if device.type in wrong else None)
    assert devices.find_device("auto").type == "cuda"
    wrong.add("cuda")
    assert devices.find_device("auto").type == "mps"
    with pytest.raises(InvalidInput, match="device=cuda: clipped sums differ from those on the CPU: long"):
        devices.find_device("cuda")
    there.clear()
    assert devices.find_device("auto").type == "cpu"
    assert len(set_up) == 4
    assert parse(FILE).training_device == "cpu"
    assert parse(FILE | {"device": "auto"}).training_device == "auto"
    assert parse(FILE | {"model": {"name": "linear"}, "local": {"compiled": True}}).training_device == "cpu"


def short_products(rows, clip_norm):
    """Clipping whose factors are rounded up to eight bits, as products of short floats may be."""
    factors = clip_factors(row_norms(rows), clip_norm)
    return scaled_sum(rows, torch.where(factors < 1, factors * (1 + 2.0**-8), factors))


def no_mask(rows, clip_norm):
    return clip_factors(row_norms(rows), clip_norm) @ rows


def lost_rows(rows, clip_norm):
    return clipped_rows(rows[:1], clip_norm) if len(rows) > 1 else clipped_rows(rows, clip_norm)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (short_products, "has norm 1.00"),
        (no_mask, "a non-finite row is not set to zero"),
        (lost_rows, "the sum differs"),
    ],
)
def test_a_device_that_clips_wrong_is_found_out(wrong, said, monkeypatch):
    def clip(rows, clip_norm, calls=[]):  # noqa: B006
        calls.append(1)
        here = wrong is lost_rows and len(rows) > 1 and len(calls) % 2  # the CPU's is asked first
        return clipped_rows(rows, clip_norm) if here else wrong(rows, clip_norm)

    monkeypatch.setattr(devices, "clipped_rows", clip)
    assert said in devices.find_clipping_problem(torch.device("cpu"))


def test_the_sum_on_devices_is_the_clipped_sum():
    rows = torch.randn(9, 40, generator=torch.Generator().manual_seed(0)) * torch.logspace(-3, 3, 9)[:, None]
    rows[2, 3], rows[5, 1] = float("nan"), float("-inf")
    factors = clip_factors(row_norms(rows), 0.5)
    exact = sum(
        row.double() * min(1.0, SLACK * 0.5 / float(row.double().norm())) for row in rows if row.isfinite().all()
    )
    torch.testing.assert_close(scaled_sum(rows, factors).double(), exact, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(scaled_sum(rows, factors), clipped_rows(rows, 0.5), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("what", ["attribute", "weights"])
def test_nothing_leaves_a_device_after_a_module_has_changed(what, away):
    model = strange_model("Plain")
    vector, x, y = model.init(np.random.default_rng(0)), np.ones((3, strange.FEATURES), np.float32), np.arange(3)
    assert clipped_gradient_sum(model, vector, x, y, clip_norm=1.0).norm() > 0
    worker = dispatch.worker_for(model)

    def change(*_):
        if what == "attribute":
            worker.module.memory = 1
        else:
            worker.weights.data[0] += 1.0

    worker.module.register_forward_hook(change)
    worker.state = worker.saved = None  # the hook was there from the beginning
    with pytest.raises(Refused, match=r"forward changes|not on made-up inputs \(RuntimeError: During a grad .* mutate"):
        clipped_gradient_sum(model, vector, x, y, clip_norm=1.0)
    with pytest.raises(Refused, match="forward changes"):
        evaluate_model(model, vector, Shard(x, y))
    with pytest.raises(Refused, match="forward changes"):
        list(train_local(model, vector, [Shard(x, y)], LocalWork(0.1), rngs=[np.random.default_rng(0)]))


def strange_model(name):
    return build_model(
        f"strange_modules:{name}", input_shape=(strange.FEATURES,), classes=strange.CLASSES, kind=Kind.VECTOR,
        settings={},
    )  # fmt: skip


def test_a_model_that_does_not_run_on_a_device_is_refused_in_one_line(monkeypatch):
    model = strange_model("Plain")
    with pytest.raises(InvalidInput, match=r"device=meta: strange_modules:Plain does not run there \(") as found:
        dispatch.place_model(model, torch.device("meta"))
    assert "\n" not in str(found.value)
    monkeypatch.setattr(dispatch, "probe_device", lambda worker: False)
    with pytest.raises(InvalidInput, match="gradients of strange_modules:Plain differ from those on the CPU"):
        dispatch.place_model(model, torch.device("meta"))


@pytest.mark.parametrize("name", ["mlp", "linear"])
def test_the_probe_of_a_device_compares_with_the_cpu(name, monkeypatch):
    model = build_model(name, input_shape=(5,), classes=3, kind=Kind.VECTOR, settings={})
    worker, usual = GradientWorker(model), GradientWorker.clipped_sum

    def short(one, *some, **more):
        usual(one, *some, **more)
        if one is worker:
            one.gradient.mul_(1.01)

    assert dispatch.probe_device(worker)
    monkeypatch.setattr(GradientWorker, "clipped_sum", short)
    assert not dispatch.probe_device(worker)


def test_another_device_is_a_change_that_whoever_resumes_accepts(nothing_there, tmp_path):
    assert list_changes({"device": "mps"}, {}) == ["device mps -> cpu"]
    assert list_changes({}, {"device": "cuda (A)"}) == ["device cpu -> cuda (A)"]
    run_small(CLIENT, tmp_path / "run")
    setting = build_experiment(parse(CLIENT))
    elsewhere = replace(setting, model=replace(setting.model, device=torch.device("mps")))
    assert "device" not in describe_identity(setting, tmp_path / "run")
    record = RunRecord.open(tmp_path / "run")
    try:
        with pytest.raises(InvalidInput, match="device cpu -> mps; restore it, or resume with --accept-changes"):
            check_identity(record, elsewhere, accept=False)
        assert check_identity(record, elsewhere, accept=True)[1] == ["device cpu -> mps"]
    finally:
        record.close()
