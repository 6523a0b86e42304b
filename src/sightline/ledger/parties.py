"""Sets of participants, and their short written form: `client-0..23, server`."""

import re
from collections import defaultdict
from collections.abc import Iterable
from difflib import get_close_matches
from functools import lru_cache
from typing import NoReturn

from sightline.errors import invalid

Parties = frozenset[str]
NOBODY: Parties = frozenset()

MOST = 10**7
"""A set of more participants than these is a mistake, or made to fill the memory."""
_RANGE = re.compile(r"(.+)-(\d+)\.\.(\d+)")
_NUMBERED = re.compile(r"(.*?)[-_ ]?(\d+)", re.DOTALL)


@lru_cache(maxsize=4096)
def write_parties(parties: Parties) -> str:
    """The short form of a set: sorted, runs of numbers as ranges.

    >>> write_parties(frozenset({"client-0", "client-1", "client-2", "client-7", "server"}))
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
        words += [_range_word(kind, low, high) for low, high in _number_runs(sorted(found))]
    return ", ".join(sorted(words, key=_natural_key))


@lru_cache(maxsize=4096)
def read_parties(text: str) -> Parties:
    """The set that `written` wrote; no name is made before all are counted."""
    names: set[str] = set()
    ranges: list[tuple[str, range]] = []
    count = 0
    for word in filter(None, (part.strip() for part in text.split(","))):
        match = _RANGE.fullmatch(word)
        if match is None:
            names.add(word)
            continue
        low, high = int(match[2]), int(match[3])
        if not low <= high < low + MOST - count:
            invalid("parties", word, "ranges run upwards, over at most 10 million members together")
        ranges.append((match[1], range(low, high + 1)))
        count += high + 1 - low
    return frozenset(names.union(*([f"{kind}-{number}" for number in numbers] for kind, numbers in ranges)))


def parties(*names: str | Iterable[str]) -> Parties:
    """A set from names and collections of names."""
    found: set[str] = set()
    for name in names:
        found.update([name] if isinstance(name, str) else name)
    return frozenset(found)


def refuse_unknown(role: str, name: str, known: Parties) -> NoReturn:
    """Raise for a name that nobody has: an epsilon of 0 for it would say that all is well.

    >>> refuse_unknown("observer", "publik", frozenset({"client-0", "client-1", "public"}))
    Traceback (most recent call last):
    ...
    sightline.errors.InvalidInput: observer=publik: no participant has that name; did you mean "public"?
    """
    invalid(role, name, "no participant has that name", suggest_name(str(name), known))


def suggest_name(name: str, known: Parties) -> str:
    """The way out for a mistyped participant: the nearest one of its number, or all of them in short.

    >>> suggest_name("cleint7", frozenset({"client-0", "client-7", "server"}))
    'did you mean "client-7"?'
    >>> suggest_name("client-9", frozenset({"client-0", "client-1", "server"}))
    'known: client-0..1, server'
    """
    match = _NUMBERED.fullmatch(name)
    number = str(int(match[2])) if match and len(match[2]) < 19 else ""
    kinds = {kind for kind, digits in (one.rsplit("-", 1) for one in known if "-" in one) if digits.isdecimal()}
    likely = {f"{kind}-{number}" for kind in kinds} & known if number else set()
    likely |= {one for one in known if one.rpartition("-")[0] not in kinds}
    near = get_close_matches(name.lower(), sorted(likely), n=1, cutoff=0.6)
    return f'did you mean "{near[0]}"?' if near else f"known: {_shorten_text(write_parties(known)) or 'nobody'}"


def _shorten_text(text: str, most: int = 200) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def _number_runs(numbers: list[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def _range_word(kind: str, low: int, high: int) -> str:
    return f"{kind}-{low}" if low == high else f"{kind}-{low}..{high}"


def _natural_key(word: str) -> tuple[str, int]:
    match = re.fullmatch(r"(.+)-(\d+)(?:\.\.\d+)?", word)
    return (match[1], int(match[2])) if match else (word, -1)
