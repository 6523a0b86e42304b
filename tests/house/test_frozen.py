"""A clean-up changes no bits of an example and no name that files, commands, ledgers or random streams depend on."""

import os
import sqlite3
import tarfile
from contextlib import closing
from unittest import mock

import pytest

import sightline
from tests.house import frozen
from tests.loops import for_every


def recorded(kind):
    digests = frozen.read_golden()["digests"].get(frozen.describe_machine())
    if digests is None:
        pytest.skip(f"no digests were recorded on this kind of machine ({frozen.describe_machine()})")
    return digests[kind]


@for_every(sorted(frozen.read_names()))
def test_names_stay(kind):
    assert frozen.read_names()[kind] == frozen.read_golden()["names"][kind]


@pytest.mark.parametrize("example", frozen.QUICK)
def test_the_first_rounds_of_an_example_keep_their_bits(example):
    wanted = recorded("short")[example]
    assert frozen.digest_run(example, frozen.SHORT) == wanted


@pytest.mark.slow
@pytest.mark.parametrize("example", frozen.EXAMPLES)
def test_an_example_keeps_its_bits(example):
    wanted = recorded("whole")[example]
    assert frozen.digest_run(example) == wanted


@pytest.mark.parametrize("run", sorted(path.name for path in frozen.OLD_RUNS.glob("*.tar.gz")))
def test_a_run_of_version_0_1_resumes(run, tmp_path):
    """Interrupted after 3 of 5 rounds by version 0.1, before modules were merged and repairs made."""
    with tarfile.open(frozen.OLD_RUNS / run) as archive:
        archive.extractall(tmp_path, filter="data")
    (directory,) = tmp_path.iterdir()
    with closing(sqlite3.connect(directory / "run.sqlite")) as connection:
        before = connection.execute("SELECT hash FROM release ORDER BY id").fetchall()
    with mock.patch.dict(os.environ, SIGHTLINE_PATHS="rule"):
        done = sightline.run(directory, resume=True, accept_changes=True, progress=False)
    assert len(done.rounds) == 5
    with closing(sqlite3.connect(directory / "run.sqlite")) as connection:
        after = connection.execute("SELECT hash FROM release ORDER BY id").fetchall()
    assert after[: len(before)] == before
    assert len(after) > len(before)
