"""How clients step in private: clip norm, noise, coins, each client its own."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np
import torch
from torch import Tensor

from sightline.data.federation import Shard
from sightline.errors import invalid
from sightline.training.batches import Index, poisson_batches
from sightline.training.noise import gaussian_steps
from sightline.training.views import Views, clipped_sum_of_views
from sightline.training.worker import GradientWorker


@dataclass(frozen=True, eq=False)
class DPSGDSettings:
    """How each client steps in private; every sequence has one entry per client."""

    clip_norm: float
    noise_std: Sequence[float]
    sample_rates: Sequence[float]
    steps: Sequence[int]
    divisors: Sequence[float]
    coin_rngs: Sequence[np.random.Generator]
    noise_rngs: Sequence[np.random.Generator]
    batches: Sequence[Sequence[Index]] | None = None
    views: Views | None = None
    view_rngs: Sequence[np.random.Generator] | None = None

    def __post_init__(self) -> None:
        if not (np.isfinite(self.clip_norm) and self.clip_norm > 0):
            invalid("clip_norm", self.clip_norm, "is a positive number")
        for std in self.noise_std:
            if not (np.isfinite(std) and std >= 0):
                invalid("noise_std", std, "is a number >= 0")
        for rate in self.sample_rates:
            if not 0 < rate <= 1:
                invalid("sample_rate", rate, "a probability lies in (0, 1]")
        for divisor in self.divisors:
            if not (np.isfinite(divisor) and divisor > 0):
                invalid("divisor", divisor, "the expected batch is a positive number")
        if (self.views is None) != (self.view_rngs is None):
            invalid("views", self.views, "every client draws its views from its own generator", "give view_rngs too")
        for laid, steps in zip(self.batches or (), self.steps, strict=False):
            if len(laid) != steps:
                invalid("batches", len(laid), f"one batch is laid down for each of the {steps} steps")

    def batches_of(self, client: int, examples: int) -> Iterator[Index | None]:
        """The batches of one client, thrown by its own coins or as they were laid down."""
        if self.batches is not None:
            return iter(self.batches[client])
        return poisson_batches(examples, self.sample_rates[client], self.steps[client], self.coin_rngs[client])

    def write_sum(self, worker: GradientWorker, shard: Shard, x: Tensor, batch: Index | None, client: int) -> None:
        """Write the clipped sum of a batch to the worker's gradient; `x` are the shard's inputs as the worker likes."""
        index = slice(None) if batch is None else batch
        y = torch.from_numpy(shard.y[index])
        if self.views is None or self.view_rngs is None:
            some = x if batch is None else x[torch.from_numpy(batch)]
            worker.clipped_sum(some, y, self.clip_norm)
        else:
            clipped_sum_of_views(worker, shard.x[index], y, self.clip_norm, self.views, self.view_rngs[client])

    def noise_of(self, client: int, size: int) -> Iterator[Tensor | None]:
        """The noise of each step before it is scaled by `noise_std`: standard normal vectors, or none."""
        if self.noise_std[client] == 0:
            return repeat(None)
        return gaussian_steps(size, rng=self.noise_rngs[client])
