"""One round of the quickstart passes through few files, and calls later packages through contracts only."""

import re
import subprocess
import sys
import traceback
from pathlib import Path

import sightline
from sightline.runtimes.local_trainer import LocalClients
from tests.house.size import WALK, read_limits

ROOT = Path(__file__).parents[2]
LIMITS = read_limits()
CALLS = re.compile(r"(\d+) kinds of calls against .*, (\d+) through contracts")


def test_a_round_of_the_quickstart_is_a_short_walk():
    walked = [sys.executable, "-m", "tests.house.walk", "examples/quickstart.toml"]
    done = subprocess.run(walked, cwd=ROOT, capture_output=True, text=True)  # a process of its own: it is profiled
    assert done.returncode == 0, done.stderr
    files, depth = map(int, WALK.search(done.stdout).groups())
    against, by_contract = map(int, CALLS.search(done.stdout).groups())
    assert against == 0, done.stdout
    assert by_contract > 0, "the walk sees calls"
    assert "fedavg.py run_round -> engine/round.py sample" in done.stdout
    assert files <= LIMITS["files of a quickstart round"]["most"]
    assert depth <= LIMITS["call depth of a quickstart round"]["most"]


def test_release_mean_reaches_training_in_eight_calls(monkeypatch, tmp_path):
    stacks, train = [], LocalClients.train

    def record_stack(self, call):
        stacks.append([frame.name for frame in traceback.extract_stack()[:-1]])
        return train(self, call)

    monkeypatch.setattr(LocalClients, "train", record_stack)
    sightline.run("examples/quickstart.toml", overrides=["rounds=1"], out=tmp_path / "run")
    names = stacks[0]
    assert len(names) - names.index("release_mean") <= 8, names
