"""Private step / the fastest plain step, batch 32 and 256."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.measure import interleaved, line, medians
from benchmarks.plain import PlainStep
from benchmarks.private import batch, private_steps

SIZES = (32, 256)


def compared(model: str, module: Callable[[], nn.Module], goal: float, **settings: object) -> dict[str, Any]:
    """The worse of the two batch sizes counts."""
    torch.set_num_threads(1)
    work: dict[str, Callable[[], float | None]] = {}
    for size in SIZES:
        x, y = batch(size)
        work[f"plain {size}"] = PlainStep(module(), x, y)
        work[f"private {size}"] = private_steps(model, x, y, **settings)
    found = medians(interleaved(work, repeat=25, warm=3))
    ratios = {f"batch_{size}": round(found[f"private {size}"] / found[f"plain {size}"], 3) for size in SIZES}
    return line(f"dpsgd_{model}", max(ratios.values()), goal, at_least=False, **ratios)
