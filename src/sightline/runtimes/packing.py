"""Numbers and tensors as the words and arrays of letters, and back."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.runtimes.letter import Arrays


def pack_value(value: Mapping[str, Any], under: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Numbers and tensors apart: the words of a letter, and its arrays with names that begin with `under`."""
    words = {name: part for name, part in value.items() if not isinstance(part, Tensor)}
    arrays = {f"{under}/{name}": part.numpy() for name, part in value.items() if isinstance(part, Tensor)}
    return words, arrays


def unpack_value(words: Mapping[str, Any], arrays: Arrays, under: str) -> dict[str, Any]:
    """What `packed` took apart."""
    start = f"{under}/"
    found = {name.removeprefix(start): own_tensor(array) for name, array in arrays.items() if name.startswith(start)}
    return {**words, **found}


def own_tensor(array: NDArray[Any]) -> Tensor:
    """A tensor of its own: what came by post may be read-only memory."""
    return torch.from_numpy(np.array(array))
