"""`python -m experiments`: run the whole gallery, then write docs/reproduction.md."""

import argparse
import sys

from experiments.gallery import run_all
from experiments.overview import write_overview


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments", description=__doc__)
    parser.add_argument("--page-only", action="store_true", help="run nothing, write the page from the systems' pages")
    given = parser.parse_args()
    failed = 0 if given.page_only else run_all()
    write_overview()
    print("docs/reproduction.md")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
