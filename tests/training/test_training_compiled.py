"""Compiled steps of linear clients: those of torch up to rounding, a client's own bits, and clear words where they cannot be."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import sightline
from sightline.config import parse
from sightline.data import Kind, Shard
from sightline.errors import InvalidInput
from sightline.models import build_model
from sightline.training import LocalTerms, LocalWork, train_local
from sightline.training.compiled import compile_kernels, library
from tests.engine.conftest import TINY, changed

FOUND = library.find_library()
NONE = (
    isinstance(FOUND, library.Missing) and compile_kernels.find_compiler() is None
)  # with a compiler there must be code
pytestmark = pytest.mark.skipif(NONE, reason="there is no C compiler here, and no compiled code was shipped")

WORK = {"learning_rate": 0.2, "momentum": 0.5, "batch_size": 4, "epochs": 3, "weight_decay": 0.01}


@pytest.fixture
def model():
    return build_model("linear", input_shape=(7,), classes=3, kind=Kind.VECTOR, settings={})


def shards_of(sizes):
    rng = np.random.default_rng(5)
    return [Shard(rng.standard_normal((n, 7), dtype=np.float32), rng.integers(3, size=n)) for n in sizes]


def ends(model, shards, work, terms=None, first=0):
    rngs = [np.random.default_rng(first + i) for i in range(len(shards))]
    found = torch.full((len(shards), model.parameters), torch.nan)
    for index, block in train_local(model, torch.zeros(model.parameters), shards, work, rngs=rngs, terms=terms):
        found[torch.from_numpy(index)] = block
    return found


@pytest.mark.parametrize("extra", [{}, {"step_norm": 0.05}, {"batch_size": None}])
@pytest.mark.parametrize("masked", [False, True])
def test_compiled_steps_are_those_of_torch(model, extra, masked):
    shards = shards_of([5, 0, 13, 1])
    mask = torch.ones(model.parameters)
    mask[::3] = 0.0
    terms = LocalTerms(0.3, None, None, mask if masked else None)
    plain, fast = (ends(model, shards, LocalWork(**WORK | extra, compiled=kind), terms) for kind in (False, True))
    assert float(plain.norm()) > 0.1
    torch.testing.assert_close(fast, plain, rtol=1e-4, atol=1e-6)


def test_a_client_has_its_own_bits_whoever_else_is_trained(model):
    shards, work = shards_of([5, 9, 13]), LocalWork(**WORK, compiled=True)
    together = ends(model, shards, work)
    alone = ends(model, shards[2:], work, first=2)
    assert torch.equal(together[2], alone[0])


@pytest.mark.parametrize("label", [-1, 3])
def test_labels_outside_the_classes_never_reach_the_kernel(model, label):
    shard = shards_of([4])[0]
    shard.y[2] = label
    with pytest.raises(InvalidInput, match=rf"label={label}: labels are 0 to 2"):
        ends(model, [shard], LocalWork(**WORK, compiled=True))


def test_no_compiler_is_one_line_before_a_run_exists(monkeypatch, tmp_path, fresh_search):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(InvalidInput, match=r"local.compiled=True: no C compiler was found; install one"):
        sightline.run(parse(changed(TINY, {"local.compiled": True})), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_compiler_that_fails_says_why(monkeypatch, tmp_path, fresh_search):
    broken = tmp_path / "mycc"
    broken.write_text("#!/bin/sh\necho 'no such target' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    with pytest.raises(
        InvalidInput,
        match=r"local.compiled=True: .* could not compile the kernels \(no such target\); remove local.compiled",
    ):
        sightline.run(parse(changed(TINY, {"local.compiled": True})), out=tmp_path / "run")


@pytest.mark.parametrize(
    "changes",
    [
        {"model.name": "mlp", "model.hidden": [4]},
        {"privacy.unit": "sample"},
        {"algorithm": {"name": "fedavg", "split": {"parts": 2}}},
    ],
)
def test_what_is_not_compiled_is_refused(changes, tmp_path):
    with pytest.raises(
        InvalidInput, match=r"local.compiled=True: compiled code (trains linear models|takes plain steps)"
    ):
        sightline.run(parse(changed(TINY, {"local.compiled": True} | changes)), out=tmp_path / "run")


def test_processes_train_the_same_bits(tmp_path):
    experiment = parse(changed(TINY, {"local.compiled": True}))
    one = sightline.run(experiment, out=tmp_path / "one")
    two = sightline.run(experiment, out=tmp_path / "two", workers=2)
    models = [load_file(run.directory / "model.safetensors") for run in (one, two)]
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])
