"""`--workers auto`: how many processes train a run's clients, by what a few of them cost here; the same bits."""

import math
import multiprocessing
import time
from collections.abc import Callable
from dataclasses import replace
from threading import active_count

import numpy as np

from sightline.engine.build import BuiltExperiment
from sightline.errors import invalid
from sightline.randomness import Streams
from sightline.runtimes.local_trainer import HereTrainer, PoolTrainer, TrainingJob
from sightline.runtimes.simulator import Simulator
from sightline.training import LocalTerms
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
"""A run whose training is shorter than this in one process is left there: processes take time to begin."""
WORTH = 0.9
"""Several processes are taken when they need at most this share of one process' time."""
EACH = 4
"""Clients of the comparison for each process."""


def check_workers(workers: int | str) -> None:
    """Raise unless it is a number of processes or `auto`."""
    if isinstance(workers, str) and workers == AUTO:
        return
    if isinstance(workers, bool) or not isinstance(workers, int):
        invalid("workers", workers, "is a whole number or auto")
    if workers < 1:
        invalid("workers", workers, "at least one process trains")


def simulator_maker(workers: int | str) -> Callable[[BuiltExperiment, Streams, Streams], Simulator]:
    """What makes the simulator of a run; chosen processes are the run's own, twin worlds then train in this one.

    Nothing is chosen but one process where a fork is not safe, since the caller has other threads at work, and in a
    process that is one of many itself.
    """
    made: list[Simulator] = []
    alone = multiprocessing.parent_process() is None and active_count() == 1

    def make(setting: BuiltExperiment, public: Streams, secret: Streams) -> Simulator:
        count = int(workers) if workers != AUTO else choose_workers(setting) if alone and not made else 1
        made.append(Simulator(setting, public, secret, workers=count))
        return made[-1]

    return make


def choose_workers(setting: BuiltExperiment) -> int:
    """One process, or one per core where the training takes seconds and several processes are faster at it.

    Guarantees: never more processes than cores that this process may use; one where others could not help (dense
    stacks, parts of models, another device) and where nothing shall be measured (`local.paths`, `SIGHTLINE_PATHS`).
    """
    cores, model = count_cores(), setting.model
    if not (cores > 1 and len(setting.clients) > 1 and wants_measuring(setting.experiment)):
        return 1
    if model.device.type != "cpu" or setting.experiment.local.compiled or dense_layers(model) is not None:
        return 1
    work = measured_work(setting.experiment, model, setting.federation.sizes.tolist())
    if work is None or setting.splitter is not None:
        return 1
    work = replace(work, work=replace(work.work, paths=setting.paths))
    return cores if worth_processes(work, planned_steps(setting), cores) else 1


def planned_steps(setting: BuiltExperiment) -> float:
    """Local steps of a whole run, as they are expected: public settings and sizes, nobody's draws."""
    expected = math.fsum(setting.sampler_of(channel).expected for channel in setting.topology.gathers)
    work, sizes = local_work(setting.experiment), setting.federation.sizes.tolist()
    plans = [setting.mechanism.steps_of(client) for client in setting.clients]
    steps = [steps_of(size, work) if plan is None else plan.steps for size, plan in zip(sizes, plans, strict=True)]
    return setting.experiment.rounds * expected * float(np.mean(steps))


def worth_processes(work: MeasuredWork, steps: float, cores: int, *, timing: "Timing | None" = None) -> bool:
    """Whether one process per core is faster at so many local steps; measured once for a kind of work and machine."""
    timing = timing or Timing()
    key = f"{work.key} {work.work.paths.plain} {work.work.paths.record} {work.work.paths.noise}"
    step = _recall_number(f"{key} step", "seconds") or timing.one_step(work)
    step = float(keep_measured(f"{key} step", {"seconds": step}).get("seconds", step))
    if steps * step < WORTH_SECONDS:
        return False
    share = _recall_number(f"{key} workers {cores}", "share")
    if share is None:
        one, many = timing.one_and_many(work, cores)
        share = float(keep_measured(f"{key} workers {cores}", {"share": many / one}).get("share", many / one))
    return share <= WORTH


def _recall_number(key: str, name: str) -> float | None:
    """A positive number that was kept; None where there is none, or something else."""
    found = (recall_measured(key) or {}).get(name)
    return float(found) if isinstance(found, int | float) and math.isfinite(found) and found > 0 else None


class Timing:
    """The two measurements: a step of one client in this process, and a cohort in one process and in several."""

    def one_step(self, work: MeasuredWork) -> float:
        """Seconds of one local step, warm."""
        best = compare_paths({"here": work.work.paths}, work.run)["here"]
        return best / (STEPS * work.clients)

    def one_and_many(self, work: MeasuredWork, cores: int) -> tuple[float, float]:
        """The best seconds of the same clients in this process and in `cores` processes, in turns."""
        cohort = range(EACH * cores)
        shards, job = [work.made_up_shard()] * len(cohort), made_up_job(work, len(cohort))
        many = PoolTrainer(work.model, shards, None, cores)
        trainers: dict[str, HereTrainer | PoolTrainer] = {"one": HereTrainer(work.model, shards, None), "many": many}
        best, begun = dict.fromkeys(trainers, math.inf), time.perf_counter()
        try:
            for turn in range(4):
                for name, trainer in trainers.items():
                    first = time.perf_counter()
                    for _, ends in trainer.run(job, cohort):
                        ends.double().sum(0)  # a parent has its own work with what comes back
                    best[name] = min(best[name], time.perf_counter() - first)
                if turn and time.perf_counter() - begun > SECONDS:
                    break
        finally:
            many.close()
        return best["one"], best["many"]


def made_up_job(work: MeasuredWork, clients: int) -> TrainingJob:
    """The training of so many clients on made-up examples; nobody's data are looked at."""
    rngs = [np.random.default_rng(client) for client in range(clients)]
    start, steps = work.model.init(np.random.default_rng(0)), replace(work.work, epochs=None, steps=STEPS)
    steps = replace(steps, batch_size=work.width)
    if not work.private:
        return TrainingJob("train", start, LocalTerms(), {"rngs": rngs, "epochs_of": None}, {"work": steps})
    each = vars(work.private_settings(rngs))
    shared = {"work": steps, "clip_norm": each.pop("clip_norm")}
    return TrainingJob(
        "dp_sgd", start, LocalTerms(), {name: one for name, one in each.items() if one is not None}, shared
    )
