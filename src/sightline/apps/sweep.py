"""Sweeps: one run for every combination of `--over` values and seeds, by a pool of processes that may die alone.

`python -m sightline.apps.sweep` is a worker of the pool. It reads jobs as JSON lines {"experiment": TOML, "directory",
"resume"} and writes {"round", "metric", "reached"} after a round, then {"ended": status} or {"failed": reason}.
"""

import hashlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import tomllib
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import product
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import IO, Any

from sightline.config import Experiment, parse, read, to_toml
from sightline.data import read_given, settle_experiment
from sightline.engine import RunRecord, read_settings
from sightline.engine.record import DATABASE
from sightline.errors import InvalidInput, SightlineError, invalid
from sightline.formatting import metric_words

MOST = 10_000
"""Limit of runs per sweep; more are taken for a mistake."""
PATIENCE = 10
"""Seconds that an interrupted worker has to end by itself."""

OPEN, CLOSE = "[{(", "]})"


@dataclass(frozen=True)
class SweepJob:
    """One run of a sweep; without an experiment, the mistake in its settings."""

    settings: tuple[str, ...]
    directory: Path
    experiment: Experiment | None
    mistake: str = ""

    @property
    def name(self) -> str:
        """Return its settings on one line."""
        return ", ".join(self.settings) or "as it is"


def list_jobs(file: Path, *, over: Sequence[str], seeds: int | None, given: Sequence[str], out: Path) -> list[SweepJob]:
    """Return a job for every combination of the values in `over`, each with `seeds` seeds from the file's seed upwards.

    All jobs share the `given` settings. A combination that the file's rules forbid becomes a job with its mistake; a
    mistake that all jobs share is raised.
    """
    base = read(file, given)
    grid = [split_choices(choices) for choices in over]
    if seeds is not None:
        if seeds < 1:
            invalid("--seeds", seeds, "must be at least 1")
        if any(choice.startswith("seed=") for choices in grid for choice in choices):
            invalid("--seeds", seeds, "--over seed=... is given too", "keep one of the two")
        # Combinations share their seeds on purpose: differences between rows are then less due to chance.
        grid.append([f"seed={base.seed + number}" for number in range(seeds)])
    count = math.prod(map(len, grid))
    if count > MOST:
        invalid("--over", f"{count:,} runs", f"a sweep has at most {MOST:,}", "give fewer values or seeds")
    return [_make_job(file, given, settings, out) for settings in product(*grid)]


def _make_job(file: Path, given: Sequence[str], settings: tuple[str, ...], out: Path) -> SweepJob:
    directory = out / folder_name(settings)
    try:
        return SweepJob(settings, directory, _settle_clients(read(file, [*given, *settings])))
    except InvalidInput as error:
        return SweepJob(settings, directory, None, str(error))


def _settle_clients(experiment: Experiment) -> Experiment:
    """Return the experiment with the clients of its file or folder, as its run will store it."""
    if not experiment.data.is_path:
        return experiment
    data = experiment.data
    return settle_experiment(experiment, read_given(data.source, None, data.options), source=data.source)


def split_choices(text: str) -> list[str]:
    """Split key=value,value into settings with one value each; commas in brackets and quotes belong to a value.

    >>> split_choices("model.hidden=[64],[64,32]")
    ['model.hidden=[64]', 'model.hidden=[64,32]']
    """
    key, equals, listed = text.partition("=")
    values = [value.strip() for value in _split_values(listed)]
    if not (key.strip() and equals and all(values)):
        invalid("--over", text, "is not key=value,value", "e.g. --over algorithm.name=fedavg,fedprox")
    if len(set(values)) < len(values):
        invalid("--over", text, "names a value twice", "name each value once")
    return [f"{key.strip()}={value}" for value in values]


def _split_values(text: str) -> Iterator[str]:
    depth, quote, start = 0, "", 0
    for index, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in OPEN + CLOSE:
            depth += 1 if letter in OPEN else -1
        elif letter == "," and depth == 0:
            yield text[start:index]
            start = index + 1
    yield text[start:]


def folder_name(settings: Sequence[str]) -> str:
    """Return a folder name that states the settings, with a digest if characters had to be replaced or cut.

    >>> folder_name(["algorithm.name=fedavg", "seed=0"]), folder_name([])
    ('algorithm.name=fedavg,seed=0', 'run')
    """
    full = ",".join(settings) or "run"
    plain = re.sub(r"[^A-Za-z0-9._=,+-]", "_", full)[:120].lstrip(".")
    return plain if plain == full else f"{plain}-{hashlib.sha256(full.encode(errors='surrogatepass')).hexdigest()[:8]}"


class JobStatus(StrEnum):
    """What is to be done with a job."""

    START = "start"
    RESUME = "resume"
    DONE = "done"
    TAKEN = "taken"
    """Its folder holds a run of other settings."""


def job_status(directory: Path, experiment: Experiment) -> JobStatus:
    """Return how far the run in a folder is; one that was killed before its first release starts again."""
    # The folder itself is the only state of a sweep: there is no list of jobs that could disagree with the runs.
    if not (directory / DATABASE).is_file():
        return JobStatus.START
    with RunRecord.open(directory) as record:
        status, begun = record.facts.get("status"), record.pages.count_releases() > 0
    if not begun:
        return JobStatus.START
    if read_settings(directory) != experiment:
        return JobStatus.TAKEN
    return JobStatus.DONE if status in ("finished", "stopped") else JobStatus.RESUME


Message = Mapping[str, Any]
OnMessage = Callable[[SweepJob, Message], None]
Task = tuple[SweepJob, Experiment, JobStatus]


@dataclass
class Swept:
    """The outcome of the jobs; jobs in none of the lists were not reached."""

    done: list[SweepJob] = field(default_factory=list)
    failed: list[tuple[SweepJob, str]] = field(default_factory=list)
    before: int = 0
    """Number of jobs that were done before this sweep began."""
    interrupted: bool = False

    def done_directories(self, jobs: Sequence[SweepJob]) -> list[Path]:
        """Return the folders of the finished jobs, in the order of `jobs`."""
        done = {job.directory for job in self.done}
        return [job.directory for job in jobs if job.directory in done]


def run_sweep(
    jobs: Sequence[SweepJob], *, workers: int | None = None, on_message: OnMessage = lambda job, message: None
) -> Swept:
    """Run the jobs that are not yet done, `workers` at a time (default: one per core).

    Guarantees: nothing starts if a job's folder holds another run; a failing job does not affect the others; after an
    interrupt the same call continues where this one stopped.
    """
    if workers is not None and workers < 1:
        invalid("--workers", workers, "must be at least 1")
    swept = Swept(failed=[(job, job.mistake) for job in jobs if job.experiment is None])
    tasks = [(job, job.experiment, job_status(job.directory, job.experiment)) for job in jobs if job.experiment]
    for job, _, status in tasks:
        # Told before anything starts, not after hours of other jobs.
        if status is JobStatus.TAKEN:
            invalid("--out", job.directory, "holds a run of other settings", "give another --out, or remove it")

    def take(job: SweepJob, message: Message) -> None:
        if "ended" in message:
            swept.done.append(job)
        elif "failed" in message:
            swept.failed.append((job, str(message["failed"])))
        on_message(job, message)

    for job, experiment, status in tasks:
        if status is JobStatus.DONE:
            take(job, {"round": experiment.rounds, "ended": "done before"})
    swept.before = len(swept.done)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    pool = WorkerPool([task for task in tasks if task[2] is not JobStatus.DONE], workers or cores, take)
    try:
        pool.run()
    except KeyboardInterrupt:
        swept.interrupted = True
    return swept


class WorkerPool:
    """Runs tasks with `workers` workers and passes on their messages, one at a time.

    Guarantees: every task ends with one message `ended` or `failed`, unless the pool is stopped; stopped runs can be
    resumed.
    """

    def __init__(self, tasks: Sequence[Task], workers: int, on_message: OnMessage) -> None:
        self._waiting: SimpleQueue[Task] = SimpleQueue()
        for task in tasks:
            self._waiting.put(task)
        self._on_message, self._lock = on_message, Lock()
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
                job, experiment, status = self._waiting.get_nowait()
            except Empty:
                return
            order = {"experiment": to_toml(experiment), "directory": str(job.directory)}
            for message in worker.do(order | {"resume": status is JobStatus.RESUME}):
                with self._lock:
                    if self._stopping:
                        return
                    self._on_message(job, message)


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
        code = process.wait()
        cause = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
        yield {"failed": f"the process that ran it died ({cause}); the same command resumes it"}

    def _started(self) -> "subprocess.Popen[str]":
        if self._process is not None and self._process.poll() is not None:
            _close_pipes(self._process)
            self._process = None
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sightline.apps.sweep"],
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


def serve_jobs(jobs: IO[str], messages: IO[str]) -> None:
    """Run every job from the input; report a failure and wait for the next job."""
    from sightline import api

    def tell(message: Message) -> None:
        messages.write(json.dumps(message) + "\n")
        messages.flush()

    def on_round(row: Mapping[str, Any]) -> None:
        title, reached = metric_words(row)
        tell({"round": row["round"], "metric": title, "reached": reached})

    for line in jobs:
        job = json.loads(line)
        directory, resume = Path(job["directory"]), job["resume"]
        try:
            experiment = parse(tomllib.loads(job["experiment"]))
            run = api.run(experiment, out=directory, resume=resume, workers=1, progress=False, on_round=on_round)
            tell({"ended": run.metadata["status"]})
        except SightlineError as error:
            tell({"failed": str(error)})
        # The sweep is gone: stop here. The run can be resumed.
        except BrokenPipeError:
            raise
        except Exception as error:
            tell({"failed": f"{type(error).__name__}: {error}; see {_keep_traceback(directory)}"})


def _keep_traceback(directory: Path) -> Path:
    """Write the traceback of an unexpected failure and return its path."""
    path = directory.with_name(f"{directory.name}.error.txt")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(traceback.format_exc(), encoding="utf-8")
    return path


if __name__ == "__main__":
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    # A user's model may print: keep stdout for messages only.
    os.dup2(2, 1)
    try:
        serve_jobs(sys.stdin, output)
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(1)
