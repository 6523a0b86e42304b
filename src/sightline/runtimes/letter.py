"""What travels between a server and a node: words and arrays, never code and never a pickle."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from sightline.errors import InvalidInput

Words = Mapping[str, Any]
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Letter:
    """A question or an answer: plain words (anything JSON can say) and named arrays."""

    words: Words = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """The letter as one safetensors file."""
        arrays = {name: np.ascontiguousarray(array) for name, array in self.arrays.items()}
        return save(arrays, {"words": json.dumps(dict(self.words), allow_nan=False)})

    @classmethod
    def from_bytes(cls, content: bytes) -> "Letter":
        """The letter that `to_bytes` wrote; anything else is refused."""
        try:
            size = int.from_bytes(content[:8], "little")
            words = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["words"])
            return cls(words, load(content))
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise InvalidInput(f"letter={len(content)} bytes: cannot be read ({type(error).__name__})") from None
