"""MKL's reproducible mode is on wherever Sightline trains: products have the same bits wherever their operands lie."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from sightline import mkl
from sightline.api import Run
from sightline.apps.sweep import list_jobs, run_sweep
from sightline.config import parse, to_toml
from sightline.data import Kind, Shard
from sightline.models import build_model
from sightline.randomness import Streams
from sightline.runtimes.local_trainer import LocalClients, PoolTrainer
from sightline.training import LocalWork
from sightline.training.call import CallId, CallKind, TrainingCall
from tests.flower.cases import BASE

pytestmark = pytest.mark.skipif(mkl.read_mode() is None, reason="this torch is built without MKL")
ROOT = Path(__file__).parents[2]

PRODUCTS = """
def place(values, offset):
    memory = torch.empty(values.numel() + 32)
    start = -(memory.data_ptr() // 4) % 16 + offset
    return memory[start : start + values.numel()].copy_(values.flatten()).view(values.shape)

torch.manual_seed(0)
torch.set_num_threads(1)
seen = {}
for m, k, n in [(32, 31, 5), (7, 16, 1), (33, 64, 48), (100, 25, 64)]:
    a, b, c = torch.randn(m, k), torch.randn(k, n), torch.randn(n, k)
    for offset in range(16):
        x, y, z = place(a, offset), place(b, 3 * offset % 16), place(c, 5 * offset % 16)
        found = x @ y, x @ z.T, x @ z[0], torch.dot(x.flatten(), place(a, 0).flatten())
        seen.setdefault((m, k, n), set()).add(tuple(t.numpy().tobytes() for t in found))
from sightline import mkl
print(mkl.read_mode(), *(len(found) for found in seen.values()))
"""
"""The same products with operands at every place relative to a cache line; how many different results each has."""


def run_python(script, **environment):
    """A new process without anything that this one has set."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MKL_")}
    kept["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    line = [sys.executable, "-c", script]
    done = subprocess.run(line, env=kept | environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("imports", ["import sightline, torch", "import torch, sightline"])
def test_products_do_not_depend_on_where_their_operands_lie(imports):
    # with these instructions alignment matters on Intel too; AMD needs no such push
    done = run_python(imports + PRODUCTS, MKL_ENABLE_INSTRUCTIONS="SSE4_2")
    assert done.stdout.split() == ["AUTO", "1", "1", "1", "1"]
    assert done.stderr == ""


def test_the_mode_that_a_user_chose_is_kept():
    done = run_python("import sightline, os; print(os.environ['MKL_CBWR'])", MKL_CBWR="AUTO,STRICT")
    assert done.stdout.split() == ["AUTO,STRICT"]


def test_a_mode_that_comes_too_late_is_told_once_and_recorded(tmp_path):
    script = """
import torch
torch.ones(9, 9) @ torch.ones(9, 9)
import sightline
for out in ("a", "b"):
    print(sightline.run("experiment.toml", out=out, progress=False).summary["mkl_cbwr"])
"""
    (tmp_path / "experiment.toml").write_text(to_toml(parse(BASE | {"rounds": 1})))
    done = run_python(f"import os; os.chdir({str(tmp_path)!r}){script}")
    assert done.stdout.split() == ["OFF", "OFF"]
    assert done.stderr.count("RuntimeWarning") == 1
    assert "import sightline first" in done.stderr


def test_the_command_line_trains_with_it_and_records_it(tmp_path):
    file = tmp_path / "experiment.toml"
    file.write_text(to_toml(parse(BASE | {"rounds": 1})))
    words = ["sightline", "run", str(file), "--out", str(tmp_path / "run"), "--json"]
    done = run_python(f"import sys; sys.argv = {words!r}\nfrom sightline.apps.cli.main import main\nmain()")
    told = json.loads(done.stdout)
    assert (told["mkl_cbwr"], told["threads"]) == ("AUTO", 1)
    assert told["cpu_capability"] == torch.backends.cpu.get_cpu_capability()
    assert "MKL_CBWR" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.slow
def test_the_processes_of_a_sweep_train_with_it(tmp_path):
    file = tmp_path / "experiment.toml"
    file.write_text(to_toml(parse(BASE | {"rounds": 1})))
    swept = run_sweep(list_jobs(file, over=["seed=1"], seeds=None, given=[], out=tmp_path / "runs"), workers=1)
    (done,) = swept.done
    assert Run(done.directory).summary["mkl_cbwr"] == "AUTO"


class ModeAsked(LocalClients):
    """Clients whose result is 1 where the process that trains them has the mode on."""

    def train(self, call):
        on = float(mkl.read_mode() == "AUTO")
        yield np.arange(len(call.cohort)), torch.full((len(call.cohort), self.model.parameters), on)


def test_forked_workers_train_with_it():
    model = build_model("linear", input_shape=(2,), classes=2, kind=Kind.VECTOR, settings={})
    shards, streams = [Shard(np.zeros((1, 2), np.float32), np.zeros(1, np.int64))] * 2, Streams.from_seed(0)
    pool = PoolTrainer(ModeAsked(model, shards, LocalWork(0.1), streams, streams), 2)
    try:
        ((_, ends),) = pool.run(TrainingCall(CallKind.TRAIN, [0, 1], torch.zeros(model.parameters), CallId(1, 0)))
        assert bool((ends == 1).all())
    finally:
        pool.close()
