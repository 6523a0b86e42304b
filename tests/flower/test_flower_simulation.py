"""The same numbers on Flower's simulation engine, through the command line as a user calls it."""

import json
import os
import subprocess
import sys

import pytest
import tomli_w

import sightline
from sightline.config import read
from tests.flower.cases import BASE, CASES, changed, privacy, same

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
        return file, subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)

    return run


@pytest.mark.parametrize("case", ON_FLOWER)
def test_flower_gives_the_bits_of_the_simulator(case, command, tmp_path):
    file, done = command(ON_FLOWER[case], "--out", "there")
    assert done.returncode == 0, done.stderr
    there = sightline.api.Run(tmp_path / json.loads(done.stdout)["run_dir"])
    same(there, sightline.run(read(file), out=tmp_path / "here"))


def test_an_error_at_a_node_is_one_line_and_leaves_nothing(command, tmp_path):
    plain = changed(data=BASE["data"] | {"source": "nowhere:clients"})
    _, done = command(plain, "--out", "there")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "there").exists()
