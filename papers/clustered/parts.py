"""The parts of the reproduction by name, and what each kind of job does."""

from collections.abc import Callable, Iterator
from typing import Any

from papers.clustered import accuracy, batches, first_round


def quick() -> Iterator[Any]:
    """Two seeds of what the verdicts rest on, and the noise."""
    yield from (
        job for job in accuracy.jobs() if job.seed < 2 and job.epsilon == 3 and job.algorithm in ("rdpcfl", "ifca")
    )
    yield batches.Later()
    yield from batches.ratios()


PARTS: dict[str, Callable[[], Iterator[Any]]] = {
    "first": first_round.jobs,
    "cifar": first_round.cifar,
    "accuracy": accuracy.jobs,
    "cifar-accuracy": accuracy.cifar_jobs,
    "tuning": accuracy.tuning,
    "causes": accuracy.causes,
    "printed": accuracy.printed,
    "batches": batches.jobs,
    "ratio": batches.ratios,
    "quick": quick,
}

WORK: dict[type, Callable[[Any], dict[str, Any]]] = {
    first_round.FirstRound: first_round.run_first,
    accuracy.Accuracy: accuracy.run_accuracy,
    batches.Batches: batches.run_batches,
    batches.Later: batches.run_later,
    batches.Ratio: batches.run_ratio,
}


def work(job: Any) -> dict[str, Any]:
    """The result of any job."""
    return WORK[type(job)](job)
