"""Clip factors of per-example gradients, and the clipped sum of gradients that are instantiated as rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sightline.models.flat import Slot

SLACK = 1.0 - 2.0**-18
"""Rows are scaled onto SLACK * C: float32 rounding of a norm must not let a row through that is longer than C."""

PLAIN_LENGTH = 1 << 16
"""Up to this length torch's own norm is right to 1e-6."""


@dataclass(frozen=True)
class Balls:
    """Tensors that are clipped apart from each other: every tensor belongs to one ball, each ball has its radius."""

    clip_norms: tuple[float, ...]
    ball_of: Mapping[str, int]
    """Tensor name -> number of its ball."""

    def columns(self, slots: Sequence[Slot]) -> list[Tensor]:
        """The positions of each ball's tensors in the flat vector."""
        found: list[list[Tensor]] = [[] for _ in self.clip_norms]
        for slot in slots:
            found[self.ball_of[slot.name]].append(torch.arange(slot.start, slot.stop))
        return [torch.cat(some) if some else torch.empty(0, dtype=torch.long) for some in found]


Clip = float | Balls
"""One radius for the whole gradient, or balls."""


def factors_of(squares: Sequence[Mapping[str, Tensor]], clip: Clip) -> tuple[Tensor, Callable[[str], Tensor]]:
    """(which examples are finite, tensor name -> clip factors) from the layers' squared norms by tensor."""
    radii = clip.clip_norms if isinstance(clip, Balls) else (clip,)
    ball_of: Callable[[str], int] = clip.ball_of.__getitem__ if isinstance(clip, Balls) else lambda name: 0
    norms: dict[int, Tensor] = {}
    for ball in range(len(radii)):
        own = [[square for name, square in layer.items() if ball_of(name) == ball] for layer in squares]
        totals = [some[0] if len(some) == 1 else torch.stack(some).sum(0) for some in own if some]
        if totals:
            norms[ball] = torch.stack(totals).sum(0).sqrt_()
    finite = torch.stack([torch.isfinite(some) for some in norms.values()]).all(0)
    factors = {ball: clip_factors(some, radii[ball]) for ball, some in norms.items()}
    return finite, lambda name: factors[ball_of(name)]


def clip_factors(norms: Tensor, clip_norm: float) -> Tensor:
    """min(1, C / norm), and zero where the norm is not finite.

    >>> clip_factors(torch.tensor([0.5, float("nan")]), 1.0)
    tensor([1., 0.])
    """
    factors = torch.clamp(SLACK * clip_norm / norms.clamp_min(1e-30), max=1.0)
    return torch.where(torch.isfinite(norms), factors, torch.zeros_like(norms))


def row_norms(rows: Tensor) -> Tensor:
    """|row| of every row, right to float32 rounding at any length.

    torch's norm adds the squares of float32 one after the other: at 42 million numbers it is .3 % too small, which
    would let more than C through. Its sum goes by halves; long rows use that.
    """
    if rows.shape[1] > PLAIN_LENGTH:
        return (rows * rows).sum(1).sqrt_()
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return norms


def clipped_rows(gradients: Tensor, clip_norm: float) -> Tensor:
    """sum_j g_j min(1, C / |g_j|) over the rows; a non-finite row contributes zero.

    >>> clipped_rows(torch.tensor([[0.5, 0.0], [float("inf"), 1.0]]), 1.0)
    tensor([0.5000, 0.0000])
    """
    factors = clip_factors(row_norms(gradients), clip_norm)
    if not bool((factors > 0).all()):
        gradients = torch.where(factors[:, None] > 0, gradients, torch.zeros_like(gradients))
    return factors @ gradients


def clipped_rows_apart(gradients: Tensor, clip: Balls, slots: Sequence[Slot]) -> Tensor:
    """As `clipped_rows`, every ball clipped to its own radius; a row that is not finite anywhere contributes zero."""
    finite = torch.isfinite(row_norms(gradients))
    if not bool(finite.all()):
        gradients = torch.where(finite[:, None], gradients, torch.zeros_like(gradients))
    total = torch.zeros(gradients.shape[1])
    for columns, clip_norm in zip(clip.columns(slots), clip.clip_norms, strict=True):
        total[columns] = clipped_rows(gradients[:, columns], clip_norm)
    return total
