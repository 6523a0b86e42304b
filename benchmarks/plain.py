"""The baseline of private training: the fastest plain step, and models as users write them."""

import torch
from torch import Tensor, nn

torch.manual_seed(0)


def cnn() -> nn.Module:
    """The 28,938-parameter CNN as an ordinary module."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1568, 10),
    )  # fmt: skip


def mlp() -> nn.Module:
    """784-196-10."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 196), nn.ReLU(), nn.Linear(196, 10))


class PlainStep:
    """Forward, backward and SGD on one batch, channels_last, with flat gradients and weights."""

    def __init__(self, module: nn.Module, x: Tensor, y: Tensor) -> None:
        images = any(isinstance(layer, nn.Conv2d) for layer in module.modules())
        self.module = module.to(memory_format=torch.channels_last) if images else module
        self.x = x.contiguous(memory_format=torch.channels_last) if images else x
        self.y = y
        self.optimizer = torch.optim.SGD(module.parameters(), lr=0.01, foreach=True)

    def __call__(self) -> None:
        """One step."""
        self.optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(self.module(self.x), self.y).backward()
        self.optimizer.step()
