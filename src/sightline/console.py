"""Progress of runs, sweeps and audits: a bar in a terminal, one line in a notebook, plain lines in a log."""

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

# After a round whose epsilon was not computed, the last known one is only a lower end.
SINCE = " or more"
# Narrower terminals get the text without a bar.
WIDE = 72
# Seconds between two updates of a notebook's line.
PAUSE = 0.2


def on_terminal() -> bool:
    """Return whether stderr is a terminal that can move its cursor."""
    return sys.stderr.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")


def in_notebook() -> bool:
    """Return whether this is the kernel of a notebook."""
    shell = sys.modules.get("IPython")
    found = shell.get_ipython() if shell else None
    return found is not None and "IPKernelApp" in getattr(found, "config", {})


def wants_progress(progress: bool | None) -> bool:
    """Return the given choice; by default true in a terminal or a notebook, false in a script's log."""
    return (on_terminal() or in_notebook()) if progress is None else progress


def worth_a_line(number: int, total: int) -> bool:
    """Return true for about ten of the numbers, and for the last."""
    return number == total or number % max(1, total // 10) == 0


def open_console() -> Any:
    """Return a console on stderr that moves its cursor in terminals only, whatever FORCE_COLOR says."""
    from rich.console import Console

    live = on_terminal()
    return Console(stderr=True, highlight=False, force_terminal=live, force_jupyter=False, soft_wrap=not live)


class RoundBar:
    """A display of round, main metric and epsilon so far; a log that cannot be written does not end the run."""

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
        """Show a finished round."""
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
        """Do nothing."""

    def show(self, done: int, rounds: int, words: str) -> None:
        """Print about every tenth round."""
        if worth_a_line(done, rounds):
            print(f"round {done}/{rounds}  {words}", file=sys.stderr, flush=True)

    def stop(self) -> None:
        """Do nothing."""


class Terminal:
    """A progress bar drawn by rich; in a narrow terminal its text alone."""

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
        """Start the bar."""
        self._bar.start()

    def show(self, done: int, rounds: int, words: str) -> None:
        """Redraw the bar."""
        self._bar.update(self._task, completed=done, words=words, refresh=True)

    def stop(self) -> None:
        """Stop the bar and leave its line in place."""
        self._bar.stop()


class Line:
    """The output of a notebook: text, and a bar where HTML can be shown."""

    def __init__(self, name: str, done: int, rounds: int, words: str) -> None:
        self.name, self.done, self.rounds, self.words = name, done, rounds, words

    def __repr__(self) -> str:
        return f"{self.name}: round {self.done}/{self.rounds}  {self.words}"

    def _repr_html_(self) -> str:
        bar = f'<progress max="{self.rounds}" value="{self.done}"></progress>'
        return f"<div>{escape(self.name)} {bar} {self.done}/{self.rounds} &nbsp; {escape(self.words)}</div>"


class Notebook:
    """One output cell that is updated in place."""

    def __init__(self, name: str) -> None:
        self._name, self._last = name, -math.inf
        self._update: Callable[[Line], None] | None = None
        self._waiting: Line | None = None

    def start(self) -> None:
        """Do nothing; nothing is shown before the first round."""

    def show(self, done: int, rounds: int, words: str) -> None:
        """Update the output, a few times a second at most."""
        self._waiting = Line(self._name, done, rounds, words)
        if time.monotonic() - self._last >= PAUSE:
            self.stop()

    def stop(self) -> None:
        """Show what has not been shown yet; the last output stays."""
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
    """A display of the rounds of all runs together and of finished runs; in a log, one line per run."""

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
            # No thread: workers may fork.
            auto_refresh=False,
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
        """Show a worker's message about the run of that name."""
        self._rounds[name] = message.get("round", self._rounds.get(name, 0))
        outcome = message.get("ended") or ("failed" if "failed" in message else "")
        self._ended += bool(outcome)
        if self._live:
            done = sum(self._rounds.values())
            self._bar.update(self._task, completed=done, ended=self._ended, refresh=True)
        elif outcome:
            self._console.print(f"{self._ended}/{self._runs}  {outcome}  {name}", markup=False)


class CountBar:
    """A display of how many items are done; in a log, a line for every tenth."""

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
        """Show that `done` of `total` are done."""
        if self._console.is_terminal:
            self._bar.update(self._task, completed=done, total=total)
        elif worth_a_line(done, total):
            self._console.print(f"{done}/{total} {self._what}")
