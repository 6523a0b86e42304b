"""Run jobs and write one JSON line each; a job that already has a line is skipped."""

import argparse
import json
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, TypeVar

LINES = "results.jsonl"
"""The file of a folder of results."""


class Job(Protocol):
    """Anything with a unique key that can be sent to a process."""

    @property
    def key(self) -> str: ...


Some = TypeVar("Some", bound=Job)


def read(results: Path) -> list[dict[str, Any]]:
    """Return all results; omit a line that an interruption cut off."""
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
    """Run missing jobs, `workers` at a time, and write each result as soon as it exists."""
    from sightline.console import CountBar

    results.parent.mkdir(parents=True, exist_ok=True)
    done = {row["key"] for row in read(results)}
    waiting = [job for job in jobs if job.key not in done]
    many, ended = len(waiting), 0
    with CountBar(title, f"runs of {title}") as bar, ProcessPoolExecutor(workers) as pool, _lines(results) as file:
        running: dict[Future[dict[str, Any]], Some] = {}
        while waiting or running:
            while waiting and len(running) < workers:
                job = waiting.pop(0)
                running[pool.submit(work, job)] = job
            finished, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                del running[future]
                file.write(json.dumps(future.result()) + "\n")
                file.flush()
                ended += 1
                bar.advance(ended, many)


def _lines(results: Path) -> Any:
    """Open the file for appending; first end a line that was cut off."""
    file = results.open("a+", encoding="utf-8")
    file.seek(0)
    if not (file.read() or "\n").endswith("\n"):
        file.write("\n")
    return file


def command(
    name: str,
    parts: Mapping[str, Callable[[], Iterable[Some]]],
    *,
    work: Callable[[Some], dict[str, Any]],
    home: Path,
    write_page: Callable[[list[dict[str, Any]], Path], None],
    page: Path,
    prepare: Callable[[list[Some]], None] = lambda jobs: None,
) -> None:
    """`python -m papers.NAME [PART ...]`: run what is missing, then write the page of the reproduction."""
    parser = argparse.ArgumentParser(prog=f"python -m papers.{name}")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(parts)} (default: all)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="jobs at a time (default: all cores)")
    parser.add_argument("--page-only", action="store_true", help="run nothing, write the page from the results")
    parser.add_argument(
        "--results", type=Path, default=home, help=f"folder of {LINES}; if not the one kept here, the page goes there"
    )
    given = parser.parse_args()
    unknown = [part for part in given.parts if part not in parts]
    if unknown:
        parser.error(f"no such part: {unknown[0]}; known: {', '.join(parts)}")
    if not given.page_only:
        named = chain.from_iterable(parts[part]() for part in given.parts or parts)
        jobs = list({job.key: job for job in named}.values())
        prepare(jobs)
        run_jobs(jobs, given.results / LINES, work=work, workers=given.workers, title=name)
    place = page if given.results.resolve() == home.resolve() else given.results / "page" / page.name
    place.parent.mkdir(parents=True, exist_ok=True)
    write_page(in_order(read(given.results / LINES), parts), place)
    print(place)


def in_order(rows: list[dict[str, Any]], parts: Mapping[str, Callable[[], Iterable[Some]]]) -> list[dict[str, Any]]:
    """Return the rows in the order of the parts' jobs, not of completion; omit jobs that no part lists."""
    known = {row["key"]: row for row in rows}
    keys = dict.fromkeys(job.key for part in parts.values() for job in part())
    return [known[key] for key in keys if key in known]
