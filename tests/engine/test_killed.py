"""Killed between any two operations on its files, a run that is started or resumed again ends in the same bits."""

import os
import secrets
import sqlite3
import sys

import pytest

import sightline
from sightline.engine import RunRecord, run_directory
from sightline.engine.record import DATABASE
from sightline.ledger import store
from tests.engine.leftovers import left_behind

FILES = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.chmod", "sqlite3.connect"}
ROOT = b"r" * 32
_watched = []
"""[folder, what to do before an operation on a file in it]; empty while nobody watches. Hooks cannot be taken back."""


def _hook(event, words):
    if _watched and event in FILES and words and str(words[0]).find(str(_watched[0])) >= 0:
        _watched[1](f"{event} {os.path.basename(str(words[0]))}")


def watch(folder, before):
    """Call `before` with a name of every operation on the folder's files, and of every statement to its database."""
    if not getattr(sys, "_sightline_hook", False):
        sys.addaudithook(_hook)
        sys._sightline_hook = True
    _watched[:] = [folder, before]

    class Traced(sqlite3.Connection):
        def __init__(self, *words, **more):
            super().__init__(*words, **more)
            self.set_trace_callback(before)

    real = sqlite3.connect
    store.sqlite3.connect = lambda *words, **more: real(*words, factory=Traced, **more)


def killed(experiment, out, moment):
    """Run in a process of its own that dies before its `moment`-th operation; returns what it did until then."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        count = 0

        def before(what):
            nonlocal count
            count += 1
            os.write(send, what.replace("\n", " ").encode() + b"\n")
            if count == moment:
                os._exit(9)

        watch(out, before)
        try:
            go(experiment, out)
        finally:
            os._exit(0)
    os.close(send)
    with os.fdopen(receive) as file:
        done = file.read().splitlines()
    os.waitpid(child, 0)
    return done


def go(experiment, out):
    """Start the run, or go on with it where something was released."""
    database = out / DATABASE
    begun = database.exists() and run_directory._has_releases(database)
    sightline.run(experiment, out=out, resume=begun)


@pytest.fixture
def whole(tiny, tmp_path, monkeypatch):
    """(experiment, what an unbroken run of it leaves); noise and cohorts of both come from one root."""
    monkeypatch.setattr(secrets, "token_bytes", lambda size: ROOT if size == len(ROOT) else os.urandom(size))
    experiment = tiny(**{"rounds": 2, "privacy.noise_source": "os", "evaluate_every": 2})
    sightline.run(experiment, out=tmp_path / "whole")
    return experiment, left_behind(tmp_path / "whole")


def moments(operations, part):
    """The numbers of the operations of the start (to the first release), of the end (after the last round) or of all."""
    first = next(n for n, what in enumerate(operations, 1) if what.startswith("INSERT INTO release"))
    last = max(n for n, what in enumerate(operations, 1) if what.startswith("INSERT OR REPLACE INTO round"))
    return {"start": range(1, first + 2), "end": range(last, len(operations) + 1)}.get(
        part, range(1, len(operations) + 1)
    )


@pytest.mark.parametrize(
    ("part", "stride"), [("start", 12), ("end", 12), pytest.param("all", 1, marks=pytest.mark.slow)]
)
def test_a_kill_between_any_two_operations_changes_nothing(whole, tmp_path, part, stride):
    experiment, expected = whole
    operations = killed(experiment, tmp_path / "counted", -1)
    assert left_behind(tmp_path / "counted") == expected
    chosen = list(moments(operations, part))
    assert len(chosen) > 10
    for moment in chosen[::stride]:
        out = tmp_path / f"run-{moment}"
        assert len(killed(experiment, out, moment)) == moment
        go(experiment, out)
        assert left_behind(out) == expected, operations[moment - 1]
        assert not (out / run_directory.SECRET).exists(), operations[moment - 1]
        with_record(out)


def with_record(out):
    """The record of a run is whole."""
    record = RunRecord.open_to_read(out)
    try:
        record.verify()
    finally:
        record.close()
