"""A progress bar on terminals, a few plain lines in logs, always on stderr."""

import math
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class RoundBar:
    """Shows round, accuracy and epsilon so far."""

    def __init__(self, name: str, rounds: int) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._live = self._console.is_terminal
        self._rounds = rounds
        self._accuracy = "-"
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
        epsilon = _rounded_up(max(row["epsilon"].values(), default=math.inf))
        if self._live:
            self._bar.update(self._task, completed=row["round"], accuracy=self._accuracy, epsilon=epsilon, refresh=True)
        elif _worth_a_line(row["round"], self._rounds):
            self._console.print(f"round {row['round']}/{self._rounds}  accuracy {self._accuracy}  epsilon {epsilon}")


def _rounded_up(epsilon: float) -> str:
    return f"{math.ceil(epsilon * 1000) / 1000:.3f}" if math.isfinite(epsilon) else "infinite"


def _worth_a_line(number: int, rounds: int) -> bool:
    return number == rounds or number % max(1, rounds // 10) == 0
