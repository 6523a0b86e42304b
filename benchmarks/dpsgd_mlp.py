"""Private step / the fastest plain step, batch 32 and 256."""

from typing import Any

import torch

from benchmarks.measure import interleaved, line, medians
from benchmarks.plain import PlainStep, mlp
from benchmarks.private import batch, private_steps


def run() -> dict[str, Any]:
    """The worse of the two batch sizes counts."""
    torch.set_num_threads(1)
    work = {}
    for size in (32, 256):
        x, y = batch(size)
        work[f"plain {size}"] = PlainStep(mlp(), x, y)
        work[f"private {size}"] = private_steps("mlp", x, y, hidden=[196])
    found = medians(interleaved(work, repeat=25, warm=3))
    ratios = {f"batch_{size}": round(found[f"private {size}"] / found[f"plain {size}"], 3) for size in (32, 256)}
    return line("dpsgd_mlp", max(ratios.values()), 2.0, at_least=False, **ratios)
