"""Figures 7, 8 and 9: the private runs on letters and tweets, scaled to minutes of one core."""

from collections.abc import Iterator
from typing import Any

from experiments.upcycled.cells import Cell, experiment
from experiments.upcycled.private import EPSILON, as_published

LINEAR = {"name": "linear"}
LEARNING_RATE, U = 0.01, 0.3
OBJECTIVE = {"unit": "sample", "mechanism": "objective", "epsilon": EPSILON}


def pair(part: str, algorithm: str, rounds: int, privacy: Any, **more: Any) -> Iterator[Cell]:
    """Plain, and upcycled with half of the rounds, under `privacy(upcycled)`."""
    lr = more.pop("lr", LEARNING_RATE)
    for upcycled in (False, True):
        plain = experiment(
            algorithm, rounds=rounds // 2 if upcycled else rounds, seed=0, u=U if upcycled else None, lr=lr,
            clients={"scheme": "full"}, evaluate_every=1, privacy=privacy(upcycled), **more,
        )  # fmt: skip
        yield Cell(part, algorithm, part.split("-")[0], upcycled, 0, plain)


def output(part: str, algorithms: tuple[str, ...], rounds: int, **more: Any) -> Iterator[Cell]:
    """Output perturbation as published: no guarantee."""
    for algorithm in algorithms:
        yield from pair(f"{part}-output", algorithm, rounds, as_published, **more)


def objective(part: str, rounds: int, **more: Any) -> Iterator[Cell]:
    """Objective perturbation with a guarantee: exact FedProx minimisers of a linear model, epsilon = 8 for both."""
    return pair(f"{part}-objective", "fedprox", rounds, lambda _: OBJECTIVE, model=LINEAR, **more)
