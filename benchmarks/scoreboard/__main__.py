"""`python -m benchmarks.scoreboard [NAME ...]`: run what is missing of the board, then write docs/scoreboard.md."""

import argparse
import sys

from benchmarks.scoreboard.page import PAGE, write_page
from benchmarks.scoreboard.rows import ROWS
from benchmarks.scoreboard.runs import Job, do_job, is_done, list_jobs, read_results
from sightline.errors import SightlineError


def main() -> int:
    """Run and write."""
    names = [row.name for row in ROWS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scoreboard", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names))
    parser.add_argument("--quick", action="store_true", help="one seed of the rows that take seconds or few minutes")
    parser.add_argument("--all", action="store_true", help='also the rows that are marked "not run here"')
    parser.add_argument("--list", action="store_true", help="run nothing, show what is done and what is not")
    parser.add_argument("--page-only", action="store_true", help="run nothing, write the page from what is kept")
    given = parser.parse_args()
    for name in given.names:
        if name not in names:
            parser.error(f"no row {name!r}; known: {', '.join(names)}")
    rows = [row for row in ROWS if row.name in given.names or not given.names]
    # a row that is named is run, also one that is not run by default
    jobs = list_jobs(rows, quick=given.quick, everything=given.all or bool(given.names))
    if given.list:
        return show_jobs(jobs)
    failed = [] if given.page_only else run_jobs(jobs)
    write_page()
    print(PAGE.name)
    for line in failed:
        print(f"FAILED: {line}")
    return 1 if failed else 0


def run_jobs(jobs: list[Job]) -> list[str]:
    """Do what is not done; one failure does not keep the others from being run."""
    failed = []
    for number, job in enumerate(jobs, 1):
        done = is_done(job, read_results())
        print(f"[{number}/{len(jobs)}] {job.title}{'  (done before)' if done else ''}", flush=True)
        if done:
            continue
        try:
            do_job(job)
        except SightlineError as error:
            failed.append(f"{job.title}: {error}")
    return failed


def show_jobs(jobs: list[Job]) -> int:
    """What there is to do, and what it took when it was done."""
    results = read_results()
    for job in jobs:
        spent = f"{results[job.key]['processor_seconds']:8.0f} s" if is_done(job, results) else "not done"
        print(f"{spent:>10}  {job.title}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
