"""`python -m experiments.upcycled [PART ...]`: run, then write docs/reproduction/upcycled.md."""

import argparse
import os
from itertools import chain
from pathlib import Path

from experiments.jobs import read
from experiments.upcycled.page import write_page
from experiments.upcycled.parts import PARTS, QUICK
from experiments.upcycled.runner import run_all

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "reproduction" / "upcycled.md"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.upcycled", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: {', '.join(QUICK)})")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="runs at a time (default: all cores)")
    parser.add_argument("--results", type=Path, default=HERE / "results.jsonl", help="one JSON line per run")
    parser.add_argument("--page-only", action="store_true", help="run nothing, write the page from the results")
    given = parser.parse_args()
    unknown = [part for part in given.parts if part not in PARTS]
    if unknown:
        parser.error(f"no such part: {unknown[0]}; known: {', '.join(PARTS)}")
    if not given.page_only:
        cells = chain.from_iterable(PARTS[part]() for part in given.parts or QUICK)
        run_all(cells, given.results, workers=given.workers)
    write_page(read(given.results), PAGE)
    print(PAGE)


if __name__ == "__main__":
    main()
