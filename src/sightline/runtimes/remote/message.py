"""What travels between a server and a node: words and arrays, never code and never a pickle."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save
from torch import Tensor

from sightline.errors import InvalidInput

QUESTION = "question"
"""A random number that no two questions share: an answer must bring it back."""
MARKS = (QUESTION, "round", "client")

Words = Mapping[str, Any]
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class WireMessage:
    """A question or an answer: plain words (anything JSON can say) and named arrays."""

    words: Words = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """The message as one safetensors file."""
        arrays = {name: np.ascontiguousarray(array) for name, array in self.arrays.items()}
        return save(arrays, {"words": json.dumps(dict(self.words), allow_nan=False)})

    def reply(self, client: int, words: Words, arrays: Arrays | None = None) -> "WireMessage":
        """An answer that says which question it answers, and whose it is."""
        mark = {"client": client} | {name: self.words.get(name) for name in MARKS if name != "client"}
        return WireMessage({**words, **mark}, arrays or {})

    def without_mark(self) -> "WireMessage":
        """The message without the number that makes it unlike all others: what is really asked."""
        return WireMessage({name: word for name, word in self.words.items() if name != QUESTION}, self.arrays)

    @classmethod
    def from_bytes(cls, content: bytes) -> "WireMessage":
        """The message that `to_bytes` wrote; anything else is refused."""
        try:
            size = int.from_bytes(content[:8], "little")
            words = read_words(json.loads(content[8 : 8 + size])["__metadata__"]["words"])
            return cls(words, load(content))
        except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise InvalidInput(f"message={len(content)} bytes: cannot be read ({type(error).__name__})") from None


def read_words(text: str) -> dict[str, Any]:
    """The words of a message; raises ValueError for anything that `to_bytes` would not write."""
    words = json.loads(text, parse_constant=_no_number)
    if not isinstance(words, dict):
        raise ValueError("words are a table")
    return words


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number")


def pack_value(value: Mapping[str, Any], under: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Numbers and tensors apart: the words of a message, and its arrays with names that begin with `under`."""
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
