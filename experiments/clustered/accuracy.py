"""Accuracy against the baselines, overall and for the minority (figures 11 and 12), scaled down."""

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.clustered.first_round import CLUSTERS
from experiments.clustered.noise import DELTA

ROUNDS, TRAIN_SAMPLES = 40, 7500
CLUSTERED = ("rdpcfl", "ifca", "oracle_clusters")
LEARNING_RATES = {"fedavg": 0.3}
""".1 for all but DP-FedAvg: of .1 and .3 the better one for rdpcfl, ifca and fedavg on seed 0 at epsilon = 3."""
ALGORITHMS = ("oracle_clusters", "rdpcfl", "ifca", "mrmtl", "local", "fedavg")


@dataclass(frozen=True)
class Accuracy:
    """One run."""

    algorithm: str
    partition: str
    epsilon: float
    seed: int
    count: int | str = 4
    part: str = "accuracy"

    @property
    def key(self) -> str:
        auto = "/auto" if self.count == "auto" else ""
        return f"accuracy/{self.partition}/{self.algorithm}/{self.epsilon}/{self.seed}{auto}"

    @property
    def plain(self) -> dict[str, Any]:
        """The experiment file."""
        topology = {"kind": "clusters", "count": self.count} if self.algorithm in CLUSTERED else {"kind": "star"}
        return {
            "name": "clustered", "seed": self.seed, "rounds": ROUNDS, "evaluate_every": 5,
            "data": {
                "source": "mnist", "clients": sum(CLUSTERS), "partition": self.partition, "clusters": list(CLUSTERS),
                "reuse": True, "train_samples": TRAIN_SAMPLES, "test_samples": 1000,
            },
            "model": {"name": "mlp", "hidden": [32]},
            "topology": topology,
            "algorithm": {"name": self.algorithm},
            "local": {"epochs": 1, "batch_size": 32, "learning_rate": LEARNING_RATES.get(self.algorithm, 0.1)},
            "privacy": {"unit": "sample", "epsilon": float(self.epsilon), "delta": DELTA, "clip_norm": 1.0},
        }  # fmt: skip


def jobs() -> Iterator[Accuracy]:
    for epsilon in (3, 5):
        for seed in range(2):
            yield from (Accuracy(algorithm, "rotation", epsilon, seed) for algorithm in ALGORITHMS)
        yield Accuracy("rdpcfl", "rotation", epsilon, 0, count="auto")
    yield from (Accuracy(algorithm, "label_shift", 3, 0) for algorithm in ALGORITHMS)


def run_accuracy(job: Accuracy) -> dict[str, Any]:
    """The numbers of one run; its directory is thrown away."""
    import torch

    from sightline import engine
    from sightline.api import Run
    from sightline.config import parse
    from sightline.runtimes import Simulator

    torch.set_num_threads(1)
    begun, rows = time.process_time(), []
    with tempfile.TemporaryDirectory() as folder:
        setting = engine.calibrate_noise(engine.build_experiment(parse(job.plain)))
        engine.run_loop(setting, Path(folder), Simulator, resume=False, on_round=rows.append)
        summary = Run(Path(folder)).summary
    facts = {"key": job.key, "part": job.part, "algorithm": job.algorithm, "partition": job.partition}
    facts |= {"epsilon": job.epsilon, "seed": job.seed, "auto": job.count == "auto"}
    found = {name: summary["clusters"].get(name) for name in ("count", "mss", "purity", "minority_accuracy")}
    curve = [
        [row["round"], row["client_accuracy_mean"], row["minority_accuracy"]] for row in rows if "test_loss" in row
    ]
    measured = {"accuracy": summary["client_accuracy_mean"], "worst": summary["client_accuracy_worst"], "curve": curve}
    spent = {"spent": summary["epsilon"], "noise_multiplier": summary["noise_multiplier"]}
    return facts | found | measured | spent | {"cpu_seconds": time.process_time() - begun}
