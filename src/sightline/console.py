"""Progress of runs, sweeps and audits: a bar drawn by rich in a terminal or a notebook, plain lines in a log."""

import math
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Self

from sightline.formatting import metric_words, rounded_up

SINCE = " or more"
"""After a round whose epsilon was not computed, the last known one is only a lower end."""
WIDE = 72
"""Narrower terminals get the text without a bar."""
PAUSE = 0.2
"""Seconds between two updates of a notebook's cell."""


def on_terminal() -> bool:
    """Return whether stderr is a terminal that can move its cursor."""
    return sys.stderr.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")


def in_notebook() -> bool:
    """Return whether this is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and "IPKernelApp" in getattr(shell, "config", {})


def wants_progress(progress: bool | None) -> bool:
    """Return the given choice; by default true in a terminal or a notebook, false in a script's log."""
    return (on_terminal() or in_notebook()) if progress is None else progress


class ProgressBar:
    """A bar with a text beside it; output that cannot be written does not end the work."""

    def __init__(self, name: str, total: int | None = None) -> None:
        self._in_notebook, self._cell, self._drawn_at = in_notebook(), None, -math.inf
        self._bar: Any = _make_bar() if self._in_notebook or on_terminal() else None
        if self._bar is not None:
            self._task = self._bar.add_task(name, total=total, text="")

    def __enter__(self) -> Self:
        if self._bar is not None and not self._in_notebook:
            with suppress(OSError):
                self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(OSError):
            if self._in_notebook:
                self._draw_cell()
            elif self._bar is not None:
                self._bar.stop()

    def show(self, done: int, total: int | None, text: str = "", *, line: str = "") -> None:
        """Redraw the bar; in a log, print the line if there is one."""
        with suppress(OSError):
            if self._bar is None:
                if line:
                    print(line, file=sys.stderr, flush=True)
                return
            self._bar.update(self._task, completed=done, total=total, text=text, refresh=not self._in_notebook)
            if self._in_notebook and time.monotonic() - self._drawn_at >= PAUSE:
                self._draw_cell()

    def _draw_cell(self) -> None:
        # rich's own live display needs ipywidgets; a display handle updates the cell without them.
        self._drawn_at = time.monotonic()
        if self._cell is None:
            self._cell = sys.modules["IPython"].display.display(self._bar, display_id=True)
        else:
            self._cell.update(self._bar)


def _make_bar() -> Any:
    # Imported here: `import sightline` and commands without a bar do not load rich.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    # On stderr, and as a terminal whatever FORCE_COLOR says.
    screen = Console(stderr=True, highlight=False, force_terminal=True, force_jupyter=False)
    columns = [TextColumn("{task.description}", markup=False), BarColumn(bar_width=None), MofNCompleteColumn(),
               TextColumn("{task.fields[text]}", markup=False), TimeRemainingColumn()]  # fmt: skip
    # No thread of its own: training may fork.
    return Progress(*(columns if screen.width >= WIDE else columns[2:4]), console=screen, auto_refresh=False)


def _is_worth_a_line(number: int, total: int) -> bool:
    """Return true for about ten of the numbers, and for the last."""
    return number == total or number % max(1, total // 10) == 0


class RoundBar(ProgressBar):
    """Progress of a run: round, main metric and epsilon so far."""

    def __init__(self, name: str, rounds: int) -> None:
        super().__init__(name, rounds)
        self._rounds = rounds
        self._reached = self._epsilon = "-"

    def advance(self, row: Mapping[str, Any]) -> None:
        """Show a finished round."""
        title, reached = metric_words(row)
        self._reached = reached or self._reached
        spent = row.get("epsilon")
        known = self._epsilon.removesuffix(SINCE) + SINCE
        self._epsilon = known if spent is None else rounded_up(max(spent.values(), default=math.inf))
        done, text = row["round"], f"{title} {self._reached}  epsilon {self._epsilon}"
        line = f"round {done}/{self._rounds}  {text}" if _is_worth_a_line(done, self._rounds) else ""
        self.show(done, self._rounds, text, line=line)


class SweepBar(ProgressBar):
    """Progress of a sweep: the rounds of all runs together, and finished runs; in a log, one line per run."""

    def __init__(self, name: str, runs: int, rounds: int) -> None:
        super().__init__(name, rounds)
        self._total, self._runs, self._ended = rounds, runs, 0
        self._rounds: dict[str, int] = {}

    def take(self, name: str, message: Mapping[str, Any]) -> None:
        """Show a worker's message about the run of that name."""
        self._rounds[name] = message.get("round", self._rounds.get(name, 0))
        outcome = message.get("ended") or ("failed" if "failed" in message else "")
        self._ended += bool(outcome)
        line = f"{self._ended}/{self._runs}  {outcome}  {name}" if outcome else ""
        text = f"rounds, {self._ended} of {self._runs} runs"
        self.show(sum(self._rounds.values()), self._total, text, line=line)


class CountBar(ProgressBar):
    """Progress of counted items; in a log, a line for every tenth."""

    def __init__(self, name: str, items: str) -> None:
        super().__init__(name)
        self._items = items

    def advance(self, done: int, total: int) -> None:
        """Show that `done` of `total` are done."""
        line = f"{done}/{total} {self._items}" if _is_worth_a_line(done, total) else ""
        self.show(done, total, line=line)
