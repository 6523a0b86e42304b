"""What every test shares: one thread, reproducible products, closed databases, no time limits, where the data lies."""

import os
import shutil
import sqlite3
import sys
import warnings
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

import sightline  # noqa: F401  before any test multiplies: MKL's reproducible mode is on from the first product

os.environ["SIGHTLINE_PATHS"] = "rule"  # no test depends on timings, nor reads or writes what was measured

settings.register_profile("house", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("house")

MEMORY, ROOM = Path("/dev/shm"), 4 << 30
if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM:
    # a run waits for the disk several times a round, and the suite would wait for minutes; no test is about the disk
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


class WatchedConnection(sqlite3.Connection):
    """Warns when it is left to the garbage collector, as every connection does from Python 3.13 on."""

    def __del__(self):
        try:
            _ = self.total_changes
        except sqlite3.ProgrammingError:
            return  # closed, or never opened
        warnings.warn(f"unclosed database in {self!r}", ResourceWarning, stacklevel=1)


if sys.version_info < (3, 13):
    _connect = sqlite3.connect
    sqlite3.connect = lambda *args, **options: _connect(*args, **{"factory": WatchedConnection} | options)


LONG = (
    "laws/test_combinations.py",
    "engine/test_killed.py",
    "docs/test_figures.py",
    "docs/test_tutorials.py",
    "house/test_walk.py",
)
"""Files of few tests that take long: they come first, or one process would still be at them when the other has ended."""


def pytest_collection_modifyitems(items):
    """Long files first, then those with the most tests; processes take them in this order (--no-loadscope-reorder)."""
    sizes = Counter(item.path for item in items)
    items.sort(key=lambda item: (not item.path.as_posix().endswith(LONG), -sizes[item.path]))


@pytest.fixture(autouse=True)
def one_thread():
    """Tests run side by side; torch with several threads each would only get in its own way."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture
def large_data():
    """The folder of the large data sets, or a skip that says why."""
    folder = os.environ.get("SIGHTLINE_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("SIGHTLINE_DATA does not name a folder with the large data sets")
    return Path(folder)
