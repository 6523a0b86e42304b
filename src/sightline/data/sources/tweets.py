"""Tweets as token numbers by hashing: the numbers depend on no data, so the vocabulary cannot leak anything."""

import dataclasses
import html
import re
import zlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sightline.data.federation import TEXTS, Kind, Option, Request, Source, Table
from sightline.data.formats import raise_broken, read_csv
from sightline.errors import invalid

PADDING = 0
LINK = re.compile(r"https?://\S+|www\.\S+")
NAME = re.compile(r"@\w+")
WORD = re.compile(r"<link>|<name>|[^\W_]+(?:'[^\W_]+)*|[!?]")


def split_words(text: str) -> list[str]:
    """Return the lower-case words of a tweet; links and @names become one word each, `!` and `?` are words.

    >>> split_words("@Anna LOVE it &amp; can't wait! http://t.co/x")
    ['<name>', 'love', 'it', "can't", 'wait', '!', '<link>']
    """
    plain = html.unescape(text).lower().replace("’", "'")
    return WORD.findall(NAME.sub(" <name> ", LINK.sub(" <link> ", plain)))


# A vocabulary counted from private texts would be a release: one rare word in it reveals that a person wrote it, and no
# ledger entry would cover that. A fixed hash costs collisions only.
@lru_cache(maxsize=2**17)
def hash_word(word: str, vocabulary: int) -> int:
    """Return the number of a word: 1 + CRC-32 mod (vocabulary - 1); 0 is reserved for padding."""
    return 1 + zlib.crc32(word.encode("utf-8")) % (vocabulary - 1)


def encode_texts(texts: Sequence[str], *, tokens: int, vocabulary: int) -> NDArray[np.int64]:
    """Return the first `tokens` words of each text as numbers below `vocabulary`, padded with 0 at the end.

    Guarantees: a function of each text alone. The first token is never padding (a text without words gets the number of
    the empty word).

    >>> encode_texts(["hello world", ""], tokens=3, vocabulary=100).shape
    (2, 3)
    """
    numbers = np.full((len(texts), tokens), PADDING, dtype=np.int64)
    for row, text in enumerate(texts):
        result = split_words(text)[:tokens] or [""]
        numbers[row, : len(result)] = [hash_word(word, vocabulary) for word in result]
    return numbers


LARGEST = 2**62
OPTIONS = {
    "tokens": Option(default=25, lowest=1, highest=1000),
    "vocabulary": Option(default=5000, lowest=2, highest=10_000_000),
    "users": Option(default="one", choices=("one", "grouped")),
}


def read_tweets(path: Path, *, classes: int) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64]]:
    """Return texts, labels and authors from a CSV with the columns `text`, `label` and `user`."""
    rows = read_csv(path, ("text", "label", "user"))
    if not rows:
        raise_broken(path, "has no rows")
    texts, labels, users = zip(*rows, strict=True)
    label = whole_numbers(path, "label", labels, below=classes)
    return list(texts), label, whole_numbers(path, "user", users, below=LARGEST)


def whole_numbers(path: Path, column: str, values: tuple[str, ...], *, below: int) -> NDArray[np.int64]:
    """Return a column of whole numbers; raise unless they lie in 0 .. `below` - 1."""
    try:
        numbers = [int(value) for value in values]
    except ValueError as error:
        raise_broken(path, f'column "{column}": {str(error)[:60]}')
    if min(numbers) < 0 or max(numbers) >= below:
        raise_broken(path, f'column "{column}" holds {min(numbers)} .. {max(numbers)}, expected 0 .. {below - 1}')
    return np.array(numbers, dtype=np.int64)


def table_of(request: Request, texts: list[str], y: NDArray[np.int64], owner: NDArray[np.int64], classes: int) -> Table:
    """Return texts as hashed tokens."""
    tokens, vocabulary = int(request.options["tokens"]), int(request.options["vocabulary"])
    if len(texts) * tokens > 2**29:
        invalid("data.options.tokens", tokens, f"{len(texts):,} texts of that length do not fit in memory", "use 25")
    x = encode_texts(texts, tokens=tokens, vocabulary=vocabulary)
    how = f"the first {tokens} words, hashed into {vocabulary:,} numbers (no vocabulary is learned)"
    return Table(
        x, y, classes, Kind.TEXT, owner=owner, vocabulary=vocabulary, notes=(f"{request.settings.source}: {how}",)
    )


def read_sentiment140(request: Request) -> Table:
    """Return Sentiment140 by user: label 0 negative, 1 positive."""
    texts, y, owner = read_tweets(request.folder / "sentiment140_users.csv.gz", classes=2)
    return table_of(request, texts, y, owner, 2)


def read_airline(request: Request) -> Table:
    """Return airline tweets: label 0 negative, 1 neutral, 2 positive; options.classes = 2 drops neutral tweets."""
    texts, y, owner = read_tweets(request.folder / "airline_tweets.csv.gz", classes=3)
    if request.options["classes"] == 2:
        kept = np.flatnonzero(y != 1)
        texts, y, owner = [texts[row] for row in kept], y[kept] // 2, owner[kept]
    table = table_of(request, texts, y, owner, int(request.options["classes"]))
    note = "airline_tweets: about a hundred tweets are there twice; an example is one row"
    return dataclasses.replace(table, notes=(*table.notes, note))


SENTIMENT140_USERS = Source(
    name="sentiment140_users",
    kind=Kind.TEXT,
    examples="51,654 of 2 classes by 45,779 users",
    read=read_sentiment140,
    partitions=TEXTS,
    files=(("sentiment140_users.csv.gz",),),
    options=OPTIONS,
    how_to_get=(
        "Sentiment140 (Go, Bhayani, Huang 2009) as sentiment140_users.csv.gz with the columns user (a number), "
        "label (0 negative, 1 positive) and text"
    ),
    licence="none stated; offered for research",
)
AIRLINE_TWEETS = Source(
    name="airline_tweets",
    kind=Kind.TEXT,
    examples="14,604 of 3 classes by 7,701 users",
    read=read_airline,
    partitions=TEXTS,
    files=(("airline_tweets.csv.gz",),),
    options=OPTIONS | {"classes": Option(default=3, lowest=2, highest=3)},
    how_to_get=(
        "Twitter US Airline Sentiment (Crowdflower 2015) as airline_tweets.csv.gz with the columns user (a number), "
        "label (0 negative, 1 neutral, 2 positive) and text"
    ),
    licence="CC BY-NC-SA 4.0",
)
