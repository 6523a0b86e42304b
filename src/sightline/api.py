"""The Python interface: what `sightline run` does, in one call."""

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sightline import engine, shown
from sightline.apps import report
from sightline.apps.report.curves import worst_epsilons
from sightline.config import Experiment, read
from sightline.engine import RunRecord
from sightline.engine.record import DATABASE
from sightline.errors import invalid, printable
from sightline.ledger import Ledger
from sightline.progress import RoundBar, wants_progress
from sightline.runtimes.flower.simulation import check_installed, simulate_nodes
from sightline.runtimes.remote.clients import find_transport, simulated_clients
from sightline.runtimes.simulator import Simulator

OnRound = Callable[[Mapping[str, Any]], None]
RUNTIMES = ("simulator", "flower")


@dataclass(frozen=True)
class Run:
    """A finished (or budget-stopped) run: its numbers, its ledger, its report.

    It holds nothing open. Every property reads the run directory when it is asked, without writing to it, and what it
    returns lies whole in memory.
    """

    directory: Path

    @property
    def metadata(self) -> dict[str, Any]:
        """What was run and how it ended: `status`, `delta`, `unit` and the rest that stands in the report."""
        with RunRecord.open_to_read(self.directory) as record:
            return record.facts

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """The metrics of every round."""
        with RunRecord.open_to_read(self.directory) as record:
            return record.rounds()

    @property
    def ledger(self) -> Ledger:
        """Every release, and the epsilon of any subject against any observer. Nothing can be appended to it."""
        with RunRecord.open_to_read(self.directory) as record:
            return record.ledger()

    @property
    def report(self) -> Path:
        """The HTML page."""
        return self.directory / report.REPORT

    @property
    def summary(self) -> dict[str, Any]:
        """What `sightline run --json` prints."""
        return report.summarise_run(report.RunView.read(self.directory))

    @property
    def test_accuracy(self) -> float:
        """Accuracy of the last evaluated model on the test set; NaN before the first."""
        return _number_or(self.summary["test_accuracy"], math.nan)

    @property
    def epsilon(self) -> float:
        """The worst epsilon over untrusted observers; infinite when nothing is promised."""
        return _number_or(self.summary["epsilon"], math.inf)

    def _repr_html_(self) -> str:
        done, summary = report.RunView.read(self.directory), self.summary
        spent = {kind: _number_or(value, math.inf) for kind, value in summary["observers"].items()}
        facts = [
            ("status", summary["status"]),
            ("rounds", summary["rounds_done"]),
            ("test accuracy", f"{_number_or(summary['test_accuracy'], math.nan):.1%}"),
            *((f"epsilon against {kind}", shown.rounded_up(value)) for kind, value in spent.items()),
            ("delta, unit", f"{summary['delta']}, {summary['unit']}"),
            ("trusted", ", ".join(summary["trusted"]) or "nobody"),
        ]
        drawn = shown.svg_curve("test accuracy over the rounds", done.series("test_accuracy"))
        drawn += shown.svg_curve("worst epsilon over the rounds", worst_epsilons(done))
        link = f'<p><a href="{quote(self.report.as_posix())}">report</a></p>'
        return shown.html_table(str(self.directory), ("", ""), facts) + drawn + link


def run(
    file: Path | str | Mapping[str, Any] | Experiment,
    *,
    overrides: Iterable[str] = (),
    out: Path | str | None = None,
    resume: bool = False,
    accept_changes: bool = False,
    seed: int | None = None,
    workers: int = 1,
    runtime: str = "simulator",
    progress: bool | None = None,
    on_round: Callable[[Mapping[str, Any]], None] = lambda row: None,
) -> Run:
    """Run an experiment and return its results: a TOML file, its tables as a dictionary, or an `Experiment`.

    `overrides` are the words of `--set`, such as `"privacy.epsilon=4"`. `workers` processes train clients side by side
    where the model is too large to be stacked; the results are the same bits. `runtime="flower"` trains every client at
    a node of Flower's simulation engine (`sightline[flower]`), again with the same results, and so does somebody else's
    transport, `runtime="package.module:OBJECT"`. Everything that can be wrong with the input raises `InvalidInput`
    before a run directory exists.

    With `resume`, `file` may also be the directory of the run: its settings are in it. Where the model's code or the
    packages are not those that the run began with, it goes on only with `accept_changes`, which is written down.

    Progress is shown on stderr where somebody looks, a terminal or a notebook; `progress=True` shows it also in a
    script's log, `progress=False` nowhere. `on_round` gets the metrics of every round.
    """
    transport = find_transport(runtime, RUNTIMES)
    if runtime == "flower":
        check_installed()
    if workers < 1:
        invalid("workers", workers, "at least one process trains")
    words = [*overrides] + ([] if seed is None else [f"seed={seed}"])
    if isinstance(file, Experiment) and words:
        invalid("overrides", words, "an Experiment is final", "apply them when you read the file")
    place = None if out is None else Path(out)
    if isinstance(file, str | Path) and Path(file).is_dir():
        place = run_directory(Path(file), place, resume=resume)
        experiment = engine.read_settings(place, words)
    else:
        experiment = file if isinstance(file, Experiment) else read(file, words)
    if accept_changes and not resume:
        invalid("--accept-changes", True, "a new run has nothing that could have changed", "give it with --resume")
    directory = engine.directory_to_resume(experiment, place) if resume else None
    setting = engine.calibrate_noise(engine.build_experiment(experiment))
    directory = directory or engine.new_directory(experiment, place)
    with _finish_on_interrupt(directory), _progress_listener(experiment, progress) as advance:
        loop = partial(
            engine.run_loop,
            setting,
            directory,
            resume=resume,
            accept_changes=accept_changes,
            on_round=_call_both(advance, on_round),
            on_note=_tell,
        )
        if runtime == "flower":
            simulate_nodes(setting, directory, loop, workers=workers)
        elif transport is not None:
            post = transport(setting, directory)
            loop(lambda setting, *streams: simulated_clients(setting, directory, post))
        else:
            loop(partial(Simulator, workers=workers))
    report.write_report(directory)
    return Run(directory)


def run_directory(given: Path, out: Path | None, *, resume: bool) -> Path:
    """The run directory that was given in the place of a file: for going on with the run in it."""
    if not resume:
        invalid("file", given, "is a folder", "give an experiment file, or go on with the run in it: --resume")
    if out is not None and out.resolve() != given.resolve():
        invalid("--out", out, f"the run in {given} goes on where it is", "leave --out away")
    return given


@contextmanager
def _finish_on_interrupt(directory: Path) -> Iterator[None]:
    """Let an interrupt say what is left and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        left = (directory / DATABASE).exists()
        raise KeyboardInterrupt(
            f"go on with: sightline run --resume {directory}" if left else "nothing was released, nothing is left of it"
        ) from None


def _tell(note: str) -> None:
    print(f"sightline: {printable(note)}", file=sys.stderr, flush=True)


@contextmanager
def _progress_listener(experiment: Experiment, progress: bool | None) -> Iterator[OnRound]:
    """Whoever is to be told of a round for the progress that was asked for."""
    if not wants_progress(progress):
        yield lambda row: None
        return
    with RoundBar(experiment.name, experiment.rounds) as bar:
        yield bar.advance


def _call_both(first: OnRound, second: OnRound) -> OnRound:
    def tell(row: Mapping[str, Any]) -> None:
        first(row)
        second(row)

    return tell


def flower_server_app(file: Path) -> Any:
    """The ServerApp of an exported experiment: its run directory ends with a report like any other."""
    from sightline.runtimes.flower.server_app import server_app

    return server_app(file, report.write_report)


def _number_or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else float(value)
