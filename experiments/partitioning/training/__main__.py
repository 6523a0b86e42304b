"""`python -m experiments.partitioning.training [PART ...]`: run, then write docs/reproduction/partitioning.md."""

import argparse
import os
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

from experiments.jobs import read
from experiments.partitioning.training.cells import Cell, sampling, table1, table2
from experiments.partitioning.training.page import write_page
from experiments.partitioning.training.runner import run_all

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs" / "reproduction" / "partitioning.md"
PARTS: dict[str, Callable[[], Iterator[Cell]]] = {"table1": table1, "table2": table2, "section4.2": sampling}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.partitioning.training", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="runs at a time (default: all cores)")
    parser.add_argument("--results", type=Path, default=HERE / "results.jsonl", help="one JSON line per run")
    parser.add_argument("--page-only", action="store_true", help="run nothing, write the page from the results")
    given = parser.parse_args()
    unknown = [part for part in given.parts if part not in PARTS]
    if unknown:
        parser.error(f"no such part: {unknown[0]}; known: {', '.join(PARTS)}")
    if not given.page_only:
        cells = chain.from_iterable(PARTS[part]() for part in given.parts or PARTS)
        run_all(cells, given.results, workers=given.workers)
    write_page(read(given.results), PAGE)
    print(PAGE)


if __name__ == "__main__":
    main()
