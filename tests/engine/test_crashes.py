"""Power cuts, full disks, unreadable checkpoints and lying clocks, for every kind of run: the same bits, or a reason.

Runs are forked, so that a kill falls into the run and not into the loading of libraries.
"""

import multiprocessing
import random
import resource
import signal
import sys
import time
from contextlib import closing

import pytest

import sightline
from sightline.engine import checkpoint
from sightline.engine.record import DATABASE, RunRecord
from sightline.errors import SightlineError
from tests.engine.leftovers import left_behind
from tests.engine.many_kinds import KINDS, experiment

pytestmark = pytest.mark.slow

ROUNDS = 100
KILLS = 12


@pytest.fixture(scope="module", params=KINDS)
def unbroken(request, tmp_path_factory):
    """(an experiment, the directory of a run of it that nothing happened to)."""
    asked = experiment(request.param, rounds=ROUNDS, evaluate_every=10)
    folder = tmp_path_factory.mktemp("unbroken")
    sightline.run(asked, out=folder / "whole")
    return asked, folder / "whole"


def forked(asked, out, *, prepare=lambda: None):
    """A process that starts the run or goes on with it; 0 done, 7 stopped with a reason, which it writes down."""

    def work():
        prepare()
        try:
            sightline.run(asked, out=out, resume=(out / DATABASE).exists())
        except SightlineError as error:
            out.with_name("reason").write_text(str(error))
            sys.exit(7)

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    return process


def test_kill_nine_at_random_moments_of_every_kind_of_run(unbroken, tmp_path):
    asked, whole = unbroken
    dice, kills, moments = random.Random(asked.name), 0, set()
    for _ in range(10 * KILLS):
        process = forked(asked, tmp_path / "broken")
        process.join(dice.uniform(0.2, 2.0) if kills < KILLS else None)
        if process.is_alive():
            process.kill()
            kills += 1
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL), (tmp_path / "reason").read_text()
        if process.exitcode == 0:
            break
        moments.add(rounds_of(tmp_path / "broken"))
    assert process.exitcode == 0
    assert kills >= 2
    assert len(moments) >= 2, "it must have been killed in different places"
    assert left_behind(tmp_path / "broken") == left_behind(whole)


def rounds_of(directory):
    """How many rounds a broken run had finished."""
    if not (directory / DATABASE).exists():
        return 0
    with closing(RunRecord.open(directory)) as record:
        return len(record.rounds())


def small_disk():
    """Let every write beyond a size fail with EFBIG, as on a full disk with ENOSPC."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (700_000, 700_000))


def test_a_full_disk_stops_every_kind_of_run_with_a_reason(unbroken, tmp_path):
    asked, whole = unbroken
    process = forked(asked, tmp_path / "full", prepare=small_disk)
    process.join()
    assert process.exitcode == 7
    assert "disk" in (tmp_path / "reason").read_text()
    _, all_bodies, _ = left_behind(whole)
    with closing(RunRecord.open(tmp_path / "full")) as record:
        kept = [release.body() for release in record.ledger()]
    assert 0 < len(kept) < len(all_bodies)
    assert kept == all_bodies[: len(kept)]
    sightline.run(asked, out=tmp_path / "full", resume=True)
    assert left_behind(tmp_path / "full") == left_behind(whole)


def test_an_unreadable_checkpoint_stops_every_kind_of_run_and_nothing_is_lost(unbroken, tmp_path):
    asked, whole = unbroken
    process = forked(asked, tmp_path / "broken")
    while not (tmp_path / "broken" / checkpoint.CHECKPOINT).exists():
        assert process.is_alive()
        time.sleep(0.01)
    process.kill()
    process.join()
    path, dice = tmp_path / "broken" / checkpoint.CHECKPOINT, random.Random(0)
    good = path.read_bytes()
    with closing(RunRecord.open(tmp_path / "broken")) as record:
        releases = len(record.ledger())
    for size in [0, 7, *dice.sample(range(8, len(good)), 4)]:
        path.write_bytes(good[:size])
        with pytest.raises(checkpoint.CheckpointDamaged):
            sightline.run(asked, out=tmp_path / "broken", resume=True)
        with closing(RunRecord.open(tmp_path / "broken")) as record:
            assert len(record.ledger()) == releases
    path.write_bytes(good)
    sightline.run(asked, out=tmp_path / "broken", resume=True)
    assert left_behind(tmp_path / "broken") == left_behind(whole)


def test_clocks_that_go_backwards_change_no_kind_of_run(unbroken, tmp_path, monkeypatch):
    asked, whole = unbroken
    ticks = iter(range(10**9, 0, -1))
    for name in ("time", "perf_counter", "monotonic"):
        monkeypatch.setattr(time, name, lambda: float(next(ticks)))
    sightline.run(asked, out=tmp_path / "back")
    monkeypatch.undo()
    assert next(ticks) < 10**9 - ROUNDS, "the run must have looked at the clock"
    assert left_behind(tmp_path / "back") == left_behind(whole)
