"""Private steps of ours: clipped sum of a batch, noise, SGD; by the paths that were measured here, without set-up."""

import time
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from benchmarks.measure import CALLS
from sightline.data import Kind, Shard
from sightline.models import build_model
from sightline.training import LocalWork, dp_sgd
from sightline.training.dp_sgd_settings import DPSGDSettings
from sightline.training.measure_paths import MeasuredWork, choose_measured


class PrivateSteps:
    """A call that runs CALLS private steps on the given batch and returns the seconds of one."""

    def __init__(self, name: str, x: Tensor, y: Tensor, **settings: object) -> None:
        shape = tuple(x.shape[1:])
        self.model = build_model(name, input_shape=shape, classes=10, kind=Kind.IMAGE, settings=settings)
        self.start, self.shard = self.model.init(np.random.default_rng(0)), Shard(x.numpy(), y.numpy())
        work = LocalWork(learning_rate=0.01)
        self.paths = choose_measured(MeasuredWork(self.model, work, width=len(y), private=True, clients=1))
        self.work = replace(work, paths=self.paths)

    def __call__(self) -> float:
        """The steps, each over the whole batch."""
        how = DPSGDSettings(
            clip_norm=1.0,
            noise_std=[1.0],
            sample_rates=[1.0],
            steps=[CALLS],
            divisors=[float(len(self.shard))],
            sampling_rngs=[np.random.default_rng(1)],
            noise_rngs=[np.random.default_rng(2)],
        )
        begun = time.perf_counter()
        for _ in dp_sgd(self.model, self.start, [self.shard], self.work, how):
            pass
        return (time.perf_counter() - begun) / CALLS


def batch(size: int) -> tuple[Tensor, Tensor]:
    """Random images and labels."""
    torch.manual_seed(size)
    return torch.randn(size, 1, 28, 28), torch.randint(0, 10, (size,))
