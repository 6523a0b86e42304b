"""`sightline sweep` as a person meets it: real processes that fail, die, are interrupted, and go on."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sightline
from sightline.apps.cli.main import run_arguments
from sightline.apps.report import RunView
from tests.interrupts import heeds_interrupts

ROOT = Path(__file__).parents[2]
QUICKSTART = str(ROOT / "examples" / "quickstart.toml")

DEADLY = """
import os, signal
from pathlib import Path
from torch import nn

def make(*shape, **settings):
    print("a model may print what it likes")
    if Path("deadly").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
"""


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "sightline", "sweep", QUICKSTART, *words]


Swept = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Swept:
    """The command in this process, its workers in their own; exit code, JSON, and what was said."""
    monkeypatch.chdir(tmp_path)

    def sweep(*words: str) -> tuple[int, dict[str, Any], str]:
        code = run_arguments(["sweep", QUICKSTART, *words])
        said = capsys.readouterr()
        return code, json.loads(said.out), said.err

    return sweep


@pytest.mark.slow  # seven processes that load torch
def test_a_bad_combination_and_a_dead_process_do_not_lose_the_rest(tmp_path: Path, swept: Swept) -> None:
    (tmp_path / "killer.py").write_text(DEADLY)
    (tmp_path / "deadly").touch()
    words = ("--set", "rounds=2", "--over", "model.name=killer:make,mlp,mpl", "--workers", "1", "--json")
    code, told, said = swept(*words)
    assert code == 1, said
    assert (told["planned"], told["done"], told["done_before"]) == (3, 1, 0)
    reasons = {row["settings"][0]: row["reason"] for row in told["failed"]}
    assert "SIGKILL" in reasons["model.name=killer:make"]
    assert 'did you mean "mlp"' in reasons["model.name=mpl"]
    assert [run["settings"]["model.name"] for run in told["runs"]] == ["mlp"]
    assert "Traceback" not in said
    assert (tmp_path / "runs" / "quickstart-sweep" / "sweep.html").is_file()

    (tmp_path / "deadly").unlink()
    _, told, _ = swept(*words)
    assert (told["done"], told["done_before"], len(told["failed"])) == (2, 1, 1)
    assert any("no epsilon here counts that choice" in note for note in told["notes"])


WAITING = """
import time
from pathlib import Path
from torch import nn

class Waiting(nn.Linear):
    def forward(self, x):
        while Path("hold").exists() and Path("runs/quickstart-sweep/seed=0/checkpoint.safetensors").exists():
            time.sleep(0.05)
        return super().forward(x.flatten(1))

def make(*shape, **settings):
    return Waiting(64, 10)
"""
"""A model that goes on after the first round only when nobody holds it."""


@pytest.mark.slow
def test_interrupted_it_goes_on_and_ends_as_if_nothing_had_happened(
    tmp_path: Path, swept: Swept, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "waiting.py").write_text(WAITING)
    (tmp_path / "hold").touch()
    settings = ["rounds=4", "privacy.noise_multiplier=1.0", "model={name='waiting:make'}"]
    words = (*(word for one in settings for word in ("--set", one)), "--seeds", "2", "--workers", "1", "--json")
    busy = subprocess.Popen(command(*words), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            preexec_fn=heeds_interrupts)  # fmt: skip
    place = tmp_path / "runs" / "quickstart-sweep" / "seed=0"
    while not (place / "checkpoint.safetensors").exists():
        assert busy.poll() is None
        time.sleep(0.05)
    busy.send_signal(signal.SIGINT)
    out, err = busy.communicate()
    assert busy.returncode == 130, err
    assert json.loads(out)["interrupted"] is True
    assert "repeat the command to continue" in err
    assert RunView.read(place).rounds_done < 4

    (tmp_path / "hold").unlink()
    code, told, said = swept(*words)
    assert code == 0, said
    assert (told["done"], told["failed"], told["interrupted"]) == (2, [], False)
    monkeypatch.syspath_prepend(tmp_path)
    whole = sightline.run(QUICKSTART, overrides=settings, seed=0, out=tmp_path / "whole")
    resumed = next(row for row in told["runs"] if row["seed"] == 0)
    assert resumed["test_accuracy"] == whole.test_accuracy
    assert resumed["epsilon"] == whole.epsilon
    assert RunView.read(place).head == RunView.read(tmp_path / "whole").head


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--over", "rounds"], "key=value,value"),
        (["--workers", "0"], "--workers=0"),
        (["--figure", "x.doc"], "--figure=x.doc"),
        (["--over", "privacy.clip_norm=-1,-2"], "none of its 2 runs"),
    ],
)
def test_mistakes_are_told_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_arguments(["sweep", QUICKSTART, *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert says in said.err
    assert list(tmp_path.iterdir()) == []
