"""A noisy sum in integers / the same in floats: 50 clients, 26,010 parameters."""

from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.measure import interleaved, line, medians
from sightline.events import Adjacency
from sightline.mechanisms.clip_and_noise import ARITHMETIC, sum_and_noise

CLIENTS, PARAMETERS = 50, 26_010


def noisy_sum(arithmetic: str, updates: list[torch.Tensor]) -> None:
    """Clip, sum and noise once."""
    sum_and_noise(
        enumerate(updates), ARITHMETIC[arithmetic](PARAMETERS), clip_norm=1.0, noise_multiplier=1.0,
        adjacency=Adjacency.ADD_REMOVE, rng=np.random.default_rng(0),
    )  # fmt: skip


def run() -> dict[str, Any]:
    """What `privacy.arithmetic = "integer"` costs where nothing else is done; training is not counted."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    updates = list(torch.randn(CLIENTS, PARAMETERS))
    work = {name: partial(noisy_sum, name, updates) for name in ARITHMETIC}
    seconds = medians(interleaved(work, repeat=7))
    ratio = seconds["integer"] / seconds["float"]
    return line(
        "integer_noise", ratio, 5, at_least=False, **{f"{name}_ms": round(1000 * s, 2) for name, s in seconds.items()}
    )
