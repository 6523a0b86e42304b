"""Clipping: the step that bounds what one participant can change."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from sightline.errors import invalid
from sightline.events import Adjacency


@dataclass(frozen=True, eq=False)
class Bounded:
    """A vector whose Euclidean norm is at most `norm`."""

    value: Tensor
    norm: float
    rejected: bool = False
    """Whether the update was not finite and was replaced by zero."""


@dataclass(frozen=True, eq=False)
class Aggregate:
    """A sum, and how far one subject can move it."""

    value: Tensor
    sensitivity: float | Tensor
    """One bound; or, where pieces of the vector are bounded and noised apart, every coordinate's scale of noise."""
    rejected: int = 0


def clip_update(update: Tensor, *, clip_norm: float) -> Bounded:
    r"""Scale onto the ball of radius C: u * C / max(|u|, C).

    Guarantees: norm <= C up to float32 rounding, which is covered by shrinking the ball by one part in a million;
    inside the ball the value comes back bit-identical; a non-finite update becomes zero, so that one broken client can
    neither pass nor stop a round.

    >>> clip_update(torch.tensor([3.0, 4.0]), clip_norm=1.0).value
    tensor([0.6000, 0.8000])
    """
    if not (clip_norm > 0 and math.isfinite(clip_norm)):
        invalid("clip_norm", clip_norm, "a clip norm is positive and finite")
    norm = torch.linalg.vector_norm(update, dtype=torch.float64).item()
    if not math.isfinite(norm):
        return Bounded(torch.zeros_like(update), clip_norm, rejected=True)
    if norm <= clip_norm:
        return Bounded(update, clip_norm)
    return Bounded(update * (clip_norm / norm * (1 - 1e-6)), clip_norm)


class Clipper(Protocol):
    """Bounds one update."""

    def __call__(self, update: Tensor, *, clip_norm: float) -> Bounded:
        """The update inside its ball, or balls."""


class ClippedSum:
    """A sum of clipped updates that grows one update at a time, in float64 and in the order given."""

    def __init__(self, dimension: int) -> None:
        self.total = torch.zeros(dimension, dtype=torch.float64)

    def add(self, update: Tensor, *, clip_norm: float) -> bool:
        """Clip and add; True when the update was not finite and counts as zero."""
        bounded = clip_update(update, clip_norm=clip_norm)
        self.total += bounded.value
        return bounded.rejected


def clipped_sum(updates: Iterable[Tensor], *, dimension: int, clip_norm: float, adjacency: Adjacency) -> Aggregate:
    """The sum of clipped updates, one at a time, in the order given.

    Guarantees: adding, removing or zeroing one update moves the sum by at most C, replacing one by at most 2C; the
    result does not depend on how the updates were batched.
    """
    some = ClippedSum(dimension)
    rejected = sum(some.add(update, clip_norm=clip_norm) for update in updates)
    return Aggregate(some.total, sum_sensitivity(clip_norm, adjacency), rejected)


def sum_sensitivity(clip_norm: float, adjacency: Adjacency) -> float:
    """How far one subject moves a sum of vectors of norm <= C: C when zeroed out, 2C when replaced."""
    return 2 * clip_norm if adjacency is Adjacency.REPLACE else clip_norm


class FiniteOnly:
    """Replaces updates that are not finite by zero, and counts them."""

    def __init__(self) -> None:
        self.rejected = 0

    def __call__(self, updates: Iterable[tuple[int, Tensor]]) -> Iterator[tuple[int, Tensor]]:
        """The same (client, update) pairs with zeros for the broken ones."""
        for client, update in updates:
            finite = bool(torch.isfinite(update).all())
            self.rejected += not finite
            yield client, update if finite else torch.zeros_like(update)
