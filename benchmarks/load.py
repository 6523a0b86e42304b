"""Run many tiny rounds in one process: memory by round, then the time of the ledger and the report.

`python -m benchmarks.load 100000 [FOLDER [LIMIT]]` prints a line each tenth of the way, then the rest as JSON. The
rounds are whole rounds of `sightline run`: ledger with full synchronisation, checkpoint, metrics. With LIMIT the run
has a budget (`stop_at_epsilon`) that is checked before every release.
"""

import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import sightline
from benchmarks.measure import line
from sightline.apps.report import write_report
from sightline.config import parse
from sightline.engine import RunRecord

ROUNDS = 5000
ALLOWED = 1024
"""Bytes that a round may leave in memory; in a short run they are the accountant's, whose lattices still grow."""


def tiny(rounds: int, limit: float | None = None) -> Any:
    """Four clients, a linear model of 15 numbers, one local step."""
    budget = {} if limit is None else {"stop_at_epsilon": limit}
    return parse(
        {
            "name": "load", "rounds": rounds, "evaluate_every": rounds,
            "data": {"source": "synthetic", "partition": "natural", "clients": 4, "features": 4, "classes": 3,
                     "size_min": 10, "size_mean": 1.0, "size_sigma": 0.1},
            "model": {"name": "linear"},
            "local": {"steps": 1, "batch_size": 4, "learning_rate": 0.05},
            "sampling": {"clients": {"scheme": "poisson", "rate": 0.5}},
            "privacy": {"unit": "client", "noise_multiplier": 20.0, "clip_norm": 0.5} | budget,
        }
    )  # fmt: skip


def resident() -> int:
    """Return this process's resident bytes."""
    rows = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(row.split()[1] for row in rows if row.startswith("VmRSS")))


def lived(rounds: int, folder: Path, say: Any = lambda words: None, limit: float | None = None) -> dict[str, Any]:
    """Run the rounds and read their results; times are processor seconds, which other work does not affect."""
    torch.set_num_threads(1)
    marks: list[tuple[int, int, float]] = []
    begun = time.process_time()

    def on_round(row: Mapping[str, Any]) -> None:
        if row["round"] % (rounds // 10) == 0:
            marks.append((row["round"], resident(), time.process_time() - begun))
            say(f"round {row['round']}  {marks[-1][1] / 2**20:.1f} MiB  {marks[-1][2]:.1f} s")

    sightline.run(tiny(rounds, limit), out=folder / "run", on_round=on_round)
    (first, low, early), (last, high, late) = marks[2], marks[-1]
    return {
        "rounds": rounds,
        "bytes_a_round": round((high - low) / (last - first)),
        "milliseconds_a_round_first_tenth": round(1000 * marks[0][2] / marks[0][0], 2),
        "milliseconds_a_round_after": round(1000 * (late - early) / (last - first), 2),
        **{name: round(seconds, 2) for name, seconds in reading(folder / "run").items()},
        "database_megabytes": round((folder / "run" / "run.sqlite").stat().st_size / 1e6, 1),
        "report_megabytes": round((folder / "run" / "report.html").stat().st_size / 1e6, 2),
    }


def reading(directory: Path) -> dict[str, float]:
    """Return the processor seconds to read and check the ledger, to account for it, and to write the report."""
    with RunRecord.open_to_read(directory) as record:
        begun = time.process_time()
        ledger = record.ledger()
        read = time.process_time()
    ledger.worst_epsilon("public", 1e-5)
    accounted = time.process_time()
    write_report(directory)
    return {
        "ledger_read_seconds": read - begun,
        "epsilon_seconds": accounted - read,
        "report_seconds": time.process_time() - accounted,
    }


def run() -> dict[str, Any]:
    """Return the memory that a round leaves, over what is allowed."""
    with tempfile.TemporaryDirectory() as folder:
        found = lived(ROUNDS, Path(folder))
    return line("load", found["bytes_a_round"] / ALLOWED, 1, at_least=False, unit="of 1 KiB a round")


if __name__ == "__main__":
    folder = sys.argv[2] if len(sys.argv) > 2 else None
    budget = float(sys.argv[3]) if len(sys.argv) > 3 else None
    with tempfile.TemporaryDirectory(dir=folder) as place:
        found = lived(int(sys.argv[1]), Path(place), lambda words: print(words, flush=True), budget)
    print(json.dumps(found, indent=1))
