"""Private step / the fastest plain step, batch 32 and 256, as many consecutive calls of each."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from benchmarks.measure import graded, in_a_row, interleaved, medians
from benchmarks.plain import PlainStep
from benchmarks.private import PrivateSteps, batch

SIZES = (32, 256)


def compared(
    model: str, module: Callable[[], nn.Module], goals: Mapping[int, float], **settings: object
) -> dict[str, Any]:
    """Each batch size has its own goal."""
    torch.set_num_threads(1)
    work: dict[str, Callable[[], float | None]] = {}
    paths: dict[str, Any] = {}
    for size in SIZES:
        x, y = batch(size)
        ours = PrivateSteps(model, x, y, **settings)
        work[f"plain {size}"] = in_a_row(PlainStep(module(), x, y))
        work[f"private {size}"], paths[f"batch_{size}"] = ours, ours.paths.describe()
    found = medians(interleaved(work, repeat=25, warm=3))
    ratios = {f"batch_{size}": found[f"private {size}"] / found[f"plain {size}"] for size in SIZES}
    wanted = {f"batch_{size}": goal for size, goal in goals.items()}
    return graded(f"dpsgd_{model}", ratios, wanted, at_least=False, paths=paths)
