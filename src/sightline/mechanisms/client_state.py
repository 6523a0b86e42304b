"""What clients keep between rounds: private vectors that enter local training and are never released as they are."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from sightline.data import Shard
from sightline.errors import refuse
from sightline.models import FlatModel
from sightline.training import LocalWork


@dataclass(frozen=True, eq=False)
class LocalResult:
    """One client's local training, as its memory sees it."""

    old: Tensor
    """What was kept before; zero at first."""
    start: Tensor
    end: Tensor
    steps: float
    """The effective number of steps, see `effective_steps`."""


class StateUpdate(Protocol):
    """How a client's memory works, as a frozen value of numbers and vectors: it can be sent to the client."""

    def memory(self, sources: frozenset[int] = frozenset()) -> "StateRule":
        """The memory that follows this rule; `sources` are the releases behind the vectors in it."""


class LocalSolver(Protocol):
    """Local training that is not plain SGD."""

    def __call__(
        self, model: FlatModel, start: Tensor, shard: Shard, work: LocalWork, *, steps: int, rng: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        """(the end vector that may be sent, the vector that the client keeps)."""


@dataclass(frozen=True, eq=False)
class StateRule:
    """A vector that every client keeps: how it enters the local objective and how training changes it.

    The objective gets the term <linear(old), w>; afterwards `update` says what is kept. With a `solver` the training
    itself returns what is kept. `sources` are the releases behind the public values inside these functions.
    """

    name: str
    update: Callable[[LocalResult], Tensor] | None = None
    linear: Callable[[Tensor], Tensor] | None = None
    solver: LocalSolver | None = None
    sources: frozenset[int] = frozenset()
    rule: StateUpdate | None = None
    """What it was made from; a memory without one cannot work at real nodes."""


@dataclass(frozen=True, eq=False)
class ClientState:
    """What all clients keep under one name, and the releases that any of it was computed from.

    The sources are those of all clients together: they do not tell who took part, and a client that skipped rounds is
    covered by them.
    """

    values: Mapping[int, Tensor] = field(default_factory=dict)
    sources: frozenset[int] = frozenset()
    noised: bool = True
    """Whether all of it was made from values that were noised already; so is what nobody has kept yet."""


class StateAccess:
    """A memory at work in one training call: what the members kept before, and `after` what they keep from now on."""

    def __init__(self, memory: StateRule, state: ClientState, dimension: int) -> None:
        self.memory, self._state, self._dimension = memory, state, dimension
        self.after: dict[int, Tensor] = {}
        self.noised = state.noised
        """Whether what is kept, before and after this call, was made from noised values only."""

    @property
    def state(self) -> ClientState:
        """What all clients kept before this call."""
        return self._state

    def old(self, member: int) -> Tensor:
        """What a member kept; zero before its first round."""
        return self._state.values.get(member, torch.zeros(self._dimension))

    def kept(self, member: int) -> Tensor | None:
        """What a member kept; None before its first round."""
        return self._state.values.get(member)

    def linear_rows(self, members: Sequence[int]) -> Tensor | None:
        """One row per member: the gradient of the linear term of its objective."""
        linear = self.memory.linear
        return None if linear is None else torch.stack([linear(self.old(member)) for member in members])

    def keep_state(self, member: int, start: Tensor, end: Tensor, steps: float, *, noised: bool) -> None:
        """Update a member's memory after its training; nothing is kept of an update that is not finite."""
        if self.memory.update is not None and steps > 0:
            moved = LocalResult(self.old(member), start, end, steps)
            self.keep_value(member, self.memory.update(moved), noised=noised)

    def keep_value(self, member: int, value: Tensor, *, noised: bool) -> None:
        """Keep a vector as it is, when it is finite; `noised`: whether it was made from noised values only."""
        if bool(torch.isfinite(value).all()):
            self.after[member] = value.detach().clone()
            self.noised = self.noised and noised

    def require_noised(self) -> None:
        """Refuse what was made from un-noised values: private steps add it after clipping and noise."""
        if not self.noised:
            law = "what the client keeps was made from un-noised values, and would be added after clipping and noise"
            refuse("client_state", self.memory.name, law, "keep what private steps made, or nothing")


def effective_steps(steps: int, momentum: float) -> float:
    r"""sum_{k=1..K} (1 - m^k) / (1 - m): with it, (start - end) / (learning rate x steps) is a mean of gradients.

    Under momentum m the gradient of step k moves the model in every later step too; without momentum it is K.

    >>> effective_steps(4, 0.0), effective_steps(2, 0.5)
    (4.0, 2.5)
    """
    if momentum == 0:
        return float(steps)
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
