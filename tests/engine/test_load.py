"""Many tiny rounds in one process leave nothing behind in memory but what is bounded."""

import gc
import tempfile
import tracemalloc
from itertools import pairwise
from pathlib import Path

import pytest

import sightline
from benchmarks.load import resident
from sightline.engine import loop
from sightline.ledger import releases
from tests.engine.many_kinds import experiment

GAUSSIAN = {"sampling.clients": {"scheme": "full"}, "privacy.noise_multiplier": 200.0}
"""Accounted in closed form: the accountant's lattices, which grow with what was composed, are not what is measured."""


def marks(asked, out, every, look):
    """What `look` sees each time so many rounds are done."""
    seen = []

    def on_round(row):
        if row["round"] % every == 0:
            gc.collect()
            seen.append(look())

    sightline.run(asked, out=out, on_round=on_round)
    return seen


def left_by_a_round(kind, out, monkeypatch, recent):
    """Traced bytes a round, in the stretch that leaves least: what is left for good is left in all of them.

    Caches that are bounded fill at some time, and tables grow by doubling; when depends on what ran before.
    """
    monkeypatch.setattr(releases, "RECENT", recent)
    monkeypatch.setattr(loop, "accounted_at", lambda number: False)  # the accountant keeps up to 4,096 answers
    asked = experiment(kind, rounds=250, evaluate_every=1000)
    tracemalloc.start()
    try:
        seen = marks(asked, out, 40, lambda: tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    return min(after - before for before, after in pairwise(seen)) / 40


@pytest.mark.parametrize(
    "kind", ["star", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("clients", "groups", "tree"))]
)
def test_a_round_leaves_nothing_in_memory(kind, tmp_path, monkeypatch):
    flat = left_by_a_round(kind, tmp_path / "flat", monkeypatch, 16)
    held = left_by_a_round(kind, tmp_path / "held", monkeypatch, 10**6)
    assert held > 300, "the releases, when they are kept: what this test must be able to see"
    assert flat < 50 + held / 10


@pytest.mark.slow
def test_twenty_thousand_rounds_are_flat(tmp_path):
    asked = experiment("star", rounds=20_000, evaluate_every=20_000, **GAUSSIAN)
    in_memory = Path("/dev/shm")  # the disk is waited for twice a round, and is not what is measured
    with tempfile.TemporaryDirectory(dir=in_memory if in_memory.is_dir() else tmp_path) as folder:
        seen = marks(asked, Path(folder) / "run", 2000, resident)
    assert (seen[-1] - seen[4]) / 10_000 < 200, f"bytes a round; by each 2,000: {[now >> 20 for now in seen]} MiB"
