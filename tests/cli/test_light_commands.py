"""Commands that only read runs or do sums load no torch: they answer at once, and also where torch cannot be loaded."""

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
import sys
from sightline.cli.main import outcome
code = outcome(sys.argv[1:])
print("loaded:", *(name for name in {HEAVY!r} if name in sys.modules), file=sys.stderr)
sys.exit(code)
"""
SERVED = f"""
import sys
from pathlib import Path
from tests.serve.serve_asking import asking, site_of
ask = asking(site_of(Path(sys.argv[1])))
for page in sys.argv[2:]:
    answer = ask(page)
    if answer.status != 200:
        sys.exit(f"{{page}}: {{answer.status}} {{answer.body[:300]}}")
print("loaded:", *(name for name in {HEAVY!r} if name in sys.modules), file=sys.stderr)
"""

ROOT = Path(__file__).parents[2]
SCHEME = ["poisson", "--rate", "0.01", "--steps", "100", "--delta", "1e-5"]
COMMANDS = [
    ["--help"],
    ["report", "runs/star", "--json", "--ledger", "ledger.json"],
    ["compare", "runs", "--json", "--figure", "runs.html"],
    ["account", *SCHEME, "--noise", "1"],
    ["calibrate", *SCHEME, "--epsilon", "2"],
    ["experiments", "--folder", str(ROOT / "experiments")],
    ["datasets"],
    ["completion", "bash"],
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with two real runs in runs/."""
    place = tmp_path_factory.mktemp("light")
    for kind in ("star", "clients"):
        sightline.run(experiment(kind, rounds=2), out=place / "runs" / kind)
    return place


def loaded(program, arguments, folder):
    """The heavy packages that a program has loaded when it is done."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=folder, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()[-1].removeprefix("loaded:").split()


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_nothing_heavy_is_loaded(arguments, folder):
    assert loaded(CALLED, arguments, folder) == []


def test_a_server_over_runs_needs_no_torch(folder):
    of_runs = ("/run", "/api/run", "/api/ledger", "/api/sight", "/report.html")
    pages = ["/", "/api/runs", "/calculator", *(f"{page}?run=star" for page in of_runs)]
    assert loaded(SERVED, ["runs", *pages], folder) == []


def test_what_trains_does_load_torch(folder):
    """So that the tests above would see it."""
    (folder / "one.toml").write_text(to_toml(experiment("star", rounds=1)))
    assert "torch" in loaded(CALLED, ["run", "one.toml", "--out", "trained"], folder)


@pytest.mark.slow
def test_a_sweep_trains_elsewhere(folder):
    (folder / "one.toml").write_text(to_toml(experiment("star", rounds=1)))
    words = ["sweep", "one.toml", "--over", "privacy.clip_norm=0.5,1.0", "--workers", "1", "--out", "swept"]
    assert loaded(CALLED, words, folder) == []
    assert len(list((folder / "swept").glob("*/report.html"))) == 2
