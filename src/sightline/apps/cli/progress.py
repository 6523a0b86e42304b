"""Progress of sweeps and audits: a bar on terminals, a few plain lines in logs, always on stderr."""

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sightline.progress import open_console, worth_a_line


class SweepBar:
    """Shows the rounds of all runs together, and how many runs are done; a line for each of them in a log."""

    def __init__(self, name: str, runs: int, rounds: int) -> None:
        self._console = open_console()
        self._live = self._console.is_terminal
        self._runs, self._ended = runs, 0
        self._rounds: dict[str, int] = {}
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("rounds, {task.fields[ended]} of {task.fields[runs]} runs"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._live,
            auto_refresh=False,  # no thread of its own
        )
        self._task = self._bar.add_task(name, total=rounds, ended=0, runs=runs)

    def __enter__(self) -> "SweepBar":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def take(self, name: str, message: Mapping[str, Any]) -> None:
        """Take in what a worker told of the run of that name."""
        self._rounds[name] = message.get("round", self._rounds.get(name, 0))
        outcome = message.get("ended") or ("failed" if "failed" in message else "")
        self._ended += bool(outcome)
        if self._live:
            done = sum(self._rounds.values())
            self._bar.update(self._task, completed=done, ended=self._ended, refresh=True)
        elif outcome:
            self._console.print(f"{self._ended}/{self._runs}  {outcome}  {name}", markup=False)


class CountBar:
    """Shows how many of something are done; a line every tenth in a log."""

    def __init__(self, name: str, what: str) -> None:
        self._console = open_console()
        self._what = what
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task(name, total=None)

    def __enter__(self) -> "CountBar":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def advance(self, done: int, total: int) -> None:
        """So many of so many are done."""
        if self._console.is_terminal:
            self._bar.update(self._task, completed=done, total=total)
        elif worth_a_line(done, total):
            self._console.print(f"{done}/{total} {self._what}")
