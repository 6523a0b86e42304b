"""Who does the local training of a simulator: this process, or one process per core. The bits are the same."""

import mmap
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
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
"""Places in the cohort, and one end vector for each."""

ROWS_BYTES = 1 << 27
"""How much shared memory the end vectors of one turn may take."""


@dataclass(frozen=True, eq=False)
class TrainingJob:
    """A call of local training for some clients; `each` holds the arguments that are one per client."""

    call: str
    starts: Tensor
    terms: LocalTerms
    each: Mapping[str, Sequence[Any] | None]
    shared: Mapping[str, Any]

    def part(self, places: Sequence[int]) -> "TrainingJob":
        """The same call for the clients at these places of the cohort."""
        rows = torch.as_tensor(list(places))

        def picked(tensor: Tensor | None) -> Tensor | None:
            return tensor if tensor is None or tensor.dim() == 1 else tensor[rows]

        terms = replace(
            self.terms, anchor=picked(self.terms.anchor), linear=picked(self.terms.linear), mask=picked(self.terms.mask)
        )
        each = {name: None if many is None else [many[place] for place in places] for name, many in self.each.items()}
        starts = self.starts if self.starts.dim() == 1 else self.starts[rows]
        return replace(self, starts=starts, terms=terms, each=each)

    def run(self, model: FlatModel | Splitting, shards: Sequence[Shard]) -> Iterator[Rows]:
        """Do it here; calls on parts take the splitting in the model's place."""
        yield from CALLS[self.call](model, self.starts, shards, **self.shared, **self.each, terms=self.terms)


class HereTrainer:
    """Training in this process."""

    def __init__(self, model: FlatModel, shards: Sequence[Shard], splitting: Splitting | None) -> None:
        self._model, self._shards, self._trained = model, shards, splitting or model

    def run(self, job: TrainingJob, cohort: Sequence[int]) -> Iterator[Rows]:
        """End vectors, in the order of the cohort: sums over them must not depend on how clients were stacked."""
        rows = max(1, ROWS_BYTES // (4 * self._model.parameters))
        for first in range(0, len(cohort), rows):
            places = range(first, min(first + rows, len(cohort)))
            part = job if len(places) == len(cohort) else job.part(places)
            ends = torch.empty(len(places), self._model.parameters)
            for found, some in part.run(self._trained, [self._shards[cohort[place]] for place in places]):
                ends[torch.as_tensor(found)] = some
            yield np.asarray(places), ends

    def close(self) -> None:
        """Nothing to let go."""


class PoolTrainer:
    """Training in forked processes that share the data and write their results into shared memory.

    Guarantees: every client is trained alone by the same code with the same streams as in one process, and results come
    back in the order of the cohort: same bits. An error in a process is raised here; processes end with their parent.
    """

    def __init__(self, model: FlatModel, shards: Sequence[Shard], splitting: Splitting | None, workers: int) -> None:
        self._model, self._shards, self._trained = model, shards, splitting or model
        self._rows = max(workers, ROWS_BYTES // (4 * model.parameters))
        self._memory = mmap.mmap(-1, 4 * self._rows * model.parameters)
        self._ends = torch.frombuffer(self._memory, dtype=torch.float32).view(self._rows, model.parameters)
        context = multiprocessing.get_context("fork")
        self._pipes: list[Connection] = []
        for _ in range(workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=self._serve_pipe, args=(theirs, [*self._pipes, ours]), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)

    def run(self, job: TrainingJob, cohort: Sequence[int]) -> Iterator[Rows]:
        """End vectors, in the order of the cohort."""
        for first in range(0, len(cohort), self._rows):
            places = range(first, min(first + self._rows, len(cohort)))
            self._run_turn(job, cohort, places)
            yield np.asarray(places), self._ends[: len(places)].clone()

    def _run_turn(self, job: TrainingJob, cohort: Sequence[int], places: range) -> None:
        asked = []
        for number, pipe in enumerate(self._pipes):
            mine = self._share_clients(cohort, places, number)
            if mine:
                clients = [cohort[place] for place in mine]
                pipe.send((job.part(mine), clients, [place - places.start for place in mine]))
                asked.append(pipe)
        failures = [answer for answer in [_receive_answer(pipe) for pipe in asked] if answer is not None]
        if failures:
            raise failures[0]

    def _share_clients(self, cohort: Sequence[int], places: range, number: int) -> list[int]:
        """Largest shards first, dealt in turn: the processes finish together."""
        heavy = sorted(places, key=lambda place: (-len(self._shards[cohort[place]]), place))
        return sorted(heavy[number :: len(self._pipes)])

    def _serve_pipe(self, pipe: Connection, not_mine: Sequence[Connection]) -> None:
        for other in not_mine:
            other.close()
        torch.set_num_threads(1)
        with suppress(EOFError, KeyboardInterrupt):
            while True:
                job, clients, rows = pipe.recv()
                pipe.send(self._run_served(job, clients, rows))
        os._exit(0)

    def _run_served(self, job: TrainingJob, clients: Sequence[int], rows: Sequence[int]) -> BaseException | None:
        try:
            for places, ends in job.run(self._trained, [self._shards[client] for client in clients]):
                for place, end in zip(places.tolist(), ends, strict=True):
                    self._ends[rows[place]] = end
        except Exception as error:
            return error
        return None

    def close(self) -> None:
        """Let the processes end."""
        for pipe in self._pipes:
            pipe.close()


def _receive_answer(pipe: Connection) -> BaseException | None:
    try:
        found: BaseException | None = pipe.recv()
        return found
    except EOFError:
        return RuntimeError("a training process ended unexpectedly; the run can go on with --resume")


def trainer_for(
    model: FlatModel, shards: Sequence[Shard], workers: int, splitting: Splitting | None = None
) -> HereTrainer | PoolTrainer:
    """Processes where they pay: not for stacks of dense networks, done before they are shared, nor on one device."""
    here = model.device.type != "cpu" or dense_layers(model) is not None
    if workers > 1 and len(shards) > 1 and not here:
        return PoolTrainer(model, shards, splitting, workers)
    return HereTrainer(model, shards, splitting)
