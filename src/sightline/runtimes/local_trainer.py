"""Local training of the clients on this machine, in this process or in one process per core, with identical results."""

import mmap
import multiprocessing
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.data import Shard
from sightline.models import FlatModel
from sightline.randomness import Purpose, Streams
from sightline.training import LocalWork, dp_sgd, train_local
from sightline.training.call import TERM_TENSORS, CallId, CallKind, PrivateSteps, TrainingCall
from sightline.training.dispatch import dense_layers
from sightline.training.dp_sgd_settings import DPSGDSettings, Views
from sightline.training.schedule import Schedules
from sightline.training.submodels import ModelParts, dp_sgd_parts, train_parts

Rows = tuple[NDArray[np.intp], Tensor]
"""Positions in the cohort, and one end vector for each."""

ROWS_BYTES = 1 << 27
"""Upper limit for the memory that the end vectors of one turn take."""


@dataclass(frozen=True, eq=False)
class LocalClients:
    """The clients of this machine: their examples, what the experiment asks of them, and their random streams.

    Guarantees: a client's rows depend on the call and on its own examples and streams only, never on the others.
    """

    model: FlatModel
    shards: Sequence[Shard]
    work: LocalWork
    public: Streams
    secret: Streams
    sizes: Sequence[int] = ()
    """Public numbers of examples; those of the shards if not given."""
    parts: ModelParts | None = None
    views: Views | None = None
    schedules: Schedules = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "schedules", Schedules(self.secret))
        object.__setattr__(self, "sizes", list(self.sizes) or [len(shard) for shard in self.shards])

    def train(self, call: TrainingCall) -> Iterator[Rows]:
        """Train the clients of a call here, by its kind."""
        shards = [self.shards[client] for client in call.cohort]
        if call.kind is CallKind.DP_SGD:
            return self._train_privately(call, shards)
        work, terms, times = call.task.adjust_work(self.work), call.task.terms, call.task.repeat
        work = replace(work, epochs=work.epochs and times * work.epochs, steps=work.steps and times * work.steps)
        epochs = None if call.epochs is None else [times * epochs for epochs in call.epochs]
        # Public streams: no amplification is claimed for the batches of plain local SGD.
        rngs = client_rngs(self.public, Purpose.BATCHES, call)
        if call.parts is None:
            return train_local(self.model, call.starts, shards, work, rngs=rngs, terms=terms, epochs_of=epochs)
        # The part of every client is drawn from the secret streams for this call, and stored nowhere.
        splitting = call.parts.splitting.in_round(call.at.round)
        drawn = [splitting.draw(1, rng=rng)[0] for rng in client_rngs(self.secret, Purpose.ASSIGNMENT, call)]
        return train_parts(
            splitting, call.starts, shards, work, assigned=drawn, rngs=rngs, terms=terms, epochs_of=epochs
        )

    def _train_privately(self, call: TrainingCall, shards: Sequence[Shard]) -> Iterator[Rows]:
        plans, clip_norm = call.plans, call.plans[0].clip_norm
        # Secret streams: amplification by sampling holds only while the drawn batches are hidden.
        batches, noise = (client_rngs(self.secret, purpose, call) for purpose in (Purpose.BATCHES, Purpose.NOISE))
        whole = call.parts is None
        settings = DPSGDSettings(
            clip_norm=clip_norm,
            # In parts, every part has its own clip radius, and the noise multiplier is applied per part.
            noise_std=[plan.noise_multiplier * (plan.clip_norm if whole else 1.0) for plan in plans],
            sample_rates=[plan.rate / max(1, plan.groups) for plan in plans],
            steps=[plan.steps for plan in plans],
            divisors=[plan.expected_batch for plan in plans],
            sampling_rngs=batches,
            noise_rngs=noise,
            batches=self._fixed_batches(call, batches),
            views=self.views,
            view_rngs=None if self.views is None else client_rngs(self.secret, Purpose.VIEWS, call),
            strategies=[plan.strategy for plan in plans] if any(plan.strategy for plan in plans) else None,
        )
        work, terms = call.task.adjust_work(self.work), call.task.terms
        if call.parts is None:
            return dp_sgd(self.model, call.starts, shards, work, settings, terms=terms)
        rngs, apart = client_rngs(self.secret, Purpose.ASSIGNMENT, call), call.parts.clip_radii(clip_norm)
        splitting = call.parts.splitting.in_round(call.at.round)
        return dp_sgd_parts(splitting, call.starts, shards, work, settings, apart=apart, assign_rngs=rngs, terms=terms)

    def _fixed_batches(
        self, call: TrainingCall, rngs: Sequence[np.random.Generator]
    ) -> list[list[NDArray[np.intp]]] | None:
        """Return every client's batches where a schedule or groups fix them; None where each step draws its own."""
        if any(plan.groups for plan in call.plans):
            drawing = zip(call.cohort, call.plans, rngs, strict=True)
            return [self.grouped_batches(client, plan, call.at, rng) for client, plan, rng in drawing]
        if any(plan.allotment is not None for plan in call.plans):
            return [self.scheduled_batches(n, plan, call.at) for n, plan in zip(call.cohort, call.plans, strict=True)]
        return None

    def scheduled_batches(self, client: int, plan: PrivateSteps, at: CallId) -> list[NDArray[np.intp]]:
        """Return the batches of a client's round under its hidden schedule."""
        if plan.allotment is None:
            raise ValueError("the plan has no schedule")
        first = plan.first_step(at.round)
        members, there = self.sizes[client], len(self.shards[client])
        batches = [
            self.schedules.members_used(step, plan.allotment, members=members, participant=client, line=plan.line)
            for step in range(first, first + plan.steps)
        ]
        # A schedule is over the public number of examples; an audit may leave some of them out.
        return batches if members == there else [batch[batch < there] for batch in batches]

    def grouped_batches(
        self, client: int, plan: PrivateSteps, at: CallId, rng: np.random.Generator
    ) -> list[NDArray[np.intp]]:
        """Return the batches of a segment: groups by index take turns, each example of a group drawn independently."""
        turns = range(at.round - 1 + at.use, at.round - 1 + at.use + plan.steps)
        groups = [np.arange(turn % plan.groups, self.sizes[client], plan.groups) for turn in turns]
        return [group[rng.random(len(group)) < plan.rate] for group in groups]


def client_rngs(streams: Streams, purpose: Purpose, call: TrainingCall) -> list[np.random.Generator]:
    """Return the generator of every client of a call."""
    at = call.at
    return [streams.rng(purpose, round=at.round, participant=client, use=at.use) for client in call.cohort]


class HereTrainer:
    """Trainer that runs in this process."""

    processes = 1

    def __init__(self, clients: LocalClients) -> None:
        self._clients = clients

    def run(self, call: TrainingCall) -> Iterator[Rows]:
        """Yield end vectors in the order of the cohort.

        The order is fixed because floating-point sums over the rows must not depend on how clients were stacked.
        """
        # float32 takes 4 bytes. At least one row, however large the model is.
        count, parameters = len(call.cohort), self._clients.model.parameters
        rows = max(1, ROWS_BYTES // (4 * parameters))
        for first in range(0, count, rows):
            indices = range(first, min(first + rows, count))
            ends = torch.empty(len(indices), parameters)
            part = call if len(indices) == count else call.select_clients(indices)
            for positions, vectors in self._clients.train(part):
                ends[torch.as_tensor(positions)] = vectors
            yield np.asarray(indices), ends

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


TENSORS = ("starts", *TERM_TENSORS)
"""The vectors of a call, which pass between processes through shared memory."""


@dataclass(frozen=True)
class SharedRows:
    """The location of a tensor of a call in shared memory: one row for all clients, or one row per client."""

    index: int
    rows: list[int] | None


SHARE = 4
"""Clients per process in one turn. Few, so that the parent sums one turn while the processes train the next."""
AHEAD = 2
"""Turns in flight at once: the one whose rows are being consumed, and the one being trained."""


class PoolTrainer:
    """Trainer that runs in forked processes, which share the data and exchange vectors through shared memory.

    Guarantees: every client is trained alone, by the same code and with the same streams as in one process, and results
    come back in the order of the cohort, so the bits do not depend on the length of a turn. Yielded rows are valid
    until the next ones are requested. An error in a process is raised here. The processes end with their parent.
    """

    def __init__(self, clients: LocalClients, workers: int) -> None:
        self._clients, parameters = clients, clients.model.parameters
        most = ROWS_BYTES // (4 * AHEAD * parameters)
        self._rows = max(workers, min(most, SHARE * workers))
        self._ends = share_rows(AHEAD * self._rows, parameters)
        self._common = share_rows(len(TENSORS), parameters)
        # Anonymous memory takes no room until it is written, so the largest case can be mapped up front.
        self._given = share_rows(len(TENSORS) * AHEAD * self._rows, parameters)
        # Fork, not spawn: the children inherit the model, the data and the mapped rows without a copy.
        context = multiprocessing.get_context("fork")
        self._pipes: list[Connection] = []
        self._waited_for: deque[list[Connection]] = deque()
        self._busy = False
        for _ in range(workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=self._serve_pipe, args=(theirs, [*self._pipes, ours]), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)

    @property
    def processes(self) -> int:
        """Return the number of training processes."""
        return len(self._pipes)

    def run(self, call: TrainingCall) -> Iterator[Rows]:
        """Yield end vectors in the order of the cohort; each block is valid until the next one is requested.

        A call during another one is trained in this process, which gives the same bits.
        """
        if self._busy:
            yield from HereTrainer(self._clients).run(call)
            return
        self._busy = True
        try:
            yield from self._run_turns(call)
        finally:
            # A caller that stops early must leave no answers in the pipes: the next call would take them for its own.
            while self._waited_for:
                with suppress(Exception):
                    self._finish_turn()
            self._busy = False

    def _run_turns(self, call: TrainingCall) -> Iterator[Rows]:
        count, common = len(call.cohort), self._share_common(call)
        turns = [range(first, min(first + self._rows, count)) for first in range(0, count, self._rows)]
        for number, indices in enumerate(turns[:AHEAD]):
            self._ask_turn(call, common, indices, number)
        for number, indices in enumerate(turns):
            # Turn n and turn n + AHEAD use the same rows: the next turn is requested only after the caller has consumed
            # this one.
            self._finish_turn()
            first = number % AHEAD * self._rows
            yield np.asarray(indices), self._ends[first : first + len(indices)]
            if number + AHEAD < len(turns):
                self._ask_turn(call, common, turns[number + AHEAD], number + AHEAD)

    def _share_common(self, call: TrainingCall) -> dict[str, SharedRows]:
        """Write the tensors that all clients share to shared memory once; return where they are."""
        shared = {}
        for name, value in call.tensors().items():
            if value.dim() == 1 and value.dtype == torch.float32:
                shared[name] = SharedRows(TENSORS.index(name), None)
                self._common[shared[name].index].copy_(value)
        return shared

    def _ask_turn(self, call: TrainingCall, common: Mapping[str, SharedRows], indices: range, number: int) -> None:
        first = number % AHEAD * self._rows
        asked: list[Connection] = []
        self._waited_for.append(asked)
        for process, pipe in enumerate(self._pipes):
            mine = self._share_clients(call.cohort, indices, process)
            if mine:
                rows = [first + index - indices.start for index in mine]
                part = call.select_clients(mine)
                pipe.send((strip_call(part), call.parts is not None, {**common, **self._share_rows(part, rows)}, rows))
                asked.append(pipe)

    def _share_rows(self, call: TrainingCall, rows: list[int]) -> dict[str, SharedRows | Tensor]:
        """Write the per-client tensors of one process to shared memory.

        Return each tensor by name: its rows in shared memory, or the tensor itself if it is not float32.
        """
        given: dict[str, SharedRows | Tensor] = {}
        for name, value in call.tensors().items():
            if value.dtype != torch.float32:
                given[name] = value
            elif value.dim() == 2:
                index = TENSORS.index(name)
                own = [index * AHEAD * self._rows + row for row in rows]
                self._given[torch.as_tensor(own)] = value
                given[name] = SharedRows(index, own)
        return given

    def _finish_turn(self) -> None:
        """Wait for the oldest turn in flight; raise the first error of its processes."""
        answers = [_receive_answer(pipe) for pipe in self._waited_for.popleft()]
        failures = [answer for answer in answers if answer is not None]
        if failures:
            raise failures[0]

    def _share_clients(self, cohort: Sequence[int], indices: range, number: int) -> list[int]:
        """Return the positions for one process: largest shards first, dealt in turn, so that all finish together."""
        heavy = sorted(indices, key=lambda index: (-len(self._clients.shards[cohort[index]]), index))
        return sorted(heavy[number :: len(self._pipes)])

    def _serve_pipe(self, pipe: Connection, not_mine: Sequence[Connection]) -> None:
        # A fork inherits the other pipes. Close them, or this process never sees EOF when the parent ends.
        for other in not_mine:
            other.close()
        # One thread per process: the number of threads changes the order of sums inside torch, and with it the bits.
        torch.set_num_threads(1)
        with suppress(EOFError, KeyboardInterrupt):
            while True:
                pipe.send(self._run_served(*pipe.recv()))
        # Skip the exit handlers that the fork inherited: they belong to the parent.
        os._exit(0)

    def _run_served(
        self, call: TrainingCall, in_parts: bool, tensors: Mapping[str, SharedRows | Tensor], rows: Sequence[int]
    ) -> BaseException | None:
        try:
            call = call.with_tensors({name: self._read_shared(value) for name, value in tensors.items()})
            for indices, ends in self._clients.train(replace(call, parts=self._clients.parts if in_parts else None)):
                for index, end in zip(indices.tolist(), ends, strict=True):
                    self._ends[rows[index]] = end
        except Exception as error:
            return error
        return None

    def _read_shared(self, value: SharedRows | Tensor) -> Tensor:
        if isinstance(value, Tensor):
            return value
        return self._common[value.index] if value.rows is None else self._given[torch.as_tensor(value.rows)]

    def close(self) -> None:
        """Close the pipes; the processes end at EOF."""
        for pipe in self._pipes:
            pipe.close()


def share_rows(rows: int, parameters: int) -> Tensor:
    """Return a tensor in memory that forked processes share; the pages are allocated on first write."""
    memory = mmap.mmap(-1, 4 * rows * parameters)
    return torch.frombuffer(memory, dtype=torch.float32).view(rows, parameters)


def strip_call(call: TrainingCall) -> TrainingCall:
    """Return what is sent of a call: no vectors, and nothing that a forked process has already or must not know."""
    task = replace(call.task, anchor=None, linear=None, mask=None)
    plans = [replace(plan, splitter=None) for plan in call.plans] if call.parts is not None else call.plans
    return replace(call, starts=torch.empty(0), task=task, plans=plans, parts=None, state=None)


def _receive_answer(pipe: Connection) -> BaseException | None:
    try:
        answer: BaseException | None = pipe.recv()
        return answer
    except EOFError:
        return RuntimeError("a training process ended unexpectedly; continue the run with --resume")


def trainer_for(clients: LocalClients, workers: int) -> HereTrainer | PoolTrainer:
    """Return a pool where processes pay off, and the in-process trainer otherwise.

    Stacks of dense networks are done before they could be shared out, and an accelerator is one device for all.
    """
    here = clients.model.device.type != "cpu" or dense_layers(clients.model) is not None
    return (
        PoolTrainer(clients, workers) if workers > 1 and len(clients.shards) > 1 and not here else HereTrainer(clients)
    )
