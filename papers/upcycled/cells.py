"""Every run of the reproduction as one cell: what is run, and under which key its result is kept."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

ALGORITHMS = ("fedavg", "fedavgm", "fedprox", "scaffold", "feddyn", "pfedme", "fedyogi")
SYNTHETIC: dict[str, dict[str, Any]] = {
    "iid": {"iid": True},
    "syn00": {"alpha": 0.0, "beta": 0.0},
    "syn55": {"alpha": 0.25, "beta": 0.25},  # the generator's .5 is a standard deviation, ours is a variance
    "syn11": {"alpha": 1.0, "beta": 1.0},
}
DATA_SEED = {"iid": 107, "syn00": 198, "syn55": 280, "syn11": 222}
"""One fixed data set each, as in the paper: of the seeds 0 to 299 the one whose sizes are nearest to Table 2's."""
SEEDS = (0, 1, 2)
"""Of training, counted from the data's; the first is the data's own, so that a file can say it."""
TUNING = 1000
"""The seed of the grid's runs, counted from the data's: no reported run has it."""
GRADIENT_CLIP = 10.0
"""The norm onto which the authors' FedDyn scales the gradient of every local step, its own terms included."""

SETTINGS = {
    "fedavgm": {"server_momentum": 0.3},
    "fedprox": {"mu": 0.5},
    "feddyn": {"alpha": 0.01},
    "pfedme": {"penalty": 15.0, "inner_steps": 5, "personal_learning_rate": 0.05},
    "fedyogi": {"server_learning_rate": 0.02, "beta1": 0.9, "beta2": 0.99, "tau": 1e-3},
}


@dataclass(frozen=True)
class Cell:
    """One run: its experiment, and what an experiment file cannot say."""

    part: str
    algorithm: str
    data: str
    upcycled: bool
    seed: int
    plain: dict[str, Any] = field(compare=False, repr=False)
    variant: str = ""
    """What tells it from other runs of its part on the same data; both arms of a pair share it."""
    setting: str = ""
    """What of its own arm tells it: a learning rate, u."""
    data_seed: int | None = None
    """The seed that draws the data, where it is not the run's own."""
    gradient_clip: float | None = None
    reduced: bool = False
    """Whether images and tweets are reduced to few features, see `networks.reduce_features`."""

    @property
    def key(self) -> str:
        """The name of its result."""
        arm = "upcycled" if self.upcycled else "plain"
        words = (self.part, self.data, self.algorithm, self.variant, self.setting, arm, str(self.seed))
        return "/".join(word for word in words if word)


def experiment(
    algorithm: str, *, rounds: int, seed: int, data: dict[str, Any], lr: float, u: float | None, **more: Any
) -> dict[str, Any]:
    """The experiment file of a cell, as a dictionary: the authors' settings, `more` on top."""
    own = {"name": algorithm, **SETTINGS.get(algorithm, {})} | more.pop("own", {})
    return {
        "rounds": rounds,
        "seed": seed,
        "evaluate_every": more.pop("evaluate_every", max(1, rounds // 10)),
        "data": data,
        "model": more.pop("model", {"name": "linear"}),
        "algorithm": own | ({} if u is None else {"upcycle": u}),
        "local": {"epochs": 10, "batch_size": 32, "momentum": 0.5, "learning_rate": lr} | more.pop("local", {}),
        "sampling": {"clients": more.pop("clients", {"scheme": "fixed", "rate": 0.3})},
        **more,
    }


def synthetic_data(name: str, **more: Any) -> dict[str, Any]:
    """30 clients, 20 features, 10 classes; a tenth of each client's examples for testing."""
    shape: dict[str, Any] = {
        "source": "synthetic",
        "partition": "natural",
        "clients": 30,
        "features": 20,
        "classes": 10,
    }
    return shape | {"test_fraction": 0.1} | SYNTHETIC[name] | more


def compiled(algorithm: str) -> dict[str, Any]:
    """Linear models by compiled code where there is some; pFedMe's solver has none."""
    return {} if algorithm == "pfedme" else {"compiled": True}


@dataclass(frozen=True)
class Tuned:
    """What one arm was tuned to."""

    lr: float
    u: float | None = None
    server: float | None = None

    @property
    def words(self) -> str:
        """As a result's name has it."""
        step = "" if self.server is None else f",server{self.server:g}"
        return f"lr{self.lr:g}{step}" + ("" if self.u is None else f",u{self.u:g}")

    @property
    def algorithm(self) -> dict[str, Any]:
        """The algorithm's settings that were tuned."""
        return {} if self.server is None else {"server_learning_rate": self.server}


def clip_of(algorithm: str) -> float | None:
    """FedDyn has its authors' gradient clip."""
    return GRADIENT_CLIP if algorithm == "feddyn" else None


def linear_cell(part: str, algorithm: str, name: str, tuned: Tuned, *, seed: int, rounds: int, **more: Any) -> Cell:
    """A run of softmax regression on one of the synthetic data sets, whose seed the run's is counted from."""
    first = more.pop("data_seed", DATA_SEED[name])
    clip, variant = more.pop("gradient_clip", clip_of(algorithm)), more.pop("variant", "")
    plain = experiment(
        algorithm, rounds=rounds, seed=first + seed, data=synthetic_data(name, **more.pop("data", {})), lr=tuned.lr,
        u=tuned.u, own=tuned.algorithm, local=compiled(algorithm) | more.pop("local", {}), **more,
    )  # fmt: skip
    upcycled = tuned.u is not None
    return Cell(part, algorithm, name, upcycled, seed, plain, variant, tuned.words, first, clip)


def both_arms(make: Any, arms: tuple[Tuned, Tuned], seeds: tuple[int, ...] = SEEDS) -> Iterator[Cell]:
    """Plain and upcycled, seed by seed."""
    for seed in seeds:
        for tuned in arms:
            yield make(tuned, seed)
