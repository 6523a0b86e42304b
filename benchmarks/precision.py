"""`python -m benchmarks.precision`: accuracy and time of local training in bf16 beside float32, on two tasks.

Prints the table of docs/performance.md. Images are read from $SIGHTLINE_DATA; a seed takes some tens of seconds.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import sightline
from sightline.config import parse

CLIENTS = {"scheme": "poisson", "rate": 0.1}
MNIST = {"source": "mnist", "partition": "iid", "clients": 100, "train_samples": 10_000, "test_samples": 2_000}
TASKS: dict[str, dict[str, Any]] = {
    "MLP, MNIST, client-level": {
        "rounds": 20,
        "data": MNIST,
        "model": {"name": "mlp", "hidden": [200]},
        "local": {"epochs": 2, "batch_size": 10, "learning_rate": 0.1},
        "sampling": {"clients": CLIENTS},
        "privacy": {"unit": "client", "noise_multiplier": 0.05, "clip_norm": 2.0},
    },
    "CNN, MNIST, client-level": {
        "rounds": 20,
        "data": MNIST,
        "model": {"name": "cnn"},
        "local": {"epochs": 1, "batch_size": 20, "learning_rate": 0.1},
        "sampling": {"clients": CLIENTS},
        "privacy": {"unit": "client", "noise_multiplier": 0.05, "clip_norm": 2.0},
    },
}
PRECISIONS = ("float32", "bf16")


def measure_task(task: dict[str, Any], seed: int, folder: Path) -> dict[str, tuple[float, float]]:
    """(accuracy, processor seconds) by precision, with the same seed: the same first weights, batches and noise."""
    found = {}
    for precision in PRECISIONS:
        asked = task | {"name": f"{precision}-{seed}", "seed": seed, "local": task["local"] | {"precision": precision}}
        begun = time.process_time()
        run = sightline.run(parse(asked), out=folder / f"{precision}-{seed}", progress=False)
        found[precision] = (run.test_accuracy, time.process_time() - begun)
    return found


def table_rows(seeds: int) -> Iterator[str]:
    """One row per task: mean and standard deviation over the seeds, the paired difference, the ratio of times."""
    for name, task in TASKS.items():
        with tempfile.TemporaryDirectory() as folder:
            found = [measure_task(task, seed, Path(folder)) for seed in range(1, seeds + 1)]
        columns = [[one[precision][0] for one in found] for precision in PRECISIONS]
        apart = [half - exact for exact, half in zip(*columns, strict=True)]
        times = [min(one[precision][1] for one in found) for precision in PRECISIONS]
        told = [f"{mean(some):.4f} ({stdev(some):.4f})" if seeds > 1 else f"{some[0]:.4f}" for some in columns]
        yield f"| {name} | {told[0]} | {told[1]} | {mean(apart):+.4f} | {times[1] / times[0]:.2f} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.precision", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    chosen = parser.parse_args()
    print("| task | float32 | bf16 | difference | time, bf16 / float32 |\n|---|---|---|---|---|", flush=True)
    for row in table_rows(chosen.seeds):
        print(row, flush=True)


if __name__ == "__main__":
    main()
