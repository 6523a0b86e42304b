"""Sets of participants, and their short written form: `client-0..23, server`."""

import re
from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache

from sightline.errors import invalid

Parties = frozenset[str]
NOBODY: Parties = frozenset()

MOST = 10**7
"""A set of more participants than these is a mistake, or made to fill the memory."""
_RANGE = re.compile(r"(.+)-(\d+)\.\.(\d+)")


@lru_cache(maxsize=4096)
def written(parties: Parties) -> str:
    """The short form of a set: sorted, runs of numbers as ranges.

    >>> written(frozenset({"client-0", "client-1", "client-2", "client-7", "server"}))
    'client-0..2, client-7, server'
    """
    numbers: dict[str, list[int]] = defaultdict(list)
    words = []
    for name in parties:
        kind, _, digits = name.rpartition("-")
        if kind and digits.isdecimal() and str(number := int(digits)) == digits:
            numbers[kind].append(number)
        else:
            words.append(name)
    for kind, found in numbers.items():
        words += [_range_word(kind, low, high) for low, high in _runs(sorted(found))]
    return ", ".join(sorted(words, key=_natural))


@lru_cache(maxsize=4096)
def read_parties(text: str) -> Parties:
    """The set that `written` wrote."""
    names: set[str] = set()
    for word in filter(None, (part.strip() for part in text.split(","))):
        match = _RANGE.fullmatch(word)
        if match is None:
            names.add(word)
            continue
        low, high = int(match[2]), int(match[3])
        if not low <= high < low + MOST - len(names):
            invalid("parties", word, "ranges run upwards, over at most 10 million members together")
        names.update(f"{match[1]}-{number}" for number in range(low, high + 1))
    return frozenset(names)


def parties(*names: str | Iterable[str]) -> Parties:
    """A set from names and collections of names."""
    found: set[str] = set()
    for name in names:
        found.update([name] if isinstance(name, str) else name)
    return frozenset(found)


def _runs(numbers: list[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def _range_word(kind: str, low: int, high: int) -> str:
    return f"{kind}-{low}" if low == high else f"{kind}-{low}..{high}"


def _natural(word: str) -> tuple[str, int]:
    match = re.fullmatch(r"(.+)-(\d+)(?:\.\.\d+)?", word)
    return (match[1], int(match[2])) if match else (word, -1)
