"""Many tiny rounds in one process leave nothing behind in memory but what is bounded."""

import gc
import subprocess
import sys
import tempfile
import tracemalloc
from itertools import pairwise
from pathlib import Path

import pytest

import sightline
from benchmarks.load import resident
from sightline.engine import loop
from sightline.ledger import ledger
from tests.engine.many_kinds import experiment

ROOT = Path(__file__).parents[2]

GAUSSIAN = {"sampling.clients": {"scheme": "full"}, "privacy.noise_multiplier": 200.0}
"""Accounted in closed form: the accountant's lattices, which grow with what was composed, are not what is measured."""


def marks(asked, out, every, look):
    """Return what `look` sees after every `every` rounds."""
    seen = []

    def on_round(row):
        if row["round"] % every == 0:
            gc.collect()
            seen.append(look())

    sightline.run(asked, out=out, on_round=on_round)
    return seen


def left_by_a_round(kind, out, recent):
    """Traced bytes a round, in the stretch that leaves least: what is left for good is left in all of them.

    Caches that are bounded fill at some time (those of the libraries took 240 rounds), and tables grow by doubling.
    """
    ledger.RECENT = recent
    loop.accounted_at = lambda number: False  # the accountant keeps up to 4,096 answers
    asked = experiment(kind, rounds=530, evaluate_every=1000)
    tracemalloc.start()
    seen = marks(asked, out, 40, lambda: tracemalloc.get_traced_memory()[0])
    return min(after - before for before, after in pairwise(seen)) / 40


def measured_alone(kind, out, recent):
    """The same in a process of its own: which caches are still filling depends on the tests that ran before."""
    source = (
        f"from tests.engine.test_load import left_by_a_round; print(left_by_a_round({kind!r}, {str(out)!r}, {recent}))"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return float(done.stdout.split()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["star", "clients", "groups", "tree"])
def test_a_round_leaves_nothing_in_memory(kind, tmp_path):
    flat = measured_alone(kind, tmp_path / "flat", 16)
    held = measured_alone(kind, tmp_path / "held", 10**6)
    assert held > 300, "the releases, when they are kept: what this test must be able to see"
    assert flat < held / 2


@pytest.mark.slow
def test_twenty_thousand_rounds_are_flat(tmp_path):
    asked = experiment("star", rounds=20_000, evaluate_every=20_000, **GAUSSIAN)
    in_memory = Path("/dev/shm")  # the disk is waited for twice a round, and is not what is measured
    with tempfile.TemporaryDirectory(dir=in_memory if in_memory.is_dir() else tmp_path) as folder:
        seen = marks(asked, Path(folder) / "run", 2000, resident)
    assert (seen[-1] - seen[4]) / 10_000 < 200, f"bytes a round; by each 2,000: {[now >> 20 for now in seen]} MiB"
