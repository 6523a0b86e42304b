"""A sweep from its words to what came of it."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sightline.errors import invalid
from sightline.sweep.crew import Message, WorkerPool
from sightline.sweep.grid import SweepJob
from sightline.sweep.standing import JobStatus, job_status


@dataclass
class Swept:
    """What came of the jobs; those in none of the lists were not reached."""

    done: list[SweepJob] = field(default_factory=list)
    failed: list[tuple[SweepJob, str]] = field(default_factory=list)
    before: int = 0
    """How many of them were done before this sweep began."""
    interrupted: bool = False


OnMessage = Callable[[SweepJob, Message], None]


def run_sweep(
    jobs: Sequence[SweepJob], *, workers: int | None = None, on_message: OnMessage = lambda job, message: None
) -> Swept:
    """Run what is not yet done, `workers` at a time (default: one per core).

    Guarantees: nothing starts while another run lies in a job's folder; a job that fails leaves the others alone; after
    an interrupt the same call goes on where this one stopped.
    """
    if workers is not None and workers < 1:
        invalid("--workers", workers, "at least one process trains")
    swept = Swept(failed=[(job, job.mistake) for job in jobs if job.experiment is None])
    tasks = [(job, job.experiment, job_status(job.directory, job.experiment)) for job in jobs if job.experiment]
    for job, _, how in tasks:
        if how is JobStatus.TAKEN:
            invalid("--out", job.directory, "holds a run of other settings", "give another --out, or remove it")

    def take(job: SweepJob, message: Message) -> None:
        if "ended" in message:
            swept.done.append(job)
        elif "failed" in message:
            swept.failed.append((job, str(message["failed"])))
        on_message(job, message)

    for job, experiment, how in tasks:
        if how is JobStatus.DONE:
            take(job, {"round": experiment.rounds, "ended": "done before"})
    swept.before = len(swept.done)
    crew = WorkerPool([task for task in tasks if task[2] is not JobStatus.DONE], workers or count_cores(), take)
    try:
        crew.run()
    except KeyboardInterrupt:
        swept.interrupted = True
    return swept


def count_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def done_directories(swept: Swept, jobs: Sequence[SweepJob]) -> list[Path]:
    """The folders of the jobs that are done, in the order of the jobs."""
    done = {job.directory for job in swept.done}
    return [job.directory for job in jobs if job.directory in done]
