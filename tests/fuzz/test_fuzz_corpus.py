"""The seeds of the fuzz targets, and what once broke a reader, as ordinary tests."""

import json
import random
import re
from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS, Bug, seeds, target
from tests.loops import for_every

HERE = Path(__file__).parent
NESTED = "[" * 100_000 + "]" * 100_000


@for_every(sorted(TARGETS))
def test_seeds_and_what_once_broke_a_reader(name):
    held = list(seeds(name))
    assert held
    for content in held:
        TARGETS[name](content)


@for_every(sorted(TARGETS))
def test_damaged_seeds(name):
    dice = random.Random(name)
    for content in seeds(name):
        for _ in range(30):
            bad = bytearray(content)
            for _ in range(dice.randint(1, 4)):
                bad[dice.randrange(len(bad))] = dice.randrange(256)
            TARGETS[name](bytes(bad[: dice.randint(1, len(bad))] if dice.random() < 0.2 else bad))


@pytest.mark.parametrize(
    "content", [b"", b"\0", b"z", b"\xff" * 300, NESTED.encode(), b"9" * 5000, b'{"a":' + b"9" * 5000]
)
def test_the_oldest_tricks(content):
    for_every(sorted(TARGETS))(lambda name: TARGETS[name](content))()


@pytest.mark.parametrize("name", ["exported", "rows"])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"time":1', '"time":1e400'),
        ('"time":1', '"time":' + "9" * 5000),
        ('"rate":0.5', '"rate":NaN'),
        ('"client-0..1"', '"client-0..99999999"'),
        ('"client-0..1"', json.dumps(",".join(f"c-{n}0000000..{n}9999999" for n in range(1, 9)))),
        ('"client-0..1"', '"client-1..' + "9" * 5000 + '"'),
        ('{"kind":"gaussian","noise_multiplier":1.0}', '{"kind":"repeat","times":1,"event":' * 2000 + '{"kind":"clear"}' + "}" * 2000),
        ('"inputs":[]', '"inputs":[1e999]'),
    ],
    ids=lambda word: word[:30],
)  # fmt: skip
def test_releases_that_were_made_to_do_harm(name, old, new):
    """Each is refused in one line: numbers without end, a hundred million names, events inside events."""
    text = next(iter(seeds(name))).decode()
    plain = re.sub(r'(?<=[:,\]}]) ', "", text)  # fmt: skip
    assert old in plain
    TARGETS[name](plain.replace(old, new).encode())


def test_a_target_does_not_forgive():
    @target
    def careless(content: bytes) -> None:
        from sightline.errors import SightlineError

        raise {b"a": ValueError("x"), b"b": SightlineError("two\nlines")}.get(content, SightlineError("one line"))

    try:
        TARGETS["careless"](b"")
        with pytest.raises(ValueError, match="x"):
            TARGETS["careless"](b"a")
        with pytest.raises(Bug):
            TARGETS["careless"](b"b")
    finally:
        del TARGETS["careless"]


def test_every_target_has_seeds_and_every_folder_a_target():
    assert {path.name for path in (HERE / "corpus").iterdir()} == set(TARGETS)
