"""Clip factors from norms, and sums of clipped rows: an example's row is at most C long, whatever float32 rounds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sightline.models.flat import CPU, Slot

SLACK = 1.0 - 2.0**-18
"""Rows are scaled onto SLACK * C: what float32 rounds up of a clip factor and of its product with a row, and what a
norm may be short of, is less than 2^-18 together."""

PIECE = 1 << 17
"""How many numbers are squared in double precision at once: they stay in the cache."""

LARGEST = 2.0**63
"""Norms beyond this count as not finite: up to here products of norms, factors and rows neither overflow nor vanish."""


@dataclass(frozen=True)
class Balls:
    """Tensors that are clipped apart from each other: every tensor belongs to one ball, each ball has its radius."""

    clip_norms: tuple[float, ...]
    ball_of: Mapping[str, int]
    """Tensor name -> number of its ball."""

    def columns(self, slots: Sequence[Slot], device: torch.device = CPU) -> list[Tensor]:
        """The positions of each ball's tensors in the flat vector."""
        found: list[list[Tensor]] = [[] for _ in self.clip_norms]
        for slot in slots:
            found[self.ball_of[slot.name]].append(torch.arange(slot.start, slot.stop, device=device))
        return [torch.cat(some) if some else torch.empty(0, dtype=torch.long, device=device) for some in found]


Clip = float | Balls
"""One radius for the whole gradient, or balls."""


def factors_of(
    squares: Sequence[Mapping[str, Tensor]], clip: Clip, examples: int
) -> tuple[Tensor | None, Callable[[str], Tensor]]:
    """(which rows are not finite, tensor name -> clip factors) from the layers' squared norms by tensor.

    Factors of rows that are not finite, and of all from number `examples` on, are zero. None: all rows are finite.
    """
    radii = clip.clip_norms if isinstance(clip, Balls) else (clip,)
    ball_of: Callable[[str], int] = clip.ball_of.__getitem__ if isinstance(clip, Balls) else lambda name: 0
    norms: dict[int, Tensor] = {}
    for ball in range(len(radii)):
        own = [square for layer in squares for name, square in layer.items() if ball_of(name) == ball]
        if own:
            norms[ball] = (own[0] if len(own) == 1 else torch.stack(own).sum(0)).sqrt()
    broken = torch.stack([~(some <= LARGEST) for some in norms.values()]).any(0)
    some_broken = bool(broken.any())
    factors = {ball: clip_factors(some, radii[ball]) for ball, some in norms.items()}
    for some in factors.values():
        some[examples:] = 0.0
        if some_broken:
            some[broken] = 0.0
    return broken if some_broken else None, lambda name: factors[ball_of(name)]


def clip_factors(norms: Tensor, clip_norm: float) -> Tensor:
    """min(1, C / norm) as float32, and zero where the norm is not finite.

    >>> clip_factors(torch.tensor([0.5, float("nan")]), 1.0)
    tensor([1., 0.])
    """
    factors = torch.clamp(SLACK * clip_norm / norms.clamp_min(1e-30), max=1.0)
    return torch.where(norms <= LARGEST, factors, torch.zeros_like(norms)).float()


def square_norms(rows: Tensor) -> Tensor:
    """|row|^2 of every row (B, ...), summed in double precision: at most d 2^-53 of it is lost.

    On other devices than the CPU, of which some have no double precision, by sums of sixteen: at most (1 + 15 k) 2^-24
    of it is lost, with k sums of sixteen one after the other. That is 5.5e-6 for up to 2^24 numbers.
    (torch's own float32 norm adds squares one after the other: it is short by 2.4e-4 on rows of 65,536 numbers made for
    it, and by 3e-3 on 42 million random ones.)
    """
    rows = rows.flatten(1)
    if rows.device.type != "cpu":
        return sum_by_sixteens(rows * rows)
    if rows.numel() <= PIECE:
        norms: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
        return norms.square_()
    step = PIECE // rows.shape[1]
    if step:
        return torch.cat([square_norms(some) for some in torch.split(rows, step)])
    return torch.stack([square_norms(some) for some in torch.split(rows, max(1, PIECE // len(rows)), 1)]).sum(0)


def sum_by_sixteens(terms: Tensor) -> Tensor:
    """The sum of every row, sixteen numbers at a time."""
    while terms.shape[1] > 1:
        terms = torch.nn.functional.pad(terms, (0, -terms.shape[1] % 16)).view(len(terms), 16, -1).sum(1)
    return terms.sum(1)


def row_norms(rows: Tensor) -> Tensor:
    """|row| of every row; see `square_norms`."""
    return square_norms(rows).sqrt_()


def clipped_rows(gradients: Tensor, clip_norm: float) -> Tensor:
    """sum_j g_j min(1, C / |g_j|) over the rows; a non-finite row contributes zero.

    >>> clipped_rows(torch.tensor([[0.5, 0.0], [float("inf"), 1.0]]), 1.0)
    tensor([0.5000, 0.0000])
    """
    factors = clip_factors(row_norms(gradients), clip_norm)
    if gradients.device.type != "cpu":
        return scaled_sum(gradients, factors)
    if not bool((factors > 0).all()):
        gradients = torch.where(factors[:, None] > 0, gradients, torch.zeros_like(gradients))
    return factors @ gradients


def scaled_sum(rows: Tensor, factors: Tensor) -> Tensor:
    """sum_j factor_j row_j, and nothing of a row whose factor is zero, whatever is in it.

    Guarantees: nobody asks the device for a number; no product is rounded to fewer bits than float32 has, as those of
    matrices may be.
    """
    return torch.where(factors[:, None] > 0, rows, torch.zeros_like(rows)).mul_(factors[:, None]).sum(0)


def clipped_rows_apart(gradients: Tensor, clip: Balls, slots: Sequence[Slot]) -> Tensor:
    """As `clipped_rows`, every ball clipped to its own radius; a row that is not finite anywhere contributes zero."""
    finite = row_norms(gradients) <= LARGEST
    if gradients.device.type != "cpu" or not bool(finite.all()):
        gradients = torch.where(finite[:, None], gradients, torch.zeros_like(gradients))
    total = gradients.new_zeros(gradients.shape[1])
    for columns, clip_norm in zip(clip.columns(slots, gradients.device), clip.clip_norms, strict=True):
        total[columns] = clipped_rows(gradients[:, columns], clip_norm)
    return total
