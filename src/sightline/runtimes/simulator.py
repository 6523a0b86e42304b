"""The simulator: runs training calls of every client on this machine, block by block."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

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
from sightline.runtimes.local_trainer import LocalClients, client_rngs, trainer_for
from sightline.training import clipped_gradient_sum, evaluate_model
from sightline.training.call import Block, CallKind, StateAccess, TrainingCall, effective_steps
from sightline.training.dp_sgd_settings import ViewKind, Views
from sightline.training.local_work import client_rows, steps_of
from sightline.training.measure_paths import local_work
from sightline.training.submodels import parted_gradient_sum


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
        # Under privacy of single examples, evaluate each alone: one example then changes a count of right answers by at
        # most one.
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
            CallKind.GRADIENT_SUMS: self._sum_gradients,
            CallKind.MINIMISE: self._minimise,
            CallKind.RIGHT_ANSWERS: self._count_right_answers,
        }
        if call.kind in runners or not call.cohort:
            yield from runners[call.kind](call) if call.cohort else ()
            return
        # Local training; the clients' states are updated on the way.
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
