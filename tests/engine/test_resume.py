"""Interrupted anywhere and resumed, a run ends with the bits and the ledger of an unbroken one."""

import fcntl
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

import sightline
from sightline import engine, randomness
from sightline.config import to_toml
from sightline.engine import checkpoint, loop, run_directory
from sightline.errors import InvalidInput, SightlineError
from sightline.ledger import LedgerDamaged
from tests.engine.leftovers import Crash, crash_in, left_behind
from tests.interrupts import stopped_after

KINDS = {
    "central": {},
    "os entropy": {"privacy.noise_source": "os"},
    "at the clients": {"privacy.where": "client"},
    "samples": {"privacy.unit": "sample", "sampling.clients": {"scheme": "full"}},
    "local": {"algorithm.name": "local", "privacy.unit": "sample"},
    "balanced": {"sampling.clients": {"scheme": "balanced", "uses": 2}},
    "check-ins": {"sampling.clients": {"scheme": "check_ins", "rate": 0.8, "epochs": 2}},
    "balanced samples": {
        "privacy.unit": "sample",
        "sampling": {"clients": {"scheme": "full"}, "samples": {"scheme": "balanced", "uses": 4, "epochs": 2}},
    },
    "parts": {"model": {"name": "mlp", "hidden": [6]}, "algorithm.split": {"parts": 2}},
    "parts of examples": {
        "model": {"name": "mlp", "hidden": [6], "dropout": 0.5},
        "algorithm.split": "dropout",
        "privacy.unit": "sample",
        "sampling.clients": {"scheme": "full"},
    },
    "correlated": {"sampling.clients": {"scheme": "turns", "groups": 3}, "privacy.noise": "correlated"},
    "momentum": {"local.momentum": 0.5, "local.stragglers": 0.5, "local.epochs": 3},
}


PLACES = [
    (loop, "save_checkpoint", True),
    (loop, "save_checkpoint", False),
    (loop.RunRecord, "add_round", True),
    (loop.RunRecord, "add_round", False),
    (loop.Ledger, "append", True),
    (loop.Ledger, "append", False),
    (loop, "evaluate_models", True),
    (checkpoint, "replace_durably", True),
    (loop, "save_tensors", True),
]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """What an unbroken run of each kind leaves behind; each is run once, unless its noise comes from elsewhere."""
    known = {}

    def left(kind, experiment):
        if kind not in known:
            known[kind] = left_behind(sightline.run(experiment, out=tmp_path_factory.mktemp("whole") / "run").directory)
        return known[kind]

    return left


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        # fast: every kind at three places, and every place with four kinds
        pytest.param(kind, place, marks=[pytest.mark.slow] * ((number + place) % 3 != 0))
        for number, kind in enumerate(KINDS)
        for place in range(len(PLACES))
    ],
)
def test_a_crash_changes_nothing(tiny, tmp_path, monkeypatch, unbroken, kind, place):
    experiment = tiny(**KINDS[kind])
    module, name, before = PLACES[place]
    with monkeypatch.context() as patch:
        call = 1 if name == "save_tensors" else 3
        crash_in(patch, module, name, call, before=before)
        with pytest.raises(Crash):
            sightline.run(experiment, out=tmp_path / "broken")
    if kind == "os entropy":
        root = (tmp_path / "broken" / run_directory.SECRET).read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(randomness.secrets, "token_bytes", lambda size: root)
            whole = left_behind(sightline.run(experiment, out=tmp_path / "whole").directory)
    else:
        whole = unbroken(kind, experiment)
    sightline.run(experiment, out=tmp_path / "broken", resume=True)
    assert left_behind(tmp_path / "broken") == whole


def test_resuming_a_finished_run_changes_nothing(tiny, tmp_path):
    sightline.run(tiny(), out=tmp_path / "run")
    before = left_behind(tmp_path / "run")
    again = sightline.run(tiny(), out=tmp_path / "run", resume=True)
    assert left_behind(tmp_path / "run") == before
    assert again.summary["status"] == "finished"


def test_a_crash_before_anything_was_released_leaves_no_directory(tiny, tmp_path, monkeypatch):
    crash_in(monkeypatch, loop.Ledger, "append", 1, before=True)
    with pytest.raises(Crash):
        sightline.run(tiny(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_other_settings_are_not_resumed(tiny, tmp_path):
    sightline.run(tiny(), out=tmp_path / "run")
    with pytest.raises(InvalidInput, match="other settings"):
        sightline.run(tiny(rounds=5), out=tmp_path / "run", resume=True)


@pytest.mark.parametrize("harm", ["edited", "another seed", "gone"])
def test_other_data_are_not_resumed(tiny, tmp_path, harm):
    run = sightline.run(tiny(), out=tmp_path / "run")
    digest = run.directory / "data.digest"
    assert digest.stat().st_mode & 0o077 == 0
    before = left_behind(run.directory)
    setting = engine.build_experiment(tiny(seed=1) if harm == "another seed" else tiny())
    if harm == "edited":
        setting.federation.clients[2].train.x[0, 0] += 1e-6
    if harm == "gone":
        digest.unlink()
    with pytest.raises(InvalidInput, match="data"):
        loop.run_loop(setting, run.directory, make_worker=lambda *_: pytest.fail("it trained"), resume=True)
    assert left_behind(run.directory) == before


def test_a_full_directory_is_not_overwritten(tiny, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "precious").write_text("x")
    with pytest.raises(InvalidInput, match="not empty"):
        sightline.run(tiny(), out=tmp_path / "run")
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["precious"]


@pytest.mark.parametrize("left", [["run.lock"], ["run.lock", "config.toml"], ["run.lock", "config.toml", "run.sqlite"]])
def test_a_start_that_was_killed_early_is_started_again(tiny, tmp_path, left):
    whole = sightline.run(tiny(), out=tmp_path / "whole")
    (tmp_path / "run").mkdir()
    for name in left:
        (tmp_path / "run" / name).touch()
    again = sightline.run(tiny(), out=tmp_path / "run")
    assert left_behind(again.directory) == left_behind(whole.directory)


def test_a_new_run_never_has_the_noise_of_another(tiny, tmp_path):
    experiment = tiny(**KINDS["os entropy"])
    run, roots = tmp_path / "run", []
    run.mkdir()
    (run / run_directory.LOCK).touch()
    (run / run_directory.SECRET).write_bytes(b"x" * 32)
    sightline.run(experiment, out=run, on_round=lambda row: roots.append((run / run_directory.SECRET).read_bytes()))
    assert len(set(roots)) == 1
    assert roots[0] != b"x" * 32


def test_a_second_process_is_refused(tiny, tmp_path):
    sightline.run(tiny(), out=tmp_path / "run")
    with open(tmp_path / "run" / run_directory.LOCK, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(run_directory.RunBusy):
            sightline.run(tiny(), out=tmp_path / "run", resume=True)


def test_default_directories_are_numbered_and_resumed(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = [sightline.run(tiny()).directory.as_posix() for _ in range(3)]
    assert made == ["runs/tiny", "runs/tiny-2", "runs/tiny-3"]
    assert sightline.run(tiny(), resume=True).directory.as_posix() == "runs/tiny-3"


def test_harm_to_ledger_or_checkpoint_is_said(tiny, tmp_path):
    sightline.run(tiny(), out=tmp_path / "run")
    with closing(sqlite3.connect(tmp_path / "run" / "run.sqlite")) as database:
        database.execute("DELETE FROM release WHERE id = (SELECT max(id) FROM release)")
        database.commit()
        with pytest.raises(LedgerDamaged, match="deleted"):
            sightline.run(tiny(), out=tmp_path / "run", resume=True)
        database.execute("UPDATE release SET body = replace(body, '0.8', '8.0') WHERE id = 1")
        database.commit()
    with pytest.raises(LedgerDamaged):
        sightline.run(tiny(), out=tmp_path / "run", resume=True)


@pytest.mark.parametrize("harm", [b"", b"\x80\x04K\x01.", b"\xff" * 100], ids=["empty", "a pickle", "noise"])
def test_a_hostile_checkpoint_is_refused(tiny, tmp_path, monkeypatch, harm):
    with monkeypatch.context() as patch:
        crash_in(patch, loop, "evaluate_models", 3, before=True)
        with pytest.raises(Crash):
            sightline.run(tiny(), out=tmp_path / "run")
    for name in (checkpoint.CHECKPOINT, checkpoint.EARLIER):
        (tmp_path / "run" / name).write_bytes(harm)
    with pytest.raises(checkpoint.CheckpointDamaged):
        sightline.run(tiny(), out=tmp_path / "run", resume=True)


def test_a_checkpoint_is_for_its_owner_only(tiny, tmp_path):
    run = sightline.run(tiny(), out=tmp_path / "run")
    assert (run.directory / checkpoint.CHECKPOINT).stat().st_mode & 0o777 == 0o600


def test_the_budget_is_never_overshot(tiny, tmp_path):
    whole = sightline.run(tiny(rounds=6), out=tmp_path / "whole")
    spent = [row["epsilon"]["public"] for row in whole.rounds]
    limit = (spent[2] + spent[3]) / 2
    stopped = sightline.run(tiny(rounds=6, **{"privacy.stop_at_epsilon": limit}), out=tmp_path / "stopped")
    assert stopped.summary["status"] == "stopped"
    assert stopped.summary["rounds_done"] == 3
    assert stopped.epsilon == spent[2] <= limit
    assert len(stopped.ledger) == 6
    again = sightline.run(tiny(rounds=6, **{"privacy.stop_at_epsilon": limit}), out=tmp_path / "stopped", resume=True)
    assert again.epsilon == spent[2]
    assert len(again.ledger) == 6


def test_a_budget_below_one_round_releases_nothing(tiny, tmp_path):
    run = sightline.run(tiny(**{"privacy.stop_at_epsilon": 1e-3}), out=tmp_path / "run")
    assert run.summary["rounds_done"] == 0
    assert run.epsilon == 0.0
    assert run.report.exists()


@pytest.mark.slow
def test_kill_nine_of_one_command_after_another(tiny, tmp_path):
    experiment = tiny(rounds=12)
    (tmp_path / "tiny.toml").write_text(to_toml(experiment))
    sightline.run(experiment, out=tmp_path / "whole")
    words = ["run", str(tmp_path / "tiny.toml"), "--out", str(tmp_path / "broken")]
    for rounds in (1, 4, 3):
        process = stopped_after(rounds, [*words, "--resume"] if (tmp_path / "broken").exists() else words)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    done = subprocess.run([sys.executable, "-m", "sightline", *words, "--resume"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert left_behind(tmp_path / "broken") == left_behind(tmp_path / "whole")


def test_every_failure_of_a_run_is_a_sightline_error():
    for error in (run_directory.RunBusy, checkpoint.CheckpointDamaged, LedgerDamaged):
        assert issubclass(error, SightlineError)
