"""Experiment files as an enemy, or a tired person, would write them: a seeded mutator of texts."""

import random
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from tests.hostile.full import FULL

EXAMPLES = Path(__file__).parent.parent.parent / "examples"

VALUES = (
    "0", "-1", "1", "2", "1e308", "-0.0", "nan", "inf", "-inf", "1e-320", "true", "false", '""', '"x"', "[]", "{}",
    "[[]]", "0x" + "f" * 5000, "9" * 400, "9" * 5000, '"../../etc"', '"/dev/zero"', '"os:system"', '"a\\u0000b"',
    '"\\u202e"', "1979-05-27", "[1, \"a\", {b = 2}]", "{scheme = \"poisson\", rate = 2.0}", "[" * 200 + "]" * 200,
    "[" * 3000 + "]" * 3000, '"' + "x" * 10_000 + '"', "'<script>alert(1)</script>'", "1_000", "-9223372036854775809",
)  # fmt: skip


@cache
def corpus() -> list[str]:
    """Every experiment file among the examples, and those that give every setting."""
    return [*(path.read_text() for path in sorted(EXAMPLES.rglob("*.toml"))), *FULL]


def every_value(texts: Sequence[str]) -> Iterator[str]:
    """Every line of every text with every strange value in its place."""
    for text in texts:
        lines = _lines(text)
        for place in (place for place, line in enumerate(lines) if "=" in line):
            for value in VALUES:
                yield "\n".join([*lines[:place], lines[place].partition("=")[0] + "= " + value, *lines[place + 1 :]])


def mutations(texts: list[str], count: int, seed: int) -> Iterator[str]:
    """`count` texts, each one to four mutations away from one of the texts."""
    dice = random.Random(seed)
    for _ in range(count):
        text = dice.choice(texts)
        for _ in range(dice.randint(1, 4)):
            text = dice.choice(KINDS)(text, dice)
        yield text


def _lines(text: str) -> list[str]:
    return text.split("\n")


def _value(text: str, dice: random.Random) -> str:
    lines = _lines(text)
    places = [place for place, line in enumerate(lines) if "=" in line]
    if places:
        place = dice.choice(places)
        lines[place] = lines[place].partition("=")[0] + "= " + dice.choice(VALUES)
    return "\n".join(lines)


def _foreign(text: str, dice: random.Random) -> str:
    """A line of another file, in any place."""
    lines = _lines(text)
    lines.insert(dice.randint(0, len(lines)), dice.choice(_lines(dice.choice(corpus()))))
    return "\n".join(lines)


def _drop(text: str, dice: random.Random) -> str:
    lines = _lines(text)
    del lines[dice.randrange(len(lines))]
    return "\n".join(lines or [""])


def _swap(text: str, dice: random.Random) -> str:
    lines = _lines(text)
    a, b = dice.randrange(len(lines)), dice.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]
    return "\n".join(lines)


def _character(text: str, dice: random.Random) -> str:
    place = dice.randint(0, len(text))
    new = dice.choice(
        ["", "[", "]", '"', "=", ".", "\x00", "\u202e", "\ud7ff", "#", "\n", chr(dice.randrange(0x20, 0x250))]
    )
    return text[:place] + new + text[place + dice.randint(0, 2) :]


def _cut(text: str, dice: random.Random) -> str:
    return text[: dice.randint(0, len(text))]


KINDS = (_value, _value, _value, _foreign, _drop, _swap, _character, _character, _cut)
