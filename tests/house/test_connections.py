"""A database that is left to the garbage collector fails its test, on every Python."""

import gc
import sqlite3
import sys
from contextlib import closing

import pytest

from sightline.api import Run
from sightline.engine import RunRecord
from sightline.engine.record import DATABASE
from sightline.errors import SightlineError
from tests.report.report_runs import quickstart, release


def left_behind(monkeypatch, use):
    """Return what is reported about connections that were not closed."""
    told = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: told.append(f"{type(found.exc_value).__name__}"))
    gc.freeze()  # what other tests left in memory is not looked through
    try:
        use()
        gc.collect()
    finally:
        gc.unfreeze()
    return told


def test_a_connection_that_is_left_open_is_told(monkeypatch, tmp_path):
    def leave():
        sqlite3.connect(tmp_path / "a.sqlite").execute("CREATE TABLE a (b)")

    assert left_behind(monkeypatch, leave) == ["ResourceWarning"]


def test_one_that_is_closed_or_never_was_is_not(monkeypatch, tmp_path):
    def close():
        with closing(sqlite3.connect(tmp_path / "a.sqlite")) as connection:
            connection.execute("CREATE TABLE a (b)")
        with pytest.raises(sqlite3.OperationalError):
            sqlite3.connect(tmp_path / "nowhere" / "a.sqlite")

    assert left_behind(monkeypatch, close) == []


def test_a_database_that_cannot_be_opened_is_not_left_open(monkeypatch, tmp_path):
    for place, content in (("noise", b"x" * 9000), ("view", b""), ("table", b"")):
        (tmp_path / place).mkdir()
        (tmp_path / place / DATABASE).write_bytes(content)
    with closing(sqlite3.connect(tmp_path / "view" / DATABASE)) as connection:
        connection.execute("CREATE VIEW release AS SELECT 1")
    with closing(sqlite3.connect(tmp_path / "table" / DATABASE)) as connection:
        connection.execute("CREATE TABLE other (a)")

    def refuse():
        for place in ("noise", "view"):
            for reach in (RunRecord.open, RunRecord.open_to_read):
                with pytest.raises(SightlineError):
                    reach(tmp_path / place)
        with pytest.raises(SightlineError):
            RunRecord.open_to_read(tmp_path / "table")

    assert left_behind(monkeypatch, refuse) == []


def test_a_run_that_is_forgotten_holds_nothing_open(monkeypatch, tmp_path):
    directory = quickstart(tmp_path / "run", rounds=2)
    before = {path.name: path.stat().st_mtime_ns for path in directory.iterdir()}

    def forget():
        run = Run(directory)
        ledger = run.ledger
        assert {path.name: path.stat().st_mtime_ns for path in directory.iterdir()} == before, "reading touches nothing"
        assert (len(ledger), len(run.rounds), run.metadata["status"]) == (4, 2, "finished")
        assert ledger.epsilon("client-3", "public", delta=1e-3) > 0
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            ledger.append([release(3)])

    assert left_behind(monkeypatch, forget) == []
