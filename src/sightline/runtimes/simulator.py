"""The simulator: trains every client on this machine, block by block."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline import mkl
from sightline.data.federation import check_one_label
from sightline.engine.build import BuiltExperiment
from sightline.events import Unit
from sightline.mechanisms import (
    Allotment,
    Block,
    CallId,
    PrivateSteps,
    Schedules,
    Splitter,
    StateAccess,
    effective_steps,
)
from sightline.mechanisms.convex_solver import Regression, minimise_regression, to_unit, unit_examples
from sightline.randomness import Purpose, Streams
from sightline.runtimes.local_trainer import TrainingJob, trainer_for
from sightline.training import LocalTask, LocalTerms, LocalWork, clipped_gradient_sum, evaluate_model
from sightline.training.dp_sgd_settings import ViewKind, Views
from sightline.training.local_work import client_rows, steps_of
from sightline.training.measure_paths import local_work
from sightline.training.submodels import parted_gradient_sum


class Simulator:
    """Client executor for simulations.

    Every client draws from streams keyed by its own number, so neither order nor batching matters.
    """

    def __init__(self, setting: BuiltExperiment, public: Streams, secret: Streams, *, workers: int = 1) -> None:
        # The number of threads decides the order of sums inside torch: with one thread a seed gives the same bits
        # everywhere.
        torch.set_num_threads(1)
        mkl.warn_unless_reproducible()
        local = setting.experiment.local
        self.dimension = setting.model.parameters
        self.sizes = setting.federation.sizes.tolist()
        self._model = setting.model
        self._shards = [client.train for client in setting.federation.clients]
        self._public, self._secret = public, secret
        self._schedules = Schedules(secret)
        self._stragglers = local.stragglers
        # With examples as the unit, evaluate them one at a time, so that one example changes a count of right answers
        # by one.
        self._apart = setting.unit is Unit.SAMPLE
        self._work = local_work(setting.experiment, setting.paths)
        augment = local.augment
        self._views = None if augment is None else Views(augment.views, ViewKind(augment.kind), augment.pixels)
        self._splitting = None if setting.splitter is None else setting.splitter.splitting
        self._trainer = trainer_for(self._model, self._shards, workers, self._splitting)

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

    def train(
        self,
        cohort: Sequence[int],
        starts: Tensor,
        *,
        at: CallId,
        task: LocalTask,
        recall: StateAccess | None = None,
        splitter: Splitter | None = None,
    ) -> Iterator[Block]:
        """Yield the end vectors of local SGD, or of the solver that comes with the clients' state."""
        if not cohort:
            return
        # Public streams: no amplification is claimed for the batches of plain local SGD.
        rngs = self._client_rngs(self._public, Purpose.BATCHES, cohort, at)
        work = task.adjust_work(self._work)
        epochs = self._client_epochs(cohort, at) if work.steps is None else None
        steps = self._steps_of(cohort, epochs, work)
        if recall is not None and recall.memory.solver is not None:
            yield from self._run_solver(cohort, starts, rngs, steps, recall, work)
            return
        times = task.repeat
        each: dict[str, Any] = {
            "rngs": rngs,
            "epochs_of": None if epochs is None else [times * some for some in epochs],
        }
        if splitter is not None:
            each["assigned"] = self._assign_parts(splitter, cohort, at)
        job = TrainingJob(
            "train" if splitter is None else "train_parts",
            starts,
            _with_memory(task, cohort, recall),
            each,
            shared={"work": _repeat_work(work, times)},
        )
        yield from self._update_states(cohort, starts, self._trainer.run(job, cohort), steps, recall, noised=False)

    def _assign_parts(self, splitter: Splitter, cohort: Sequence[int], at: CallId) -> list[Any]:
        """Draw the model part of every member for this training call, from the secret streams; store it nowhere."""
        rngs = self._client_rngs(self._secret, Purpose.ASSIGNMENT, cohort, at)
        return [splitter.splitting.draw(1, rng=rng)[0] for rng in rngs]

    def _run_solver(
        self, cohort: Sequence[int], starts: Tensor, rngs: Sequence[np.random.Generator], steps: Sequence[int],
        recall: StateAccess, work: LocalWork,
    ) -> Iterator[Block]:  # fmt: skip
        """Yield every member's result of the solver that comes with the state rule."""
        for place, client in enumerate(cohort):
            end, kept = recall.memory.solver(  # type: ignore[misc]
                self._model, client_rows(starts, place), self._shards[client], work, steps=steps[place], rng=rngs[place]
            )
            recall.keep_value(client, kept, noised=False)
            yield [client], end[None]

    def _update_states(
        self,
        cohort: Sequence[int],
        starts: Tensor,
        found: Iterator[Any],
        steps: Sequence[int],
        recall: StateAccess | None,
        *,
        noised: bool,
    ) -> Iterator[Block]:
        """Yield blocks by client number, and update the clients' states on the way."""
        for places, ends in found:
            for place, end in zip(places, ends, strict=True) if recall is not None else ():
                work = effective_steps(steps[place], self._work.momentum)
                start = client_rows(starts, int(place))
                recall.keep_state(cohort[place], start, end, work, noised=noised)  # type: ignore[union-attr]
            yield [cohort[place] for place in places], ends

    def minimise(
        self,
        cohort: Sequence[int],
        starts: Tensor,
        *,
        task: LocalTask,
        linear: Mapping[int, NDArray[np.float64]],
        gradient_tolerance: float,
    ) -> Iterator[Block]:
        """Yield the exact minimiser of every member's local problem, one client at a time."""
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

        classes = self._model.classes
        # BLAS sums in an order that depends on its threads: one thread keeps the bits the same.
        with threadpool_limits(1, user_api="blas"):
            for place, client in enumerate(cohort):
                shard = self._shards[client]
                problem = Regression(
                    unit_examples(np.asarray(shard.x, dtype=np.float32)),
                    check_one_label(shard.y),
                    classes,
                    to_unit(client_rows(starts, place).double().numpy(), classes),
                    task.proximal,
                    self._work.weight_decay,
                    linear.get(client),
                )
                yield (
                    [client],
                    torch.from_numpy(minimise_regression(problem, gradient_tolerance=gradient_tolerance))[None],
                )

    def _steps_of(self, cohort: Sequence[int], epochs: Sequence[float] | None, work: LocalWork) -> list[int]:
        return [
            steps_of(self.sizes[client], work, None if epochs is None else epochs[place])
            for place, client in enumerate(cohort)
        ]

    def dp_sgd(
        self,
        cohort: Sequence[int],
        starts: Tensor,
        *,
        plans: Sequence[PrivateSteps],
        at: CallId,
        task: LocalTask,
        recall: StateAccess | None = None,
    ) -> Iterator[Block]:
        """Yield the end vectors of DP-SGD, each member with its own noise and sampling."""
        if not cohort:
            return
        if recall is not None:
            recall.require_noised()
        splitter, clip_norm = plans[0].splitter, plans[0].clip_norm
        each: dict[str, list[Any]] = {
            "sample_rates": [plan.rate / max(1, plan.groups) for plan in plans],
            "steps": [plan.steps for plan in plans],
            "divisors": [plan.expected_batch for plan in plans],
            # Secret streams: amplification by sampling holds only while the drawn batches are hidden.
            "sampling_rngs": self._client_rngs(self._secret, Purpose.BATCHES, cohort, at),
            "noise_rngs": self._client_rngs(self._secret, Purpose.NOISE, cohort, at),
        }
        if any(plan.allotment is not None for plan in plans):
            each["batches"] = [self._scheduled_batches(n, plan, at) for n, plan in zip(cohort, plans, strict=True)]
        if any(plan.groups for plan in plans):
            drawing = zip(cohort, plans, each["sampling_rngs"], strict=True)
            each["batches"] = [self._grouped_batches(n, plan, at, rng) for n, plan, rng in drawing]
        if any(plan.strategy is not None for plan in plans):
            each["strategies"] = [plan.strategy for plan in plans]
        shared: dict[str, Any] = {"work": task.adjust_work(self._work)}
        if splitter is None:
            call, shared["clip_norm"] = "dp_sgd", clip_norm
            each["noise_std"] = [plan.noise_multiplier * plan.clip_norm for plan in plans]
        else:
            # Every part has its own clip radius, and the noise multiplier is applied per part.
            call, shared["apart"] = "dp_sgd_parts", splitter.clip_radii(clip_norm)
            each["noise_std"] = [plan.noise_multiplier for plan in plans]
            each["assign_rngs"] = self._client_rngs(self._secret, Purpose.ASSIGNMENT, cohort, at)
        if self._views is not None:
            shared["views"], each["view_rngs"] = self._views, self._client_rngs(self._secret, Purpose.VIEWS, cohort, at)
        job = TrainingJob(call, starts, _with_memory(task, cohort, recall), each, shared)
        noised = all(plan.noise_multiplier > 0 for plan in plans)
        found = self._trainer.run(job, cohort)
        yield from self._update_states(cohort, starts, found, each["steps"], recall, noised=noised)

    def gradient_sums(
        self, cohort: Sequence[int], starts: Tensor, *, plans: Sequence[PrivateSteps], at: CallId
    ) -> Iterator[Block]:
        """Yield the sum of clipped gradients of one drawn batch per member."""
        rngs = self._client_rngs(self._secret, Purpose.BATCHES, cohort, at)
        view_rngs = self._client_rngs(self._secret, Purpose.VIEWS, cohort, at)
        for place, (client, plan, rng) in enumerate(zip(cohort, plans, rngs, strict=True)):
            shard = self._shards[client]
            if plan.allotment is None:
                drawn = np.flatnonzero(rng.random(len(shard)) < plan.rate)
            else:
                (drawn,) = self._scheduled_batches(client, plan, at)
            start, x, y = client_rows(starts, place), shard.x[drawn], shard.y[drawn]
            if plan.splitter is None:
                views = None if self._views is None else (self._views, view_rngs[place])
                how: dict[str, Any] = {"clip_norm": plan.clip_norm, "rng": rng, "views": views}
                total = clipped_gradient_sum(self._model, start, x, y, **how)
            else:
                own = self._client_rngs(self._secret, Purpose.ASSIGNMENT, [client], at)[0]
                apart = plan.splitter.clip_radii(plan.clip_norm)
                total = parted_gradient_sum(plan.splitter.splitting, start, x, y, apart, rng=own)
            yield [client], total[None]

    def _scheduled_batches(self, client: int, plan: PrivateSteps, at: CallId) -> list[NDArray[np.intp]]:
        """Return the batches of a client's round under its hidden schedule."""
        first = plan.first_step(at.round)
        return [
            self._schedules.members_used(
                step, cast(Allotment, plan.allotment), members=self.sizes[client], participant=client, line=plan.line
            )
            for step in range(first, first + plan.steps)
        ]

    def _grouped_batches(
        self, client: int, plan: PrivateSteps, at: CallId, rng: np.random.Generator
    ) -> list[NDArray[np.intp]]:
        """Return the batches of a segment: groups by index take turns, each example of a group drawn independently."""
        turns = range(at.round - 1 + at.use, at.round - 1 + at.use + plan.steps)
        groups = [np.arange(turn % plan.groups, self.sizes[client], plan.groups) for turn in turns]
        return [group[rng.random(len(group)) < plan.rate] for group in groups]

    def right_answers(self, cohort: Sequence[int], models: Tensor) -> Iterator[tuple[int, list[int]]]:
        """Yield the number of right answers of every model on every member's own data."""
        for client in cohort:
            shard = self._shards[client]
            found = [evaluate_model(self._model, model, shard, apart=self._apart) for model in models]
            # The first sum of an evaluation is the number of right answers, for tasks that count them.
            yield client, [round(one.sums[0]) for one in found]

    def _client_rngs(
        self, streams: Streams, purpose: Purpose, cohort: Sequence[int], at: CallId
    ) -> list[np.random.Generator]:
        return [streams.rng(purpose, round=at.round, participant=client, use=at.use) for client in cohort]

    def _client_epochs(self, cohort: Sequence[int], at: CallId) -> list[float] | None:
        """Return the epochs of every member, fewer for stragglers.

        With probability `stragglers` a client does a uniform 1..E-1 of its E epochs; its partial work is kept.
        """
        epochs = self._work.epochs
        # Public streams: who is slow is not claimed to be hidden.
        if not self._stragglers or epochs is None or epochs < 2:
            return None
        rngs = self._client_rngs(self._public, Purpose.STRAGGLERS, cohort, at)
        return [float(rng.integers(1, epochs)) if rng.random() < self._stragglers else float(epochs) for rng in rngs]


def _repeat_work(work: LocalWork, times: int) -> LocalWork:
    """Return the work of `times` rounds in one call, for a client that trains alone meanwhile."""
    epochs, steps = work.epochs, work.steps
    return replace(work, epochs=epochs and times * epochs, steps=steps and times * steps)


def _with_memory(task: LocalTask, cohort: Sequence[int], recall: StateAccess | None) -> LocalTerms:
    """Return the terms of the local objectives with the linear term that every member's state adds."""
    return task.add_linear(None if recall is None else recall.linear_rows(cohort))
