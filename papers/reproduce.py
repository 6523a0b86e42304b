"""`make reproduce`: run every command into fresh results, remember finished ones, then replace the kept results."""

import os
import resource
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from papers.commands import HERE, commands
from papers.times import Time, keep, measured, note_commit, told

ROOT = HERE.parent
SCRATCH = ROOT / "runs" / "reproduce"
HOMES = {
    "papers.groups": "groups/results",
    "papers.groups.figure4": "groups/results",
    "papers.groups.bottleneck": "groups/results",
    "papers.upcycled": "upcycled",
    "papers.clustered": "clustered",
    "papers.hierarchy": "hierarchy",
    "papers.partitioning.training": "partitioning/training",
    "papers.partitioning.figures.draw": "partitioning/figures",
}
"""Module -> the folder under papers/ that keeps its results."""
PAGES = {
    "groups": "papers.groups",
    "upcycled": "papers.upcycled",
    "clustered": "papers.clustered",
    "hierarchy": "papers.hierarchy",
    "partitioning": "papers.partitioning.training",
}
"""System -> the module that writes its page."""
CACHES = ("clustered/sums", "partitioning/training/pretrained")
"""What earlier runs left to save time; a new reproduction begins without."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Cores are shared by running jobs side by side."""

Do = Callable[[list[str]], bool]
"""Run these words and say whether they succeeded."""


def called(words: list[str]) -> bool:
    """Run a command in the repository's folder."""
    return subprocess.run(words, cwd=ROOT, env=ONE_THREAD | dict(os.environ), check=False).returncode == 0


def reproduce(systems: Iterable[str], *, scratch: Path = SCRATCH, do: Do = called) -> list[str]:
    """Run unfinished commands and replace the results of complete systems; return the commands that failed."""
    todo = commands(systems)
    begin(scratch)
    done, failed = run_all([command for _, command in todo], scratch, do)
    for system in dict.fromkeys(system for system, _ in todo):
        own = {command for name, command in todo if name == system}
        if own <= set(done):
            put_in_place(system, {command: done[command] for command in own}, scratch, do)
    if not failed:
        forget([command for _, command in todo], scratch)
    return failed


def run_all(todo: list[str], scratch: Path, do: Do) -> tuple[dict[str, Time], list[str]]:
    """Return (finished commands with their times, failed commands); one failure does not stop the others."""
    done, failed = measured(scratch / "done.json"), []
    for number, command in enumerate(todo, 1):
        print(tell_progress(number - 1, todo, done), command, flush=True)
        if command in done:
            print("    done before", flush=True)
        elif not timed(command, scratch, done, do):
            failed.append(command)
    return done, failed


def tell_progress(number: int, todo: list[str], done: dict[str, Time]) -> str:
    """Print a progress bar of all commands, and the time left by their last measurement.

    >>> tell_progress(1, ["a", "b", "c", "d"], {})
    '[=====...............] 1/4'
    """
    before = measured()
    known = [before[command].wall for command in todo if command in before]
    mean = sum(known) / len(known) if known else 0.0
    left = sum(before[command].wall if command in before else mean for command in todo[number:] if command not in done)
    full = round(20 * number / len(todo))
    about = f", about {told(left)} left:" if left else ""
    return f"[{'=' * full}{'.' * (20 - full)}] {number}/{len(todo)}{about}"


def begin(scratch: Path) -> None:
    """Remove the caches of earlier runs before a new reproduction."""
    if not scratch.exists():
        for cache in CACHES:
            shutil.rmtree(HERE / cache, ignore_errors=True)


def forget(todo: list[str], scratch: Path) -> None:
    """Remove the scratch results of a finished reproduction, so that the next one starts from nothing."""
    for name in ("done.json", "attempts.json"):
        keep(
            {command: time for command, time in measured(scratch / name).items() if command not in todo}, scratch / name
        )
    for system in {system_of(command) for command in todo}:
        for folder in (system, f"files/{system}"):
            shutil.rmtree(scratch / folder, ignore_errors=True)
    if not measured(scratch / "attempts.json"):
        shutil.rmtree(scratch)


def timed(command: str, scratch: Path, done: dict[str, Time], do: Do) -> bool:
    """Run one command and record its time, including earlier interrupted attempts."""
    attempts = measured(scratch / "attempts.json")
    load, wall, processor = os.getloadavg()[0], time.monotonic(), _children()
    succeeded = False
    try:
        succeeded = do(words_of(command, scratch))
    finally:
        wall, processor = time.monotonic() - wall, _children() - processor
        spent = Time(wall / 60, processor / 60, os.cpu_count() or 1, (load + os.getloadavg()[0]) / 2)
        attempts[command] = attempts[command] + spent if command in attempts else spent
        keep(attempts, scratch / "attempts.json")
    print(f"    {'done' if succeeded else 'FAILED'} in {wall / 60:.1f} minutes", flush=True)
    if succeeded:
        done[command] = attempts[command]
        keep(done, scratch / "done.json")
    return succeeded


def _children() -> float:
    """Return the processor seconds of all ended child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def words_of(command: str, scratch: Path) -> list[str]:
    """Return the command with its results in the scratch folder; an interrupted run is resumed."""
    first, *rest = shlex.split(command)
    if first == "sightline":
        run = scratch / "files" / Path(rest[-1]).relative_to("papers").with_suffix("")
        return [sys.executable, "-m", "sightline", *rest, "--out", str(run), *(["--resume"] if run.exists() else [])]
    return [sys.executable, *rest, "--results", str(scratch / HOMES[rest[1]])]


def put_in_place(system: str, times: dict[str, Time], scratch: Path, do: Do) -> None:
    """Move a system's results to their place, record its times and write its page."""
    move(system, scratch, HERE)
    others = {command: time for command, time in measured().items() if system_of(command) != system}
    keep(others | times)
    note_commit(system)
    do([sys.executable, "-m", PAGES[system], "--page-only"])


def move(system: str, scratch: Path, place: Path) -> None:
    """Copy the files of a system's results, without the scratch pages."""
    for home in dict.fromkeys(home for module, home in HOMES.items() if module.split(".")[1] == system):
        for file in (scratch / home).glob("*"):
            if file.is_file():
                (place / home).mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, place / home / file.name)


def system_of(command: str) -> str:
    """Return the system of a command."""
    return next(system for system in PAGES if f"papers.{system}" in command or f"/{system}/" in command)
