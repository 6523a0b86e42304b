"""`python -m benchmarks.scoreboard [NAME ...]`: run what is missing of the board, then write docs/scoreboard.md."""

import argparse
import multiprocessing
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.scoreboard.page import PAGE, write_page
from benchmarks.scoreboard.rows import ROWS
from benchmarks.scoreboard.runs import Job, attempt_job, is_done, list_jobs, read_results
from sightline.console import CountBar


def main() -> int:
    """Run and write."""
    names = [row.name for row in ROWS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scoreboard", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names))
    parser.add_argument("--quick", action="store_true", help="one seed of the rows that take seconds or few minutes")
    parser.add_argument("--all", action="store_true", help='also the rows that are marked "not run here"')
    parser.add_argument("--list", action="store_true", help="run nothing, show what is done and what is not")
    parser.add_argument("--page-only", action="store_true", help="run nothing, write the page from what is kept")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="jobs at a time (default: all cores)")
    given = parser.parse_args()
    for name in given.names:
        if name not in names:
            parser.error(f"no row {name!r}; known: {', '.join(names)}")
    rows = [row for row in ROWS if row.name in given.names or not given.names]
    # a row that is named is run, also one that is not run by default
    jobs = list_jobs(rows, quick=given.quick, everything=given.all or bool(given.names))
    if given.list:
        return show_jobs(jobs)
    failed = [] if given.page_only else run_jobs(jobs, given.workers)
    write_page()
    print(PAGE.name)
    for line in failed:
        print(f"FAILED: {line}")
    return 1 if failed else 0


def run_jobs(jobs: list[Job], workers: int = 1) -> list[str]:
    """Do what is not done, several at a time; one failure does not keep the others from being run."""
    kept = read_results()
    todo = [job for job in jobs if not is_done(job, kept)]
    print(f"{len(jobs) - len(todo)} of {len(jobs)} jobs were done before", flush=True)
    failed, ended = [], 0
    with CountBar("scoreboard", "jobs of the scoreboard") as bar:
        for failure in attempt_jobs(todo, workers):
            failed += [] if failure is None else [failure]
            ended += 1
            bar.advance(ended, len(todo))
    return failed


def attempt_jobs(todo: list[Job], workers: int, file: Path | None = None) -> Iterator[str | None]:
    """What failed of each as it ends; in this process when they are done one at a time."""
    attempt = partial(attempt_job, file=file)
    if workers <= 1 or len(todo) <= 1:
        yield from map(attempt, todo)
        return
    with multiprocessing.get_context("spawn").Pool(workers, maxtasksperchild=1) as pool:
        yield from pool.imap_unordered(attempt, todo)


def show_jobs(jobs: list[Job]) -> int:
    """What there is to do, and what it took when it was done."""
    results = read_results()
    for job in jobs:
        spent = f"{results[job.key]['processor_seconds']:8.0f} s" if is_done(job, results) else "not done"
        print(f"{spent:>10}  {job.title}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
