"""The runs: two data sets, two budgets, four ways to spend them, each with the clip norm that suits it best."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

Row = dict[str, Any]

ROUNDS, GROUPS = 100, 10
"""Everybody is used in one of ten rounds, ten times."""
DELTA = 1e-5
CLIENTS = {"mnist": 100, "emnist_letters": 200}
MODELS: dict[str, dict[str, Any]] = {
    "mnist": {"name": "mlp", "hidden": [32]},
    "emnist_letters": {"name": "linear"},
}
LOCAL: dict[str, dict[str, Any]] = {"mnist": {"steps": 10}, "emnist_letters": {"epochs": 1}}
EPSILONS = (8.0, 2.0)
TURNS = {"scheme": "turns", "groups": GROUPS}
ARMS: dict[str, dict[str, Any]] = {
    "independent": TURNS,
    "poisson": {"scheme": "poisson", "rate": 1 / GROUPS},
    "balanced": {"scheme": "balanced", "uses": ROUNDS // GROUPS},
    "correlated": TURNS,
}
CLIP_NORMS = {8.0: (0.05, 0.1, 0.2), 2.0: (0.025, 0.05, 0.1)}
"""What is tried for a budget."""
PICKING_SEED, SEEDS = 100, (0, 1, 2)
NO_NOISE = "no noise"


@dataclass(frozen=True)
class TrainingRun:
    """One run. Without an epsilon there is neither clipping nor noise."""

    data: str
    arm: str
    epsilon: float | None
    clip_norm: float
    seed: int

    @property
    def key(self) -> str:
        """What its result is found by."""
        return f"{self.data} {self.arm} {self.epsilon} {self.clip_norm} {self.seed}"

    def describe_experiment(self) -> Row:
        """The experiment file, as its tables."""
        privacy: Row = {"unit": "none"}
        if self.epsilon is not None:
            privacy = {"unit": "client", "epsilon": self.epsilon, "delta": DELTA, "clip_norm": self.clip_norm}
        if self.arm == "correlated":
            privacy |= {"noise": "correlated"}
        return {
            "name": "correlated",
            "seed": self.seed,
            "rounds": ROUNDS,
            "evaluate_every": ROUNDS // 10,
            "data": {
                "source": self.data,
                "clients": CLIENTS[self.data],
                "partition": "dirichlet",
                "concentration": 1.0,
            },
            "model": MODELS[self.data],
            "local": {"batch_size": 20, "learning_rate": 0.1, **LOCAL[self.data]},
            "sampling": {"clients": ARMS.get(self.arm, TURNS)},
            "privacy": privacy,
        }


def list_cells() -> list[tuple[str, float]]:
    """A data set and a budget: a panel of the figure each, the larger budget first."""
    return [(data, epsilon) for epsilon in EPSILONS for data in CLIENTS]


def list_picks(data: str, epsilon: float) -> list[TrainingRun]:
    """Runs that decide on the clip norm of every arm, on a seed that is used for nothing else."""
    norms = CLIP_NORMS[epsilon]
    return [TrainingRun(data, arm, epsilon, norm, PICKING_SEED) for arm in ARMS for norm in norms]


def list_finals(rows: list[Row], data: str, epsilon: float) -> Iterator[TrainingRun]:
    """The runs that are shown, with the clip norms that did best."""
    for arm in ARMS:
        clip_norm = pick_clip_norm(rows, data, epsilon, arm)
        yield from (TrainingRun(data, arm, epsilon, clip_norm, seed) for seed in SEEDS)
    yield from (TrainingRun(data, NO_NOISE, None, 0.0, seed) for seed in SEEDS)


def pick_clip_norm(rows: list[Row], data: str, epsilon: float, arm: str) -> float:
    """The clip norm with the best accuracy on the seed for picking."""
    known = {row["key"]: row for row in rows}
    tried = {norm: known[TrainingRun(data, arm, epsilon, norm, PICKING_SEED).key] for norm in CLIP_NORMS[epsilon]}
    return max(tried, key=lambda norm: last_accuracy(tried[norm]))


def last_accuracy(row: Row) -> float:
    """The accuracy after the last round."""
    return float(row["curve"][-1][1])


def train_run(job: TrainingRun) -> Row:
    """Run it, and keep accuracy over rounds, the noise and the epsilon that was spent."""
    import sightline

    with tempfile.TemporaryDirectory() as folder:
        done = sightline.run(job.describe_experiment(), out=Path(folder) / "run", progress=False)
        curve = [(row["round"], row["test_accuracy"]) for row in done.history if row.get("test_accuracy") is not None]
        spent = {name: done.summary.get(name) for name in ("noise_multiplier", "seconds")}
        spent["spent"] = done.summary["epsilon"] if job.epsilon is not None else None
    return {"key": job.key, **vars(job), "curve": curve, **spent}


def summarise_arms(rows: list[Row]) -> list[Row]:
    """Mean accuracy of every arm after every evaluation, its seeds, and what it leads independent noise by."""
    shown = [row for row in rows if row["seed"] in SEEDS]
    found = []
    for data in CLIENTS:
        for epsilon in (None, *EPSILONS):
            arms = dict.fromkeys(r["arm"] for r in shown if (r["data"], r["epsilon"]) == (data, epsilon))
            for arm in arms:
                mine = [r for r in shown if (r["data"], r["epsilon"], r["arm"]) == (data, epsilon, arm)]
                mine.sort(key=lambda r: r["seed"])
                found.append({"data": data, "epsilon": epsilon, "arm": arm} | summarise_seeds(mine))
    return found


def summarise_seeds(rows: list[Row]) -> Row:
    """One arm over its seeds."""
    times = [time for time, _ in rows[0]["curve"]]
    values = [[row["curve"][place][1] for row in rows] for place in range(len(times))]
    return {
        "clip_norm": rows[0]["clip_norm"],
        "noise_multiplier": rows[0].get("noise_multiplier"),
        "accuracy": round(mean(values[-1]), 4),
        "seeds": [round(value, 4) for value in values[-1]],
        "rounds": times,
        "mean_curve": [round(mean(one), 4) for one in values],
    }
