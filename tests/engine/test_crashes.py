"""Power cuts, full disks, unreadable checkpoints and lying clocks, for every kind of run: the same bits, or a reason.

Runs are forked, so that a kill falls into the run and not into the loading of libraries. They die at a call of a Python
function that was drawn, counted from a round that was drawn: a place in the run, which no machine is too fast for.
"""

import multiprocessing
import os
import random
import resource
import signal
import sys
import time
from contextlib import closing

import pytest

import sightline
from sightline.engine import RunRecord, checkpoint
from sightline.engine.record import DATABASE
from sightline.errors import SightlineError
from tests.engine.leftovers import left_behind
from tests.engine.many_kinds import KINDS, experiment

pytestmark = pytest.mark.slow

ROUNDS = 50
KILLS = 8
AT_ONCE = 5
"""A run that is killed finishes fewer rounds than this before."""


class Calls:
    """How many Python functions were called since `count` began, up to a limit at which the process dies."""

    def __init__(self, limit=None):
        self.seen, self.limit = 0, limit

    def count(self):
        sys.setprofile(self._look)

    def _look(self, frame, event, argument):
        self.seen += event == "call"
        if self.seen == self.limit:
            os.kill(os.getpid(), signal.SIGKILL)


def calls_of(asked, out):
    """(calls before the first round is done, calls of the second round) of a run."""
    calls, marks = Calls(), []
    calls.count()
    try:
        sightline.run(asked, out=out, on_round=lambda row: marks.append(calls.seen))
    finally:
        sys.setprofile(None)
    return marks[0], marks[1] - marks[0]


@pytest.fixture(scope="module", params=KINDS)
def unbroken(request, tmp_path_factory):
    """(an experiment, the directory of a run of it that nothing happened to)."""
    asked = experiment(request.param, rounds=ROUNDS, evaluate_every=10)
    folder = tmp_path_factory.mktemp("unbroken")
    sightline.run(asked, out=folder / "whole")
    return asked, folder / "whole"


def forked(asked, out, *, prepare=lambda: None, on_round=lambda row: None):
    """A process that starts the run or goes on with it; 0 done, 7 stopped with a reason, which it writes down."""

    def work():
        prepare()
        try:
            sightline.run(asked, out=out, resume=(out / DATABASE).exists(), on_round=on_round)
        except SightlineError as error:
            out.with_name("reason").write_text(str(error))
            sys.exit(7)

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    return process


def killed(asked, out, rounds, call):
    """Kill a run at that call of a function after `rounds` more rounds."""
    calls, left = Calls(call), iter(range(rounds - 1, -1, -1))
    if rounds:
        process = forked(asked, out, on_round=lambda row: None if next(left, True) else calls.count())
    else:
        process = forked(asked, out, prepare=calls.count)
    process.join()
    return process.exitcode


def test_kill_nine_at_random_moments_of_every_kind_of_run(unbroken, tmp_path):
    asked, whole = unbroken
    to_the_first, of_a_round = calls_of(asked, tmp_path / "counted")
    dice, moments = random.Random(asked.name), set()
    for _ in range(KILLS):
        rounds = dice.randrange(AT_ONCE)
        call = dice.randrange(1, of_a_round if rounds else to_the_first)
        assert killed(asked, tmp_path / "broken", rounds, call) == -signal.SIGKILL
        moments.add(rounds_of(tmp_path / "broken"))
    assert len(moments) > KILLS / 2, "it must have been killed in different places"
    last = forked(asked, tmp_path / "broken")
    last.join()
    assert last.exitcode == 0, (tmp_path / "reason").read_text()
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
    assert killed(asked, tmp_path / "broken", rounds=2, call=1) == -signal.SIGKILL
    path, dice = tmp_path / "broken" / checkpoint.CHECKPOINT, random.Random(0)
    good = path.read_bytes()
    with closing(RunRecord.open(tmp_path / "broken")) as record:
        releases = len(record.ledger())
    earlier = path.with_name(checkpoint.EARLIER)
    for size in [0, 7, *dice.sample(range(8, len(good)), 4)]:
        path.write_bytes(good[:size])
        earlier.write_bytes(good[:size])
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
