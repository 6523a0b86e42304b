"""The Python interface: `sightline run` in one call, also with models and data that only a program has."""

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
from sightline.console import RoundBar, wants_progress
from sightline.data import PYTHON, Federation, GivenData, read_given
from sightline.engine import BuiltExperiment
from sightline.engine.checkpoint import paths_by_measuring
from sightline.engine.record import DATABASE
from sightline.errors import invalid, printable
from sightline.mechanisms import ClientExecutor
from sightline.models import Factory, read_given_model
from sightline.randomness import Streams
from sightline.results import Run, flatten_row
from sightline.runtimes.flower.simulation import check_installed, simulate_nodes
from sightline.runtimes.process_count import AUTO, check_workers, simulator_maker
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
        """Handle the end of a round, given its numbers: a row of `run.history`."""

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
    accept_changes: bool = False,
    verify: int | None = None,
    seed: int | None = None,
    workers: int | str = "auto",
    runtime: str = "simulator",
    progress: bool | None = None,
    on_round: Callable[[Mapping[str, Any]], None] = lambda row: None,
    callbacks: Iterable[Any] = (),
) -> Run:
    """Run an experiment (a TOML file, its tables as a dictionary, or an `Experiment`) and return its results.

    `data` are the clients' examples: a list or dictionary of (x, y), torch Datasets or tables, a table with a client
    column, or a folder with a file per client; `test` are examples to test on, if the clients shall not hold out
    `data.test_fraction` of their own. `model` is a torch module, whose weights training starts from, a function that
    returns one, or a name. They replace `data.source`, `data.clients` and `model.name` (docs/python.md).

    `overrides` are the words of `--set`, such as `"privacy.epsilon=4"`. `workers` processes train clients in parallel
    if the model is too large to be stacked; the results are the same bits. `"auto"`: one per core if training takes
    seconds and that is faster, else this process. `runtime="flower"` trains every client at a node of Flower's
    simulation engine (`sightline[flower]`), with the same results, and so does a plugin transport,
    `runtime="package.module:OBJECT"`. Raises `InvalidInput` for any invalid input before a run directory exists.

    With `resume`, `file` may also be the directory of the run, which holds its settings. Data and model objects must be
    passed again and must be the same. If the model's code or the packages have changed since the run began, it
    continues only with `accept_changes`, which is recorded.

    `verify=N` computes every value again in worlds that lack one of N random subjects, and ends the run if one of them
    has more weight in a value than is claimed. By default the first round of a user's own module is compared;
    `verify=0` compares nothing.

    Progress is shown on stderr in a terminal or a notebook; `progress=True` shows it also in a script's log,
    `progress=False` never. `on_round` gets the metrics of every round; `callbacks` are called at start, rounds and end.
    """
    transport = _check_call(runtime, workers, handed_over=data is not None or not isinstance(model, str | None))
    listeners = check_callbacks(callbacks)
    words = [*overrides] + ([] if seed is None else [f"seed={seed}"])
    if isinstance(file, Experiment) and words:
        invalid("overrides", words, "an Experiment is final", "apply them when you read the file")
    if isinstance(model, str) and not isinstance(file, Experiment):
        words, model = [*words, f"model.name={json.dumps(model)}"], None
    place = None if out is None else Path(out)
    if isinstance(file, str | Path) and Path(file).is_dir():
        place = run_directory(Path(file), place, resume=resume)
        experiment = engine.read_settings(place, words)
    else:
        experiment = file if isinstance(file, Experiment) else read(file, words)
    if accept_changes and not resume:
        invalid("--accept-changes", True, "a new run has nothing that could have changed", "give it with --resume")
    experiment, federation, factory = take_objects(experiment, data, test, model)
    directory = engine.directory_to_resume(experiment, place) if resume else None
    # Everything is built and calibrated before the directory is made, so that invalid input leaves nothing behind.
    setting = engine.calibrate_noise(
        engine.build_experiment(
            experiment, federation=federation, factory=factory, device=_training_device(experiment, runtime)
        )
    )
    directory = directory or engine.new_directory(experiment, place)
    done, told = Run(directory, setting.model), _Listeners(listeners)
    way_on, make_simulator = _way_to_go_on(directory, data, test, model), simulator_maker(workers)
    with _finish_on_interrupt(directory, way_on), _progress_listener(experiment, progress) as advance:
        loop = partial(
            engine.run_loop,
            setting,
            directory,
            resume=resume,
            accept_changes=accept_changes,
            verify=verify,
            choose_paths=paths_by_measuring,
            on_round=_call_all(advance, on_round, told.tell_round),
            on_note=_tell,
        )
        if runtime == "flower":
            at_once = 1 if workers == AUTO else int(workers)
            simulate_nodes(setting, directory, lambda make: loop(told.start_with(done, make)), workers=at_once)
        elif transport is not None:
            post = transport(setting, directory)
            loop(told.start_with(done, lambda setting, *streams: simulated_clients(setting, directory, post)))
        else:
            loop(told.start_with(done, make_simulator))
    report.write_report(directory)
    told.tell_end(done)
    return done


def _check_call(runtime: str, workers: int | str, *, handed_over: bool) -> Any:
    """Return the plugin transport if the runtime names one; else None. Raises for an invalid call."""
    transport = find_transport(runtime, RUNTIMES)
    if runtime != "simulator" and handed_over:
        law = "its nodes are processes of their own, which no object of this one reaches"
        way_out = 'name them, data.source = "package.module:function", model.name = "package.module:factory"'
        invalid("runtime", runtime, law, f"{way_out}; or use the simulator, which gives the same results")
    if runtime == "flower":
        check_installed()
    check_workers(workers)
    return transport


def _training_device(experiment: Experiment, runtime: str) -> str:
    """Return where the simulator trains its clients; nodes of other runtimes train on the CPU."""
    if runtime != "simulator" and experiment.device in ("cuda", "mps"):
        law = "its nodes train on the CPU"
        invalid("runtime", runtime, law, f'use the simulator for device = "{experiment.device}", or leave the key out')
    return experiment.training_device if runtime == "simulator" else "cpu"


def take_objects(
    experiment: Experiment, data: Any, test: Any, model: Any
) -> tuple[Experiment, Federation | None, Factory | None]:
    """Return the experiment with a program's objects in place of what it names, the federation and the factory.

    Guarantees: the resolved settings say so, `data.source = "python"` and `model.name = "python:NAME"`; no number of
    classes and no vocabulary is learned from the examples.
    """
    if data is None and test is not None:
        invalid("test", type(test).__name__, "test examples belong to data=", "give data= too")
    given = None if data is None else read_given(data, test, experiment.data.options)
    plain: dict[str, Any] = experiment.model_dump(mode="json", exclude_none=True)
    if given is not None:
        plain["data"] |= _settings_of_data(experiment, given)
        for key in ("clusters", "reuse"):
            plain["data"].pop(key, None)
    factory = None
    if model is not None:
        name, factory = (model, None) if isinstance(model, str) else read_given_model(model)
        if "name" in experiment.model.model_fields_set and experiment.model.name != name and factory is not None:
            # These settings belong to the model that the file names.
            for key in ("init", *experiment.model.settings):
                plain["model"].pop(key, None)
        plain["model"] |= {"name": name}
    if given is None and model is None:
        return experiment, None, None
    experiment = parse(plain)
    streams, task = Streams.from_seed(experiment.seed), experiment.model.target
    federation = None if given is None else given.deal(experiment.data, streams, task)
    return experiment, federation, factory


def _settings_of_data(experiment: Experiment, given: GivenData) -> dict[str, Any]:
    """Return the `[data]` settings of the given examples. Raises if the experiment's own settings disagree."""
    settings, said = experiment.data, experiment.data.model_fields_set
    named = settings.source if "source" in said else PYTHON
    if "clients" in said and named == PYTHON and settings.clients != len(given):
        invalid("data.clients", settings.clients, f"data= has {len(given)} clients", "leave it out, or let both agree")
    classes = settings.classes if "classes" in said else given.classes
    if classes is None and experiment.model.target not in ("classification", "own"):
        # The number of classes has no meaning for these tasks.
        classes = 2 if experiment.model.target == "binary" else settings.classes
    # A number of classes counted from the examples would be a release without noise.
    if classes is None:
        law = "how many classes there are must not be learned from private data"
        invalid("data.classes", "missing", law, 'give it: {"data": {"classes": 10}}')
    return {"source": PYTHON, "partition": "natural", "clients": len(given), "classes": classes}


def check_callbacks(callbacks: Iterable[Any]) -> list[Any]:
    """Return the callbacks as a list. Raises unless each has one of the three methods."""
    found = list(callbacks)
    for one in found:
        if isinstance(one, type) or not any(callable(getattr(one, name, None)) for name in MOMENTS):
            law = f"a callback is an object with {', '.join(MOMENTS[:-1])} or {MOMENTS[-1]}"
            invalid("callbacks", one, law, "derive a class from sightline.Callback and give an object of it")
    return found


class _Listeners:
    """The callbacks of one run; `on_end` is called only after `on_start` was."""

    def __init__(self, callbacks: list[Any]) -> None:
        self._callbacks, self._started = callbacks, False

    def start_with(self, run: Run, make_worker: Callable[..., ClientExecutor]) -> Callable[..., ClientExecutor]:
        """Return a worker factory that calls `on_start` first: the run's directory then exists and is locked."""

        def make(setting: BuiltExperiment, public: Streams, secret: Streams) -> ClientExecutor:
            self.tell_start(run)
            return make_worker(setting, public, secret)

        return make

    def tell_start(self, run: Run) -> None:
        if not self._started:
            self._started = True
            self._call("on_start", run)

    def tell_round(self, row: Mapping[str, Any]) -> None:
        if self._callbacks:
            self._call("on_round", flatten_row(row))

    def tell_end(self, run: Run) -> None:
        if self._started:
            self._call("on_end", run)

    def _call(self, moment: str, word: Any) -> None:
        for one in self._callbacks:
            method = getattr(one, moment, None)
            if method is not None:
                method(word)


def run_directory(given: Path, out: Path | None, *, resume: bool) -> Path:
    """Return the run directory given in place of a file. Raises unless the run is to be resumed in place."""
    if not resume:
        invalid("file", given, "is a folder", "give an experiment file, or go on with the run in it: --resume")
    if out is not None and out.resolve() != given.resolve():
        invalid("--out", out, f"the run in {given} goes on where it is", "leave --out away")
    return given


@contextmanager
def _finish_on_interrupt(directory: Path, way_on: str) -> Iterator[None]:
    """Re-raise an interrupt with a message that says how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        left = (directory / DATABASE).exists()
        raise KeyboardInterrupt(
            f"go on with: {way_on}" if left else "nothing was released, nothing is left of it"
        ) from None


def _way_to_go_on(directory: Path, data: Any, test: Any, model: Any) -> str:
    """Return how to resume the run: a command, or a call with the same objects."""
    given = {"data": data is not None, "test": test is not None, "model": not isinstance(model, str | None)}
    if not any(given.values()):
        return f"sightline run --resume {directory}"
    again = ", ".join(f"{name}=..." for name, there in given.items() if there)
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


def _call_all(*listeners: OnRound) -> OnRound:
    def tell(row: Mapping[str, Any]) -> None:
        for listener in listeners:
            listener(row)

    return tell


def flower_server_app(file: Path) -> Any:
    """Return the ServerApp of an exported experiment; its run directory ends with a report like any other."""
    from sightline.runtimes.flower.apps import server_app

    return server_app(file, report.write_report)
