"""State that clients keep between rounds: private vectors that enter local training and are never released as such."""

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
            law = "what the client keeps was made from un-noised values, and would be added after clipping and noise"
            refuse("client_state", self.memory.name, law, "keep what private steps made, or nothing")


def effective_steps(steps: int, momentum: float) -> float:
    """Return sum_{k=1..K} (1 - m^k) / (1 - m), so that (start - end) / (learning rate x steps) is a mean of gradients.

    Under momentum m the gradient of step k also moves the model in every later step; without momentum the result is K.

    >>> effective_steps(4, 0.0), effective_steps(2, 0.5)
    (4.0, 2.5)
    """
    if momentum == 0:
        return float(steps)
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
