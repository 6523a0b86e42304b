"""Clip factors of per-example gradients, and the clipped sum of gradients that are instantiated as rows."""

import torch
from torch import Tensor

SLACK = 1.0 - 2.0**-18
"""Rows are scaled onto SLACK * C: float32 rounding of a norm must not let a row through that is longer than C."""

PLAIN_LENGTH = 1 << 16
"""Up to this length torch's own norm is right to 1e-6."""


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
