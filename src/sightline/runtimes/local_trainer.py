"""Local training for the simulator, in this process or in one process per core, with identical results."""

import mmap
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.data import Shard
from sightline.models import FlatModel, Splitting
from sightline.training import LocalTerms, LocalWork, dp_sgd, train_local
from sightline.training.dispatch import dense_layers
from sightline.training.dp_sgd_settings import DPSGDSettings
from sightline.training.submodels import SubmodelClipping, dp_sgd_parts, train_parts


def _run_dp_sgd(
    model: FlatModel, starts: Tensor, shards: Sequence[Shard], *, work: LocalWork, terms: LocalTerms, **how: Any
) -> Iterator[Any]:
    return dp_sgd(model, starts, shards, work, DPSGDSettings(**how), terms=terms)


def _run_dp_sgd_parts(
    splitting: Splitting, starts: Tensor, shards: Sequence[Shard], *, work: LocalWork, terms: LocalTerms,
    apart: SubmodelClipping, assign_rngs: Sequence[np.random.Generator], **how: Any,
) -> Iterator[Any]:  # fmt: skip
    settings = DPSGDSettings(apart.clip_norm, **how)
    return dp_sgd_parts(splitting, starts, shards, work, settings, apart=apart, assign_rngs=assign_rngs, terms=terms)


CALLS: dict[str, Callable[..., Iterator[Any]]] = {
    "train": train_local,
    "dp_sgd": _run_dp_sgd,
    "train_parts": train_parts,
    "dp_sgd_parts": _run_dp_sgd_parts,
}
Rows = tuple[NDArray[np.intp], Tensor]
"""Positions in the cohort, and one end vector for each."""

TENSORS = ("starts", "anchor", "linear", "mask")
"""The fields of a job that are as long as the model. They pass between processes through shared memory."""

ROWS_BYTES = 1 << 27
"""Upper limit for the memory that the end vectors of one turn take."""


@dataclass(frozen=True)
class SharedRows:
    """The location of a tensor of a job in shared memory: one row for all clients, or one row per client."""

    place: int
    rows: list[int] | None


@dataclass(frozen=True, eq=False)
class TrainingJob:
    """One call of local training for some clients; `each` holds the arguments that differ per client."""

    call: str
    starts: Tensor
    terms: LocalTerms
    each: Mapping[str, Sequence[Any] | None]
    shared: Mapping[str, Any]

    def part(self, places: Sequence[int]) -> "TrainingJob":
        """Return the same call for the clients at these positions of the cohort."""
        rows = torch.as_tensor(list(places))

        def picked(tensor: Any) -> Any:
            return tensor if not isinstance(tensor, Tensor) or tensor.dim() == 1 else tensor[rows]

        each = {name: None if many is None else [many[place] for place in places] for name, many in self.each.items()}
        part = replace(self, each=each)
        for name in TENSORS:
            part = part.with_tensor(name, picked(self.tensor_of(name)))
        return part

    def tensor_of(self, name: str) -> Any:
        """Return the field `name`, one of `TENSORS`."""
        return self.starts if name == "starts" else getattr(self.terms, name)

    def with_tensor(self, name: str, value: Any) -> "TrainingJob":
        """Return the same job with another value for one of `TENSORS`."""
        if name == "starts":
            return replace(self, starts=value)
        # A SharedRows placeholder is not a tensor, so the constructor of LocalTerms would reject it: copy and set the
        # field.
        terms = copy(self.terms)
        object.__setattr__(terms, name, value)
        return replace(self, terms=terms)

    def run(self, model: FlatModel | Splitting, shards: Sequence[Shard]) -> Iterator[Rows]:
        """Train here and yield blocks of rows; calls on model parts take the splitting instead of the model."""
        yield from CALLS[self.call](model, self.starts, shards, **self.shared, **self.each, terms=self.terms)


class HereTrainer:
    """Trainer that runs in this process."""

    def __init__(self, model: FlatModel, shards: Sequence[Shard], splitting: Splitting | None) -> None:
        self._model, self._shards, self._trained = model, shards, splitting or model

    def run(self, job: TrainingJob, cohort: Sequence[int]) -> Iterator[Rows]:
        """Yield end vectors in the order of the cohort.

        The order is fixed because floating-point sums over the rows must not depend on how clients were stacked.
        """
        # float32 takes 4 bytes. At least one row, however large the model is.
        rows = max(1, ROWS_BYTES // (4 * self._model.parameters))
        for first in range(0, len(cohort), rows):
            places = range(first, min(first + rows, len(cohort)))
            part = job if len(places) == len(cohort) else job.part(places)
            ends = torch.empty(len(places), self._model.parameters)
            for found, some in part.run(self._trained, [self._shards[cohort[place]] for place in places]):
                ends[torch.as_tensor(found)] = some
            yield np.asarray(places), ends

    @property
    def processes(self) -> int:
        """Return 1."""
        return 1

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


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

    def __init__(self, model: FlatModel, shards: Sequence[Shard], splitting: Splitting | None, workers: int) -> None:
        self._model, self._shards, self._trained, self._splitting = model, shards, splitting or model, splitting
        most = ROWS_BYTES // (4 * AHEAD * model.parameters)
        self._rows = max(workers, min(most, SHARE * workers))
        self._ends = share_rows(AHEAD * self._rows, model.parameters)
        self._common = share_rows(len(TENSORS), model.parameters)
        # Anonymous memory takes no room until it is written, so the largest case can be mapped up front.
        self._given = share_rows(len(TENSORS) * AHEAD * self._rows, model.parameters)
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

    def run(self, job: TrainingJob, cohort: Sequence[int]) -> Iterator[Rows]:
        """Yield end vectors in the order of the cohort; each block is valid until the next one is requested.

        A call during another one is trained in this process, which gives the same bits.
        """
        if self._busy:
            yield from HereTrainer(self._model, self._shards, self._splitting).run(job, cohort)
            return
        self._busy = True
        try:
            yield from self._run_turns(self._share_common(job), cohort)
        finally:
            # A caller that stops early must leave no answers in the pipes: the next call would take them for its own.
            while self._waited_for:
                with suppress(Exception):
                    self._finish_turn()
            self._busy = False

    def _run_turns(self, job: TrainingJob, cohort: Sequence[int]) -> Iterator[Rows]:
        turns = [range(first, min(first + self._rows, len(cohort))) for first in range(0, len(cohort), self._rows)]
        for number, places in enumerate(turns[:AHEAD]):
            self._ask_turn(job, cohort, places, number)
        for number, places in enumerate(turns):
            # Turn n and turn n + AHEAD use the same rows: the next turn is requested only after the caller has consumed
            # this one.
            self._finish_turn()
            first = number % AHEAD * self._rows
            yield np.asarray(places), self._ends[first : first + len(places)]
            if number + AHEAD < len(turns):
                self._ask_turn(job, cohort, turns[number + AHEAD], number + AHEAD)

    def _share_common(self, job: TrainingJob) -> TrainingJob:
        """Write the tensors that all clients share to shared memory once, and return the job that points to them."""
        for place, name in enumerate(TENSORS):
            value = job.tensor_of(name)
            if value is not None and value.dim() == 1 and value.dtype == torch.float32:
                self._common[place].copy_(value)
                job = job.with_tensor(name, SharedRows(place, None))
        return job

    def _ask_turn(self, job: TrainingJob, cohort: Sequence[int], places: range, number: int) -> None:
        first = number % AHEAD * self._rows
        asked: list[Connection] = []
        self._waited_for.append(asked)
        for process, pipe in enumerate(self._pipes):
            mine = self._share_clients(cohort, places, process)
            if mine:
                rows = [first + place - places.start for place in mine]
                pipe.send((self._share_given(job.part(mine), rows), [cohort[place] for place in mine], rows))
                asked.append(pipe)

    def _share_given(self, job: TrainingJob, rows: list[int]) -> TrainingJob:
        """Write the per-client tensors of one process to shared memory, and return the job that points to them."""
        for place, name in enumerate(TENSORS):
            value = job.tensor_of(name)
            if isinstance(value, Tensor) and value.dim() == 2 and value.dtype == torch.float32:
                own = [place * AHEAD * self._rows + row for row in rows]
                self._given[torch.as_tensor(own)] = value
                job = job.with_tensor(name, SharedRows(place, own))
        return job

    def _finish_turn(self) -> None:
        """Wait for the oldest turn in flight; raise the first error of its processes."""
        answers = [_receive_answer(pipe) for pipe in self._waited_for.popleft()]
        failures = [answer for answer in answers if answer is not None]
        if failures:
            raise failures[0]

    def _share_clients(self, cohort: Sequence[int], places: range, number: int) -> list[int]:
        """Return the positions for one process: largest shards first, dealt in turn, so that all finish together."""
        heavy = sorted(places, key=lambda place: (-len(self._shards[cohort[place]]), place))
        return sorted(heavy[number :: len(self._pipes)])

    def _serve_pipe(self, pipe: Connection, not_mine: Sequence[Connection]) -> None:
        # A fork inherits the other pipes. Close them, or this process never sees EOF when the parent ends.
        for other in not_mine:
            other.close()
        # One thread per process: the number of threads changes the order of sums inside torch, and with it the bits.
        torch.set_num_threads(1)
        with suppress(EOFError, KeyboardInterrupt):
            while True:
                job, clients, rows = pipe.recv()
                pipe.send(self._run_served(job, clients, rows))
        # Skip the exit handlers that the fork inherited: they belong to the parent.
        os._exit(0)

    def _run_served(self, job: TrainingJob, clients: Sequence[int], rows: Sequence[int]) -> BaseException | None:
        try:
            for name in TENSORS:
                shared = job.tensor_of(name)
                if isinstance(shared, SharedRows):
                    own = (
                        self._common[shared.place] if shared.rows is None else self._given[torch.as_tensor(shared.rows)]
                    )
                    job = job.with_tensor(name, own)
            for places, ends in job.run(self._trained, [self._shards[client] for client in clients]):
                for place, end in zip(places.tolist(), ends, strict=True):
                    self._ends[rows[place]] = end
        except Exception as error:
            return error
        return None

    def close(self) -> None:
        """Close the pipes; the processes end at EOF."""
        for pipe in self._pipes:
            pipe.close()


def share_rows(rows: int, parameters: int) -> Tensor:
    """Return a tensor in memory that forked processes share; the pages are allocated on first write."""
    memory = mmap.mmap(-1, 4 * rows * parameters)
    return torch.frombuffer(memory, dtype=torch.float32).view(rows, parameters)


def _receive_answer(pipe: Connection) -> BaseException | None:
    try:
        found: BaseException | None = pipe.recv()
        return found
    except EOFError:
        return RuntimeError("a training process ended unexpectedly; the run can go on with --resume")


def trainer_for(
    model: FlatModel, shards: Sequence[Shard], workers: int, splitting: Splitting | None = None
) -> HereTrainer | PoolTrainer:
    """Return a pool where processes pay off, and the in-process trainer otherwise.

    Stacks of dense networks are done before they could be shared out, and an accelerator is one device for all.
    """
    here = model.device.type != "cpu" or dense_layers(model) is not None
    if workers > 1 and len(shards) > 1 and not here:
        return PoolTrainer(model, shards, splitting, workers)
    return HereTrainer(model, shards, splitting)
