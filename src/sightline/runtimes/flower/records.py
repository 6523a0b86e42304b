"""Letters as Flower's records, and back."""

import json
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from sightline.errors import InvalidInput
from sightline.runtimes.letter import WireMessage, read_words

WORDS, ARRAYS = "words", "arrays"


def to_record(letter: WireMessage) -> RecordDict:
    """Words as one JSON text, arrays as they are."""
    arrays = {name: Array(np.ascontiguousarray(array)) for name, array in letter.arrays.items()}
    return RecordDict(
        {WORDS: ConfigRecord({"json": json.dumps(dict(letter.words), allow_nan=False)}), ARRAYS: ArrayRecord(arrays)}
    )


def from_record(record: RecordDict) -> WireMessage:
    """The letter in a record; anything else is refused."""
    try:
        words = read_words(str(record[WORDS]["json"]))
        return WireMessage(words, {name: _array_values(array) for name, array in record[ARRAYS].items()})
    except (KeyError, TypeError, ValueError, AttributeError, EOFError, MemoryError, RecursionError) as error:
        raise InvalidInput(f"message={type(error).__name__}: not a letter of this version") from None


def _array_values(array: Array) -> NDArray[Any]:
    """The numbers of an array; Flower would unpack whole archives too."""
    values = array.numpy()
    if not isinstance(values, np.ndarray):
        raise TypeError("not an array")
    return values
