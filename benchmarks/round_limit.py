"""Our round / the bare matrix work of the same floating-point operations, the small CNN, one process."""

from typing import Any

import torch

from benchmarks.job import BATCH, COHORT, POINTS, our_round
from benchmarks.measure import interleaved, line, medians

LAYERS = (
    # (rows per example, inputs of a patch, outputs): a convolution is a matrix product over its output positions
    (14 * 14, 1 * 8 * 8, 16),
    (5 * 5, 16 * 4 * 4, 32),
    (1, 512, 32),
    (1, 32, 10),
)


def matrix_work() -> None:
    """Forward, weight gradient and input gradient of every layer as plain matrix products: nothing else."""
    for _ in range(COHORT * POINTS // BATCH):
        for place, (a, b, c) in enumerate(PRODUCTS):
            torch.mm(a, b)
            torch.mm(a.T, c)
            if place:
                torch.mm(c, b.T)


PRODUCTS = [
    (torch.randn(BATCH * rows, inputs), torch.randn(inputs, outputs), torch.randn(BATCH * rows, outputs))
    for rows, inputs, outputs in LAYERS
]


def run() -> dict[str, Any]:
    """Single-threaded on both sides."""
    torch.set_num_threads(1)
    with our_round("small", workers=1) as ours:
        found = medians(interleaved({"ours": ours, "matrices": matrix_work}, repeat=15, warm=3))  # type: ignore[dict-item]
    return line(
        "round_limit", found["ours"] / found["matrices"], 1.3, at_least=False, paths=ours.paths.describe(),
        seconds={name: round(seconds, 4) for name, seconds in found.items()},
    )  # fmt: skip
