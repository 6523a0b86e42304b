"""`make reproduce QUICK=1`: run a part of every system again and compare it with the kept results."""

import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from papers.jobs import LINES, read
from papers.reproduce import HERE, HOMES, ROOT, Do, called, run_all
from papers.times import told

FOLDER = ROOT / "runs" / "reproduce-quick"
QUICK = {
    "groups": ("python -m papers.groups quick",),
    "hierarchy": ("python -m papers.hierarchy quick",),
    "partitioning": ("python -m papers.partitioning.training quick",),
    "clustered": ("python -m papers.clustered quick",),
    "upcycled": ("python -m papers.upcycled quick",),
}
"""System -> what is run of it."""
TIMES = ("seconds", "minutes", "wall", "time")
"""Names of numbers that are another every time."""


def run_quickly(systems: Iterable[str], *, folder: Path = FOLDER, do: Do = called) -> list[str]:
    """Run the quick part of some systems, print how it differs from the kept results, and return failed commands."""
    todo = [command for system in systems for command in QUICK[system]]
    shutil.rmtree(folder, ignore_errors=True)
    done, failed = run_all(todo, folder, do)
    lines = ["| system | runs | equal to the bit | largest difference | minutes |", "|---|---|---|---|---|"]
    for command, time in done.items():
        home = HOMES[command.split()[2]]
        lines.append(
            f"| {home} | {compare_rows(read(HERE / home / LINES), read(folder / home / LINES))} | {told(time.wall)} |"
        )
    table = "\n".join(lines)
    (folder / "comparison.md").write_text(table + "\n", encoding="utf-8")
    print(table, f"\nThe same table: {folder.relative_to(ROOT)}/comparison.md", file=sys.stdout)
    return failed


def compare_rows(kept: list[dict[str, Any]], fresh: list[dict[str, Any]]) -> str:
    """Return the number of runs, of equal ones, and the largest difference of a number with its name.

    >>> old = [{"key": "a", "accuracy": [0.5, 0.7], "cpu_seconds": 3.0}, {"key": "b", "accuracy": [0.1]}]
    >>> compare_rows(old, [{"key": "a", "accuracy": [0.5, 0.75], "cpu_seconds": 9.0}, {"key": "c", "accuracy": [0.1]}])
    '2, 1 not kept | 0 | accuracy 0.05'
    >>> compare_rows(old, [old[1]])
    '1 | 1 | -'
    """
    known = {row["key"]: row for row in kept}
    missing = sum(row["key"] not in known for row in fresh)
    equal, largest, where = 0, 0.0, "-"
    for row in fresh:
        if row["key"] in known:
            old = dict(walk_numbers(known[row["key"]]))
            gaps = [(abs(value - old.get(name, value)), name) for name, value in walk_numbers(row)]
            gap, name = max(gaps, default=(0.0, ""))
            equal += gap == 0
            if gap > largest:
                largest, where = gap, f"{name.split('/')[0]} {gap:.3g}"
    return f"{len(fresh)}{f', {missing} not kept' if missing else ''} | {equal} | {where}"


def walk_numbers(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Yield every number of a result with its path, except times."""
    if isinstance(value, dict):
        for key, part in value.items():
            if not any(word in str(key) for word in TIMES):
                yield from walk_numbers(part, f"{name}/{key}" if name else str(key))
    elif isinstance(value, list):
        for place, part in enumerate(value):
            yield from walk_numbers(part, f"{name}/{place}")
    elif isinstance(value, int | float):
        yield name, float(value)
