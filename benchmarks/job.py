"""The job of the round benchmarks: central-DP FedAvg, 1,000 users x 50 points, cohort 50, batch 10, one local epoch.

A round of ours is a whole round of the engine: sampling, local training, clipping, noise, the ledger on disk, the new
model. Evaluation and checkpoints are left out on both sides.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from sightline import engine
from sightline.config import parse
from sightline.engine.execution import LiveExecution
from sightline.engine.record import RunRecord
from sightline.engine.round import TrainingRound
from sightline.mechanisms import Public
from sightline.randomness import Streams
from sightline.runtimes import Simulator

USERS, POINTS, COHORT, BATCH = 1000, 50, 50, 10
SHAPES = {"small": ("cnn_small", (1, 28, 28)), "cnn": ("cnn_3x3", (3, 32, 32))}


def random_users(*, clients: int, rng: np.random.Generator, shape: list[int]) -> Iterator[tuple[Any, ...]]:
    """Random images and labels, as the user's-own-data contract wants them."""
    for _ in range(clients):
        x = rng.standard_normal((POINTS, *shape), dtype=np.float32)
        y = rng.integers(0, 10, POINTS)
        yield x, y, x[:1], y[:1]


@contextmanager
def our_round(size: str, *, workers: int, users: int = USERS, cohort: int = COHORT) -> Iterator[Callable[[], float]]:
    """A call that runs one round and returns its seconds."""
    model, shape = SHAPES[size]
    experiment = parse(
        {
            "rounds": 10**6,
            "data": {
                "source": "benchmarks.job:random_users", "clients": users, "partition": "natural", "classes": 10,
                "options": {"shape": list(shape)},
            },
            "model": {"name": model},
            "local": {"epochs": 1, "batch_size": BATCH, "learning_rate": 0.05},
            "sampling": {"clients": {"scheme": "fixed", "rate": cohort / users}},
            "privacy": {"unit": "client", "noise_multiplier": 1.0, "clip_norm": 1.0, "adjacency": "replace"},
        }
    )  # fmt: skip
    setting = engine.calibrate_noise(engine.build_experiment(experiment))
    streams = Streams.from_seed(0)
    worker = Simulator(setting, streams, streams, workers=workers)
    with tempfile.TemporaryDirectory() as folder, RunRecord.create(Path(folder)) as record:
        ledger = record.ledger()
        state: Any = setting.algorithm.init(Public(setting.start), setting.clients, setting.settings)
        number = 0

        def call() -> float:
            nonlocal state, number
            number += 1
            begun = time.perf_counter()
            after = setting.algorithm.round(
                state, TrainingRound(setting, ledger, LiveExecution(worker, streams), number), setting.settings
            )
            state = {name: Public(value.value, ledger.frontier(value.sources)) for name, value in after.items()}
            return time.perf_counter() - begun

        yield call
        worker.close()
