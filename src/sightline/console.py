"""Progress of runs, sweeps and audits: a bar on a terminal, one line in a notebook, plain lines in a log."""

import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from html import escape
from types import TracebackType
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sightline.formatting import metric_words, rounded_up

SINCE = " or more"
"""After a round whose epsilon was not worked out, the one before it is only a lower end."""
WIDE = 72
"""Terminals narrower than this get no bar, only its words."""
PAUSE = 0.2
"""Seconds between two looks of a notebook's line."""


def on_terminal() -> bool:
    """Whether somebody looks at stderr on a terminal that can move its cursor."""
    return sys.stderr.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")


def in_notebook() -> bool:
    """Whether this is the kernel of a notebook."""
    shell = sys.modules.get("IPython")
    found = shell.get_ipython() if shell else None
    return found is not None and "IPKernelApp" in getattr(found, "config", {})


def wants_progress(progress: bool | None) -> bool:
    """What was asked for; unasked, wherever somebody looks: a terminal or a notebook, not a script's log."""
    return (on_terminal() or in_notebook()) if progress is None else progress


def worth_a_line(number: int, total: int) -> bool:
    """About ten of them, and the last."""
    return number == total or number % max(1, total // 10) == 0


def open_console() -> Any:
    """A console on stderr that moves its cursor on terminals only, whatever FORCE_COLOR says."""
    from rich.console import Console

    live = on_terminal()
    return Console(stderr=True, highlight=False, force_terminal=live, force_jupyter=False, soft_wrap=not live)


class RoundBar:
    """Shows round, the task's main metric and epsilon so far; a log that cannot be written does not end the run."""

    def __init__(self, name: str, rounds: int) -> None:
        self._rounds = rounds
        self._reached = self._epsilon = "-"
        self._face: Face = Notebook(name) if in_notebook() else Terminal(name, rounds) if on_terminal() else Log()

    def __enter__(self) -> "RoundBar":
        with suppress(OSError):
            self._face.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._face.stop()

    def advance(self, row: Mapping[str, Any]) -> None:
        """Take in a finished round."""
        title, reached = metric_words(row)
        self._reached = reached or self._reached
        spent = row.get("epsilon")
        known = self._epsilon.removesuffix(SINCE) + SINCE
        self._epsilon = known if spent is None else rounded_up(max(spent.values(), default=math.inf))
        with suppress(OSError):
            self._face.show(row["round"], self._rounds, f"{title} {self._reached}  epsilon {self._epsilon}")


class Log:
    """Plain lines."""

    def start(self) -> None:
        """Nothing to begin."""

    def show(self, done: int, rounds: int, words: str) -> None:
        """A line, now and then."""
        if worth_a_line(done, rounds):
            print(f"round {done}/{rounds}  {words}", file=sys.stderr, flush=True)

    def stop(self) -> None:
        """Nothing to end."""


class Terminal:
    """A bar that rich draws; in a narrow terminal its words alone."""

    def __init__(self, name: str, rounds: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        screen = open_console()
        columns = [TextColumn("{task.description}", markup=False), BarColumn(bar_width=None), MofNCompleteColumn(),
                   TextColumn("{task.fields[words]}", markup=False), TimeRemainingColumn()]  # fmt: skip
        shown = columns if screen.width >= WIDE else columns[2:4]
        # no thread of its own: training may fork
        self._bar = Progress(*shown, console=screen, auto_refresh=False)
        self._task = self._bar.add_task(name, total=rounds, words="")

    def start(self) -> None:
        """Take the line."""
        self._bar.start()

    def show(self, done: int, rounds: int, words: str) -> None:
        """Draw it anew."""
        self._bar.update(self._task, completed=done, words=words, refresh=True)

    def stop(self) -> None:
        """Leave the line as it is."""
        self._bar.stop()


class Line:
    """What a notebook shows: words, and a bar where it can draw one."""

    def __init__(self, name: str, done: int, rounds: int, words: str) -> None:
        self.name, self.done, self.rounds, self.words = name, done, rounds, words

    def __repr__(self) -> str:
        return f"{self.name}: round {self.done}/{self.rounds}  {self.words}"

    def _repr_html_(self) -> str:
        bar = f'<progress max="{self.rounds}" value="{self.done}"></progress>'
        return f"<div>{escape(self.name)} {bar} {self.done}/{self.rounds} &nbsp; {escape(self.words)}</div>"


class Notebook:
    """One output that changes in its place."""

    def __init__(self, name: str) -> None:
        self._name, self._last = name, -math.inf
        self._update: Callable[[Line], None] | None = None
        self._waiting: Line | None = None

    def start(self) -> None:
        """Nothing is shown before the first round."""

    def show(self, done: int, rounds: int, words: str) -> None:
        """Change the output, a few times a second."""
        self._waiting = Line(self._name, done, rounds, words)
        if time.monotonic() - self._last >= PAUSE:
            self.stop()

    def stop(self) -> None:
        """Show what has not been shown yet; the last look stays."""
        if self._waiting is None:
            return
        self._last = time.monotonic()
        if self._update is None:
            display = sys.modules["IPython"].display.display
            self._update = display(self._waiting, display_id=True).update
        else:
            self._update(self._waiting)
        self._waiting = None


Face = Log | Terminal | Notebook


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
