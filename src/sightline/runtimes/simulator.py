"""The simulator: runs training calls of every client on this machine, and chooses the number of its processes."""

import math
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from threading import active_count

import numpy as np
import torch
from torch import Tensor

from sightline import mkl
from sightline.data.federation import check_one_label
from sightline.engine.build import BuiltExperiment
from sightline.errors import invalid
from sightline.events import Unit
from sightline.mechanisms.convex_solver import Regression, minimise_regression, to_unit, unit_examples
from sightline.randomness import Purpose, Streams
from sightline.runtimes.local_trainer import HereTrainer, LocalClients, PoolTrainer, client_rngs, trainer_for
from sightline.training import clipped_gradient_sum, evaluate_model
from sightline.training.call import (
    Block,
    CallId,
    CallKind,
    PrivateSteps,
    StateAccess,
    TrainingCall,
    effective_steps,
)
from sightline.training.dispatch import dense_layers
from sightline.training.dp_sgd_settings import ViewKind, Views
from sightline.training.local_work import client_rows, steps_of
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
from sightline.training.submodels import parted_gradient_sum

AUTO = "auto"
WORTH_SECONDS = 5.0
"""Training that takes less than this in one process stays there: starting processes takes time too."""
WORTH = 0.9
"""A pool is used if it needs at most this share of the time of one process."""
EACH = 4
"""Clients per process in the timing comparison."""


class Simulator:
    """Client executor for simulations.

    Every client draws from streams keyed by its own number, so neither order nor batching matters.
    """

    def __init__(
        self, built: BuiltExperiment, public: Streams, secret: Streams, *, workers: int = 1, sizes: Sequence[int] = ()
    ) -> None:
        # The number of threads decides the order of sums inside torch: with one thread a seed gives the same bits
        # everywhere.
        torch.set_num_threads(1)
        mkl.warn_unless_reproducible()
        local, augment = built.experiment.local, built.experiment.local.augment
        self.clients = LocalClients(
            built.model,
            [client.train for client in built.federation.clients],
            local_work(built.experiment, built.paths),
            public,
            secret,
            sizes=sizes or built.federation.sizes.tolist(),
            parts=built.splitter,
            views=None if augment is None else Views(augment.views, ViewKind(augment.kind), augment.pixels),
        )
        self.dimension, self.sizes = built.model.parameters, self.clients.sizes
        self._stragglers = local.stragglers
        # With examples as the unit, evaluate them one at a time, so that one example changes a count of right answers
        # by one.
        self._apart = built.unit is Unit.SAMPLE
        self._trainer = trainer_for(self.clients, workers)

    @property
    def processes(self) -> int:
        """Return the number of training processes; it does not change the results."""
        return self._trainer.processes

    @property
    def nodes(self) -> None:
        """Return None: there are no remote nodes."""
        return None

    def close(self) -> None:
        """Release the training processes."""
        self._trainer.close()

    def run(self, call: TrainingCall) -> Iterator[Block]:
        """Yield the rows of a call, computed block by block on demand."""
        runners = {
            CallKind.TRAIN: self._train,
            CallKind.DP_SGD: self._train,
            CallKind.GRADIENT_SUMS: self._sum_gradients,
            CallKind.MINIMISE: self._minimise,
            CallKind.RIGHT_ANSWERS: self._count_right_answers,
        }
        if call.cohort:
            yield from runners[call.kind](call)

    def _train(self, call: TrainingCall) -> Iterator[Block]:
        """Yield end vectors of local training; the clients' states are updated on the way."""
        state, private = call.state, call.kind is CallKind.DP_SGD
        if private and state is not None:
            state.require_noised()
        if not private:
            call = replace(call, epochs=self._draw_epochs(call))
        if state is not None and state.memory.solver is not None and not private:
            yield from self._run_solver(call, state)
            return
        steps, noised = self._steps(call), private and all(plan.noise_multiplier > 0 for plan in call.plans)
        for indices, ends in self._trainer.run(call.add_state_terms()):
            for index, end in zip(indices.tolist(), ends, strict=True) if state is not None else ():
                done = effective_steps(steps[index], self.clients.work.momentum)
                state.keep_state(call.cohort[index], client_rows(call.starts, index), end, done, noised=noised)  # type: ignore[union-attr]
            yield [call.cohort[index] for index in indices], ends

    def _run_solver(self, call: TrainingCall, state: StateAccess) -> Iterator[Block]:
        """Yield every client's result of the solver that comes with the state rule."""
        clients, work, solver = self.clients, call.task.adjust_work(self.clients.work), state.memory.solver
        rngs = client_rngs(clients.public, Purpose.BATCHES, call)
        for index, (client, steps) in enumerate(zip(call.cohort, self._steps(call), strict=True)):
            start, shard = client_rows(call.starts, index), clients.shards[client]
            end, kept = solver(clients.model, start, shard, work, steps=steps, rng=rngs[index])  # type: ignore[misc]
            state.keep_value(client, kept, noised=False)
            yield [client], end[None]

    def _steps(self, call: TrainingCall) -> list[int]:
        """Return the local steps of every client, of one repetition."""
        if call.plans:
            return [plan.steps for plan in call.plans]
        work, epochs = call.task.adjust_work(self.clients.work), call.epochs
        sizes = [self.sizes[client] for client in call.cohort]
        return [steps_of(size, work, None if epochs is None else epochs[n]) for n, size in enumerate(sizes)]

    def _draw_epochs(self, call: TrainingCall) -> list[float] | None:
        """Return the epochs of every client, fewer for stragglers.

        With probability `stragglers` a client does a uniform 1..E-1 of its E epochs; its partial work is kept.
        """
        epochs, by_steps = self.clients.work.epochs, call.task.adjust_work(self.clients.work).steps is not None
        if by_steps or not self._stragglers or epochs is None or epochs < 2:
            return None
        # Public streams: who is slow is not claimed to be hidden.
        rngs = client_rngs(self.clients.public, Purpose.STRAGGLERS, call)
        return [float(rng.integers(1, epochs)) if rng.random() < self._stragglers else float(epochs) for rng in rngs]

    def _sum_gradients(self, call: TrainingCall) -> Iterator[Block]:
        """Yield the sum of clipped gradients of one drawn batch per client."""
        clients = self.clients
        rngs, view_rngs = (client_rngs(clients.secret, p, call) for p in (Purpose.BATCHES, Purpose.VIEWS))
        for index, (client, plan, rng) in enumerate(zip(call.cohort, call.plans, rngs, strict=True)):
            shard = clients.shards[client]
            if plan.allotment is None:
                drawn = np.flatnonzero(rng.random(len(shard)) < plan.rate)
            else:
                (drawn,) = clients.scheduled_batches(client, plan, call.at)
            start, x, y = client_rows(call.starts, index), shard.x[drawn], shard.y[drawn]
            if call.parts is None:
                views = None if clients.views is None else (clients.views, view_rngs[index])
                total = clipped_gradient_sum(clients.model, start, x, y, clip_norm=plan.clip_norm, rng=rng, views=views)
            else:
                (own,) = client_rngs(clients.secret, Purpose.ASSIGNMENT, call.select_clients([index]))
                apart = call.parts.clip_radii(plan.clip_norm)
                splitting = call.parts.splitting.in_round(call.at.round)
                total = parted_gradient_sum(splitting, start, x, y, apart, rng=own)
            yield [client], total[None]

    def _minimise(self, call: TrainingCall) -> Iterator[Block]:
        """Yield the exact minimiser of every client's local problem, one client at a time."""
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

        classes = self.clients.model.classes
        # BLAS sums in an order that depends on its threads: one thread keeps the bits the same.
        with threadpool_limits(1, user_api="blas"):
            for index, client in enumerate(call.cohort):
                shard = self.clients.shards[client]
                problem = Regression(
                    unit_examples(np.asarray(shard.x, dtype=np.float32)),
                    check_one_label(shard.y),
                    classes,
                    to_unit(client_rows(call.starts, index).double().numpy(), classes),
                    call.task.proximal,
                    self.clients.work.weight_decay,
                    call.linear.get(client),
                )
                solution = minimise_regression(problem, gradient_tolerance=call.gradient_tolerance)
                yield [client], torch.from_numpy(solution)[None]

    def _count_right_answers(self, call: TrainingCall) -> Iterator[Block]:
        """Yield the number of right answers of every candidate on every client's own data."""
        for client in call.cohort:
            yield [client], torch.tensor([self._right_answers(client, model) for model in candidates_of(call)])[None]

    def _right_answers(self, client: int, model: Tensor) -> float:
        # The first sum of an evaluation is the number of right answers, for tasks that count them. A client of an audit
        # may have no examples.
        shard = self.clients.shards[client]
        return round(evaluate_model(self.clients.model, model, shard, apart=self._apart).sums[0]) if len(shard) else 0


def candidates_of(call: TrainingCall) -> Tensor:
    """Return the models that a call asks to evaluate."""
    if call.candidates is None:
        invalid("candidates", "missing", "the call names no models to evaluate")
    return call.candidates


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
    """Return roughly how long training and evaluation take in one process here; None where steps are not measured.

    The step is measured on made-up examples; nothing is trained.
    """
    work = measured_work(built.experiment, built.model, built.federation.sizes.tolist())
    if work is None or built.splitter is not None or built.model.device.type != "cpu":
        return None
    step, federation = step_seconds(work, Timing()), built.federation
    # A forward pass takes about a third of a step.
    tested = len(federation.test) + sum(len(client.test) for client in federation.clients)
    evaluations = built.experiment.rounds / built.experiment.evaluate_every
    return step * (planned_steps(built) + evaluations * tested / (3 * work.width))


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
