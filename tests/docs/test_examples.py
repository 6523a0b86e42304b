"""Every example has a publishable budget, names a fair comparison that can be run, and says what to look at."""

import re
import shlex
from pathlib import Path

import pytest

from sightline.accounting import large_delta_note
from sightline.config import read
from sightline.engine import build_experiment
from sightline.engine.build import count_protected
from tests.docs.lines_of_sight import OBSERVERS, PAGES, PICTURE, run_example, write_epsilons
from tests.loops import for_every

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.toml"))
LARGEST = 10.0
"""The largest epsilon of an example: a larger one says little."""


def head_of(path: Path, word: str) -> str:
    found = re.search(rf"^# {word}: (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert found, f'{path.name} has no line "# {word}: ..."'
    return found.group(1)


@for_every(EXAMPLES)
def test_an_example_spends_a_budget_that_one_would_publish(path: Path):
    privacy = read(path).privacy
    assert privacy.epsilon is not None
    assert privacy.epsilon <= LARGEST


@for_every(EXAMPLES)
def test_an_example_is_compared_at_the_same_budget_or_without_privacy(path: Path):
    command = head_of(path, "Compare with").split("     ")[0].split(", which")[0]
    program, action, file, *rest = shlex.split(command)
    assert (program, action) == ("sightline", "run")
    own = read(path).privacy
    other = read(path.parents[1] / file, [word for word in rest if word != "--set"])
    assert other.privacy.unit == "none" or other.privacy.epsilon == own.epsilon
    assert (file, other) != (f"examples/{path.name}", read(path))


@for_every(EXAMPLES)
def test_an_example_says_what_to_look_at(path: Path):
    assert len(head_of(path, "Look at")) > 40


@for_every(EXAMPLES)
def test_an_example_does_not_warn_of_its_own_delta(path: Path):
    """Regression: `hierarchy.toml` printed "delta = 0.0001 is large"."""
    setting = build_experiment(read(path))
    assert large_delta_note(setting.experiment.privacy.delta, *count_protected(setting)) is None


def test_the_picture_of_the_readme_is_of_a_run_that_learns():
    """Regression: its numbers came from a run at 10.3 % accuracy on ten classes."""
    epsilons, accuracy = run_example()
    assert accuracy > 0.85
    for path in (PICTURE, *PAGES):
        text = path.read_text(encoding="utf-8")
        assert write_epsilons(text, epsilons) == text, "run: python -m tests.docs.lines_of_sight"
        assert all(epsilon in text for epsilon in epsilons)
    said = re.search(r"reaches ([\d.]+) %", PAGES[0].read_text(encoding="utf-8"))
    assert said
    assert float(said[1]) == pytest.approx(100 * accuracy, abs=1)
    assert len(set(epsilons)) == len(OBSERVERS)
