"""Batch augmentation: several views of one example whose gradients are averaged before they are clipped.

The averaged gradient is the example's gradient: it is clipped once, so that an example still moves the sum by at most
C, however many views it has. Copies in the data set would each be clipped and move it by C each.
References: De et al. 2022, section 4; R-DPCFL, appendix H, eq. (38), where each view is clipped before the average.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sightline.errors import invalid
from sightline.training.gradients import GradientWorker, equal_chunks

Inputs = NDArray[np.float32] | NDArray[np.int64]
VIEW_BYTES = 1 << 25
"""How much the views of one chunk of examples may take."""


class ViewKind(StrEnum):
    """What may happen to an image."""

    SHIFT = "shift"
    FLIP = "flip"
    SHIFT_FLIP = "shift_flip"


@dataclass(frozen=True)
class Views:
    """The image itself and `count` - 1 others: moved by up to `pixels` each way, mirrored left to right, or both."""

    count: int
    kind: ViewKind
    pixels: int = 2

    def __post_init__(self) -> None:
        if self.count < 1 or self.pixels < 0 or (self.kind is ViewKind.FLIP and self.count != 2):
            invalid("views", self, "one view or more, no negative pixels, and two views to mirror")

    def of(self, x: Inputs, *, rng: np.random.Generator) -> Inputs:
        """(n, channels, height, width) -> (n * count, ...): the views of an example stand together, itself first.

        Guarantees: every example's views are drawn independently and do not look at any example.
        """
        if x.ndim != 4:
            invalid("local.augment.kind", self.kind, "only images have views of this kind", "remove local.augment")
        n, (height, width) = len(x), x.shape[2:]
        down, right, mirrored = self._draw_shifts(n, rng)
        margin = self.pixels
        padded = np.pad(x, ((0, 0), (0, 0), (margin, margin), (margin, margin)))
        rows = margin + np.arange(height) - down[..., None]
        columns = np.where(mirrored[..., None], np.arange(width)[::-1], np.arange(width)) + margin - right[..., None]
        which = np.arange(n)[:, None, None, None]
        views = padded.transpose(0, 2, 3, 1)[which, rows[..., None], columns[:, :, None]]
        return np.ascontiguousarray(views.reshape(n * self.count, height, width, -1).transpose(0, 3, 1, 2))

    def _draw_shifts(
        self, n: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool]]:
        """How far down, how far right and whether mirrored: one row per example, the first column untouched."""
        size = (n, self.count)
        down, right, mirrored = np.zeros(size, np.int64), np.zeros(size, np.int64), np.zeros(size, np.bool)
        if self.kind is not ViewKind.FLIP:
            moves = rng.integers(-self.pixels, self.pixels + 1, size=(n, self.count - 1, 2))
            down[:, 1:], right[:, 1:] = moves[..., 0], moves[..., 1]
        if self.kind is ViewKind.FLIP:
            mirrored[:, 1:] = True
        if self.kind is ViewKind.SHIFT_FLIP:
            mirrored[:, 1:] = rng.random((n, self.count - 1)) < 0.5
        return down, right, mirrored


def clipped_sum_of_views(
    worker: GradientWorker, x: Inputs, y: Tensor, clip_norm: float, views: Views, rng: np.random.Generator
) -> None:
    r"""Write sum_j clip((1/K) sum_k g_jk, C) to the worker's gradient, g_jk being the gradient of view k of example j.

    Guarantees: one example moves the sum by at most C; an example with a non-finite view contributes zero; memory is
    bounded whatever the batch.
    """
    total = worker.gradient.new_zeros(worker.gradient.shape)
    for some in equal_chunks(len(y), max(1, VIEW_BYTES // (views.count * max(1, x[:1].nbytes)))):
        seen = worker.inputs(views.of(x[some], rng=rng))
        worker.clipped_sum(seen, y[some], clip_norm, views=views.count)
        total += worker.gradient
    worker.gradient.copy_(total)
