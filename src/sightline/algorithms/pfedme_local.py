"""The local training of pFedMe: an inner solve per mini-batch, an outer step after it."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sightline.data import Shard
from sightline.mechanisms import StateRule
from sightline.models import FlatModel
from sightline.training import LocalWork
from sightline.training.batches import shuffled_batches
from sightline.training.dispatch import worker_for


@dataclass(frozen=True)
class Moreau:
    r"""For every mini-batch B: theta ~ argmin f_B(theta) + lambda / 2 |theta - w|^2 by K gradient steps, then
    w <- w - eta lambda (w - theta).

    Reference: T. Dinh et al. 2020, Algorithm 1, lines 4-8. theta goes on from where the last mini-batch left it.
    """

    penalty: float
    inner_steps: int
    learning_rate: float

    def memory(self, sources: frozenset[int] = frozenset()) -> StateRule:
        """The personal model as a memory."""
        return StateRule("personal", solver=self, sources=sources, rule=self)

    def __call__(
        self, model: FlatModel, start: Tensor, shard: Shard, work: LocalWork, *, steps: int, rng: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        """(the client's copy of the global model, its personal model)."""
        worker = worker_for(model)
        worker.weights.copy_(start)
        copy = start.clone()
        x, y = worker.inputs(shard.x), torch.from_numpy(shard.y)
        for batch in shuffled_batches(len(shard), work, steps, rng):
            some = slice(None) if batch is None else torch.from_numpy(batch)
            some_x, some_y = x[some], y[some]
            for _ in range(self.inner_steps):
                worker.mean_gradient(some_x, some_y)
                worker.gradient.add_(worker.weights - copy, alpha=self.penalty)
                worker.weights.add_(worker.gradient, alpha=-self.learning_rate)
            copy -= work.learning_rate * self.penalty * (copy - worker.weights)
        return copy, worker.weights.clone()
