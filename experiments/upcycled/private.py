"""Private runs (figures 3 and 4): all clients, no stragglers, 80 iterations for both, half of them free if upcycled."""

from collections.abc import Iterator
from typing import Any

from experiments.upcycled.cells import ALGORITHMS, SYNTHETIC, Cell, experiment, synthetic_data

SEEDS = (0, 1)
TUNED_OUTPUT = {"iid": (0.1, 0.3), "syn55": (0.07, 0.3), "syn00": (0.03, 0.5), "syn11": (0.01, 0.1)}
"""The authors' (learning rate, u) for output perturbation."""
TUNED_OBJECTIVE_U = {"iid": 0.9, "syn55": 0.7, "syn00": 0.9, "syn11": 0.3}
"""The authors' u for objective perturbation; an exact minimiser has no learning rate."""
EPSILON = 8.0
"""The budget of the honest variants, per example, for the whole run."""


def pairs(
    part: str,
    algorithm: str,
    privacy: Any,
    tuned: dict[str, tuple[float, float]],
    *,
    data: tuple[str, ...],
    seeds: tuple[int, ...] = SEEDS,
    **more: Any,
) -> Iterator[Cell]:
    """Plain with 80 rounds and upcycled with 40, under `privacy(upcycled)`."""
    for name in data:
        lr, u = tuned[name]
        for seed in seeds:
            for upcycled in (False, True):
                plain = experiment(
                    algorithm, rounds=40 if upcycled else 80, seed=seed, data=synthetic_data(name), lr=lr,
                    u=u if upcycled else None, clients={"scheme": "full"}, privacy=privacy(upcycled), **more,
                )  # fmt: skip
                yield Cell(part, algorithm, name, upcycled, seed, plain)


def as_published(upcycled: bool) -> dict[str, Any]:
    """Models clipped to 10, noise of standard deviation 1.0, upcycled 0.8."""
    std = 0.8 if upcycled else 1.0
    return {"unit": "sample", "mechanism": "output", "sensitivity": "as_published", "clip_norm": 10.0,
            "noise_std": std, "adjacency": "replace"}  # fmt: skip


def published() -> Iterator[Cell]:
    """Figure 3 as published."""
    return pairs("published", "fedavg", as_published, TUNED_OUTPUT, data=tuple(SYNTHETIC))


def table5() -> Iterator[Cell]:
    """Training time of every algorithm, output perturbation on Syn(iid)."""
    for algorithm in ALGORITHMS:
        yield from pairs("table5", algorithm, as_published, TUNED_OUTPUT, data=("iid",), seeds=(0,))


def output() -> Iterator[Cell]:
    """Output perturbation with a guarantee: exact FedProx minimisers, epsilon = 8 for both."""

    def privacy(upcycled: bool) -> dict[str, Any]:
        return {"unit": "sample", "mechanism": "output", "sensitivity": "strongly_convex", "epsilon": EPSILON}

    return pairs("output", "fedprox", privacy, TUNED_OUTPUT, data=("iid", "syn11"))


def objective() -> Iterator[Cell]:
    """Figure 4 with a guarantee: objective perturbation of exact FedProx minimisers, epsilon = 8 for both."""

    def privacy(upcycled: bool) -> dict[str, Any]:
        return {"unit": "sample", "mechanism": "objective", "epsilon": EPSILON}

    tuned = {name: (0.1, u) for name, u in TUNED_OBJECTIVE_U.items()}
    return pairs("objective", "fedprox", privacy, tuned, data=("iid", "syn11"))


def gradient() -> Iterator[Cell]:
    """Gradient perturbation: DP-SGD of one local epoch, epsilon = 8 for both."""

    def privacy(upcycled: bool) -> dict[str, Any]:
        return {"unit": "sample", "epsilon": EPSILON}

    return pairs(
        "gradient", "fedavg", privacy, TUNED_OUTPUT, data=tuple(SYNTHETIC), local={"epochs": 1, "momentum": 0.0}
    )
