"""Tweets to token numbers, by hashing: the numbers depend on no data, so the vocabulary cannot leak anything."""

import html
import re
import zlib
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

PADDING = 0
LINK = re.compile(r"https?://\S+|www\.\S+")
NAME = re.compile(r"@\w+")
WORD = re.compile(r"<link>|<name>|[^\W_]+(?:'[^\W_]+)*|[!?]")


def split_words(text: str) -> list[str]:
    """The lower-case words of a tweet; links and @names become one word each, `!` and `?` are words.

    >>> split_words("@Anna LOVE it &amp; can't wait! http://t.co/x")
    ['<name>', 'love', 'it', "can't", 'wait', '!', '<link>']
    """
    plain = html.unescape(text).lower().replace("’", "'")
    return WORD.findall(NAME.sub(" <name> ", LINK.sub(" <link> ", plain)))


@lru_cache(maxsize=2**17)
def hash_word(word: str, vocabulary: int) -> int:
    """The number of a word: 1 + CRC-32 mod (vocabulary - 1); 0 is kept for padding."""
    return 1 + zlib.crc32(word.encode("utf-8")) % (vocabulary - 1)


def encode_texts(texts: Sequence[str], *, tokens: int, vocabulary: int) -> NDArray[np.int64]:
    """The first `tokens` words of each text as numbers below `vocabulary`, padded with 0 at the end.

    Guarantees: a function of each text alone; the first token is never padding (a text without words gets the number
    of the empty word).

    >>> encode_texts(["hello world", ""], tokens=3, vocabulary=100).shape
    (2, 3)
    """
    numbers = np.full((len(texts), tokens), PADDING, dtype=np.int64)
    for row, text in enumerate(texts):
        found = split_words(text)[:tokens] or [""]
        numbers[row, : len(found)] = [hash_word(word, vocabulary) for word in found]
    return numbers
