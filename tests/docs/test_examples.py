"""Every example ends at a budget one would publish, names a fair comparison that can be run, and says what to look at."""

import re
import shlex
from pathlib import Path

import pytest

from sightline.config import read

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.toml"))
LARGEST = 10.0
"""The most that an example may spend: beyond it an epsilon says little."""


def head_of(path: Path, word: str) -> str:
    found = re.search(rf"^# {word}: (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert found, f'{path.name} has no line "# {word}: ..."'
    return found.group(1)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_spends_a_budget_that_one_would_publish(path: Path):
    privacy = read(path).privacy
    assert privacy.epsilon is not None
    assert privacy.epsilon <= LARGEST


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_compared_at_the_same_budget_or_without_privacy(path: Path):
    command = head_of(path, "Compare with").split("     ")[0].split(", which")[0]
    program, action, file, *rest = shlex.split(command)
    assert (program, action) == ("sightline", "run")
    own = read(path).privacy
    other = read(path.parents[1] / file, [word for word in rest if word != "--set"])
    assert other.privacy.unit == "none" or other.privacy.epsilon == own.epsilon
    assert (file, other) != (f"examples/{path.name}", read(path))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_says_what_to_look_at(path: Path):
    assert len(head_of(path, "Look at")) > 40
