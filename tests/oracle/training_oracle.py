"""The naive loop: torch modules, torch.optim.SGD and autograd, one client, one batch, one example at a time."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sightline.training.dp_sgd_settings import gaussian_steps


def load(module: nn.Module, vector: Tensor) -> nn.Module:
    torch.nn.utils.vector_to_parameters(vector.clone(), [p for p in module.parameters() if p.requires_grad])
    return module


def dump(module: nn.Module) -> Tensor:
    return torch.nn.utils.parameters_to_vector(module.parameters()).detach().clone()


def epoch_batches(n: int, batch_size: int | None, rng: np.random.Generator) -> list[np.ndarray]:
    if batch_size is None:
        return [np.arange(n)]
    order = rng.permutation(n)
    return [order[i : i + batch_size] for i in range(0, n, batch_size)]


def local_sgd(
    make: Callable[[], nn.Module],
    start: Tensor,
    x: np.ndarray,
    y: np.ndarray,
    *,
    learning_rate: float,
    batch_size: int | None,
    epochs: int,
    rng: np.random.Generator,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    proximal: float = 0.0,
    anchor: Tensor | None = None,
    linear: Tensor | None = None,
    max_steps: int | None = None,
) -> Tensor:
    module = load(make(), start)
    module.train()
    optimizer = torch.optim.SGD(module.parameters(), lr=learning_rate, momentum=momentum, weight_decay=weight_decay)
    anchor = start if anchor is None else anchor
    done = 0
    for _ in range(epochs):
        for batch in epoch_batches(len(y), batch_size, rng):
            if max_steps is not None and done >= max_steps:
                return dump(module)
            flat = torch.cat([p.reshape(-1) for p in module.parameters()])
            loss = functional.cross_entropy(module(torch.from_numpy(x[batch])), torch.from_numpy(y[batch]))
            loss = loss + proximal / 2 * ((flat - anchor) ** 2).sum()
            if linear is not None:
                loss = loss + (linear * flat).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
    return dump(module)


def example_gradient(module: nn.Module, x: np.ndarray, y: np.ndarray, index: int) -> Tensor:
    module.zero_grad()
    one = slice(index, index + 1)
    functional.cross_entropy(module(torch.from_numpy(x[one])), torch.from_numpy(y[one])).backward()
    return torch.cat([p.grad.reshape(-1) for p in module.parameters()])


def clipped_sum(
    make: Callable[[], nn.Module], vector: Tensor, x: np.ndarray, y: np.ndarray, clip_norm: float
) -> Tensor:
    module = load(make(), vector)
    total = torch.zeros_like(vector)
    for index in range(len(y)):
        gradient = example_gradient(module, x, y, index)
        if torch.isfinite(gradient).all():
            total += gradient * min(1.0, clip_norm / max(float(gradient.norm()), 1e-30))
    return total


def dp_sgd(
    make: Callable[[], nn.Module],
    start: Tensor,
    x: np.ndarray,
    y: np.ndarray,
    *,
    learning_rate: float,
    clip_norm: float,
    noise_std: float,
    rate: float,
    steps: int,
    divisor: float,
    coin_rng: np.random.Generator,
    noise_rng: np.random.Generator,
    momentum: float = 0.0,
    batches: Sequence[np.ndarray] | None = None,
) -> Tensor:
    weights, velocity = start.clone(), torch.zeros_like(start)
    noises = gaussian_steps(len(start), rng=noise_rng)
    for step in range(steps):
        if batches is not None:
            batch = batches[step]
        else:
            batch = np.arange(len(y)) if rate >= 1 else np.flatnonzero(coin_rng.random(len(y)) < rate)
        total = clipped_sum(make, weights, x[batch], y[batch], clip_norm)
        if noise_std:
            total += noise_std * next(noises)
        velocity = momentum * velocity + total / divisor
        weights = weights - learning_rate * velocity
    return weights
