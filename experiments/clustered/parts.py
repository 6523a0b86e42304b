"""The parts of the reproduction by name, and what each kind of job does."""

from collections.abc import Callable, Iterator
from typing import Any

from experiments.clustered import accuracy, batches, first_round

PARTS: dict[str, Callable[[], Iterator[Any]]] = {
    "first": first_round.jobs,
    "cifar": first_round.cifar,
    "accuracy": accuracy.jobs,
    "batches": batches.jobs,
    "ratio": batches.ratios,
}

WORK: dict[type, Callable[[Any], dict[str, Any]]] = {
    first_round.FirstRound: first_round.run_first,
    accuracy.Accuracy: accuracy.run_accuracy,
    batches.Batches: batches.run_batches,
    batches.Ratio: batches.run_ratio,
}


def work(job: Any) -> dict[str, Any]:
    """The result of any job."""
    return WORK[type(job)](job)
