"""Plain convolutional classifiers, each the network of a paper or of a tutorial that papers measure with."""

from collections import OrderedDict

import torch
from torch import nn

from sightline.data.federation import Kind
from sightline.errors import invalid
from sightline.models.dense import activation_layer


def cnn(*, input_shape: tuple[int, ...], classes: int, kind: Kind, activation: str = "relu") -> nn.Module:
    """Two 5x5 convolutions (16, 32), each halved by max pooling, one dense layer: 28,938 parameters on 28x28.

    Reference: R-DPCFL, Table 2. The table prints a ReLU after the last layer; the logits are left free here.
    """
    channels = image_channels("cnn", input_shape, kind)
    body = OrderedDict(
        conv1=nn.Conv2d(channels, 16, 5, padding=2), act1=activation_layer(activation), pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(16, 32, 5, padding=2), act2=activation_layer(activation), pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
    )  # fmt: skip
    return with_head("cnn", body, input_shape, classes)


def cnn_mcmahan(*, input_shape: tuple[int, ...], classes: int, kind: Kind, activation: str = "relu") -> nn.Module:
    """Two 5x5 convolutions (32, 64) with 2x2 max pooling, dense 512, output: 1,663,370 parameters on 28x28.

    Reference: McMahan et al., Communication-Efficient Learning of Deep Networks (2017), section 3.
    """
    channels = image_channels("cnn_mcmahan", input_shape, kind)
    body = OrderedDict(
        conv1=nn.Conv2d(channels, 32, 5, padding=2), act1=activation_layer(activation), pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(32, 64, 5, padding=2), act2=activation_layer(activation), pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
    )  # fmt: skip
    return with_head("cnn_mcmahan", body, input_shape, classes, hidden=512, activation=activation)


def cnn_small(*, input_shape: tuple[int, ...], classes: int, kind: Kind, activation: str = "relu") -> nn.Module:
    """Strided 8x8 and 4x4 convolutions with overlapping pools, dense 32: 26,010 parameters on 28x28.

    Reference: Papernot et al., Tempered Sigmoid Activations (2021), Table 1; the MNIST network of DP tutorials.
    """
    channels = image_channels("cnn_small", input_shape, kind)
    body = OrderedDict(
        conv1=nn.Conv2d(channels, 16, 8, stride=2, padding=3), act1=activation_layer(activation), pool1=nn.MaxPool2d(2, 1),
        conv2=nn.Conv2d(16, 32, 4, stride=2), act2=activation_layer(activation), pool2=nn.MaxPool2d(2, 1),
        flatten=nn.Flatten(),
    )  # fmt: skip
    return with_head("cnn_small", body, input_shape, classes, hidden=32, activation=activation)


def cnn_3x3(*, input_shape: tuple[int, ...], classes: int, kind: Kind, activation: str = "relu") -> nn.Module:
    """Two 3x3 convolutions (32, 64) without padding, one max pooling, dense 128: 1,626,442 parameters on 3x32x32."""
    channels = image_channels("cnn_3x3", input_shape, kind)
    body = OrderedDict(
        conv1=nn.Conv2d(channels, 32, 3), act1=activation_layer(activation),
        conv2=nn.Conv2d(32, 64, 3), act2=activation_layer(activation), pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
    )  # fmt: skip
    return with_head("cnn_3x3", body, input_shape, classes, hidden=128, activation=activation)


def image_channels(model: str, input_shape: tuple[int, ...], kind: Kind) -> int:
    """The number of channels, when the examples are images."""
    if kind is not Kind.IMAGE or len(input_shape) != 3:
        invalid(
            "model.name", model, f"takes images, and the data are {kind.value}s of shape {input_shape}", 'use "mlp"'
        )
    return input_shape[0]


def with_head(
    model: str,
    body: "OrderedDict[str, nn.Module]",
    input_shape: tuple[int, ...],
    classes: int,
    hidden: int = 0,
    activation: str = "relu",
) -> nn.Module:
    """The body, then a dense hidden layer when asked for, then the output layer, sized to what the body gives."""
    width = count_features(model, nn.Sequential(body), input_shape)
    if hidden:
        body["hidden"] = nn.Linear(width, hidden)
        body["act3"] = activation_layer(activation)
    body["output"] = nn.Linear(hidden or width, classes)
    return nn.Sequential(body)


def count_features(model: str, body: nn.Module, input_shape: tuple[int, ...]) -> int:
    """How many numbers the body makes of one example."""
    try:
        with torch.no_grad():
            return int(body(torch.zeros(1, *input_shape)).shape[1])
    except RuntimeError:
        invalid("model.name", model, f"images of {input_shape[1]}x{input_shape[2]} are too small for it", 'use "mlp"')
