"""Peak memory of one round: 1,000 clients, 1.6 M parameters, cohort 50, in a process of its own."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT, line

GIGABYTE = 10**9


def peak_of_a_round() -> None:
    """Run two rounds and print the peak resident memory in bytes."""
    from benchmarks.job import our_round

    with our_round("cnn", workers=1) as call:
        call()
        call()
    rows = Path("/proc/self/status").read_text().splitlines()  # ru_maxrss would count the parent's peak too
    print(1024 * int(next(row.split()[1] for row in rows if row.startswith("VmHWM"))))


def run() -> dict[str, Any]:
    """Everything counts: torch itself, the data (0.6 GB), the model, the updates."""
    script = "from benchmarks.memory import peak_of_a_round; peak_of_a_round()"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    return line("memory", int(done.stdout.split()[-1]) / GIGABYTE, 2, at_least=False, unit="GB")
