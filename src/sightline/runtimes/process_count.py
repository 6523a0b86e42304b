"""Choice of the number of training processes for `--workers auto`, measured on this machine; results do not change."""

import math
import multiprocessing
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from threading import active_count
from typing import Any

import numpy as np
import torch

from sightline.data import Federation, Shard
from sightline.engine.build import BuiltExperiment
from sightline.engine.evaluation import evaluate_models
from sightline.engine.execution import LiveExecution
from sightline.engine.round import TrainingRound
from sightline.errors import SightlineError, invalid
from sightline.ledger import Ledger
from sightline.mechanisms import Public
from sightline.models.flat import probe_inputs
from sightline.models.task import probe_targets
from sightline.randomness import Streams
from sightline.runtimes.local_trainer import HereTrainer, LocalClients, PoolTrainer
from sightline.runtimes.simulator import Simulator
from sightline.training.call import CallId, CallKind, PrivateSteps, TrainingCall
from sightline.training.dispatch import dense_layers
from sightline.training.local_work import steps_of
from sightline.training.machine import count_cores, keep_measured, recall_measured
from sightline.training.measure_paths import (
    SECONDS,
    STEPS,
    MeasuredWork,
    compare_paths,
    local_work,
    measured_work,
    wants_measuring,
)

AUTO = "auto"
WORTH_SECONDS = 5.0
"""Training that takes less than this in one process stays there: starting processes takes time too."""
WORTH = 0.9
"""A pool is used if it needs at most this share of the time of one process."""
WRITING = 0.01
"""Seconds that a round takes to write its ledger and checkpoint, roughly."""
LONG = 3.0
"""Seconds of a round, by the time of one step, above which `--plan` does not rehearse it."""
EACH = 4
"""Clients per process in the timing comparison."""


def check_workers(workers: int | str) -> None:
    """Raise InvalidInput unless `workers` is a positive whole number or `auto`."""
    if isinstance(workers, str) and workers == AUTO:
        return
    if isinstance(workers, bool) or not isinstance(workers, int):
        invalid("workers", workers, "must be a positive whole number or auto")
    if workers < 1:
        invalid("workers", workers, "must be at least 1")


def simulator_maker(workers: int | str) -> Callable[[BuiltExperiment, Streams, Streams], Simulator]:
    """Return the factory of a run's simulator; a chosen pool belongs to the run, and twin worlds train in this process.

    With `auto`, only one process is chosen where a fork is unsafe because the caller has other threads, and inside a
    worker process.
    """
    made: list[Simulator] = []
    alone = multiprocessing.parent_process() is None and active_count() == 1

    def make(built: BuiltExperiment, public: Streams, secret: Streams) -> Simulator:
        count = int(workers) if workers != AUTO else choose_workers(built) if alone and not made else 1
        made.append(Simulator(built, public, secret, workers=count))
        return made[-1]

    return make


def choose_workers(built: BuiltExperiment) -> int:
    """Return one process per core where training takes seconds and a pool is faster; else 1.

    Guarantees: never more processes than cores that this process may use; 1 where more cannot help (dense stacks, model
    parts, an accelerator) and where measuring is switched off (`local.paths`, `SIGHTLINE_PATHS`).
    """
    cores, model = count_cores(), built.model
    if not (cores > 1 and len(built.clients) > 1 and wants_measuring(built.experiment)):
        return 1
    if model.device.type != "cpu" or built.experiment.local.compiled or dense_layers(model) is not None:
        return 1
    work = measured_work(built.experiment, model, built.federation.sizes.tolist())
    if work is None or built.splitter is not None:
        return 1
    work = replace(work, work=replace(work.work, paths=built.paths))
    return cores if worth_processes(work, planned_steps(built), cores) else 1


def planned_steps(built: BuiltExperiment) -> float:
    """Return the expected number of local steps of the run, from public settings and sizes only."""
    # The choice must not depend on a draw: cohorts are secret where sampling is claimed to amplify.
    expected = math.fsum(built.sampler_of(channel).expected for channel in built.topology.gathering_channels)
    work, sizes = local_work(built.experiment), built.federation.sizes.tolist()
    plans = built.mechanism.facts.private_steps
    steps = [plans[client].steps if client in plans else steps_of(sizes[client], work) for client in built.clients]
    return built.experiment.rounds * expected * float(np.mean(steps))


def worth_processes(work: MeasuredWork, steps: float, cores: int, *, timing: "Timing | None" = None) -> bool:
    """Return whether one process per core is faster for `steps` local steps.

    The measurement is made once per kind of work and machine.
    """
    timing, key = timing or Timing(), _key_of(work)
    if steps * step_seconds(work, timing) < WORTH_SECONDS:
        return False
    share = _recall_number(f"{key} workers {cores}", "share")
    if share is None:
        one, many = timing.one_and_many(work, cores)
        share = float(keep_measured(f"{key} workers {cores}", {"share": many / one}).get("share", many / one))
    return share <= WORTH


def _key_of(work: MeasuredWork) -> str:
    return f"{work.key} {work.work.paths.plain} {work.work.paths.record} {work.work.paths.noise}"


def step_seconds(work: MeasuredWork, timing: "Timing") -> float:
    """Return the seconds of one local step, measured once per kind of work and machine."""
    key = f"{_key_of(work)} step"
    step = _recall_number(key, "seconds") or timing.one_step(work)
    # The stored value wins over the new one, so that concurrent runs on this machine decide alike.
    return float(keep_measured(key, {"seconds": step}).get("seconds", step))


def estimate_seconds(built: BuiltExperiment) -> float | None:
    """Return roughly how long training and evaluation take in one process here; None where they are not measured.

    Rounds are rehearsed on made-up examples, as many as every client has, and their results are dropped. Where a round
    takes long by the time of one step, the steps are counted instead.
    """
    work = measured_work(built.experiment, built.model, built.federation.sizes.tolist())
    if work is None or built.model.device.type != "cpu":
        return None
    # Training uses one thread; with more, small products wait for each other.
    torch.set_num_threads(1)
    rounds, evaluations = built.experiment.rounds, built.experiment.rounds / built.experiment.evaluate_every
    step, steps = Timing().one_step(work), planned_steps(built)
    if step * steps > LONG * rounds:
        # A forward pass takes about a third of a step.
        tested = len(built.federation.test) + sum(len(client.test) for client in built.federation.clients)
        return step * (steps + evaluations * tested / (3 * work.width))
    try:
        return rehearse_rounds(replace(built, federation=made_up_federation(built)))
    except SightlineError:
        return None


def rehearse_rounds(built: BuiltExperiment) -> float:
    """Return the seconds of all rounds and evaluations by those of the first rounds."""
    public, secret = Streams.from_seed(built.experiment.seed), Streams.from_seed(0)
    worker, ledger = Simulator(built, public, secret), Ledger(participants=built.participants)
    execution, memories = LiveExecution(worker, secret), dict[str, Any]()
    state: Any = built.algorithm.init(Public(built.start), built.clients, built.settings)
    spent, begun = list[float](), time.perf_counter()
    try:
        for number in range(1, built.experiment.rounds + 1):
            first = time.perf_counter()
            r = TrainingRound(built, ledger, execution, number, memories)
            state, memories = built.algorithm.round(state, r, built.settings), dict(r.memories)
            spent.append(time.perf_counter() - first)
            if (number > 3 and time.perf_counter() - begun > SECONDS) or built.algorithm.facts.finished(state):
                break
    finally:
        worker.close()
    first = time.perf_counter()
    evaluate_models(built, built.algorithm.models(state, built.clients))
    evaluation = time.perf_counter() - first
    # The median: some algorithms do more in their first rounds, and a loaded machine delays some.
    rounds, usual = built.experiment.rounds, median(spent[1:] or spent)
    training = math.fsum(spent) + (rounds - len(spent)) * usual + rounds * WRITING
    return training + rounds / built.experiment.evaluate_every * evaluation


def made_up_federation(built: BuiltExperiment) -> Federation:
    """Return clients with made-up examples, as many as the experiment's clients have."""
    given = built.federation
    most = max(len(given.test), *(max(len(client.train), len(client.test)) for client in given.clients))
    x = probe_inputs(built.model, most).numpy()
    y = probe_targets(built.model.task, built.model.classes, most).numpy()

    def fill(shard: Shard) -> Shard:
        return Shard(x[: len(shard)], y[: len(shard)])

    clients = tuple(replace(client, train=fill(client.train), test=fill(client.test)) for client in given.clients)
    return replace(given, clients=clients, test=fill(given.test))


def _recall_number(key: str, name: str) -> float | None:
    """Return a stored positive number, or None if it is missing or not a positive number."""
    result = (recall_measured(key) or {}).get(name)
    return float(result) if isinstance(result, int | float) and math.isfinite(result) and result > 0 else None


class Timing:
    """The two measurements: one step of one client here, and a cohort in one process and in several."""

    def one_step(self, work: MeasuredWork) -> float:
        """Return the seconds of one warm local step."""
        best = compare_paths({"here": work.work.paths}, work.run)["here"]
        return best / (STEPS * work.clients)

    def one_and_many(self, work: MeasuredWork, cores: int) -> tuple[float, float]:
        """Return the best seconds for the same clients in this process and in `cores` processes, measured in turns."""
        clients, call = made_up_clients(work, EACH * cores)
        many = PoolTrainer(clients, cores)
        trainers: dict[str, HereTrainer | PoolTrainer] = {"one": HereTrainer(clients), "many": many}
        best, begun = dict.fromkeys(trainers, math.inf), time.perf_counter()
        try:
            for turn in range(4):
                for name, trainer in trainers.items():
                    first = time.perf_counter()
                    for _, ends in trainer.run(call):
                        # Include the parent's own work: it sums the rows while the pool trains.
                        ends.double().sum(0)
                    best[name] = min(best[name], time.perf_counter() - first)
                if turn and time.perf_counter() - begun > SECONDS:
                    break
        finally:
            many.close()
        return best["one"], best["many"]


def made_up_clients(work: MeasuredWork, count: int) -> tuple[LocalClients, TrainingCall]:
    """Return clients with made-up examples and a call that trains all of them; no real data are read."""
    streams, start = Streams.from_seed(0), work.model.init(np.random.default_rng(0))
    steps = replace(work.work, epochs=None, steps=STEPS, batch_size=work.width)
    clients = LocalClients(work.model, [work.made_up_shard()] * count, steps, streams, streams)
    kind = CallKind.DP_SGD if work.private else CallKind.TRAIN
    plans = [PrivateSteps(1.0, 1.0, 0.5, STEPS, float(work.width))] * count if work.private else []
    return clients, TrainingCall(kind, range(count), start, CallId(1, 0), plans=plans)
