"""The same numbers on Flower's simulation engine, through the command line as a user calls it."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import tomli_w

import sightline
from sightline.config import parse, read
from sightline.runtimes.flower.export import export_app, export_shards
from tests.flower.cases import BASE, CASES, changed, privacy, same
from tests.flower.deployment import BIN, free_port

pytest.importorskip("flwr", reason="needs sightline[flower]: make flower-test")
pytest.importorskip("ray", reason="needs sightline[flower]: make flower-test")

ON_FLOWER = {
    "central noise, upcycled": changed(algorithm={"name": "fedavg", "upcycle": 0.5}, rounds=3),
    "node state and local noise": changed(
        algorithm={"name": "scaffold"}, privacy=privacy("client", "client", noise_multiplier=2.0), rounds=3
    ),
    "groups: different models to different nodes": CASES["algorithm dp_ogl"],
}


@pytest.fixture
def command(tmp_path):
    def run(plain, *words):
        file = tmp_path / "experiment.toml"
        file.write_text(tomli_w.dumps(plain))
        environment = os.environ | {"FLWR_TELEMETRY_ENABLED": "0"}
        line = [sys.executable, "-m", "sightline", "run", str(file), "--runtime", "flower", "--json", *words]
        return file, subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True)

    return run


@pytest.mark.parametrize("case", ON_FLOWER)
def test_flower_gives_the_bits_of_the_simulator(case, command, tmp_path):
    file, done = command(ON_FLOWER[case], "--out", "there")
    assert done.returncode == 0, done.stderr
    there = sightline.api.Run(tmp_path / json.loads(done.stdout)["run_dir"])
    same(there, sightline.run(read(file), out=tmp_path / "here"))


OWN_DATA = """
import os
from pathlib import Path

import numpy as np
from sightline import mkl

def clients(*, clients, rng):
    for _ in range(clients):
        x, y = rng.standard_normal((9, 4)).astype(np.float32), np.arange(9) % 2
        yield x, y, x, y
    Path(__file__).with_name(f"mode-{os.getpid()}").write_text(str(mkl.read_mode()))
"""


def test_nodes_train_in_mkls_reproducible_mode(command, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(OWN_DATA)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.delenv("MKL_CBWR", raising=False)
    plain = changed(rounds=1, data={"source": "mine:clients", "partition": "natural", "clients": 4, "classes": 2})
    _, done = command(plain, "--out", "there")
    assert done.returncode == 0, done.stderr
    modes = [file.read_text() for file in tmp_path.glob("mode-*")]
    assert len(modes) > 1, "no node is a process of its own"
    assert "OFF" not in modes


def test_an_error_at_a_node_is_one_line_and_leaves_nothing(command, tmp_path):
    plain = changed(data=BASE["data"] | {"source": "nowhere:clients"})
    _, done = command(plain, "--out", "there")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "there").exists()


@pytest.mark.filterwarnings("default")
def test_a_node_answers_by_the_site_that_its_configuration_names(tmp_path):
    from flwr.app import Context, RecordDict

    from sightline.runtimes.flower.apps import answer_request
    from sightline.runtimes.remote.message import WireMessage

    site = export_shards(parse(CASES["local noise"]), tmp_path / "sites", epsilon=8.0)[2]
    hello = WireMessage({"call": "hello"})

    def node(**config):
        context = Context(run_id=1, node_id=1, node_config=config, state=RecordDict(), run_config={})
        return answer_request(hello, context).fields

    assert node(site=str(site))["client"] == 2
    assert "names no site" in node(somewhere="else")["refused"]
    assert "no site answers" in node(**{"site-socket": str(tmp_path / "door")})["refused"]


def test_flwr_run_starts_an_exported_app_as_it_is(tmp_path):
    plain = changed(rounds=2)
    export_app(parse(plain), tmp_path / "app")
    environment = os.environ | {
        "FLWR_HOME": str(tmp_path / "flwr"), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()), "FLWR_LOCAL_CONTROL_API_PORT": str(free_port()),
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip
    out = tmp_path / "there"
    line = ["flwr", "run", str(tmp_path / "app"), "--stream", "--run-config", f'out="{out}"']
    try:
        done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True)
    finally:
        end_local_superlink(environment["FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"])
    assert "round 2/2" in done.stdout, done.stdout + done.stderr
    same(sightline.api.Run(out), sightline.run(parse(plain), out=tmp_path / "here"))


def end_local_superlink(port):
    """End the SuperLink that `flwr run` left behind: the process that was started for this very port."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if any(b"flower-superlink" in word for word in words) and port.encode() in words:
                os.kill(int(path.parent.name), signal.SIGTERM)
