"""The small tanh networks of Tramer and Boneh 2021 (tables 8 and 9), on pixels and on scattering features."""

from torch import nn


def convolve(inputs: int, outputs: int, kernel: int, *, stride: int = 1, padding: int = 0) -> list[nn.Module]:
    """A convolution and its tanh."""
    return [nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding), nn.Tanh()]


def build_digit_net(input_shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """Of 28 x 28 pixels, 26,010 parameters; or of the 7 x 7 places of their features."""
    channels, side = input_shape[0], input_shape[1]
    if side == 28:
        layers = [
            *convolve(channels, 16, 8, stride=2, padding=2), nn.MaxPool2d(2, stride=1),
            *convolve(16, 32, 4, stride=2), nn.MaxPool2d(2, stride=1),
        ]  # fmt: skip
    else:
        layers = [*convolve(channels, 16, 3, stride=2, padding=1), *convolve(16, 32, 3, padding=1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 4 * 4, 32), nn.Tanh(), nn.Linear(32, classes))


def build_photo_net(input_shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """Of 32 x 32 pixels in colour, 550,570 parameters; or of the places of their features, 8 x 8 or the left 8 x 4."""
    channels, height, width = input_shape
    if height == 32:
        layers: list[nn.Module] = []
        for inputs, outputs in ((channels, 32), (32, 64), (64, 128)):
            layers += convolve(inputs, outputs, 3, padding=1) + convolve(outputs, outputs, 3, padding=1)
            layers.append(nn.MaxPool2d(2))
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 16, 128), nn.Tanh(), nn.Linear(128, classes))
    layers = [*convolve(channels, 64, 3, padding=1), nn.MaxPool2d(2), *convolve(64, 64, 3, padding=1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * (height // 2) * (width // 2), classes))
