"""Losses of a user's own: one example's output and target in, one number out; and some that do what they must not."""

import torch
from torch import Tensor
from torch.nn import functional

SEEN: list[Tensor] = []
MEAN = torch.zeros(1)


def huber(output: Tensor, target: Tensor) -> Tensor:
    """A robust regression."""
    return functional.huber_loss(output.reshape(()), target)


def pinball(output: Tensor, target: Tensor) -> Tensor:
    """The 90 % quantile, by a choice that depends on the data: torch.func cannot follow it."""
    away = target - output.reshape(())
    return 0.9 * away if away > 0 else -0.1 * away


def focal(output: Tensor, target: Tensor) -> Tensor:
    """Cross entropy that cares less for what is sure."""
    chance = torch.softmax(output, 0)[target]
    return -((1 - chance) ** 2) * torch.log(chance)


def centred(output: Tensor, target: Tensor) -> Tensor:
    """Subtracts a mean over the first axis: over a batch it would mix examples."""
    return (output - output.mean(0)).square().sum() + (output.sum() - target).square()


def remembers(output: Tensor, target: Tensor) -> Tensor:
    """Carries one example into the next one's loss."""
    SEEN.append(output.detach())
    return (output.sum() - target).square() + sum(float(one.sum()) for one in SEEN)


def drifts(output: Tensor, target: Tensor) -> Tensor:
    """Keeps a running mean."""
    MEAN.mul_(0.9).add_(output.detach().mean(), alpha=0.1)
    return (output.sum() - MEAN - target).square().sum()


def two_numbers(output: Tensor, target: Tensor) -> Tensor:
    """No loss."""
    return torch.stack([output.sum(), output.sum()])


def fails(output: Tensor, target: Tensor) -> Tensor:
    """Neither."""
    raise RuntimeError("no such thing")


def constant(output: Tensor, target: Tensor) -> Tensor:
    """A number that teaches nothing."""
    return torch.tensor(1.0)


NUMBER = 3
