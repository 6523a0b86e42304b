"""Run jobs, one JSON line each; a job whose line is there already is not run again."""

import argparse
import json
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import chain
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


def command(
    name: str,
    parts: Mapping[str, Callable[[], Iterable[Some]]],
    *,
    work: Callable[[Some], dict[str, Any]],
    results: Path,
    write_page: Callable[[list[dict[str, Any]], Path], None],
    page: Path,
) -> None:
    """`python -m experiments.NAME [PART ...]`: run what is missing, then write the page of the reproduction."""
    parser = argparse.ArgumentParser(prog=f"python -m experiments.{name}")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(parts)} (default: all)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="jobs at a time (default: all cores)")
    parser.add_argument("--results", type=Path, default=results, help="one JSON line per job")
    parser.add_argument("--page-only", action="store_true", help="run nothing, write the page from the results")
    given = parser.parse_args()
    unknown = [part for part in given.parts if part not in parts]
    if unknown:
        parser.error(f"no such part: {unknown[0]}; known: {', '.join(parts)}")
    if not given.page_only:
        jobs = chain.from_iterable(parts[part]() for part in given.parts or parts)
        run_jobs(jobs, given.results, work=work, workers=given.workers, title=name)
    write_page(read(given.results), page)
    print(page)
