"""A progress bar on terminals, a few plain lines in logs, always on stderr."""

import math
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sightline.shown import rounded_up

SINCE = " or more"
"""After a round whose epsilon was not worked out, the one before it is only a lower end."""


class RoundBar:
    """Shows round, accuracy and epsilon so far."""

    def __init__(self, name: str, rounds: int) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._live = self._console.is_terminal
        self._rounds = rounds
        self._accuracy = self._epsilon = "-"
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("accuracy {task.fields[accuracy]}  epsilon {task.fields[epsilon]}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._live,
            auto_refresh=False,  # no thread of its own: training may fork
        )
        self._task = self._bar.add_task(name, total=rounds, accuracy="-", epsilon="-")

    def __enter__(self) -> "RoundBar":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def advance(self, row: Mapping[str, Any]) -> None:
        """Take in a finished round."""
        if row.get("test_accuracy") is not None:
            self._accuracy = f"{100 * row['test_accuracy']:.1f}%"
        spent = row.get("epsilon")
        known = self._epsilon.removesuffix(SINCE) + SINCE
        self._epsilon = epsilon = known if spent is None else rounded_up(max(spent.values(), default=math.inf))
        if self._live:
            self._bar.update(self._task, completed=row["round"], accuracy=self._accuracy, epsilon=epsilon, refresh=True)
        elif _worth_a_line(row["round"], self._rounds):
            self._console.print(f"round {row['round']}/{self._rounds}  accuracy {self._accuracy}  epsilon {epsilon}")


def _worth_a_line(number: int, rounds: int) -> bool:
    return number == rounds or number % max(1, rounds // 10) == 0


class SweepBar:
    """Shows the rounds of all runs together, and how many runs are done; a line for each of them in a log."""

    def __init__(self, name: str, runs: int, rounds: int) -> None:
        self._console = Console(stderr=True, highlight=False)
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
        self._console = Console(stderr=True, highlight=False)
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
        elif _worth_a_line(done, total):
            self._console.print(f"{done}/{total} {self._what}")
