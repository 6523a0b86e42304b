"""Every example in every help runs as it stands, in a folder with earlier runs."""

import json
import os
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

from sightline.apps.cli.main import run_arguments
from sightline.config import read
from sightline.runtimes.site.site import Site
from tests.cli.test_help import ALL, lines

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted({line for command in ALL.values() for line in lines(command)})
WAITING = (
    "sightline serve", "sightline flower site", "sightline site serve", "sightline site join", "sightline site start",
)  # fmt: skip
"""These wait for a browser, a server or a site; other tests run them. "serve" covers "server" too."""
LONG = ("sightline audit", "sightline sweep", "sightline run papers", "sightline calibrate check-ins")


MYNET = """
from math import prod

from torch import nn


class Net(nn.Sequential):
    def __init__(self, input_shape, classes):
        super().__init__(nn.Flatten(), nn.Linear(prod(input_shape), classes))


class Words(nn.Module):
    def __init__(self, vocabulary, classes, width):
        super().__init__()
        self.table, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.table(x).mean(1))


def build(vocabulary, classes, width=32):
    return Words(vocabulary, classes, width)
"""
"""A module of one's own, as the help of check-model names it."""


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """Examples and experiments, a few runs, a ledger, a membership file, sites."""
    place = tmp_path_factory.mktemp("desk")
    before = Path.cwd()
    os.chdir(place)
    try:
        for name in ("examples", "papers"):
            Path(name).symlink_to(ROOT / name)
        short = ["run", "examples/quickstart.toml", "--set", "rounds=2", "--json"]
        for out in ("quickstart", "quickstart-2", "prox-sweep/a"):
            assert run_arguments([*short, "--out", f"runs/{out}"]) == 0
        assert run_arguments(["run", "examples/quickstart.toml", "--out", "runs/mine", "--json"]) == 0
        assert run_arguments(["report", "runs/quickstart", "--ledger", "ledger.json"]) == 0
        Path("groups.json").write_text(json.dumps({"workers": 3, "groups": [[0, 1], [1, 2]]}))
        assert run_arguments(["flower", "shards", "examples/sites.toml", "sites", "--epsilon", "8"]) == 0
        Path("st-mary").symlink_to("sites/site-0")
        Path("experiment.toml").write_text(Path("examples/sites.toml").read_text())
        Path("patients.csv").write_text("age,dose,state\n" + "1,2,healthy\n3,4,ill\n" * 20)
        np.savez("st-mary.npz", train_x=np.zeros((20, 64), dtype=np.float32), train_y=np.arange(20) % 10)
        Path("mynet.py").write_text(MYNET)
        sys.path.insert(0, str(place))
        yield place
    finally:
        os.chdir(before)
        sys.path[:] = [one for one in sys.path if one != str(place)]
        sys.modules.pop("mynet", None)


def words_of(line):
    """The words of the command itself: what a shell would pipe or write on is not ours."""
    return shlex.split(line.split(" | ")[0].split(" > ")[0].split(" >> ")[0])[1:]


@pytest.mark.parametrize(
    "line",
    [pytest.param(line, marks=[pytest.mark.slow] if line.startswith(LONG) else []) for line in EXAMPLES if not line.startswith(WAITING)],
)  # fmt: skip
def test_it_runs(desk, line, request):
    if "papers/" in line:
        request.getfixturevalue("large_data")
    words = [word for word in words_of(line) if word != "--open"]  # tests open no browser
    if words[:2] == ["flower", "shards"]:
        words[3] = "other-sites"
    if words[:2] == ["site", "init"]:
        pytest.importorskip("cryptography")
        words[2] = f"site-{len(list(desk.glob('site-*')))}"
    if words[:2] == ["site", "approve"]:
        words += ["--yes"]  # the owner would be asked
    if words[:2] == ["site", "revoke"]:
        experiment = read("examples/sites.toml", (f"name=revoked-{len(line)}", "privacy.epsilon=1.0"))
        site = Site(Path("sites/site-0"))
        words[2:3] = [site.approve(site.draw_up(experiment)).id, "--yes"]
    if words[:2] in (["site", "keygen"], ["site", "sign"]):
        pytest.importorskip("cryptography")
        (desk / "researcher.key").unlink(missing_ok=True)
    if words[:2] == ["site", "sign"]:
        assert run_arguments(["site", "keygen", "researcher.key"]) == 0
    if words[:2] == ["flower", "export"]:
        words[3] = f"app-{len(list(desk.glob('app*')))}"
    if words[0] == "audit":
        words += ["--trials", "30"]  # the last one counts: hundreds take minutes, and are the same words
    assert run_arguments(words) == 0


def test_what_waits_is_named_and_exists():
    for start in WAITING:
        assert any(line.startswith(start) for line in EXAMPLES)
