"""Run jobs, one JSON line each; a job whose line is there already is not run again."""

import json
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any, Protocol, TypeVar


class Job(Protocol):
    """Anything with a key of its own that a process can be sent."""

    @property
    def key(self) -> str: ...


Some = TypeVar("Some", bound=Job)


def read(results: Path) -> list[dict[str, Any]]:
    """All results; a line that was cut off by an interruption is left out."""
    rows = []
    for line in results.read_text(encoding="utf-8").splitlines() if results.exists() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def run_jobs(
    jobs: Iterable[Some], results: Path, *, work: Callable[[Some], dict[str, Any]], workers: int, title: str
) -> None:
    """Run what is missing, `workers` at a time, and write every result as soon as it is there."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    done = {row["key"] for row in read(results)}
    waiting = [job for job in jobs if job.key not in done]
    columns = (TextColumn("{task.description:42}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as bar, ProcessPoolExecutor(workers) as pool, results.open("a", encoding="utf-8") as file:
        task = bar.add_task(title, total=len(waiting))
        running: dict[Future[dict[str, Any]], Some] = {}
        while waiting or running:
            while waiting and len(running) < workers:
                job = waiting.pop(0)
                running[pool.submit(work, job)] = job
            finished, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                job = running.pop(future)
                file.write(json.dumps(future.result()) + "\n")
                file.flush()
                bar.update(task, advance=1, description=job.key)
