"""Every run of the reproduction as one cell: what is run, and under which key its result is kept."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

ALGORITHMS = ("fedavg", "fedavgm", "fedprox", "scaffold", "feddyn", "pfedme", "fedyogi")
SYNTHETIC = {
    "iid": {"iid": True},
    "syn00": {"alpha": 0.0, "beta": 0.0},
    "syn55": {"alpha": 0.25, "beta": 0.25},  # the generator's .5 is a standard deviation, ours is a variance
    "syn11": {"alpha": 1.0, "beta": 1.0},
}
SEEDS = (0, 1, 2, 3)

TUNED = {
    "fedavg": {"iid": (0.1, 0.9), "syn55": (0.005, 0.7), "syn00": (0.1, 0.3), "syn11": (0.005, 0.9)},
    "fedavgm": {"iid": (0.1, 0.5), "syn55": (0.005, 0.5), "syn00": (0.01, 0.5), "syn11": (0.005, 0.3)},
    "feddyn": {"iid": (0.1, 0.9), "syn55": (0.005, 0.9), "syn00": (0.005, 0.3), "syn11": (0.001, 0.7)},
}
"""The authors' (learning rate, u). Where they gave none we use FedAvgM's, and for pFedMe its own learning rate."""

SETTINGS = {
    "fedavgm": {"server_momentum": 0.3},
    "fedprox": {"mu": 0.5},
    "feddyn": {"alpha": 0.01},
    "pfedme": {"penalty": 15.0, "inner_steps": 5, "personal_learning_rate": 0.05},
    "fedyogi": {"server_learning_rate": 0.1, "beta1": 0.9, "beta2": 0.99, "tau": 1e-3},
}


@dataclass(frozen=True)
class Cell:
    """One run."""

    part: str
    algorithm: str
    data: str
    upcycled: bool
    seed: int
    plain: dict[str, Any] = field(compare=False, repr=False)

    @property
    def key(self) -> str:
        """The name of its result."""
        return "/".join(
            (self.part, self.data, self.algorithm, "upcycled" if self.upcycled else "plain", str(self.seed))
        )


def rate_and_u(algorithm: str, data: str) -> tuple[float, float]:
    """Learning rate and u of a cell."""
    if algorithm == "pfedme":
        return 0.1, TUNED["fedavgm"][data][1]
    return TUNED.get(algorithm, TUNED["fedavgm"])[data]


def experiment(
    algorithm: str, *, rounds: int, seed: int, data: dict[str, Any], lr: float, u: float | None, **more: Any
) -> dict[str, Any]:
    """The experiment file of a cell, as a dictionary: the authors' settings, `more` on top."""
    return {
        "rounds": rounds,
        "seed": seed,
        "evaluate_every": more.pop("evaluate_every", 8),
        "data": data,
        "model": more.pop("model", {"name": "linear"}),
        "algorithm": {"name": algorithm, **SETTINGS.get(algorithm, {})} | ({} if u is None else {"upcycle": u}),
        "local": {"epochs": 10, "batch_size": 32, "momentum": 0.5, "learning_rate": lr} | more.pop("local", {}),
        "sampling": {"clients": more.pop("clients", {"scheme": "fixed", "rate": 0.3})},
        **more,
    }


def synthetic_data(name: str) -> dict[str, Any]:
    """30 clients, 20 features, 10 classes; a tenth of each client's examples for testing."""
    shape = {"source": "synthetic", "partition": "natural", "clients": 30, "features": 20, "classes": 10}
    return shape | {"test_fraction": 0.1} | SYNTHETIC[name]


def synthetic(part: str, stragglers: float, seeds: tuple[int, ...] = SEEDS) -> Iterator[Cell]:
    """Tables 1 and 3: 80 rounds; the upcycled version takes its 80 free steps on top."""
    for seed in seeds:
        for data in SYNTHETIC:
            for algorithm in ALGORITHMS:
                lr, u = rate_and_u(algorithm, data)
                for upcycled in (False, True):
                    plain = experiment(
                        algorithm, rounds=80, seed=seed, data=synthetic_data(data), lr=lr, u=u if upcycled else None,
                        local={"stragglers": stragglers},
                    )  # fmt: skip
                    yield Cell(part, algorithm, data, upcycled, seed, plain)


def real(
    part: str, name: str, *, rounds: int, data: dict[str, Any], model: dict[str, Any], lr: float, seeds: int = 2
) -> Iterator[Cell]:
    """A real data set, 90% stragglers, u = .5 for everybody; pFedMe moves as fast as its own rule allows."""
    for seed in SEEDS[:seeds]:
        for algorithm in ALGORITHMS:
            for upcycled in (False, True):
                plain = experiment(
                    algorithm, rounds=rounds, seed=seed, data=data, lr=lr, u=0.5 if upcycled else None, model=model,
                    local={"stragglers": 0.9},
                )  # fmt: skip
                yield Cell(part, algorithm, name, upcycled, seed, plain)
