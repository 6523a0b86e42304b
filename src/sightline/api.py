"""The Python interface: `sightline run` in one call, also with models and data that only a program has."""

import inspect
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from sightline import engine
from sightline.apps import report
from sightline.config import Experiment, parse, read
from sightline.config.experiment import SAFE_NAME
from sightline.console import RoundBar, wants_progress
from sightline.data import PYTHON, Federation, deal_given, read_given, settle_experiment
from sightline.engine import BuiltExperiment, RunRecord, replace_nonfinite
from sightline.engine.checkpoint import paths_by_measuring
from sightline.engine.evaluation import MetricFunction, OwnMetrics, best_metric, read_metrics
from sightline.engine.record import DATABASE
from sightline.errors import invalid, printable
from sightline.mechanisms import ClientExecutor
from sightline.models import Factory, read_given_model
from sightline.randomness import Streams
from sightline.results import Run, flatten_row
from sightline.runtimes.flower import check_installed
from sightline.runtimes.process_count import AUTO, check_workers, estimate_seconds, simulator_maker
from sightline.runtimes.remote.clients import find_transport, simulated_clients

__all__ = ["Callback", "Run", "flower_server_app", "run", "run_directory", "take_objects"]

OnRound = Callable[[Mapping[str, Any]], None]
RUNTIMES = ("simulator", "flower")
MOMENTS = ("on_start", "on_round", "on_end")


class Callback:
    """A listener of a run: derive from it and override the methods you need.

    Any object with one of the three methods works. An exception in one stops the run, which can be resumed.
    """

    def on_start(self, run: Run) -> None:
        """Handle the start, or a resumption, before the first round; `run.experiment` and `run.directory` exist."""

    def on_round(self, row: Mapping[str, Any]) -> None:
        """Handle the end of a round, given its numbers: a row of `run.history`; `on_round(row, run)` gets the run."""

    def on_end(self, run: Run) -> None:
        """Handle the end of the run, also if the budget stopped it; model and report exist."""


def run(
    file: Path | str | Mapping[str, Any] | Experiment,
    *,
    data: Any = None,
    test: Any = None,
    model: Any = None,
    overrides: Iterable[str] = (),
    out: Path | str | None = None,
    resume: bool = False,
    more_rounds: int | None = None,
    accept_changes: bool = False,
    verify: int | None = None,
    seed: int | None = None,
    workers: int | str = "auto",
    runtime: str = "simulator",
    progress: bool | None = None,
    metrics: Iterable[MetricFunction] | Mapping[str, MetricFunction] = (),
    on_round: Callable[..., None] = lambda row: None,
    callbacks: Iterable[Any] = (),
) -> Run:
    """Run an experiment (a TOML file, its tables as a dictionary, or an `Experiment`) and return its results.

    `data` are the clients' examples: a list or dictionary of (x, y), torch Datasets or tables, a table with a client
    column, or a folder with a file per client; or one data set of any of these kinds, which `data.partition` deals to
    `data.clients` clients. `test` are examples to test on, if the clients shall not hold out `data.test_fraction` of
    their own. `model` is a torch module, whose weights training starts from, a function that returns one, or a name.
    They replace `data.source`, `data.clients` and `model.name` (docs/python.md).

    `overrides` are the words of `--set`, such as `"privacy.epsilon=4"`. `workers` processes train clients in parallel
    if the model is too large to be stacked; the results are the same bits. `"auto"`: one per core if training takes
    seconds and that is faster, else this process. `runtime="flower"` trains every client at a node of Flower's
    simulation engine (`sightline[flower]`), with the same results, and so does a plugin transport,
    `runtime="package.module:OBJECT"`. Raises `InvalidInput` for any invalid input before a run directory exists.

    `more_rounds=N` adds rounds to a run that has ended, given by its directory, with the noise that it had, and states
    the larger epsilon before it trains. It raises if the first rounds were planned for their number.

    With `resume`, `file` may also be the directory of the run, which holds its settings. Data and model objects must be
    passed again and must be the same. If the model's code or the packages have changed since the run began, it
    continues only with `accept_changes`, which is recorded.

    `verify=N` computes every value again in worlds that lack one of N random subjects, and ends the run if one of them
    has more weight in a value than is claimed. By default the first round of a user's own module is compared;
    `verify=0` compares nothing.

    Progress is shown on stderr in a terminal or a notebook; `progress=True` shows it also in a script's log,
    `progress=False` never. `on_round(row)` or `on_round(row, run)` gets the numbers of every round, and the run, whose
    `model()` and `evaluate(x, y)` are of that round; `callbacks` are called at start, rounds and end.

    `metrics` are functions of targets and predictions, such as those of scikit-learn, or a dictionary of them by name.
    Every evaluation computes them on the test set and per client. They are tried before the run begins.
    """
    transport = _check_call(runtime, workers, handed_over=data is not None or not isinstance(model, str | None))
    listeners, own = check_callbacks(callbacks), OwnMetrics(read_metrics(metrics), _tell)
    assignments = [*overrides] + ([] if seed is None else [f"seed={seed}"])
    if isinstance(file, Experiment) and assignments:
        invalid(
            "overrides", assignments, "an Experiment object cannot be overridden", "pass overrides to sightline.read"
        )
    if isinstance(model, str) and not isinstance(file, Experiment):
        assignments, model = [*assignments, f"model.name={json.dumps(model)}"], None
    folder, notes = None if out is None else Path(out), list[str]()
    if isinstance(file, str | Path) and Path(file).is_dir():
        folder = run_directory(Path(file), folder, resume=resume or more_rounds is not None)
        experiment = engine.read_settings(folder, assignments)
    else:
        if more_rounds is not None and folder is None:
            shown = "an Experiment" if isinstance(file, Experiment) else file
            reason = f"more rounds need a run directory, and {shown} is not one"
            invalid("rounds", f"+{more_rounds}", reason, "e.g. runs/mine")
        experiment = file if isinstance(file, Experiment) else read(file, assignments, notes.append)
    resume = resume or more_rounds is not None
    if "privacy" not in experiment.model_fields_set and not resume:
        notes.append(
            "no [privacy]: nothing is promised, every update is published without noise; add [privacy] with epsilon = 8"
        )
    if accept_changes and not resume:
        invalid(
            "--accept-changes", True, "a new run has no earlier code that could have changed", "give it with --resume"
        )
    label = _folder_name(file, experiment)
    experiment, federation, factory = take_objects(experiment, data, test, model)
    directory = engine.directory_to_resume(experiment, folder, label) if resume else None
    # Everything is built and calibrated before the directory is made, so that invalid input leaves nothing behind.
    build = partial(
        engine.build_experiment, federation=federation, factory=factory, device=_training_device(experiment, runtime)
    )
    before, built = None, engine.calibrate_noise(build(experiment))
    if directory is not None:
        before, built = _with_added_rounds(built, directory, build, more_rounds, runtime)
    own.check(built.model, built.start, built.federation.test)
    best_metric(built, own.functions)
    # Only now, so that an error is one line.
    for note in notes:
        _tell(note)
    directory = directory or engine.new_directory(experiment, folder, label)
    done, callers = Run(directory, built.model), _Listeners(listeners)
    command = _resume_command(directory, data=data, test=test, model=model, metrics=own.functions or None)
    make_simulator = simulator_maker(workers)
    with _finish_on_interrupt(directory, command), _progress_listener(built.experiment, progress) as advance:
        loop = partial(
            engine.run_loop,
            built,
            directory,
            resume=resume,
            before=before,
            accept_changes=accept_changes,
            verify=verify,
            choose_paths=paths_by_measuring,
            metrics=own,
            on_models=done.live.append,
            on_round=_call_all(advance, _with_run(on_round, done), partial(callers.tell_round, done)),
            on_note=_tell,
        )
        if runtime == "flower":
            from sightline.runtimes.flower.apps import simulate_nodes

            at_once = 1 if workers == AUTO else int(workers)
            simulate_nodes(built, directory, lambda make: loop(callers.start_with(done, make)), workers=at_once)
        elif transport is not None:
            post = transport(built, directory)
            loop(callers.start_with(done, lambda built, *streams: simulated_clients(built, directory, post)))
        else:
            loop(callers.start_with(done, make_simulator))
    done.live.clear()
    report.write_report(directory)
    callers.tell_end(done)
    return done


def plan(file: Path | str | Mapping[str, Any] | Experiment, overrides: Iterable[str] = ()) -> dict[str, Any]:
    """Return what a run of the experiment would release, cost and take; nothing is trained or written."""
    experiment = file if isinstance(file, Experiment) else read(file, overrides, _tell)
    built = engine.calibrate_noise(engine.build_experiment(experiment, device=experiment.training_device))
    best_metric(built, ())
    return replace_nonfinite(engine.plan_run(built) | {"seconds": estimate_seconds(built)})  # type: ignore[no-any-return]


def _check_call(runtime: str, workers: int | str, *, handed_over: bool) -> Any:
    """Return the plugin transport if the runtime names one; else None. Raises for an invalid call."""
    transport = find_transport(runtime, RUNTIMES)
    if runtime != "simulator" and handed_over:
        reason = "its nodes are separate processes, which cannot receive Python objects of this one"
        way_out = (
            'name importable objects, data.source = "package.module:function", model.name = "package.module:factory"'
        )
        invalid("runtime", runtime, reason, f"{way_out}; or use the simulator, which gives the same results")
    if runtime == "flower":
        check_installed()
    check_workers(workers)
    return transport


def _with_added_rounds(
    built: BuiltExperiment,
    directory: Path,
    build: Callable[[Experiment], BuiltExperiment],
    more: int | None,
    runtime: str,
) -> tuple[BuiltExperiment | None, BuiltExperiment]:
    """Return (the experiment with the rounds made so far, if some are to be added, and the one to run)."""
    added = engine.count_added(directory)
    if (added or more is not None) and runtime != "simulator":
        invalid("runtime", runtime, "its nodes know only the rounds of the file", "add rounds with the simulator")
    if added:
        built = engine.plan_longer(built, build, built.experiment.rounds + added)
    if more is None:
        return None, built
    with RunRecord.open_to_read(directory) as record:
        engine.check_ended(directory, record, more)
    return built, engine.plan_longer(built, build, built.experiment.rounds + more)


def _training_device(experiment: Experiment, runtime: str) -> str:
    """Return where the simulator trains its clients; nodes of other runtimes train on the CPU."""
    if runtime != "simulator" and experiment.device in ("cuda", "mps"):
        reason = "its nodes train on the CPU"
        invalid("runtime", runtime, reason, f'use the simulator for device = "{experiment.device}", or omit the key')
    return experiment.training_device if runtime == "simulator" else "cpu"


def take_objects(
    experiment: Experiment, data: Any, test: Any, model: Any
) -> tuple[Experiment, Federation | None, Factory | None]:
    """Return the experiment with a program's objects in place of what it names, the federation and the factory.

    Guarantees: the resolved settings say so, `data.source = "python"` and `model.name = "python:NAME"`; no number of
    classes and no vocabulary is learned from the examples.
    """
    source = PYTHON
    if data is None and experiment.data.is_path:
        data = source = experiment.data.source
    if data is None and test is not None:
        invalid("test", type(test).__name__, "test examples need data=", "pass data= as well")
    given = None if data is None else read_given(data, test, experiment.data.options)
    factory = None
    settled = experiment if given is None else settle_experiment(experiment, given, source=source)
    if model is not None:
        plain: dict[str, Any] = settled.model_dump(mode="json", exclude_none=True)
        name, factory = (model, None) if isinstance(model, str) else read_given_model(model)
        if "name" in experiment.model.model_fields_set and experiment.model.name != name and factory is not None:
            # These settings belong to the model that the file names.
            for key in ("init", *experiment.model.settings):
                plain["model"].pop(key, None)
        plain["model"] |= {"name": name}
        settled = parse(plain)
    experiment = settled
    streams, task = Streams.from_seed(experiment.seed), experiment.model.target
    federation = None if given is None else deal_given(given, experiment.data, streams, task)
    return experiment, federation, factory


def _folder_name(file: Any, experiment: Experiment) -> str:
    """Return the name of the run's folder: that of the experiment, or its file's if it has none of its own."""
    stem = Path(file).stem if isinstance(file, str | Path) else ""
    return stem if "name" not in experiment.model_fields_set and SAFE_NAME.fullmatch(stem) else experiment.name


def check_callbacks(callbacks: Iterable[Any]) -> list[Any]:
    """Return the callbacks as a list. Raises unless each has one of the three methods."""
    listeners = list(callbacks)
    for listener in listeners:
        if isinstance(listener, type) or not any(callable(getattr(listener, name, None)) for name in MOMENTS):
            reason = f"a callback is an object with {', '.join(MOMENTS[:-1])} or {MOMENTS[-1]}"
            invalid("callbacks", listener, reason, "pass an instance of a subclass of sightline.Callback")
    return listeners


class _Listeners:
    """The callbacks of one run; `on_end` is called only after `on_start` was."""

    def __init__(self, callbacks: list[Any]) -> None:
        self._callbacks, self._started = callbacks, False

    def start_with(self, run: Run, make_worker: Callable[..., ClientExecutor]) -> Callable[..., ClientExecutor]:
        """Return a worker factory that calls `on_start` first: the run's directory then exists and is locked."""

        def make(built: BuiltExperiment, public: Streams, secret: Streams) -> ClientExecutor:
            self.tell_start(run)
            return make_worker(built, public, secret)

        return make

    def tell_start(self, run: Run) -> None:
        if not self._started:
            self._started = True
            self._call("on_start", run)

    def tell_round(self, run: Run, row: Mapping[str, Any]) -> None:
        for callback in self._callbacks:
            if (method := getattr(callback, "on_round", None)) is not None:
                _with_run(method, run)(flatten_row(row))

    def tell_end(self, run: Run) -> None:
        if self._started:
            self._call("on_end", run)

    def _call(self, moment: str, argument: Any) -> None:
        for callback in self._callbacks:
            method = getattr(callback, moment, None)
            if method is not None:
                method(argument)


def run_directory(given: Path, out: Path | None, *, resume: bool) -> Path:
    """Return the run directory given in place of a file. Raises unless the run is to be resumed in place."""
    if not resume:
        invalid("file", given, "is a folder", "give an experiment file, or resume the run in it with --resume")
    if out is not None and out.resolve() != given.resolve():
        invalid("--out", out, f"the run in {given} continues in its directory", "omit --out")
    return given


@contextmanager
def _finish_on_interrupt(directory: Path, command: str) -> Iterator[None]:
    """Re-raise an interrupt with a message that says how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        left = (directory / DATABASE).exists()
        raise KeyboardInterrupt(
            f"continue with: {command}" if left else "nothing was released, and the run directory was removed"
        ) from None


def _resume_command(directory: Path, **objects: Any) -> str:
    """Return how to resume the run: a command, or a call with the same objects."""
    given = [name for name, value in objects.items() if not isinstance(value, str | None)]
    if not given:
        return f"sightline run --resume {directory}"
    again = ", ".join(f"{name}=..." for name in given)
    return f'sightline.run("{directory}", {again}, resume=True)'


def _tell(note: str) -> None:
    # A closed stderr must not end a run that has spent privacy budget.
    with suppress(OSError):
        print(f"sightline: {printable(note)}", file=sys.stderr, flush=True)


@contextmanager
def _progress_listener(experiment: Experiment, progress: bool | None) -> Iterator[OnRound]:
    """Yield the per-round progress callback; a no-op if progress is off."""
    if not wants_progress(progress):
        yield lambda row: None
        return
    with RoundBar(experiment.name, experiment.rounds) as bar:
        yield bar.advance


def _with_run(listener: Callable[..., None], run: Run) -> OnRound:
    """Return a listener of rows; one that requires two arguments gets the run too."""
    try:
        taken = inspect.signature(listener).parameters.values()
    except (TypeError, ValueError):
        taken = []  # type: ignore[assignment]
    required = [
        one
        for one in taken
        if one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    return (lambda row: listener(row, run)) if len(required) == 2 else listener


def _call_all(*listeners: OnRound) -> OnRound:
    def tell(row: Mapping[str, Any]) -> None:
        for listener in listeners:
            listener(row)

    return tell


def flower_server_app(file: Path) -> Any:
    """Return the ServerApp of an exported experiment; its run directory ends with a report like any other."""
    from sightline.runtimes.flower.apps import server_app

    return server_app(file, report.write_report)
