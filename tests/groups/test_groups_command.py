"""`sightline groups` as scripts use it: names, shapes, exit codes, files."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import sightline
from sightline.accounting import epsilon
from sightline.apps.cli.main import run_arguments
from sightline.events import Gaussian, Poisson
from sightline.ledger.group_privacy import PairQuery, query_pairs

RING = ["--structure", "ring", "--workers", "20", "--groups", "4", "--period", "5", "--epochs", "21"]
NOISE = ["--noise", "2", "--rate", "0.7", "--delta", "1e-5"]


@pytest.fixture
def groups(capsys):
    """Run the command; (exit code, stdout as JSON or text, stderr)."""

    def call(*words):
        code = run_arguments(["groups", *words])
        found = capsys.readouterr()
        return code, json.loads(found.out) if "--json" in words and found.out else found.out, found.err

    return call


def test_the_names_that_scripts_rely_on(groups, tmp_path):
    code, found, _ = groups(*RING, *NOISE, "--json", "--out", str(tmp_path / "pairs.npz"))
    assert code == 0
    assert {"epsilon_mean", "epsilon_max", "matrix_shape"} <= set(found)
    assert found["matrix_shape"] == [20, 20]
    held = np.load(tmp_path / "pairs.npz")
    matrix, releases = held["epsilon"], held["releases"]
    assert matrix.shape == releases.shape == (20, 20)
    assert np.isnan(np.diag(matrix)).all()
    assert not np.isnan(matrix[~np.eye(20, dtype=bool)]).any()
    worst = np.nanmax(matrix, axis=1)
    assert found["epsilon_max"] == worst.max()
    assert found["epsilon_mean"] == pytest.approx(worst.mean(), rel=1e-12)
    assert matrix[1, 2] == epsilon({Poisson(0.7, Gaussian(2.0)): 20}, 1e-5)
    assert (releases[1, 2], releases[1, 7], releases[1, 12]) == (20, 15, 10)
    assert found["releases_max"] == releases.max() == 35


def test_out_of_group_leaves_mates_undefined(groups, tmp_path):
    code, found, _ = groups(*RING, *NOISE, "--threat", "out-of-group", "--json", "--out", str(tmp_path / "p.npz"))
    matrix = np.load(tmp_path / "p.npz")["epsilon"]
    assert code == 0
    assert np.isnan(matrix[1, 2])
    assert np.isnan(matrix[5, 2])
    assert found["epsilon_max"] == np.nanmax(matrix) == epsilon({Poisson(0.7, Gaussian(2.0)): 30}, 1e-5)


def test_plus_is_cheaper_by_about_the_period(groups):
    _, plain, _ = groups(*RING, *NOISE, "--json", "--threat", "out-of-group")
    _, plus, _ = groups(*RING, *NOISE, "--json", "--threat", "out-of-group", "--plus")
    assert plain["releases_max"] == 5 * plus["releases_max"]
    assert plus["epsilon_max"] < 0.5 * plain["epsilon_max"]


def test_nobody_outside_is_null(groups):
    code, found, _ = groups("--structure", "global", "--workers", "4", "--epochs", "5", *NOISE, "--threat",
                            "out-of-group", "--json")  # fmt: skip
    assert code == 0
    assert found["epsilon_max"] is None
    assert found["epsilon_mean"] is None
    assert (
        groups("--structure", "global", "--workers", "4", "--epochs", "5", *NOISE, "--threat", "out-of-group")[0] == 0
    )


def test_clusters_leak_nothing_to_each_other(groups, tmp_path):
    groups("--structure", "clusters", "--workers", "8", "--groups", "4", "--epochs", "9", *NOISE, "--out",
           str(tmp_path / "c.npz"))  # fmt: skip
    matrix = np.load(tmp_path / "c.npz")["epsilon"]
    assert matrix[0, 1] > 0
    assert matrix[0, 2] == 0


def test_a_membership_file_with_everything(groups, membership, tmp_path):
    file = membership(workers=4, groups=[[0, 1], [1, 2], [3]], schedule=[{"from": 2, "groups": [[0, 1], [2, 3], [3]]}],
                      rates=[1, 0.5, 1], noise_factors=[1, 1, 2])  # fmt: skip
    code, found, _ = groups("--structure", file, "--period", "2", "--epochs", "5", *NOISE, "--json", "--out",
                            str(tmp_path / "f.npz"))  # fmt: skip
    assert code == 0
    assert found["workers"] == 4
    matrix = np.load(tmp_path / "f.npz")["epsilon"]
    assert matrix[0, 1] == epsilon({Gaussian(2.0): 4}, 1e-5)
    assert matrix[1, 3] == epsilon({Poisson(0.5, Gaussian(2.0)): 2}, 1e-5)
    assert matrix[0, 3] == 0


def test_the_run_and_the_calculator_agree(groups, grouped, tmp_path):
    run = sightline.run(grouped(), out=tmp_path / "run")
    _, found, _ = groups("--structure", "ring", "--workers", "9", "--groups", "3", "--period", "2", "--epochs", "5",
                         "--noise", "0.8", "--rate", "0.6", "--delta", "1e-5", "--json")  # fmt: skip
    assert found["epsilon_max"] == run.epsilon


def test_the_bottleneck_lowers_and_says_for_how_many(groups, tmp_path):
    long = ["--structure", "ring", "--workers", "20", "--groups", "4", "--period", "25", "--epochs", "101", *NOISE]
    _, plain, _ = groups(*long, "--threat", "out-of-group", "--json")
    _, tight, _ = groups(*long, "--threat", "out-of-group", "--json", "--bottleneck")
    assert tight["epsilon_max"] < plain["epsilon_max"]
    assert 0 < tight["pairs_tightened"] <= 20 * 19
    assert "bottleneck bound" in groups(*long, "--bottleneck")[1]
    code, _, error = groups(*RING, *NOISE, "--plus", "--bottleneck")
    assert code == 2
    assert "DP-OGL" in error


def test_a_picture_is_drawn(groups, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "map.png"
    assert groups(*RING, *NOISE, "--plot", str(path))[0] == 0
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--structure", "rng", *RING[2:], *NOISE], 'did you mean "ring"'),
        (["--structure", "ring", "--groups", "4", "--epochs", "9", *NOISE], "--workers=missing"),
        (["--structure", "ring", "--workers", "4", "--epochs", "9", *NOISE], "--groups=missing"),
        (["--structure", "ring", "--workers", "3", "--groups", "4", "--epochs", "9", *NOISE], "groups=4"),
        (["--structure", "nowhere.json", "--epochs", "9", *NOISE], "no such file"),
        ([*RING, "--noise", "0", "--delta", "1e-5"], "--noise=0"),
        ([*RING, "--noise", "inf", "--delta", "1e-5"], "--noise=inf"),
        ([*RING, "--noise", "nan", "--delta", "1e-5"], "--noise=nan"),
        ([*RING, "--noise", "1", "--rate", "1.5", "--delta", "1e-5"], "--rate=1.5"),
        ([*RING, "--noise", "1", "--delta", "0"], "--delta=0"),
        ([*RING[:-1], "0", *NOISE], "epochs=0"),
        ([*RING[:7], "0", *RING[8:], *NOISE], "period=0"),
        ([*RING, *NOISE, "--threat", "nobody"], "nobody"),
        ([*RING, *NOISE, "--out", "pairs.csv"], ".npz"),
        ([*RING, *NOISE, "--out", "no/such/folder/p.npz"], "cannot be written"),
        ([*RING, *NOISE, "--plot", "no/such/folder/p.png"], "cannot be written"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(groups, words, said):
    code, out, error = groups(*words)
    assert code == 2
    assert said in error
    assert error.count("\n") == 1
    assert "Traceback" not in error
    assert out == ""


def test_the_file_decides_about_workers_and_groups(groups, membership):
    file = membership(workers=3, groups=[[0, 1], [1, 2]])
    code, _, error = groups("--structure", file, "--workers", "4", "--epochs", "4", *NOISE)
    assert code == 2
    assert "--workers=4" in error
    assert groups("--structure", file, "--workers", "3", "--groups", "2", "--epochs", "4", *NOISE)[0] == 0


def test_epochs_one_shows_only_the_start():
    answer = query_pairs(PairQuery("ring", 1, 2.0, 1e-5, workers=8, count=2))
    assert answer.largest == 0.0
    assert answer.releases_max == 0


def test_many_workers_are_written_by_class(groups, tmp_path):
    words = ["--structure", "ring", "--workers", "5000", "--groups", "50", "--period", "10", "--epochs", "100"]
    code, found, _ = groups(*words, *NOISE, "--json", "--out", str(tmp_path / "many.npz"))
    held = np.load(tmp_path / "many.npz")
    assert code == 0
    assert found["matrix_shape"] == [5000, 5000]
    assert held["epsilon_by_class"].shape == (100, 100)
    assert held["class_of"].shape == (5000,)
    assert math.isclose(held["worst"].max(), found["epsilon_max"])


SCALE = """
import sys
from sightline.apps.cli.main import run_arguments
code = run_arguments(["groups", *sys.argv[1:], "--json"])
print(code, next(row.split()[1] for row in open("/proc/self/status") if row.startswith("VmHWM")))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_ten_thousand_workers_in_a_gigabyte(tmp_path):
    words = ["--structure", "ring", "--workers", "10000", "--groups", "100", "--period", "10", "--epochs", "1000"]
    done = subprocess.run(
        [sys.executable, "-c", SCALE, *words, *NOISE, "--out", str(tmp_path / "all.npz")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    answer, last = done.stdout.strip().splitlines()
    code, memory = map(int, last.split())
    assert code == 0
    assert json.loads(answer)["matrix_shape"] == [10000, 10000]
    assert memory < 1_000_000  # kilobytes
