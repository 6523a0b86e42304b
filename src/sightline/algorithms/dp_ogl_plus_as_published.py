"""DP-OGL+ as its paper prints it (eqs. (11)-(13)): not private as claimed, here to show why. Nothing trains with it."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sightline.mechanisms import clip_update

Train = Callable[[Tensor], Tensor]
"""start -> update of one worker's local training."""

SAYS = "as_published: workers see each other's raw updates inside an interval; the claimed sensitivity does not hold"


def printed_sum(start: Tensor, workers: Sequence[Train], *, period: int, clip_norm: float, expected: float) -> Tensor:
    """The clipped sum of an interval, eq. (13), when group-mates train on from un-noised models, eq. (11)."""
    model, summed = start, [torch.zeros_like(start) for _ in workers]
    for _ in range(period):
        updates = [train(model) for train in workers]
        summed = [so_far + update for so_far, update in zip(summed, updates, strict=True)]
        model = model + torch.stack(updates).sum(0) / expected
    return _clipped(summed, period, clip_norm, start)


def alone_sum(start: Tensor, workers: Sequence[Train], *, period: int, clip_norm: float) -> Tensor:
    """The clipped sum of an interval when every worker trains alone through it, as `dp_ogl_plus` does."""
    ends = []
    for train in workers:
        model = start
        for _ in range(period):
            model = model + train(model)
        ends.append(model - start)
    return _clipped(ends, period, clip_norm, start)


def _clipped(updates: Sequence[Tensor], period: int, clip_norm: float, start: Tensor) -> Tensor:
    bounded = [clip_update(update, clip_norm=math.sqrt(period) * clip_norm).value for update in updates]
    return torch.stack(bounded).sum(0) if bounded else torch.zeros_like(start)
