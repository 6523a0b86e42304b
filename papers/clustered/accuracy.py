"""Accuracy against the baselines, overall and for the minority (figures 11 and 12), scaled down."""

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from papers.clustered.first_round import CLUSTERS
from papers.clustered.noise import DELTA, SELECTION_SHARE, noise_of

TRAIN_SAMPLES, PRINTED_SAMPLES = 7500, 8000
"""Examples of the scaled data set, of which a client trains on 1,000; examples of a client as printed."""
EPSILONS = (3, 15, 5)
SEEDS, FEW = range(10), range(3)
SOURCES = ("mnist", "fashion_mnist")
CLUSTERED = ("rdpcfl", "ifca", "oracle_clusters")
BASELINES = ("oracle_clusters", "mrmtl", "local", "fedavg")
LEARNING_RATES = {"fedavg": 2.0}
"""Of .4, .8 and (DP-FedAvg) 2 the best on seed 0 of MNIST at epsilon = 3; .8 for the others."""
PENALTY = 0.03
"""MR-MTL's pull to the mean: of .03, .1 and 1 the best on seed 0 of MNIST at epsilon = 3."""
STEPS = {
    "main": {"rounds": 20, "batch_size": 128, "learning_rate": 0.8, "hidden": 16},
    "choices": {"rounds": 20, "batch_size": 128, "learning_rate": 0.8, "hidden": 16},
    "small": {"rounds": 30, "batch_size": 64, "learning_rate": 0.2, "hidden": 16},
    "printed": {"rounds": 3, "batch_size": 32, "learning_rate": 0.1, "hidden": None},
}
"""How the rounds are scaled: as in all cells; with a choice in every round; with smaller and more steps; as printed
with the noise of 200 rounds, stopped after three."""


@dataclass(frozen=True)
class Accuracy:
    """One run."""

    algorithm: str
    partition: str
    epsilon: float
    seed: int
    source: str = "mnist"
    count: int | str = 4
    steps: str = "main"
    part: str = "accuracy"

    @property
    def key(self) -> str:
        auto = "/auto" if self.count == "auto" else ""
        way = "" if self.steps == "main" else f"/{self.steps}"
        return f"accuracy/{self.source}/{self.partition}/{self.algorithm}/{self.epsilon}/{self.seed}{auto}{way}"

    @property
    def options(self) -> dict[str, Any]:
        """What the algorithm is told beside its name."""
        if self.algorithm == "mrmtl":
            return {"penalty": PENALTY}
        if self.steps == "printed":
            return {"selection_epsilon": SELECTION_SHARE * self.epsilon}
        return {"selection_rounds": STEPS[self.steps]["rounds"]} if self.steps == "choices" else {}

    @property
    def size(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """(data, model, noise): scaled and calibrated, or as printed with the noise of the whole run."""
        if self.steps == "printed":
            return {}, {"name": "cnn"}, {"noise_multiplier": noise_of(self.epsilon, PRINTED_SAMPLES)}
        model = {"name": "mlp", "hidden": [STEPS[self.steps]["hidden"]]}
        return {"train_samples": TRAIN_SAMPLES}, model, {"epsilon": float(self.epsilon)}

    @property
    def plain(self) -> dict[str, Any]:
        """The experiment file."""
        how, data, model, noise = STEPS[self.steps], *self.size
        topology = {"kind": "clusters", "count": self.count} if self.algorithm in CLUSTERED else {"kind": "star"}
        rate = LEARNING_RATES.get(self.algorithm, how["learning_rate"])
        return {
            "name": "clustered", "seed": self.seed, "rounds": how["rounds"], "evaluate_every": how["rounds"],
            "data": {
                "source": self.source, "clients": sum(CLUSTERS), "partition": self.partition,
                "clusters": list(CLUSTERS), "reuse": True, "test_samples": 1000,
            } | data,
            "model": model,
            "topology": topology,
            "algorithm": {"name": self.algorithm} | self.options,
            "local": {"epochs": 1, "batch_size": how["batch_size"], "learning_rate": rate},
            "privacy": {"unit": "sample", "delta": DELTA, "clip_norm": 1.0} | noise,
        }  # fmt: skip


def jobs() -> Iterator[Accuracy]:
    """Order the jobs by epsilon and seed, so that an interrupted part is balanced."""
    for epsilon in EPSILONS:
        for seed in SEEDS:
            for source in SOURCES:
                yield from (Accuracy(name, "rotation", epsilon, seed, source) for name in ("rdpcfl", "ifca"))
        for seed in FEW if epsilon != 5 else ():
            for source in SOURCES:
                yield from (Accuracy(name, "rotation", epsilon, seed, source) for name in BASELINES)
    for seed in FEW:
        yield from (Accuracy(name, "label_shift", 3, seed) for name in ("rdpcfl", "ifca", "local"))
        yield Accuracy("rdpcfl", "rotation", 3, seed, count="auto")


def causes() -> Iterator[Accuracy]:
    """What makes IFCA fail: too few choices, or steps that are too large?"""
    for seed in SEEDS:
        yield Accuracy("ifca", "rotation", 3, seed, steps="choices")
        yield from (Accuracy(name, "rotation", 3, seed, steps="small") for name in ("rdpcfl", "ifca"))


def printed() -> Iterator[Accuracy]:
    """The paper's CNN and 8,000 examples a client."""
    yield Accuracy("rdpcfl", "rotation", 3, 0, steps="printed", part="printed")


def run_accuracy(job: Accuracy) -> dict[str, Any]:
    """The numbers of one run; its directory is thrown away."""
    import torch

    from sightline import engine
    from sightline.api import Run
    from sightline.config import parse
    from sightline.runtimes import Simulator

    torch.set_num_threads(1)
    begun = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        setting = engine.calibrate_noise(engine.build_experiment(parse(job.plain)))
        engine.run_loop(setting, Path(folder), Simulator, resume=False)
        summary = Run(Path(folder)).summary
    facts = {"key": job.key, "part": job.part, "algorithm": job.algorithm, "partition": job.partition}
    facts |= {"source": job.source, "steps": job.steps}
    facts |= {"epsilon": job.epsilon, "seed": job.seed, "auto": job.count == "auto"}
    found = {name: summary["clusters"].get(name) for name in ("count", "mss", "purity", "minority_accuracy")}
    measured = {"accuracy": summary["client_accuracy_mean"], "worst": summary["client_accuracy_worst"]}
    spent = {"spent": summary["epsilon"], "noise_multiplier": summary["noise_multiplier"]}
    return facts | found | measured | spent | {"cpu_seconds": time.process_time() - begun}
