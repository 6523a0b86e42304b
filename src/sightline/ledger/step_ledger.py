"""A ledger of one repeated step, for training loops outside the engine."""

import math
import weakref
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from sightline.accounting import epsilon
from sightline.accounting.accountant import check_delta
from sightline.errors import BudgetExhausted, invalid, refuse
from sightline.events import Adjacency, Clear, Event, Unit
from sightline.ledger.ledger import Ledger
from sightline.ledger.release import NOBODY, Release
from sightline.ledger.store import SqliteStore, close_on_error, connect_to_read, connect_to_write

PUBLIC = "public"


@dataclass(frozen=True)
class StepKind:
    """Who is protected, who computes the step, and its name; everyone sees the result.

    With `handed_over` the computing party is shown everything without noise and knows who was drawn: each step is two
    rows, and against that party epsilon is infinite.
    """

    subject: str
    unit: Unit
    source: str
    what: str
    handed_over: bool = False

    def releases(self, time: int, event: Event, number: int) -> tuple[Release, ...]:
        """Return the rows of one step, of which the first gets this number in the ledger."""
        sent = Release(
            time, self.subject, frozenset({self.subject}), self.unit, Adjacency.ADD_REMOVE, Clear(),
            frozenset({self.source}), what="sent without noise to who computes the step",
        )  # fmt: skip
        before = (number - 1,) if number else ()
        shown = Release(
            time, self.source, frozenset({self.subject}), self.unit, Adjacency.ADD_REMOVE, event, frozenset({PUBLIC}),
            inputs=before, coins_known_to=frozenset({self.source}) if self.handed_over else NOBODY, what=self.what,
        )  # fmt: skip
        return (sent, shown) if self.handed_over else (shown,)


class StepLedger:
    """Steps of one event, each on disk before it is taken, within a budget.

    Guarantees: `charge` returns only after the rows of the step are durable, and raises `BudgetExhausted`, with nothing
    written, if they would take epsilon at `delta` above `budget`. A file that already has rows is continued: they
    count, and only the same event may follow them, because a budget checked along the way holds for steps that were
    fixed beforehand (`accounting.GaussianFilter` is for others). Without a path the ledger is in memory only.

    >>> from sightline.events import Gaussian
    >>> with StepLedger(None, StepKind("samples", Unit.SAMPLE, "trainer", "mean"), delta=1e-5, budget=3.0) as steps:
    ...     steps.begin(Gaussian(5.0))
    ...     [steps.charge() for _ in range(9)][-1], round(steps.epsilon(), 3)
    (9, 2.445)
    """

    def __init__(self, path: Path | str | None, kind: StepKind, *, delta: float, budget: float | None = None) -> None:
        check_delta(delta)
        if budget is not None and not (budget > 0 and math.isfinite(budget)):
            invalid("epsilon", budget, "a budget is positive and finite")
        self.kind, self.delta, self.budget = kind, delta, budget
        self.event: Event | None = None
        self._fitting = 0
        self._close = weakref.finalize(self, _nothing)
        people = (kind.subject, kind.source, PUBLIC)
        if path is None:
            self.ledger = Ledger(participants=people)
        else:
            connection = connect_to_write(Path(path))
            with close_on_error(connection):
                self.ledger = Ledger.open_stored(SqliteStore(connection), participants=people)
                self._read_event(path)
            self._close = weakref.finalize(self, connection.close)

    def _read_event(self, path: Path | str) -> None:
        """Find the event of the steps in the file. Raises unless all rows are steps of this kind, in order."""
        # The loop runs to the end even after a strange row: an unfinished query would keep the file locked.
        strange: list[int] = []
        for place, row in enumerate(self.ledger):
            number, part = divmod(place, self._width)
            self.event = self.event or (row.event if part == self._width - 1 else None)
            steps = self.kind.releases(number + 1, self.event or Clear(), number * self._width)
            strange += [place] if row.body() != steps[part].body() and not strange else []
        if strange or len(self.ledger) % self._width:
            invalid("ledger", path, f"row {strange[0] if strange else len(self.ledger)} is no step of this kind",
                    "begin a new file")  # fmt: skip

    @property
    def _width(self) -> int:
        return 2 if self.kind.handed_over else 1

    @property
    def steps(self) -> int:
        """Return the number of charged steps, including those of earlier users of the file."""
        return len(self.ledger) // self._width

    def begin(self, event: Event, *, planned: int = 0) -> None:
        """Set the event of the steps. Raises if the file has steps of another event.

        If `planned` steps are within the budget, later checks up to that number are skipped.
        """
        if self.event not in (None, event):
            law = f"the ledger has {self.steps} steps of {self.event}, and a budget holds for one kind of step"
            refuse("event", event, law, "go on with the same batches and noise, or begin a new ledger")
        self.event = event
        if planned and self._is_within(planned):
            self._fitting = planned

    def _is_within(self, steps: int) -> bool:
        if self.budget is None or self.event is None:
            return self.budget is None
        return epsilon({self.event: steps}, self.delta) <= self.budget

    def fits_another(self) -> bool:
        """Return whether one more step is within the budget."""
        following = self.steps + 1
        if following > self._fitting and self._is_within(following):
            self._fitting = following
        return following <= self._fitting

    def charge(self) -> int:
        """Record the next step durably and return its number, from 1. Raises `BudgetExhausted` beyond the budget."""
        if self.event is None or not self._close.alive:
            invalid("ledger", self.kind.source, "it is closed, or nobody said which step it is of", "call begin first")
        if not self.fits_another():
            spent = epsilon({self.event: self.steps + 1}, self.delta)
            raise BudgetExhausted(
                f"epsilon={self.budget:g}: step {self.steps + 1} would cost {spent:.4g} at delta={self.delta:g}; "
                "stopped before it"
            )
        self.ledger.append(self.kind.releases(self.steps + 1, self.event, len(self.ledger)))
        return self.steps

    def epsilon(self, *, delta: float | None = None) -> float:
        """Return the epsilon spent so far, against anyone who sees all steps."""
        return self.ledger.epsilon(self.kind.subject, PUBLIC, self.delta if delta is None else delta)

    def close(self) -> None:
        """Close the file; no step can follow."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _nothing() -> None:
    """Close a ledger in memory: nothing to do."""


def read_ledger(path: Path | str) -> Ledger:
    """Return the ledger in a file that a loop or a run wrote, all in memory, after checking its hash chain."""
    if not Path(path).is_file():
        invalid("ledger", path, "there is no such file")
    with closing(connect_to_read(Path(path))) as connection:
        return Ledger.whole(SqliteStore(connection))
