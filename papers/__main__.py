"""`python -m papers`: make all figures and tables again, then write papers/docs/index.md."""

import argparse
import shutil
import sys

from papers.commands import ORDER, commands
from papers.heads import write_heads
from papers.overview import write_overview
from papers.quick import run_quickly
from papers.reproduce import SCRATCH, reproduce
from papers.times import measured, told


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m papers",
        description="Run every experiment of the papers into fresh results and write the pages; "
        "interrupted, it continues where it stopped.",
    )
    parser.add_argument("--only", nargs="+", metavar="SYSTEM", choices=ORDER, default=ORDER, help=", ".join(ORDER))
    parser.add_argument("--restart", action="store_true", help="discard the results of an interrupted reproduction")
    parser.add_argument("--quick", action="store_true", help="run a part of every system and compare with what is kept")
    parser.add_argument("--list", action="store_true", help="run nothing, show the commands and what they took")
    parser.add_argument("--page-only", action="store_true", help="run nothing, write the page from the systems' pages")
    given = parser.parse_args()
    if given.list:
        return show(given.only)
    if given.quick:
        return finish(run_quickly(given.only))
    if given.restart:
        shutil.rmtree(SCRATCH, ignore_errors=True)
    failed = [] if given.page_only else reproduce(given.only)
    write_heads()
    write_overview()
    print("papers/docs/index.md")
    return finish(failed)


def finish(failed: list[str]) -> int:
    """Print the failed commands; return the exit code."""
    for command in failed:
        print(f"FAILED: {command}")
    return 1 if failed else 0


def show(systems: list[str]) -> int:
    """Print the commands with the minutes of their last measurement."""
    times = measured()
    for _, command in commands(systems):
        time = times.get(command)
        spent = f"{told(time.wall):>8} {told(time.processor):>8}" if time else "not measured"
        print(f"{spent:>17}  {command}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
