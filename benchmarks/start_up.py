"""Seconds from the start of the process `sightline run examples/quickstart.toml` to the start of its first round."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT, line

CHILD = """
import os, sys, time
from sightline.apps.cli.main import run_arguments
from sightline.engine import loop  # as the command itself does, a little later
def first_round(*_):
    print(time.monotonic() - float(sys.argv[1]), flush=True)
    os._exit(0)
loop.TrainingLoop._run_round = first_round
run_arguments(["run", "examples/quickstart.toml", "--out", sys.argv[2]])
"""


def one_start(folder: Path) -> float:
    """One process from its beginning to its first round."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", CHILD, str(time.monotonic()), str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=kept, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def run() -> dict[str, Any]:
    """The median of nine after one that fills caches: bytecode, and the pages of libraries."""
    with tempfile.TemporaryDirectory() as folder:
        seconds = [one_start(Path(folder) / str(number)) for number in range(10)][1:]
    return line("start_up", statistics.median(seconds), 2, at_least=False, unit="s")
