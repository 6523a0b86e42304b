"""`python -m experiments.clustered [PART ...]`: run, then write docs/reproduction/clustered.md."""

import argparse
import os
from itertools import chain
from pathlib import Path

from experiments.clustered.page import write_page
from experiments.clustered.parts import PARTS, work
from experiments.jobs import read, run_jobs

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "reproduction" / "clustered.md"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.clustered", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="jobs at a time (default: all cores)")
    parser.add_argument("--results", type=Path, default=HERE / "results.jsonl", help="one JSON line per job")
    parser.add_argument("--page-only", action="store_true", help="run nothing, write the page from the results")
    given = parser.parse_args()
    unknown = [part for part in given.parts if part not in PARTS]
    if unknown:
        parser.error(f"no such part: {unknown[0]}; known: {', '.join(PARTS)}")
    if not given.page_only:
        jobs = chain.from_iterable(PARTS[part]() for part in given.parts or PARTS)
        run_jobs(jobs, given.results, work=work, workers=given.workers, title="clustered")
    write_page(read(given.results), PAGE)
    print(PAGE)


if __name__ == "__main__":
    main()
