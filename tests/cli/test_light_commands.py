"""Commands that only read runs or do sums load no torch: they answer at once, and also where torch cannot be loaded."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import sightline
from sightline.config import to_toml
from tests.engine.many_kinds import experiment

HEAVY = ("torch", "matplotlib", "sklearn", "flwr")
CALLED = f"""
import json, sys
from pathlib import Path
from sightline.apps.cli.main import run_arguments
from tests.serve.serve_asking import asking, site_of

def loaded():
    return [name for name in {HEAVY!r} if name in sys.modules]

def visited(folder, *pages):
    ask = asking(site_of(Path(folder)))
    return max(ask(page).status for page in pages) - 200

found = dict()
for words in json.loads(sys.argv[1]):
    code = visited(*words[1:]) if words[0] == "visit" else run_arguments(words)
    found[" ".join(words)] = [code, loaded()]
print("found:" + json.dumps(found), file=sys.stderr)
"""
"""Calls commands one after another, those that may load nothing; what is loaded after each is the first one's doing."""

ROOT = Path(__file__).parents[2]
SCHEME = ["poisson", "--rate", "0.01", "--steps", "100", "--delta", "1e-5"]
COMMANDS = [
    ["--help"],
    ["report", "runs/star", "--json", "--ledger", "ledger.json"],
    ["compare", "runs", "--json", "--figure", "runs.html"],
    ["account", *SCHEME, "--noise", "1"],
    ["calibrate", *SCHEME, "--epsilon", "2"],
    ["experiments", "--folder", str(ROOT / "papers")],
    ["datasets"],
    ["completion", "bash"],
    ["visit", "runs", "/", "/api/runs", "/calculator", "/run?run=star", "/api/run?run=star", "/api/ledger?run=star",
     "/api/sight?run=star", "/report.html?run=star"],
]  # fmt: skip
"""The last asks a server over the runs for its pages."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with two real runs in runs/."""
    place = tmp_path_factory.mktemp("light")
    for kind in ("star", "clients"):
        sightline.run(experiment(kind, rounds=2), out=place / "runs" / kind)
    return place


def called(commands, folder):
    """{command: [exit code, the heavy packages that are loaded after it]}, all in one process."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", CALLED, json.dumps(commands)],
        cwd=folder, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stderr.rpartition("found:")[2])


@pytest.mark.slow
def test_nothing_heavy_is_loaded_and_what_trains_does_load_torch(folder):
    """The last is there so that this test would see it."""
    (folder / "one.toml").write_text(to_toml(experiment("star", rounds=1)))
    found = called([*COMMANDS, ["run", "one.toml", "--out", "trained"]], folder)
    *light, trained = found.values()
    assert light == [[0, []]] * len(COMMANDS), found
    assert trained[0] == 0
    assert "torch" in trained[1]


@pytest.mark.slow
def test_a_sweep_trains_elsewhere(folder):
    (folder / "one.toml").write_text(to_toml(experiment("star", rounds=1)))
    words = ["sweep", "one.toml", "--over", "privacy.clip_norm=0.5,1.0", "--workers", "1", "--out", "swept"]
    assert list(called([words], folder).values()) == [[0, []]]
    assert len(list((folder / "swept").glob("*/report.html"))) == 2
