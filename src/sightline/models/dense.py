"""Fully connected classifiers: `linear` (softmax regression) and `mlp`."""

from collections import OrderedDict
from collections.abc import Sequence
from math import prod

from torch import nn

from sightline.data.federation import Kind
from sightline.errors import did_you_mean, invalid

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
