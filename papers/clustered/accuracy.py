"""Accuracy against the baselines, overall and for the minority (figures 11 and 12), scaled down."""

import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from papers.clustered.first_round import CLUSTERS
from papers.clustered.noise import DELTA, SELECTION_SHARE, noise_of
from papers.hierarchy.features import describe_images

if TYPE_CHECKING:
    from sightline.data import Federation

TRAIN_SAMPLES, PRINTED_SAMPLES = 7500, 8000
"""Examples of the scaled data set, of which a client trains on 1,000; examples of a client as printed."""
EPSILONS = (3, 15, 5, 4, 10)
SEEDS, PRINTED_SEEDS, FEW = range(10), range(4), range(3)
"""Of the clustered runs at epsilon 3, 5 and 15; at 4 and 10, as in the paper; of the baselines."""
SOURCES = ("mnist", "fashion_mnist")
CLUSTERED = ("rdpcfl", "ifca", "oracle_clusters")
BASELINES = ("oracle_clusters", "mrmtl", "local", "fedavg")
EVERYBODY = ("rdpcfl", "ifca", *BASELINES)
LEARNING_RATES = {"fedavg": 2.0}
"""Of .4, .8 and (DP-FedAvg) 2 the best on seed 0 of MNIST at epsilon = 3; .8 for the others."""
PENALTY = 0.03
"""MR-MTL's pull to the mean: of .03, .1 and 1 the best on seed 0 of MNIST at epsilon = 3."""
TUNING = 1000
"""The seed of the grid; no reported run has it."""
HELD_OUT = 0.1
"""The share of every client's training examples by which the grid is judged."""
GRID = {"mnist": (0.4, 0.8, 2.0), "cifar10": (2.0, 4.0, 8.0)}
PENALTIES = (0.03, 0.1, 1.0)
TUNED_RATES = {"cifar10": dict.fromkeys(EVERYBODY, 4.0) | {"mrmtl": 2.0, "fedavg": 8.0}}
TUNED_PENALTY = {"cifar10": 0.03}
"""What the grid found for CIFAR-10 (`find_tuned`); on MNIST it was run after the reported runs."""
QUIET = 1000
"""An epsilon at which there is hardly any noise."""
RESNETS = {"resnet": 2250, "resnet-more": TRAIN_SAMPLES}
"""Examples of the scaled data set: a client of a residual network trains on 300, or on 1,000."""
STEPS = {
    "main": {"rounds": 20, "batch_size": 128, "learning_rate": 0.8, "hidden": 16},
    "choices": {"rounds": 20, "batch_size": 128, "learning_rate": 0.8, "hidden": 16},
    "small": {"rounds": 30, "batch_size": 64, "learning_rate": 0.2, "hidden": 16},
    "resnet": {"rounds": 10, "batch_size": 64, "learning_rate": 1.0, "hidden": None},
    "resnet-more": {"rounds": 10, "batch_size": 64, "learning_rate": 1.0, "hidden": None},
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
    tried: tuple[float, float] | None = None
    """A point of the grid: learning rate, and MR-MTL's penalty; it is judged by the validation share."""

    @property
    def key(self) -> str:
        if self.tried is not None:
            return f"tuning/{self.source}/{self.partition}/{self.algorithm}/{self.epsilon}/{self.tried}"
        auto = "/auto" if self.count == "auto" else ""
        way = "" if self.steps == "main" else f"/{self.steps}"
        return f"accuracy/{self.source}/{self.partition}/{self.algorithm}/{self.epsilon}/{self.seed}{auto}{way}"

    @property
    def options(self) -> dict[str, Any]:
        """What the algorithm is told beside its name."""
        if self.algorithm == "mrmtl":
            return {"penalty": self.tried[1] if self.tried else TUNED_PENALTY.get(self.source, PENALTY)}
        if self.steps == "printed":
            return {"selection_epsilon": SELECTION_SHARE * self.epsilon}
        return {"selection_rounds": STEPS[self.steps]["rounds"]} if self.steps == "choices" else {}

    @property
    def size(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """(data, model, noise): scaled and calibrated, or as printed with the noise of the whole run."""
        if self.steps == "printed":
            return {}, {"name": "cnn"}, {"noise_multiplier": noise_of(self.epsilon, PRINTED_SAMPLES)}
        if self.steps in RESNETS:
            model = {"name": "resnet", "channels": [8, 16], "groups": 4}
            return {"train_samples": RESNETS[self.steps]}, model, {"epsilon": float(self.epsilon)}
        model = {"name": "mlp", "hidden": [STEPS[self.steps]["hidden"]]}
        held = {} if self.tried is None else {"validation_fraction": HELD_OUT}
        return {"train_samples": TRAIN_SAMPLES} | held, model, {"epsilon": float(self.epsilon)}

    @property
    def rate(self) -> float:
        """The learning rate: of the grid, tuned, or of the rounds' scale."""
        if self.tried is not None:
            return self.tried[0]
        if self.steps in RESNETS:
            return float(STEPS[self.steps]["learning_rate"])
        own = LEARNING_RATES | TUNED_RATES.get(self.source, {})
        return own.get(self.algorithm, float(STEPS[self.steps]["learning_rate"]))

    @property
    def plain(self) -> dict[str, Any]:
        """The experiment file."""
        how, data, model, noise = STEPS[self.steps], *self.size
        topology = {"kind": "clusters", "count": self.count} if self.algorithm in CLUSTERED else {"kind": "star"}
        return {
            "name": "clustered", "seed": self.seed, "rounds": how["rounds"], "evaluate_every": how["rounds"],
            "data": {
                "source": self.source, "clients": sum(CLUSTERS), "partition": self.partition,
                "clusters": list(CLUSTERS), "reuse": True, "test_samples": 1000,
            } | data,
            "model": model,
            "topology": topology,
            "algorithm": {"name": self.algorithm} | self.options,
            "local": {"epochs": 1, "batch_size": how["batch_size"], "learning_rate": self.rate},
            "privacy": {"unit": "sample", "delta": DELTA, "clip_norm": 1.0} | noise,
        }  # fmt: skip


def jobs() -> Iterator[Accuracy]:
    """Order the jobs by epsilon and seed, clustered algorithms first, so that an interrupted part is balanced."""
    for epsilon in EPSILONS:
        for seed in PRINTED_SEEDS if epsilon in (4, 10) else SEEDS:
            for source in SOURCES:
                yield from (Accuracy(name, "rotation", epsilon, seed, source) for name in ("rdpcfl", "ifca"))
    for epsilon in EPSILONS:
        for seed in FEW:
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


def cifar_jobs() -> Iterator[Accuracy]:
    """CIFAR-10 under both shifts on fixed features, and a ResNet on pixels."""
    for seed in FEW:
        for partition in ("rotation", "label_shift"):
            yield from (Accuracy(name, partition, 5, seed, "cifar10") for name in EVERYBODY)
    yield from (Accuracy("rdpcfl", "rotation", 5, 0, "cifar10", steps=steps) for steps in RESNETS)
    yield Accuracy("rdpcfl", "rotation", QUIET, 0, "cifar10", steps="resnet-more")


def tuning() -> Iterator[Accuracy]:
    """Learning rate and penalty by the validation share, at a seed that no reported run has."""
    for source, epsilon in (("cifar10", 5), ("mnist", 3)):
        for name in EVERYBODY:
            penalties = PENALTIES if name == "mrmtl" else (PENALTY,)
            for point in ((rate, penalty) for rate in GRID[source] for penalty in penalties):
                yield Accuracy(name, "rotation", epsilon, TUNING, source, part="tuning", tried=point)


def find_tuned(rows: Iterable[dict[str, Any]], source: str, algorithm: str) -> tuple[float, float]:
    """The point of the grid with the highest accuracy on the validation share; of equal ones the smaller rate."""
    grid = (row for row in rows if row["part"] == "tuning")
    own = [row for row in grid if (row["source"], row["algorithm"]) == (source, algorithm)]
    best = max(own, key=lambda row: (row["validation"], -row["rate"]))
    return best["rate"], best["penalty"]


def read_data(job: Accuracy) -> "Federation":
    """The data of a job: CIFAR-10 as fixed features of the turned images, or as pixels at half the resolution.

    Guarantees: every example's features are a fixed function of that example alone, after it was turned.
    """
    return _read_data(job.source, job.partition, job.seed, job.steps)


@lru_cache(maxsize=2)
def _read_data(source: str, partition: str, seed: int, steps: str) -> "Federation":
    from sightline.config import parse
    from sightline.data import Kind, Shard, load_federation
    from sightline.randomness import Streams

    data = parse(Accuracy("rdpcfl", partition, 5, seed, source, steps=steps).plain).data
    found = load_federation(data, streams=Streams.from_seed(seed))
    if source != "cifar10":
        return found

    def reduced(shard: Shard) -> Shard:
        if steps not in RESNETS:
            return Shard(describe_images(shard.x), shard.y)
        return Shard(shard.x.reshape(*shard.x.shape[:2], 16, 2, 16, 2).mean((3, 5)), shard.y)

    clients = tuple(replace(c, train=reduced(c.train), test=reduced(c.test)) for c in found.clients)
    kind = Kind.IMAGE if steps in RESNETS else Kind.VECTOR
    return replace(found, clients=clients, test=reduced(found.test), kind=kind)


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
        built = engine.build_experiment(parse(job.plain), federation=read_data(job))
        setting = engine.calibrate_noise(built)
        engine.run_loop(setting, Path(folder), Simulator, resume=False)
        run = Run(Path(folder))
        summary, last = run.summary, run.rounds[-1]
    facts = {"key": job.key, "part": job.part, "algorithm": job.algorithm, "partition": job.partition}
    facts |= {"source": job.source, "steps": job.steps}
    if job.tried is not None:
        facts |= {"rate": job.tried[0], "penalty": job.tried[1], "validation": last["validation_accuracy"]}
    facts |= {"epsilon": job.epsilon, "seed": job.seed, "auto": job.count == "auto"}
    found = {name: summary["clusters"].get(name) for name in ("count", "mss", "purity", "minority_accuracy")}
    measured = {"accuracy": summary["client_accuracy_mean"], "worst": summary["client_accuracy_worst"]}
    spent = {"spent": summary["epsilon"], "noise_multiplier": summary["noise_multiplier"]}
    return facts | found | measured | spent | {"cpu_seconds": time.process_time() - begun}
