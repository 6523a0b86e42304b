"""Residual networks with GroupNorm: ResNet-18, ResNet-101, WideResNet-40-4 and a small one.

Every network is `stem`, then `blocks.0`, `blocks.1`, ..., then `head`, so that a block is a prefix of tensor names and
training by parts can leave a block out: a block whose tensors are all zero adds nothing to its input.
"""

from collections.abc import Sequence
from math import gcd

from torch import Tensor, nn
from torch.nn import functional

from sightline.data.federation import Kind
from sightline.errors import invalid
from sightline.models.classifiers import check_positive, check_widths, image_channels
from sightline.models.mixing import mark_own


def group_norm(channels: int, groups: int) -> nn.GroupNorm:
    """GroupNorm with as many groups, at most `groups`, as divide the channels evenly."""
    return nn.GroupNorm(gcd(groups, channels), channels)


def convolution_layer(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    """A convolution without bias (the norm after it has one) that keeps the image size at stride 1."""
    return nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)


@mark_own
class Block(nn.Module):
    """Two 3x3 convolutions and the input added to them (He et al. 2015, figure 2)."""

    growth = 1

    def __init__(self, inputs: int, width: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = convolution_layer(inputs, width, 3, stride), group_norm(width, groups)
        self.conv2, self.norm2 = convolution_layer(width, width, 3), group_norm(width, groups)
        self.shortcut = shortcut_layer(inputs, width, stride, groups)

    def forward(self, x: Tensor) -> Tensor:
        """relu(shortcut(x) + F(x))."""
        y = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


@mark_own
class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions and the input added to them (He et al. 2015, figure 5)."""

    growth = 4

    def __init__(self, inputs: int, width: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = convolution_layer(inputs, width, 1), group_norm(width, groups)
        self.conv2, self.norm2 = convolution_layer(width, width, 3, stride), group_norm(width, groups)
        self.conv3, self.norm3 = convolution_layer(width, 4 * width, 1), group_norm(4 * width, groups)
        self.shortcut = shortcut_layer(inputs, 4 * width, stride, groups)

    def forward(self, x: Tensor) -> Tensor:
        """relu(shortcut(x) + F(x))."""
        y = functional.relu(self.norm1(self.conv1(x)))
        y = functional.relu(self.norm2(self.conv2(y)))
        return functional.relu(self.norm3(self.conv3(y)) + self.shortcut(x))


@mark_own
class WideBlock(nn.Module):
    """Norm before convolution, twice, and the input added (Zagoruyko and Komodakis 2016)."""

    growth = 1

    def __init__(self, inputs: int, width: int, stride: int, groups: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = group_norm(inputs, groups), convolution_layer(inputs, width, 3, stride)
        self.norm2, self.conv2 = group_norm(width, groups), convolution_layer(width, width, 3)
        same = inputs == width and stride == 1
        self.shortcut: nn.Module = nn.Identity() if same else convolution_layer(inputs, width, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """shortcut(...) + F(x); where the shape changes, the shortcut starts after the first norm."""
        y = functional.relu(self.norm1(x))
        beside = x if isinstance(self.shortcut, nn.Identity) else self.shortcut(y)
        inner: Tensor = self.conv2(functional.relu(self.norm2(self.conv1(y))))
        return inner + beside


def shortcut_layer(inputs: int, outputs: int, stride: int, groups: int) -> nn.Module:
    """The identity, or a 1x1 convolution where the shape changes."""
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
        """Logits of a batch of images."""
        logits: Tensor = self.head(self.blocks(self.stem(x)))
        return logits


def build_stages(
    block: type[Block] | type[Bottleneck] | type[WideBlock], inputs: int, shape: Sequence[tuple[int, int]], groups: int
) -> tuple[list[nn.Module], int]:
    """The blocks of all stages, `shape` = (width, depth) of each; every stage but the first halves the image."""
    blocks: list[nn.Module] = []
    for stage, (width, depth) in enumerate(shape):
        for index in range(depth):
            stride = 2 if stage > 0 and index == 0 else 1
            blocks.append(block(inputs, width, stride, groups))
            inputs = width * block.growth
    return blocks, inputs


def stem_of(size: int, channels: int, width: int, groups: int) -> nn.Module:
    """7: a strided 7x7 convolution and a strided pool (large images); 3: a 3x3 convolution (small images)."""
    if size not in (3, 7):
        invalid("model.stem", size, "is 7 (large images, as He et al.) or 3 (small images)")
    first = [convolution_layer(channels, width, size, 2 if size == 7 else 1), group_norm(width, groups), nn.ReLU()]
    return nn.Sequential(*first, nn.MaxPool2d(3, 2, padding=1)) if size == 7 else nn.Sequential(*first)


def mean_head(width: int, classes: int) -> nn.Module:
    """Mean over the image, then the output layer."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


def resnet18(*, input_shape: tuple[int, ...], classes: int, kind: Kind, stem: int = 7, groups: int = 32) -> nn.Module:
    """ResNet-18 of He et al.: 11,181,642 parameters on 3 channels and 10 classes, as in R-DPCFL's Table 3."""
    channels = image_channels("resnet18", input_shape, kind)
    blocks, width = build_stages(Block, 64, [(64, 2), (128, 2), (256, 2), (512, 2)], check_positive("groups", groups))
    return ResNet(stem_of(stem, channels, 64, groups), blocks, mean_head(width, classes))


def resnet101(*, input_shape: tuple[int, ...], classes: int, kind: Kind, stem: int = 7, groups: int = 32) -> nn.Module:
    """ResNet-101 of He et al.: 33 bottleneck blocks, 42,520,650 parameters on 3 channels and 10 classes."""
    channels = image_channels("resnet101", input_shape, kind)
    blocks, width = build_stages(
        Bottleneck, 64, [(64, 3), (128, 4), (256, 23), (512, 3)], check_positive("groups", groups)
    )
    return ResNet(stem_of(stem, channels, 64, groups), blocks, mean_head(width, classes))


def wide_resnet_40_4(*, input_shape: tuple[int, ...], classes: int, kind: Kind, groups: int = 16) -> nn.Module:
    """WideResNet-40-4: three stages of six blocks, 64, 128 and 256 wide, norm before convolution."""
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
    """A small ResNet: `depth` blocks at each of the widths in `channels`, 3x3 stem; 78,042 parameters on 3x32x32."""
    inputs = image_channels("resnet", input_shape, kind)
    sizes = check_widths("channels", channels)
    if not sizes:
        invalid("model.channels", list(channels), "names at least one stage", "give channels = [16, 32]")
    shape = [(width, check_positive("depth", depth)) for width in sizes]
    blocks, width = build_stages(Block, sizes[0], shape, check_positive("groups", groups))
    return ResNet(stem_of(3, inputs, sizes[0], groups), blocks, mean_head(width, classes))
