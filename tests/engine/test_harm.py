"""A full disk, a lying clock, a ledger put back: the run stops with a reason, and what was released stays counted."""

import errno
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

import sightline
from sightline.config import to_toml
from sightline.engine import RunRecord, checkpoint, loop
from sightline.errors import InvalidInput, SightlineError
from sightline.ledger import LedgerDamaged
from sightline.ledger.store import chain_hash
from sightline.randomness import write_secret
from tests.engine.leftovers import left_behind


@pytest.mark.slow
def test_a_full_disk_stops_the_run_with_a_reason_and_it_goes_on_later(tiny, tmp_path):
    experiment = tiny(rounds=60)
    (tmp_path / "tiny.toml").write_text(to_toml(experiment))
    command = [sys.executable, "-m", "sightline", "run", str(tmp_path / "tiny.toml"), "--out", str(tmp_path / "full")]

    def small_files():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write fails with EFBIG, as on a full disk with ENOSPC
        resource.setrlimit(resource.RLIMIT_FSIZE, (700_000, 700_000))

    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=small_files)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "disk" in done.stderr.splitlines()[-1]
    with closing(RunRecord.open(tmp_path / "full")) as record:
        kept = len(record.ledger())
    assert 0 < kept < 120
    sightline.run(experiment, out=tmp_path / "full", resume=True)
    sightline.run(experiment, out=tmp_path / "whole")
    assert left_behind(tmp_path / "full") == left_behind(tmp_path / "whole")


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), OSError(errno.EIO, "I/O error")])
def test_a_checkpoint_that_cannot_be_written_keeps_the_one_before(tiny, tmp_path, monkeypatch, error):
    calls = iter(range(1, 100))

    def failing(temporary, path, real=checkpoint.replace_durably):
        if next(calls) == 3:
            raise error
        real(temporary, path)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "replace_durably", failing)
        with pytest.raises(SightlineError, match="disk"):
            sightline.run(tiny(), out=tmp_path / "run")
    assert checkpoint.load_checkpoint(tmp_path / "run").round == 2
    with closing(RunRecord.open(tmp_path / "run")) as record:
        assert len(record.ledger()) == 6, "the third round's releases were made and stay counted"
    sightline.run(tiny(), out=tmp_path / "run", resume=True)
    sightline.run(tiny(), out=tmp_path / "whole")
    assert left_behind(tmp_path / "run") == left_behind(tmp_path / "whole")


def test_a_clock_that_goes_backwards_changes_no_number(tiny, tmp_path, monkeypatch):
    ticks = iter(range(10**6, 0, -1))
    monkeypatch.setattr(loop.time, "perf_counter", lambda: float(next(ticks)))
    sightline.run(tiny(), out=tmp_path / "back")
    monkeypatch.undo()
    sightline.run(tiny(), out=tmp_path / "whole")
    assert left_behind(tmp_path / "back") == left_behind(tmp_path / "whole")


def test_a_ledger_that_cannot_be_read_is_not_thrown_away(tiny, tmp_path, monkeypatch):
    def broken(self, number, body):
        (self.directory / "run.sqlite").write_bytes(b"not a database at all" * 100)
        raise KeyboardInterrupt

    monkeypatch.setattr(RunRecord, "add_round", broken)
    with pytest.raises(KeyboardInterrupt):
        sightline.run(tiny(), out=tmp_path / "run")
    assert (tmp_path / "run" / "run.sqlite").exists()


def crashed(tiny, tmp_path, monkeypatch, calls):
    """A run that stopped in the middle, before its `calls`-th row of metrics."""
    real, numbers = RunRecord.add_round, iter(range(1, 100))

    def stopping(self, number, body):
        if next(numbers) == calls:
            raise KeyboardInterrupt
        real(self, number, body)

    with monkeypatch.context() as patch:
        patch.setattr(RunRecord, "add_round", stopping)
        with pytest.raises(KeyboardInterrupt):
            sightline.run(tiny(), out=tmp_path / "run")
    return tmp_path / "run"


def test_an_older_ledger_put_back_is_noticed_by_the_checkpoint(tiny, tmp_path, monkeypatch):
    run = crashed(tiny, tmp_path, monkeypatch, 2)
    shutil.copy(run / "run.sqlite", tmp_path / "old.sqlite")
    sightline.run(tiny(), out=run, resume=True)
    shutil.copy(tmp_path / "old.sqlite", run / "run.sqlite")
    with pytest.raises(checkpoint.CheckpointDamaged, match="deleted"):
        sightline.run(tiny(), out=run, resume=True)


def test_ledger_and_checkpoint_put_back_together_release_the_same_again(tiny, tmp_path, monkeypatch):
    """What nobody inside the directory can notice: a whole older copy. It replays the same noise on the same data."""
    run = crashed(tiny, tmp_path, monkeypatch, 2)
    shutil.copytree(run, tmp_path / "old")
    sightline.run(tiny(), out=run, resume=True)
    sightline.run(tiny(), out=tmp_path / "old", resume=True)
    assert left_behind(run) == left_behind(tmp_path / "old")


def test_replayed_and_rewritten_rows_are_noticed(tiny, tmp_path, monkeypatch):
    run = crashed(tiny, tmp_path, monkeypatch, 3)
    with closing(sqlite3.connect(run / "run.sqlite")) as database:
        last = database.execute("SELECT max(id) FROM release").fetchone()[0]
        time, body, head = database.execute("SELECT time, body, hash FROM release WHERE id = ?", (last,)).fetchone()
        row = (last + 1, time + 1, body, chain_hash(head, body))
        database.execute("INSERT INTO release VALUES (?, ?, ?, ?)", row)
        database.commit()
    with pytest.raises(LedgerDamaged, match="were added after"):
        sightline.run(tiny(), out=run, resume=True)


BALANCED = {"rounds": 8, "sampling.clients": {"scheme": "balanced", "uses": 2}, "privacy.noise_source": "os"}


@pytest.mark.parametrize("harm", ["gone", "exchanged"])
def test_a_run_without_its_noise_root_does_not_go_on(tiny, tmp_path, monkeypatch, harm):
    """A restarted schedule would use clients up to 4 of 8 times while the ledger charges 2 of 8."""
    run = crashed(lambda: tiny(**BALANCED), tmp_path, monkeypatch, 5)
    kept = (run / "noise-root.secret").read_bytes()
    if harm == "gone":
        (run / "noise-root.secret").unlink()
    else:
        write_secret(run / "noise-root.secret", bytes(32))
    with pytest.raises(InvalidInput, match=r"noise-root\.secret"):
        sightline.run(tiny(**BALANCED), out=run, resume=True)
    write_secret(run / "noise-root.secret", kept)
    assert sightline.run(tiny(**BALANCED), out=run, resume=True).summary["rounds_done"] == 8
