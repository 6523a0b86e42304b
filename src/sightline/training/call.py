"""One training call: the clients, their starts, schedule, loss terms, private steps and state, in one frozen value."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from math import inf
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.accounting.strategies import Strategy
from sightline.data.federation import Shard
from sightline.errors import invalid, refuse
from sightline.models.flat import FlatModel
from sightline.training.local_work import LocalTerms, LocalWork, client_rows
from sightline.training.schedule import Allotment
from sightline.training.submodels import ModelParts

Block = tuple[Sequence[int], Tensor]
"""Clients, and one row for each."""


@dataclass(frozen=True)
class CallId:
    """The round and the number of the training call in it; together they name the random streams of the call."""

    round: int
    use: int
    # Training streams must not depend on `part`: clients trained together and trained channel by channel get the same
    # bits.
    part: int = 0
    """Which part of a call that several channels release; 0 is the whole. It only selects the channels' noise streams.
    """


@dataclass(frozen=True)
class PrivateSteps:
    """How one client runs DP-SGD in one round; its event follows from these settings."""

    clip_norm: float
    noise_multiplier: float
    rate: float
    steps: int
    expected_batch: float
    allotment: Allotment | None = None
    """A hidden schedule of examples over the steps of many rounds, instead of a draw at every step."""
    line: int = 0
    """The number of the client's schedule: it has one per channel."""
    splitter: ModelParts | None = None
    """Assigns every example to a part of the model; None for whole models."""
    groups: int = 0
    """Number of fixed groups of examples, by index, that take turns: a step draws from one group. 0: from all examples.
    """
    strategy: Strategy | None = None
    """The strategy of noise correlated over the steps of a round; its batches are the groups, each used whole."""

    def first_step(self, round: int) -> int:
        """Return the number of steps that the client has done before a round, given that it took part in all."""
        return (round - 1) * self.steps

    def epoch(self, round: int) -> int:
        """Return the epoch of the schedule that a round belongs to, from 0."""
        return 0 if self.allotment is None else self.first_step(round) // self.allotment.steps


@dataclass(frozen=True, eq=False)
class LocalTask:
    """Schedule and loss terms of one training call; unset fields follow the experiment.

    Guarantees: holds only numbers and public vectors, validated on construction, since a task may come from an
    untrusted server.
    """

    steps: int | None = None
    """Local steps, instead of epochs."""
    most_steps: int | None = None
    """The most steps that the round could have asked for; a segment of steps is claimed for this number."""
    learning_rate: float | None = None
    step_norm: float | None = None
    """Radius of the ball onto which the gradient of every step is scaled."""
    whole_batch: bool = False
    """Whether every step uses the whole shard, regardless of the batch size."""
    batch_size: int | None = None
    """Examples per step, instead of the experiment's."""
    repeat: int = 1
    """Number of rounds of work done in one call, by a client that receives nothing in between."""
    proximal: float = 0.0
    anchor: Tensor | None = None
    linear: Tensor | None = None
    mask: Tensor | None = None
    """Terms of the local objective, see `LocalTerms`; each tensor is (d,) for all clients or (n, d)."""

    def __post_init__(self) -> None:
        for name in ("steps", "most_steps", "batch_size", "repeat"):
            count = getattr(self, name)
            if count is not None and not (_is_number(count, int | np.integer) and count >= 1):
                invalid(name, count, "must be a whole number >= 1")
        for name in ("learning_rate", "step_norm"):
            number = getattr(self, name)
            if number is not None and not (_is_number(number) and 0 < number < inf):
                invalid(name, number, "must be a positive number")
        if not _is_number(self.proximal):
            invalid("proximal", self.proximal, "must be a number >= 0")
        if not isinstance(self.whole_batch, bool):
            invalid("whole_batch", self.whole_batch, "must be true or false")
        for name in ("anchor", "linear", "mask"):
            if not isinstance(getattr(self, name), Tensor | None):
                invalid(name, type(getattr(self, name)).__name__, "must be a vector")
        # Building the terms validates them.
        _ = self.terms

    @property
    def terms(self) -> LocalTerms:
        """The terms of the local objectives, and the mask."""
        return LocalTerms(self.proximal, self.anchor, self.linear, self.mask)

    def named_fields(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults, by name."""
        values = {field.name: (getattr(self, field.name), field.default) for field in fields(self)}
        return {
            name: value for name, (value, default) in values.items() if isinstance(value, Tensor) or value != default
        }

    def select_clients(self, indices: list[int] | int) -> "LocalTask":
        """Return the task of some of the clients: their rows of every per-client tensor."""

        def rows(value: Tensor | None) -> Tensor | None:
            return None if value is None else client_rows(value, indices)

        return replace(self, anchor=rows(self.anchor), linear=rows(self.linear), mask=rows(self.mask))

    def adjust_work(self, work: LocalWork) -> LocalWork:
        """Return the experiment's local work with the changes that this call asks for."""
        asked = {"steps": self.steps, "learning_rate": self.learning_rate, "step_norm": self.step_norm}
        changes: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
        if self.steps is not None:
            changes["epochs"] = None
        if self.whole_batch or self.batch_size is not None:
            changes["batch_size"] = None if self.whole_batch else self.batch_size
        return replace(work, **changes)

    def add_linear(self, linear: Tensor | None) -> "LocalTask":
        """Return the task with the linear term that the clients' own state adds, if it adds one."""
        if linear is not None and self.linear is not None:
            shape = tuple(self.linear.shape)
            invalid("linear", shape, "the client state has a linear term too", "give only one of them")
        return self if linear is None else replace(self, linear=linear)


def _is_number(value: Any, kinds: Any = int | float | np.integer | np.floating) -> bool:
    """Return whether the value is a number of these kinds; booleans do not count."""
    # bool is a subclass of int.
    return isinstance(value, kinds) and not isinstance(value, bool)


AS_PLANNED = LocalTask()
"""A task without requests: everything follows the experiment."""


class CallKind(StrEnum):
    """What clients are asked to compute; the values travel on the wire."""

    TRAIN = "train"
    """End vectors of local training: plain SGD, or the solver that comes with the clients' state."""
    DP_SGD = "dp_sgd"
    """End vectors of local training whose every step is clipped per example and noised by the client."""
    GRADIENT_SUMS = "gradient_sums"
    """Each client's sum of clipped per-example gradients over one drawn batch, before noise."""
    MINIMISE = "minimise"
    """Exact minimisers of the local objectives of a linear model, in float64 and in the unit space."""
    RIGHT_ANSWERS = "right_answers"
    """How many of a client's training examples each of the `candidates` classifies correctly."""


@dataclass(frozen=True, eq=False)
class TrainingCall:
    """One call to a cohort; an executor yields a row for each of its clients.

    Guarantees: with `at` and a client's number it names every random stream that the client draws from, so neither
    order, batching nor the machine changes a bit.
    """

    kind: CallKind
    cohort: Sequence[int]
    """The clients' numbers."""
    starts: Tensor
    """(d,) for all clients, or (n, d)."""
    at: CallId
    task: LocalTask = AS_PLANNED
    plans: Sequence[PrivateSteps] = ()
    """Each client's private steps; empty for training without them."""
    state: "StateAccess | None" = None
    """What the clients keep between rounds; an executor writes what they keep from now on."""
    parts: ModelParts | None = None
    """The parts of the model, of which every client or example trains one that it draws in secret."""
    epochs: Sequence[float] | None = None
    """Each client's epochs if they differ: stragglers do fewer."""
    linear: Mapping[int, NDArray[np.float64]] = field(default_factory=dict)
    """Client -> the linear term of the objective that it minimises."""
    gradient_tolerance: float = 0.0
    """Gradient norm at which a minimiser stops."""
    candidates: Tensor | None = None
    """(m, d) models to evaluate."""

    def select_clients(self, indices: Sequence[int]) -> "TrainingCall":
        """Return the same call to the clients at these positions of the cohort."""
        rows = list(indices)
        return replace(
            self,
            cohort=[self.cohort[row] for row in rows],
            starts=client_rows(self.starts, rows),
            task=self.task.select_clients(rows),
            plans=[self.plans[row] for row in rows] if self.plans else (),
            epochs=None if self.epochs is None else [self.epochs[row] for row in rows],
        )

    def add_state_terms(self) -> "TrainingCall":
        """Return the call with the linear terms of the clients' state among its loss terms."""
        if self.state is None:
            return self
        return replace(self, task=self.task.add_linear(self.state.linear_rows(self.cohort)))

    def tensors(self) -> dict[str, Tensor]:
        """Return the vectors of the call that are as long as the model, by name."""
        terms = {name: getattr(self.task, name) for name in TERM_TENSORS}
        return {"starts": self.starts} | {name: value for name, value in terms.items() if value is not None}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> "TrainingCall":
        """Return the call with other values for some of `tensors()`."""
        terms: dict[str, Any] = {name: value for name, value in tensors.items() if name != "starts"}
        return replace(self, starts=tensors.get("starts", self.starts), task=replace(self.task, **terms))


TERM_TENSORS = ("anchor", "linear", "mask")


@dataclass(frozen=True, eq=False)
class LocalResult:
    """One client's local training as seen by its state rule."""

    old: Tensor
    """The state before training; zero at first."""
    start: Tensor
    end: Tensor
    steps: float
    """The effective number of steps, see `effective_steps`."""


class StateUpdate(Protocol):
    """A state rule as a frozen value of numbers and vectors, so that it can be sent to a client."""

    def memory(self, sources: frozenset[int] = frozenset()) -> "StateRule":
        """Return the state rule with its functions; `sources` are the releases behind the vectors in it."""


class LocalSolver(Protocol):
    """Local training other than plain SGD."""

    def __call__(
        self, model: FlatModel, start: Tensor, shard: Shard, work: LocalWork, *, steps: int, rng: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return (the end vector that may be sent, the vector that the client keeps)."""


@dataclass(frozen=True, eq=False)
class StateRule:
    """A vector that every client keeps: how it enters the local objective and how training changes it.

    The objective gets the term <linear(old), w>; afterwards `update` computes the new state. With a `solver` the
    training itself returns the new state. `sources` are the releases behind the public values inside these functions.
    """

    name: str
    update: Callable[[LocalResult], Tensor] | None = None
    linear: Callable[[Tensor], Tensor] | None = None
    solver: LocalSolver | None = None
    sources: frozenset[int] = frozenset()
    rule: StateUpdate | None = None
    """The value it was made from; a rule without one cannot be sent to real nodes."""


@dataclass(frozen=True, eq=False)
class ClientState:
    """The state of all clients under one name, and the releases from which any of it was computed.

    The sources are those of all clients together: they do not reveal who took part, and they cover a client that
    skipped rounds.
    """

    values: Mapping[int, Tensor] = field(default_factory=dict)
    sources: frozenset[int] = frozenset()
    noised: bool = True
    """Whether all of it was computed from noised values; true for empty state."""


class StateAccess:
    """The state in one training call: what members kept before, and in `after` what they keep from now on."""

    def __init__(self, memory: StateRule, state: ClientState, dimension: int) -> None:
        self.memory, self._state, self._dimension = memory, state, dimension
        self.after: dict[int, Tensor] = {}
        self.noised = state.noised
        """Whether the state before and after this call was computed from noised values only."""

    @property
    def state(self) -> ClientState:
        """The state of all clients before this call."""
        return self._state

    def old(self, member: int) -> Tensor:
        """Return a member's state; zero before its first round."""
        return self._state.values.get(member, torch.zeros(self._dimension))

    def kept(self, member: int) -> Tensor | None:
        """Return a member's state; None before its first round."""
        return self._state.values.get(member)

    def linear_rows(self, members: Sequence[int]) -> Tensor | None:
        """Return one row per member: the gradient of the linear term of its objective; None without such a term."""
        linear = self.memory.linear
        return None if linear is None else torch.stack([linear(self.old(member)) for member in members])

    def keep_state(self, member: int, start: Tensor, end: Tensor, steps: float, *, noised: bool) -> None:
        """Update a member's state after its training; skip it if the result is not finite."""
        if self.memory.update is not None and steps > 0:
            moved = LocalResult(self.old(member), start, end, steps)
            self.keep_value(member, self.memory.update(moved), noised=noised)

    def keep_value(self, member: int, value: Tensor, *, noised: bool) -> None:
        """Store a finite vector; `noised` says whether it was computed from noised values only."""
        if bool(torch.isfinite(value).all()):
            self.after[member] = value.detach().clone()
            self.noised = self.noised and noised

    def require_noised(self) -> None:
        """Raise `Refused` if the state was computed from un-noised values."""
        # DP-SGD bounds the data term of each step only. State that enters after clipping and noise would carry earlier
        # examples past both.
        if not self.noised:
            reason = "the client state was made from un-noised values, and would be added after clipping and noise"
            refuse("client_state", self.memory.name, reason, "keep only results of private steps")


def effective_steps(steps: int, momentum: float) -> float:
    """Return sum_{k=1..K} (1 - m^k) / (1 - m), so that (start - end) / (learning rate x steps) is a mean of gradients.

    Under momentum m the gradient of step k also moves the model in every later step; without momentum the result is K.

    >>> effective_steps(4, 0.0), effective_steps(2, 0.5)
    (4.0, 2.5)
    """
    if momentum == 0:
        return float(steps)
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
