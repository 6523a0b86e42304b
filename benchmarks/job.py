"""The job of the round benchmarks: central-DP FedAvg, 1,000 users x 50 points, cohort 50, batch 10, one local epoch.

A round of ours is a whole round of the engine: sampling, local training, clipping, noise, the ledger on disk, the new
model. Evaluation and checkpoints are left out on both sides.
"""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sightline import engine
from sightline.config import parse
from sightline.engine.build import BuiltExperiment
from sightline.engine.checkpoint import paths_by_measuring
from sightline.engine.execution import LiveExecution
from sightline.engine.record import RunRecord
from sightline.engine.round import TrainingRound
from sightline.ledger import Ledger
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


class OurRound:
    """A call that runs one round and returns its seconds."""

    def __init__(self, setting: BuiltExperiment, ledger: Ledger, worker: Simulator, streams: Streams) -> None:
        self.setting, self.ledger, self.paths = setting, ledger, setting.paths
        self._worker, self._streams, self._number = worker, streams, 0
        self._state: Any = setting.algorithm.init(Public(setting.start), setting.clients, setting.settings)

    def __call__(self) -> float:
        """The next round."""
        self._number += 1
        begun = time.perf_counter()
        execution = LiveExecution(self._worker, self._streams)
        r = TrainingRound(self.setting, self.ledger, execution, self._number)
        after = self.setting.algorithm.round(self._state, r, self.setting.settings)
        self._state = {name: Public(value.value, self.ledger.frontier(value.sources)) for name, value in after.items()}
        return time.perf_counter() - begun


@contextmanager
def our_round(
    size: str, *, workers: int, users: int = USERS, cohort: int = COHORT, **local: object
) -> Iterator[OurRound]:
    """A round by the paths that were measured here; `local` are more keys of the local work."""
    model, shape = SHAPES[size]
    experiment = parse(
        {
            "rounds": 10**6,
            "data": {
                "source": "benchmarks.job:random_users", "clients": users, "partition": "natural", "classes": 10,
                "options": {"shape": list(shape)},
            },
            "model": {"name": model},
            "local": {"epochs": 1, "batch_size": BATCH, "learning_rate": 0.05} | local,
            "sampling": {"clients": {"scheme": "fixed", "rate": cohort / users}},
            "privacy": {"unit": "client", "noise_multiplier": 1.0, "clip_norm": 1.0, "adjacency": "replace"},
        }
    )  # fmt: skip
    setting = engine.calibrate_noise(engine.build_experiment(experiment))
    setting = replace(setting, paths=paths_by_measuring(setting))
    streams = Streams.from_seed(0)
    worker = Simulator(setting, streams, streams, workers=workers)
    with tempfile.TemporaryDirectory() as folder, RunRecord.create(Path(folder)) as record:
        yield OurRound(setting, record.ledger(), worker, streams)
        worker.close()
