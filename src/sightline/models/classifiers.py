"""The networks that an experiment can name: linear, MLP, convolutional, residual and recurrent."""

from collections import OrderedDict
from collections.abc import Sequence
from math import gcd, prod

import torch
from torch import Tensor, nn
from torch.nn import functional

from sightline.data.federation import Kind
from sightline.errors import did_you_mean, invalid
from sightline.models.flat import mark_own


# All bundled residual networks use GroupNorm: batch normalisation mixes examples and is refused in private training.
def group_norm(channels: int, groups: int) -> nn.GroupNorm:
    """Return GroupNorm with the most groups, at most `groups`, that divide the channels evenly."""
    return nn.GroupNorm(gcd(groups, channels), channels)


def convolution_layer(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    """Return a convolution without bias (the norm after it has one) that keeps the image size at stride 1."""
    return nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)


@mark_own
class Block(nn.Module):
    """Residual block of two 3x3 convolutions (He et al. 2015, figure 2)."""

    growth = 1

    def __init__(self, inputs: int, width: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = convolution_layer(inputs, width, 3, stride), group_norm(width, groups)
        self.conv2, self.norm2 = convolution_layer(width, width, 3), group_norm(width, groups)
        self.shortcut = shortcut_layer(inputs, width, stride, groups)

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(shortcut(x) + F(x))."""
        y = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


@mark_own
class Bottleneck(nn.Module):
    """Residual block of 1x1, 3x3 and 1x1 convolutions (He et al. 2015, figure 5)."""

    growth = 4

    def __init__(self, inputs: int, width: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = convolution_layer(inputs, width, 1), group_norm(width, groups)
        self.conv2, self.norm2 = convolution_layer(width, width, 3, stride), group_norm(width, groups)
        self.conv3, self.norm3 = convolution_layer(width, 4 * width, 1), group_norm(4 * width, groups)
        self.shortcut = shortcut_layer(inputs, 4 * width, stride, groups)

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(shortcut(x) + F(x))."""
        y = functional.relu(self.norm1(self.conv1(x)))
        y = functional.relu(self.norm2(self.conv2(y)))
        return functional.relu(self.norm3(self.conv3(y)) + self.shortcut(x))


@mark_own
class WideBlock(nn.Module):
    """Residual block with norm before convolution, twice (Zagoruyko and Komodakis 2016)."""

    growth = 1

    def __init__(self, inputs: int, width: int, stride: int, groups: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = group_norm(inputs, groups), convolution_layer(inputs, width, 3, stride)
        self.norm2, self.conv2 = group_norm(width, groups), convolution_layer(width, width, 3)
        same = inputs == width and stride == 1
        self.shortcut: nn.Module = nn.Identity() if same else convolution_layer(inputs, width, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return shortcut(...) + F(x); where the shape changes, the shortcut starts after the first norm."""
        y = functional.relu(self.norm1(x))
        beside = x if isinstance(self.shortcut, nn.Identity) else self.shortcut(y)
        inner: Tensor = self.conv2(functional.relu(self.norm2(self.conv1(y))))
        return inner + beside


def shortcut_layer(inputs: int, outputs: int, stride: int, groups: int) -> nn.Module:
    """Return the identity, or a 1x1 convolution where the shape changes."""
    if inputs == outputs and stride == 1:
        return nn.Identity()
    return nn.Sequential(convolution_layer(inputs, outputs, 1, stride), group_norm(outputs, groups))


@mark_own
class ResNet(nn.Module):
    """Stem, residual blocks, mean over the image, output layer."""

    def __init__(self, stem: nn.Module, blocks: list[nn.Module], head: nn.Module) -> None:
        super().__init__()
        self.stem, self.blocks, self.head = stem, nn.Sequential(*blocks), head

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch of images."""
        logits: Tensor = self.head(self.blocks(self.stem(x)))
        return logits


def build_stages(
    block: type[Block] | type[Bottleneck] | type[WideBlock], inputs: int, shape: Sequence[tuple[int, int]], groups: int
) -> tuple[list[nn.Module], int]:
    """Return the blocks of all stages and their width; `shape` = (width, depth); all but the first halve the image."""
    blocks: list[nn.Module] = []
    for stage, (width, depth) in enumerate(shape):
        for index in range(depth):
            stride = 2 if stage > 0 and index == 0 else 1
            blocks.append(block(inputs, width, stride, groups))
            inputs = width * block.growth
    return blocks, inputs


def stem_of(size: int, channels: int, width: int, groups: int) -> nn.Module:
    """Return the stem. 7: strided 7x7 convolution and pool (large images); 3: 3x3 convolution (small images)."""
    if size not in (3, 7):
        invalid("model.stem", size, "must be 7 (large images, as in He et al.) or 3 (small images)")
    first = [convolution_layer(channels, width, size, 2 if size == 7 else 1), group_norm(width, groups), nn.ReLU()]
    return nn.Sequential(*first, nn.MaxPool2d(3, 2, padding=1)) if size == 7 else nn.Sequential(*first)


def mean_head(width: int, classes: int) -> nn.Module:
    """Return a mean over the image, then the output layer."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


def resnet18(*, input_shape: tuple[int, ...], classes: int, kind: Kind, stem: int = 7, groups: int = 32) -> nn.Module:
    """Return ResNet-18 (He et al.): 11,181,642 parameters on 3 channels and 10 classes, as in R-DPCFL's Table 3."""
    channels = image_channels("resnet18", input_shape, kind)
    blocks, width = build_stages(Block, 64, [(64, 2), (128, 2), (256, 2), (512, 2)], check_positive("groups", groups))
    return ResNet(stem_of(stem, channels, 64, groups), blocks, mean_head(width, classes))


def resnet101(*, input_shape: tuple[int, ...], classes: int, kind: Kind, stem: int = 7, groups: int = 32) -> nn.Module:
    """Return ResNet-101 (He et al.): 33 bottleneck blocks, 42,520,650 parameters on 3 channels and 10 classes."""
    channels = image_channels("resnet101", input_shape, kind)
    blocks, width = build_stages(
        Bottleneck, 64, [(64, 3), (128, 4), (256, 23), (512, 3)], check_positive("groups", groups)
    )
    return ResNet(stem_of(stem, channels, 64, groups), blocks, mean_head(width, classes))


def wide_resnet_40_4(*, input_shape: tuple[int, ...], classes: int, kind: Kind, groups: int = 16) -> nn.Module:
    """Return WideResNet-40-4: three stages of six blocks, 64, 128 and 256 wide, norm before convolution."""
    channels = image_channels("wide_resnet_40_4", input_shape, kind)
    blocks, width = build_stages(WideBlock, 16, [(64, 6), (128, 6), (256, 6)], check_positive("groups", groups))
    head = nn.Sequential(
        group_norm(width, groups), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)
    )
    return ResNet(convolution_layer(channels, 16, 3), blocks, head)


def resnet(
    *,
    input_shape: tuple[int, ...],
    classes: int,
    kind: Kind,
    channels: Sequence[int] = (16, 32, 64),
    depth: int = 1,
    groups: int = 8,
) -> nn.Module:
    """Return a small ResNet: `depth` blocks per width in `channels`, 3x3 stem; 78,042 parameters on 3x32x32."""
    inputs = image_channels("resnet", input_shape, kind)
    sizes = check_widths("channels", channels)
    if not sizes:
        invalid("model.channels", list(channels), "must name at least one stage", "give channels = [16, 32]")
    shape = [(width, check_positive("depth", depth)) for width in sizes]
    blocks, width = build_stages(Block, sizes[0], shape, check_positive("groups", groups))
    return ResNet(stem_of(3, inputs, sizes[0], groups), blocks, mean_head(width, classes))


ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}


def linear(*, input_shape: tuple[int, ...], classes: int, kind: Kind) -> nn.Module:
    """Return softmax regression: W x + b."""
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
    """Return fully connected layers of the widths in `hidden`, optional dropout after each, and the output layer."""
    refuse_text("mlp", kind)
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        invalid("model.dropout", dropout, "must be in [0, 1)")
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
    """Return the activation layer of that name; raise for an unknown name."""
    if str(name) not in ACTIVATIONS:
        invalid("model.activation", name, "unknown activation", did_you_mean(str(name), list(ACTIVATIONS)))
    return ACTIVATIONS[str(name)]()


def check_widths(name: str, values: Sequence[int]) -> tuple[int, ...]:
    """Return the values; raise unless they are a list of positive whole numbers."""
    given = values if isinstance(values, Sequence) and not isinstance(values, str) else None
    if given is None or not all(isinstance(v, int) and not isinstance(v, bool) and v > 0 for v in given):
        invalid(f"model.{name}", values, "must be a list of positive whole numbers", f"give {name} = [64]")
    return tuple(given)


def check_positive(name: str, value: int) -> int:
    """Return the value; raise unless it is a positive whole number."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        invalid(f"model.{name}", value, "must be a positive whole number")
    return value


def refuse_text(model: str, kind: Kind) -> None:
    """Raise for text: token numbers are not measurements, so a dense layer on them is meaningless."""
    if kind is Kind.TEXT:
        invalid("model.name", model, "takes vectors or images, but the data are text", 'use "bilstm" or "lstm"')


def cnn(*, input_shape: tuple[int, ...], classes: int, kind: Kind, activation: str = "relu") -> nn.Module:
    """Return two 5x5 convolutions (16, 32), each with 2x2 max pooling, and a dense layer: 28,938 parameters on 28x28.

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
    """Return two 5x5 convolutions (32, 64) with 2x2 max pooling, dense 512, output: 1,663,370 parameters on 28x28.

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
    """Return strided 8x8 and 4x4 convolutions with overlapping pools, dense 32: 26,010 parameters on 28x28.

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
    """Return two 3x3 convolutions (32, 64), one max pooling, dense 128: 1,626,442 parameters on 3x32x32."""
    channels = image_channels("cnn_3x3", input_shape, kind)
    body = OrderedDict(
        conv1=nn.Conv2d(channels, 32, 3), act1=activation_layer(activation),
        conv2=nn.Conv2d(32, 64, 3), act2=activation_layer(activation), pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
    )  # fmt: skip
    return with_head("cnn_3x3", body, input_shape, classes, hidden=128, activation=activation)


def image_channels(model: str, input_shape: tuple[int, ...], kind: Kind) -> int:
    """Return the number of channels; raise unless the examples are images."""
    if kind is not Kind.IMAGE or len(input_shape) != 3:
        invalid(
            "model.name", model, f"takes images, but the data are {kind.value}s of shape {input_shape}", 'use "mlp"'
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
    """Return the body with an optional dense hidden layer and the output layer, sized to the body's output."""
    width = count_features(model, nn.Sequential(body), input_shape)
    if hidden:
        body["hidden"] = nn.Linear(width, hidden)
        body["act3"] = activation_layer(activation)
    body["output"] = nn.Linear(hidden or width, classes)
    return nn.Sequential(body)


def count_features(model: str, body: nn.Module, input_shape: tuple[int, ...]) -> int:
    """Return the number of features that the body computes from one example; raise if the image is too small."""
    try:
        with torch.no_grad():
            return int(body(torch.zeros(1, *input_shape)).shape[1])
    except RuntimeError:
        invalid(
            "model.name",
            model,
            f"images of {input_shape[1]}x{input_shape[2]} are too small for this model",
            'use "mlp"',
        )


@mark_own
class BiLSTM(nn.Module):
    """Embedding, bidirectional LSTM, mean over the words (token 0 is padding), output layer."""

    def __init__(self, vocabulary: int, embedding: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True, bidirectional=True)
        self.output = nn.Linear(2 * hidden, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of a batch of token sequences (n, tokens)."""
        states, _ = self.lstm(self.embedding(tokens))
        mask = (tokens != 0).unsqueeze(2).to(states.dtype)
        # The clamp is for sequences of padding only, which have no words to average.
        logits: Tensor = self.output((states * mask).sum(1) / mask.sum(1).clamp_min(1.0))
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
    """Return the bidirectional LSTM of the Sent140 experiments (embedding 300, 256 each way by default)."""
    if kind is not Kind.TEXT or len(input_shape) != 1:
        invalid("model.name", "bilstm", f"takes token sequences, but the data are {kind.value}s", 'use "mlp" or "cnn"')
    if vocabulary < 1:
        invalid("vocabulary", vocabulary, "must be the number of tokens, which the data source sets")
    return BiLSTM(vocabulary, check_positive("embedding", embedding), check_positive("hidden", hidden), classes)


@mark_own
class LSTM(nn.Module):
    """Forward LSTM with the output layer after every step, or after the last."""

    def __init__(self, inputs: nn.Module, width: int, hidden: int, classes: int, every: bool) -> None:
        super().__init__()
        self.inputs, self.every = inputs, every
        self.lstm = nn.LSTM(width, hidden, batch_first=True)
        self.output = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch of token sequences (n, tokens) or of sequences (n, steps, features)."""
        states, _ = self.lstm(self.inputs(x))
        logits: Tensor = self.output(states if self.every else states[:, -1])
        return logits


def lstm(
    *,
    input_shape: tuple[int, ...],
    classes: int,
    kind: Kind,
    vocabulary: int = 0,
    task: str = "classification",
    embedding: int = 64,
    hidden: int = 128,
) -> nn.Module:
    """Return a forward LSTM over tokens or (steps, features): a language model, or one output per sequence.

    Guarantees: an output depends on its own and earlier positions only, so no token is predicted from itself.
    """
    if kind not in (Kind.TEXT, Kind.SEQUENCE):
        invalid("model.name", "lstm", f"takes sequences, but the data are {kind.value}s", 'use "mlp" or "cnn"')
    is_text = kind is Kind.TEXT
    if is_text and vocabulary < 1:
        invalid("vocabulary", vocabulary, "must be the number of tokens, which the data source sets")
    width = check_positive("embedding", embedding) if is_text else input_shape[-1]
    inputs = nn.Embedding(vocabulary, width) if is_text else nn.Identity()
    return LSTM(inputs, width, check_positive("hidden", hidden), classes, task == "language")
