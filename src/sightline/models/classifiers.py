"""Classifiers by name: `linear`, `mlp`, the convolutional networks of papers, and a bidirectional LSTM."""

from collections import OrderedDict
from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn

from sightline.data.federation import Kind
from sightline.errors import did_you_mean, invalid
from sightline.models.mixing import mark_own

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}


def linear(*, input_shape: tuple[int, ...], classes: int, kind: Kind) -> nn.Module:
    """Softmax regression: W x + b."""
    refuse_text("linear", kind)
    return nn.Sequential(OrderedDict(flatten=nn.Flatten(), output=nn.Linear(prod(input_shape), classes)))


def mlp(
    *,
    input_shape: tuple[int, ...],
    classes: int,
    kind: Kind,
    hidden: Sequence[int] = (64,),
    activation: str = "relu",
    dropout: float = 0.0,
) -> nn.Module:
    """Fully connected layers of the widths in `hidden`, dropout after each where asked for, then the output layer."""
    refuse_text("mlp", kind)
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        invalid("model.dropout", dropout, "a rate lies in [0, 1)")
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    width = prod(input_shape)
    for index, size in enumerate(check_widths("hidden", hidden)):
        layers[f"hidden{index}"] = nn.Linear(width, size)
        layers[f"{activation}{index}"] = activation_layer(activation)
        if dropout:
            layers[f"dropout{index}"] = nn.Dropout(dropout)
        width = size
    layers["output"] = nn.Linear(width, classes)
    return nn.Sequential(layers)


def activation_layer(name: str) -> nn.Module:
    """The activation layer of that name."""
    if str(name) not in ACTIVATIONS:
        invalid("model.activation", name, "no such activation", did_you_mean(str(name), list(ACTIVATIONS)))
    return ACTIVATIONS[str(name)]()


def check_widths(name: str, values: Sequence[int]) -> tuple[int, ...]:
    """The values, when they are a list of positive whole numbers."""
    given = values if isinstance(values, Sequence) and not isinstance(values, str) else None
    if given is None or not all(isinstance(v, int) and not isinstance(v, bool) and v > 0 for v in given):
        invalid(f"model.{name}", values, "is a list of positive whole numbers", f"give {name} = [64]")
    return tuple(given)


def check_positive(name: str, value: int) -> int:
    """The value, when it is a positive whole number."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        invalid(f"model.{name}", value, "is a positive whole number")
    return value


def refuse_text(model: str, kind: Kind) -> None:
    """Token numbers are no measurements: a dense layer on them means nothing."""
    if kind is Kind.TEXT:
        invalid("model.name", model, "takes vectors or images, and the data are text", 'use "bilstm"')


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
        conv1=nn.Conv2d(channels, 16, 8, stride=2, padding=3), act1=activation_layer(activation),
        pool1=nn.MaxPool2d(2, 1),
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


@mark_own
class BiLSTM(nn.Module):
    """Embedding, LSTM in both directions, mean over the words (token 0 is padding), output layer."""

    def __init__(self, vocabulary: int, embedding: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True, bidirectional=True)
        self.output = nn.Linear(2 * hidden, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of a batch of token sequences (n, tokens)."""
        states, _ = self.lstm(self.embedding(tokens))
        words = (tokens != 0).unsqueeze(2).to(states.dtype)
        logits: Tensor = self.output((states * words).sum(1) / words.sum(1).clamp_min(1.0))
        return logits


def bilstm(
    *,
    input_shape: tuple[int, ...],
    classes: int,
    kind: Kind,
    vocabulary: int,
    embedding: int = 300,
    hidden: int = 256,
) -> nn.Module:
    """Bi-directional LSTM of the Sent140 experiments (embedding 300, 256 each way by default)."""
    if kind is not Kind.TEXT or len(input_shape) != 1:
        invalid("model.name", "bilstm", f"takes token sequences, and the data are {kind.value}s", 'use "mlp" or "cnn"')
    if vocabulary < 1:
        invalid("vocabulary", vocabulary, "the data state how many tokens there are")
    return BiLSTM(vocabulary, check_positive("embedding", embedding), check_positive("hidden", hidden), classes)
