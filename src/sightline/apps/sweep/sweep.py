"""A sweep: jobs run by a pool of processes, each of which may die without affecting the others."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any

from sightline.apps.sweep.jobs import JobStatus, SweepJob, job_status
from sightline.config import Experiment, to_toml
from sightline.errors import invalid

Message = Mapping[str, Any]
OnWorkerMessage = Callable[[SweepJob, Message], None]
Task = tuple[SweepJob, Experiment, JobStatus]

PATIENCE = 10
"""Seconds that an interrupted worker has to end by itself."""


class WorkerPool:
    """Runs tasks with `workers` workers and passes on their messages, one at a time.

    Guarantees: every task ends with one message `ended` or `failed`, unless the pool is stopped; stopped runs can be
    resumed.
    """

    def __init__(self, tasks: Sequence[Task], workers: int, on_message: OnWorkerMessage) -> None:
        self._waiting: SimpleQueue[Task] = SimpleQueue()
        for task in tasks:
            self._waiting.put(task)
        self._hand_on, self._lock = on_message, Lock()
        self._stopping = False
        self._workers = [_Worker() for _ in range(min(workers, len(tasks)))]
        self._threads = [Thread(target=self._work, args=(worker,), daemon=True) for worker in self._workers]

    def run(self) -> None:
        """Run until every task has ended; an interrupt stops the workers and is raised again."""
        for thread in self._threads:
            thread.start()
        try:
            for thread in self._threads:
                while thread.is_alive():
                    # A join without a limit would block the interrupt.
                    thread.join(timeout=0.5)
        finally:
            self._stopping = True
            for worker, thread in zip(self._workers, self._threads, strict=True):
                worker.end(thread)

    def _work(self, worker: "_Worker") -> None:
        while not self._stopping:
            try:
                job, experiment, standing = self._waiting.get_nowait()
            except Empty:
                return
            order = {"experiment": to_toml(experiment), "directory": str(job.directory)}
            for message in worker.do(order | {"resume": standing is JobStatus.RESUME}):
                with self._lock:
                    if self._stopping:
                        return
                    self._hand_on(job, message)


class _Worker:
    """One process, started with its first job and again after it died."""

    # Not a pool from the standard library: that is lost as a whole when one process dies.
    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def do(self, order: Message) -> Iterator[Message]:
        """Yield the messages of a job as they arrive; the death of the process is reported as a failure."""
        process = self._started()
        try:
            print(json.dumps(order), file=process.stdin, flush=True)
            for line in process.stdout or ():
                message = json.loads(line)
                yield message
                if "ended" in message or "failed" in message:
                    return
        except BrokenPipeError:
            pass
        yield {"failed": f"the process that ran it died ({_last_words(process.wait())}); the same command resumes it"}

    def _started(self) -> "subprocess.Popen[str]":
        if self._process is not None and self._process.poll() is not None:
            _close_pipes(self._process)
            self._process = None
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sightline.apps.sweep.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # Failures come as messages; tracebacks go to a file beside the run.
                stderr=subprocess.DEVNULL,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                # Ctrl-C reaches the sweep alone, which then stops its workers.
                start_new_session=True,
            )
        return self._process

    def end(self, thread: Thread) -> None:
        """Close an idle process; interrupt a busy one, and kill it if it does not end in time."""
        for patience in range(10 * PATIENCE):
            process = self._process
            if process is not None and process.poll() is None and thread.is_alive() and patience % 10 == 0:
                process.send_signal(signal.SIGINT)
            thread.join(timeout=0.1)
            if not thread.is_alive():
                break
        if self._process is not None:
            self._process.kill()
            _close_pipes(self._process)


def _close_pipes(process: "subprocess.Popen[str]") -> None:
    """Close the pipes of a process that ended or was killed; an order that it never read is dropped."""
    with suppress(BrokenPipeError), process:
        pass


def _last_words(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


@dataclass
class Swept:
    """The outcome of the jobs; jobs in none of the lists were not reached."""

    done: list[SweepJob] = field(default_factory=list)
    failed: list[tuple[SweepJob, str]] = field(default_factory=list)
    before: int = 0
    """Number of jobs that were done before this sweep began."""
    interrupted: bool = False


OnMessage = Callable[[SweepJob, Message], None]


def run_sweep(
    jobs: Sequence[SweepJob], *, workers: int | None = None, on_message: OnMessage = lambda job, message: None
) -> Swept:
    """Run the jobs that are not yet done, `workers` at a time (default: one per core).

    Guarantees: nothing starts if a job's folder holds another run; a failing job does not affect the others; after an
    interrupt the same call continues where this one stopped.
    """
    if workers is not None and workers < 1:
        invalid("--workers", workers, "at least one process trains")
    swept = Swept(failed=[(job, job.mistake) for job in jobs if job.experiment is None])
    tasks = [(job, job.experiment, job_status(job.directory, job.experiment)) for job in jobs if job.experiment]
    for job, _, how in tasks:
        # Told before anything starts, not after hours of other jobs.
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
    pool = WorkerPool([task for task in tasks if task[2] is not JobStatus.DONE], workers or count_cores(), take)
    try:
        pool.run()
    except KeyboardInterrupt:
        swept.interrupted = True
    return swept


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def done_directories(swept: Swept, jobs: Sequence[SweepJob]) -> list[Path]:
    """Return the folders of the finished jobs, in the order of the jobs."""
    done = {job.directory for job in swept.done}
    return [job.directory for job in jobs if job.directory in done]
