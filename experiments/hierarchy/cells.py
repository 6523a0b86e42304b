"""Every run of the reproduction as one cell: what is run, and under which key its result is kept."""

from dataclasses import dataclass, field
from typing import Any

DEVICES, SUBNETS, TAU, EVERY = 50, 10, 20, 5
INTERVALS = {"fashion_mnist": 40, "cifar10": 20}
PER_DEVICE = {"fashion_mnist": 1200, "cifar10": 1000}
MODELS = {"fashion_mnist": {"name": "linear"}, "cifar10": {"name": "experiments.hierarchy.model:tiny"}}
RATES = {"fashion_mnist": 0.1, "cifar10": 0.1}
CONTROL = {"energy": 3, "delay": 3, "accuracy": 1, "tau_max": 40}


@dataclass(frozen=True)
class Cell:
    """One run."""

    figure: str
    name: str
    data: str
    seed: int
    plain: dict[str, Any] = field(compare=False, repr=False)
    facts: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """What the page needs to know of it: p_c, epsilon, sizes, weights."""

    @property
    def key(self) -> str:
        """The name of its result."""
        return "/".join((self.figure, self.data, self.name, str(self.seed)))


def experiment(
    data: str, *, seed: int, subnets: int = SUBNETS, size: int = DEVICES // SUBNETS, **more: Any
) -> dict[str, Any]:
    """The experiment file of a cell as a dictionary; `more` replaces whole sections."""
    devices = subnets * size
    return {
        "name": "hierarchy",
        "rounds": INTERVALS[data],
        "seed": seed,
        "evaluate_every": 2,
        "data": {
            "source": data, "clients": devices, "partition": "label_shards", "labels_per_client": 3,
            "train_samples": devices * PER_DEVICE[data], "test_samples": 2000,
        },
        "model": MODELS[data],
        "topology": {"kind": "tree", "subnets": subnets, "trusted": more.pop("trusted", trusted(subnets, 0.5))},
        "algorithm": {"name": "h2fdp", "local_aggregation": EVERY},
        "local": {"steps": TAU, "batch_size": 1, "learning_rate": RATES[data]},
        "privacy": private(more.pop("epsilon", 1.0)),
        "resources": {"model": "wireless"},
        **more,
    }  # fmt: skip


def private(epsilon: float) -> dict[str, Any]:
    """Single examples, noise where trust ends."""
    return {"unit": "sample", "where": "edge", "epsilon": epsilon, "delta": 1e-5, "clip_norm": 1.0}


def trusted(subnets: int, share: float) -> list[str]:
    """That share of the edges by name: a draw by probability would differ between configurations."""
    return [f"edge-{number}" for number in range(round(share * subnets))]


def open_run(data: str, *, seed: int) -> dict[str, Any]:
    """Hierarchical averaging without privacy: the upper bound, and what targets are shares of."""
    plain = experiment(data, seed=seed) | {"privacy": {"unit": "none"}}
    return plain | {"algorithm": {"name": "hfl", "local_aggregation": EVERY}}


def with_control(plain: dict[str, Any], weights: dict[str, Any]) -> dict[str, Any]:
    """The same run with adaptive control."""
    return plain | {"algorithm": plain["algorithm"] | {"control": weights}}
