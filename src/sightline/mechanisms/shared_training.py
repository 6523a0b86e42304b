"""One training call whose results are released by several channels: trained together, released apart."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.errors import Refused
from sightline.mechanisms.client_state import StateAccess
from sightline.mechanisms.samplers import Cohort
from sightline.mechanisms.submodels import Splitter
from sightline.mechanisms.updates import Block, CallId, ClientExecutor, PrivateSteps, Updates
from sightline.topology import Channel
from sightline.training import LocalTask

TOGETHER_FLOATS = 1 << 27
"""Beyond so many numbers the end vectors of a whole cohort are not kept at once, and parts are trained one by one."""


def share_training(updates: Updates, channels: Sequence[Channel]) -> list[tuple[Updates, Channel]]:
    """The updates of each channel's members, as if each had been trained by itself: same streams, same bits.

    Guarantees: nobody's update is in two parts, so that nobody's noise is used twice; every part has noise of its own.
    """
    taken: set[int] = set()
    for channel in channels:
        if taken & set(channel.members):
            raise Refused(f"channel={channel.name}: shares a member with another; train for each of them by itself")
        taken |= set(channel.members)
    if set(updates.cohort.members) - taken:
        raise Refused("cohort: has members that are in none of the channels; name a channel for each of them")
    worker: ClientExecutor = updates.worker
    if worker.nodes is None and len(updates.cohort.members) * worker.dimension <= TOGETHER_FLOATS:
        worker = SharedTraining(updates)
    return [(_channel_part(updates, worker, channel, place + 1), channel) for place, channel in enumerate(channels)]


def _channel_part(updates: Updates, worker: ClientExecutor, channel: Channel, number: int) -> Updates:
    own = frozenset(channel.members)
    members = tuple(member for member in updates.cohort.members if member in own)
    starts = {member: updates.starts[member] for member in members}
    places = [place for place, member in enumerate(updates.cohort.members) if member in own]
    task = updates.task.select_clients(places)
    at = replace(updates.at, part=number)
    eligible = frozenset[int]().union(*(updates.behind.get(n, updates.eligible) for n in channel.members))
    return replace(updates, cohort=Cohort(members), starts=starts, worker=worker, task=task, at=at, eligible=eligible)


class SharedTraining:
    """Trains a whole cohort when the first of its parts asks, and hands every part its rows."""

    nodes = None

    def __init__(self, whole: Updates) -> None:
        self._whole = whole
        self._ends: dict[int, Tensor] = {}
        self._plans: dict[int, PrivateSteps] = {}
        self.dimension, self.sizes = whole.worker.dimension, whole.worker.sizes

    def close(self) -> None:
        """Nothing of its own to let go."""

    def train(
        self, cohort: Sequence[int], starts: Tensor, *, at: CallId, task: LocalTask,
        recall: StateAccess | None = None, splitter: Splitter | None = None,
    ) -> Iterator[Block]:  # fmt: skip
        """The part's end vectors."""
        if cohort and not self._ends:
            whole = self._whole
            members, rows = whole.cohort.members, whole.start_rows()
            how: dict[str, Any] = {"at": whole.at, "task": whole.task, "recall": recall}
            how |= {} if splitter is None else {"splitter": splitter}
            self._keep_blocks(whole.worker.train(members, rows, **how))
        yield from self._rows_of(cohort)

    def dp_sgd(
        self, cohort: Sequence[int], starts: Tensor, *, plans: Sequence[PrivateSteps], at: CallId,
        task: LocalTask, recall: StateAccess | None = None,
    ) -> Iterator[Block]:  # fmt: skip
        """The part's end vectors where all parts' plans were announced, else the part by itself."""
        whole = self._whole
        if any(member not in self._plans for member in whole.cohort.members):
            yield from whole.worker.dp_sgd(cohort, starts, plans=plans, at=at, task=task, recall=recall)
            return
        if cohort and not self._ends:
            members, ordered = whole.cohort.members, [self._plans[member] for member in whole.cohort.members]
            rows = whole.start_rows()
            self._keep_blocks(
                whole.worker.dp_sgd(members, rows, plans=ordered, at=whole.at, task=whole.task, recall=recall)
            )
        yield from self._rows_of(cohort)

    def expect(self, members: Sequence[int], plans: Sequence[PrivateSteps]) -> None:
        """A part announces the private steps of its members before any part is trained."""
        self._plans.update(zip(members, plans, strict=True))

    def gradient_sums(
        self, cohort: Sequence[int], starts: Tensor, *, plans: Sequence[PrivateSteps], at: CallId
    ) -> Iterator[Block]:
        """The part by itself."""
        return self._whole.worker.gradient_sums(cohort, starts, plans=plans, at=at)

    def minimise(
        self, cohort: Sequence[int], starts: Tensor, *, task: LocalTask,
        linear: Mapping[int, NDArray[np.float64]], gradient_tolerance: float,
    ) -> Iterator[Block]:  # fmt: skip
        """The part by itself."""
        worker = self._whole.worker
        return worker.minimise(cohort, starts, task=task, linear=linear, gradient_tolerance=gradient_tolerance)

    def right_answers(self, cohort: Sequence[int], models: Tensor) -> Iterator[tuple[int, list[int]]]:
        """The part by itself."""
        return self._whole.worker.right_answers(cohort, models)

    def _keep_blocks(self, blocks: Iterator[Block]) -> None:
        for members, ends in blocks:
            self._ends.update(zip(members, ends, strict=True))

    def _rows_of(self, cohort: Sequence[int]) -> Iterator[Block]:
        if cohort:
            yield list(cohort), torch.stack([self._ends.pop(member) for member in cohort])
