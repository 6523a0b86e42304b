"""One private step of ours: clipped sum of a batch, noise, SGD; timed without set-up."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from sightline.data import Kind, Shard
from sightline.models import build_model
from sightline.training import LocalWork, dp_sgd
from sightline.training.dp_sgd_settings import DPSGDSettings

STEPS = 8
"""Steps in one timed call, so that the call's own overhead is spread."""


def private_steps(name: str, x: Tensor, y: Tensor, **settings: object) -> Callable[[], float]:
    """A call that runs STEPS private steps on the given batch and returns the seconds of one."""
    import time

    model = build_model(name, input_shape=tuple(x.shape[1:]), classes=10, kind=Kind.IMAGE, settings=settings)
    start = model.init(np.random.default_rng(0))
    shard = Shard(x.numpy(), y.numpy())
    work = LocalWork(learning_rate=0.01)

    def call() -> float:
        rngs = [np.random.default_rng(1)]
        begun = time.perf_counter()
        for _ in dp_sgd(
            model,
            start,
            [shard],
            work,
            DPSGDSettings(
                clip_norm=1.0,
                noise_std=[1.0],
                sample_rates=[1.0],
                steps=[STEPS],
                divisors=[float(len(y))],
                sampling_rngs=rngs,
                noise_rngs=[np.random.default_rng(2)],
            ),
        ):
            pass
        return (time.perf_counter() - begun) / STEPS

    return call


def batch(size: int) -> tuple[Tensor, Tensor]:
    """Random images and labels."""
    torch.manual_seed(size)
    return torch.randn(size, 1, 28, 28), torch.randint(0, 10, (size,))
