"""A small convolutional network for CIFAR-10: 3,962 parameters."""

from typing import Any

from torch import nn


def tiny(input_shape: tuple[int, ...], classes: int, **_: Any) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(input_shape[0], 8, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(256, classes),
    )  # fmt: skip
