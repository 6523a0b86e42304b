"""A run as pages read it: its metadata, rounds and ledger, damage reported in one line, and its numbers for scripts."""

import math
import os
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from sightline import accounting
from sightline.accounting import Accountant
from sightline.accounting.calibration import TradeOff, claimed_curve, power_at_most
from sightline.engine.earlier_runs import read_lines, stored_earlier, sum_up
from sightline.engine.record import DATABASE, WHOSE, RunRecord, replace_nonfinite
from sightline.errors import invalid, printable
from sightline.events import Event, Unit
from sightline.formatting import METRICS, Metric, metric_named
from sightline.ledger import Ledger
from sightline.topology import Line

DEPTH = 4
"""Folder depth in which runs are searched: runs/SWEEP/RUN is two."""


def runs_below(folder: Path, *, depth: int = DEPTH) -> Iterator[Path]:
    """Yield every run directory in a folder, including itself, by name; links are not followed.

    Folders that this user may not read are skipped.
    """
    try:
        here = (folder / DATABASE).is_file()
        with os.scandir(folder) as entries:
            below = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except PermissionError:
        return
    # A run directory is not searched further: what lies inside belongs to the run.
    if here:
        yield folder
    elif depth:
        for name in below:
            if not name.startswith("."):
                yield from runs_below(folder / name, depth=depth - 1)


def runs_of(paths: Iterable[Path]) -> list[Path]:
    """Return the run directories that are named or that lie in a named folder, each once."""
    directories: dict[Path, Path] = {}
    for folder in paths:
        try:
            if not folder.is_dir():
                invalid("run", folder, "no such folder", "give the folder that sightline run printed")
            os.scandir(folder).close()
        except OSError as error:
            invalid("run", folder, f"cannot be read ({error.strerror})", WHOSE)
        below = list(runs_below(folder))
        if not below:
            invalid("run", folder, f"no {DATABASE} in it or below it", "give the folder that sightline run printed")
        for directory in below:
            # By resolved path, so that a run named twice is compared once.
            directories.setdefault(directory.resolve(), directory)
    return list(directories.values())


SETTINGS = "config.toml"
REPORT = "report.html"

CLASSES = 12
"""More distinct compositions than this against one observer are not accounted again for a page."""

CURVES = 40
"""Limit of distinct compositions for which trade-off curves are computed: one takes about 0.04 s."""

STRANGE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError, TemplateError)
"""Exceptions that facts of unexpected types lead to."""

UNLIKE_A_RUN = "hold what no run of this version writes: they were damaged, edited or written by another version"

Composed = frozenset[tuple[Event, int]]
"""The events charged to one subject, with their counts, as in `View.compositions`."""


def locate_error(error: Exception) -> str:
    """Return an error and the source line where it was raised, for debugging."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {printable(str(error), most=200)}; {Path(last.filename).name}, line {last.lineno}"


@contextmanager
def checked_records(named: object) -> Iterator[None]:
    """Raise InvalidInput with one line if a page cannot be made from these records."""
    try:
        yield
    except STRANGE as error:
        invalid("run", named, f"its records {UNLIKE_A_RUN} ({locate_error(error)})")


def read_settings_text(directory: Path) -> str:
    """Return the settings of a run as it wrote them, or "" if they cannot be read."""
    try:
        return (directory / SETTINGS).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


@dataclass(frozen=True, eq=False)
class RunView:
    """Everything a page is made of. A damaged run may lack facts; every reader handles that."""

    directory: Path
    facts: Mapping[str, Any]
    rounds: list[dict[str, Any]]
    ledger: Ledger
    head: str
    settings: str = ""
    _accounted: dict[Composed, float] = field(default_factory=dict, repr=False)
    _curves: dict[Composed, TradeOff | None] = field(default_factory=dict, repr=False)
    _seen: dict[str, frozenset[Composed]] = field(default_factory=dict, repr=False)

    @classmethod
    def read(cls, directory: Path) -> "RunView":
        """Read the run of a directory; raise if its ledger is damaged or its journal contradicts its records."""
        with RunRecord.open_to_read(directory) as record:
            # A ledger whose hash chain is broken gets no page at all.
            record.verify()
            settings = read_settings_text(directory)
            # Rounds before ledger: a run in progress may add releases in between, and those must be counted.
            return cls(directory, record.facts, record.rounds(), record.ledger(), record.store.head(), settings)

    def fact(self, name: str, otherwise: Any = None) -> Any:
        """Return a fact, or `otherwise` if the run does not have it."""
        value = self.facts.get(name)
        return otherwise if value is None else value

    def series(self, name: str) -> list[float | None]:
        """Return one metric over all rounds."""
        return [row.get(name) for row in self.rounds]

    def last(self, name: str) -> float | None:
        """Return a metric's latest known value, or None."""
        return next((row[name] for row in reversed(self.rounds) if row.get(name) is not None), None)

    def total(self, name: str) -> float:
        """Return a metric's sum over all rounds."""
        return sum(value for value in self.series(name) if value is not None)

    @property
    def name(self) -> str:
        """Return the name of the run."""
        return str(self.fact("name", self.directory.resolve().name))

    @property
    def metric(self) -> Metric:
        """Return the main metric of the run: accuracy, unless its task has another."""
        return metric_named(self.fact("metric"))

    @property
    def metrics(self) -> list[Metric]:
        """Return all metrics of the run."""
        return [metric_named(name) for name in self.fact("metrics", [])] or [self.metric]

    @property
    def own_metrics(self) -> list[Metric]:
        """Return the metrics that are the user's own functions."""
        return [metric for metric in self.metrics if metric.name not in METRICS]

    @property
    def unit(self) -> Unit:
        """Return what the guarantee protects; NONE if the run does not say."""
        given = self.fact("unit")
        return Unit(given) if given in list(Unit) else Unit.NONE

    @property
    def who(self) -> str:
        """Return the protected unit as a noun."""
        return "example" if self.unit is Unit.SAMPLE else "client"

    @property
    def delta(self) -> float | None:
        """Return the delta of every epsilon on the page, or None."""
        given = self.fact("delta")
        return None if given is None else float(given)

    @property
    def accountant(self) -> Accountant:
        """Return the accountant that the run used."""
        given = self.fact("accountant")
        return Accountant(given) if given in list(Accountant) else Accountant.PLD

    @property
    def observers(self) -> dict[str, str]:
        """Return the kinds of untrusted observers, each with one that stands for its kind."""
        return dict(self.fact("observers", {}))

    @cached_property
    def lines(self) -> dict[str, tuple[Line, ...]]:
        """Return every kind's lines of sight; one each if all observers of a kind see the same."""
        return read_lines(self.facts)

    @cached_property
    def together(self) -> dict[str, Any] | None:
        """Return the joint cost of this run and those that it started from; None if it started from none."""
        if self.unit is Unit.NONE or not self.fact("started_from"):
            return None
        # Use the joint cost that the run has stored; otherwise add it up from the earlier runs.
        together = self.fact("together")
        if isinstance(together, dict):
            return together
        with RunRecord.open_to_read(self.directory) as record:
            earlier = stored_earlier(record)
        return None if earlier is None else sum_up(earlier, self.facts, self.ledger)

    @property
    def trusted(self) -> list[str]:
        """Return the parties trusted with values without noise."""
        return list(self.fact("trusted", []))

    @property
    def rounds_done(self) -> int:
        """Return the number of the last finished round."""
        return int(self.rounds[-1]["round"]) if self.rounds else 0

    @cached_property
    def unfinished(self) -> int:
        """Return how many releases belong to rounds without metrics: they were made, so they count."""
        return sum(release.time > self.rounds_done for release in self.ledger)

    @cached_property
    def spent(self) -> dict[str, float]:
        """Return epsilon against every kind of untrusted observer; infinite if there is no guarantee.

        Guarantees: never below what the last round wrote; every release in the ledger counts, including those of an
        interrupted round. Only if subjects differ in more than `CLASSES` ways, and the last round is complete, is the
        round's own number used without accounting again.
        """
        written = self.written
        spent = {}
        for kind in [*self.observers, *(kind for kind in written if kind not in self.observers)]:
            # The larger of the two: releases of an interrupted round are in the ledger and not in the last row.
            spent[kind] = max(written.get(kind, 0.0), self._by_ledger(kind))
        return spent

    @property
    def written(self) -> dict[str, float]:
        """Return epsilon by kind of observer as the last round wrote it."""
        last = (self.rounds[-1].get("epsilon") if self.rounds else None) or {}
        return {kind: math.inf if value is None else float(value) for kind, value in last.items()}

    def _by_ledger(self, kind: str) -> float:
        if self.unit is Unit.NONE:
            return math.inf
        compositions = self.compositions_seen_by(kind)
        # Every client with its own noise: accounting again takes long, and the last round covers all releases.
        if len(compositions) > CLASSES and not self.unfinished and kind in self.written:
            return 0.0
        return max((self.epsilon_of(composed) for composed in compositions), default=0.0)

    def compositions_seen_by(self, kind: str) -> frozenset[Composed]:
        """Return the distinct compositions of subjects against one kind of observer; empty for an unknown kind."""
        if kind not in self._seen:
            views = [self.ledger.view(line.observer).compositions(line.exempt) for line in self.lines.get(kind, ())]
            self._seen[kind] = frozenset[Composed]().union(*views)
        return self._seen[kind]

    def power_of(self, composed: Composed, alarms: float) -> float:
        """Return the best power of a test with these false alarms between worlds that differ by this composition.

        Guarantees: an upper bound. Beyond `CURVES` compositions it follows from (epsilon, delta) alone.
        """
        if not composed:
            return alarms
        epsilon = self.epsilon_of(composed)
        if math.isinf(epsilon):
            return 1.0
        stated = power_at_most(epsilon, self.delta or 0.0, alarms)
        # One pair (epsilon, delta) bounds the power badly; each composition proves a whole curve of pairs.
        if composed not in self._curves and len(self._curves) < CURVES:
            self._curves[composed] = claimed_curve(dict(composed))
        curve = self._curves.get(composed)
        return stated if curve is None else min(stated, curve.most_hits(alarms))

    def epsilon_of(self, composed: Composed) -> float:
        """Return the epsilon of a composition, accounted once per page; infinite if the run has no guarantee."""
        if not composed:
            return 0.0
        # A missing unit or delta means that nothing is promised: the page shows infinity, never a smaller number.
        if self.unit is Unit.NONE or self.delta is None:
            return math.inf
        if composed not in self._accounted:
            value = accounting.epsilon(dict(composed), self.delta, accountant=self.accountant)
            self._accounted[composed] = value
        return self._accounted[composed]

    @property
    def epsilon(self) -> float | None:
        """Return the worst epsilon over untrusted observers; None if the run names none."""
        return max(self.spent.values(), default=None)


Content = dict[str, Any]


@dataclass(frozen=True)
class Frame:
    """A titled part of a page, drawn by the template of its name."""

    name: str
    title: str

    @property
    def template(self) -> str:
        """Return the name of the template."""
        return f"{self.name}.html"


@dataclass(frozen=True)
class Section(Frame):
    """A section of a page; it is left out if `content` returns None."""

    content: Callable[[RunView], Content | None]


DECISIONS = ("tau", "devices_trusted", "devices_untrusted", "step_size")
"""What adaptive control decides before every round."""


def summarise_run(run: RunView) -> dict[str, Any]:
    """Return the numbers of a run as plain values; None stands for infinite or unknown.

    Guarantees: epsilon counts every release in the ledger, including those of an interrupted round.
    """
    # These names are an interface for scripts: add to them, never rename.
    facts = ("status", "status_reason", "delta", "unit", "adjacency", "noise_source", "seconds", "threads",
             "mkl_cbwr", "cpu_capability", "paths", "workers")  # fmt: skip
    metrics = ("test_accuracy", "test_loss", "client_accuracy_mean", "client_accuracy_decile",
               "client_accuracy_worst", "client_worst_examples")  # fmt: skip
    summary: dict[str, Any] = replace_nonfinite(
        {
            "run_dir": str(run.directory),
            "report": str(run.directory / REPORT),
            "rounds_done": run.rounds_done,
            **{name: run.last(name) for name in metrics},
            **_summarise_metrics(run),
            "epsilon": run.epsilon,
            "observers": run.spent,
            **({"together": run.together} if run.together is not None else {}),
            "trusted": run.trusted,
            **{name: run.fact(name) for name in facts},
            **({"class_names": list(names)} if (names := run.fact("class_names")) else {}),
            **_summarise_noise(run),
            "stopped": run.fact("status_reason") or None,
            "notes": run.fact("notes", []),
            "releases": len(run.ledger),
            "rejected_updates": int(run.total("rejected")),
            "uplink_floats": run.total("uplink_floats"),
            **{name: run.total(name) for name in ("energy_joule", "delay_seconds") if run.fact("resources")},
            **_summarise_clusters(run),
            **({"control": {name: run.series(name) for name in DECISIONS}} if run.fact("control") else {}),
        }
    )
    return summary


def _summarise_noise(run: RunView) -> dict[str, float | None]:
    """Return the noise multiplier, or the least and the greatest where every client has its own; None without one."""
    noise = run.fact("noise_multiplier")
    ends = (noise["min"], noise["max"]) if isinstance(noise, Mapping) else (noise, noise)
    return dict(zip(("noise_multiplier", "noise_multiplier_max"), ends, strict=True))


def _summarise_metrics(run: RunView) -> dict[str, Any]:
    """Return the task, the main metric, all metrics on the test set, and the clients' main metric."""
    main = run.metric
    judged = [*([] if main.name == "accuracy" else [main]), *run.own_metrics]
    return {
        "task": run.fact("task", "classification"),
        "metric": main.name,
        "metrics": {metric.name: run.last(metric.test_key) for metric in run.metrics},
        **{key: run.last(key) for one in judged for key in map(one.client_key, ("mean", "decile", "worst"))},
        **({"best": run.fact("best")} if run.fact("best") else {}),
    }


def _summarise_clusters(run: RunView) -> dict[str, Any]:
    """Return the run's clusters; purity and the minority need the true clusters, which only simulations know."""
    facts = run.fact("clusters")
    if facts is None:
        return {}
    last = (run.rounds[-1].get("clusters") if run.rounds else None) or {}
    own = {"purity": last.get("purity"), "minority_accuracy": run.last("minority_accuracy")}
    if run.metric.name != "accuracy":
        own[f"minority_{run.metric.name}"] = run.last(f"minority_{run.metric.name}")
    return {"clusters": {"count": facts["count"], "mss": facts["mss"]} | own}
