"""Every planted bug still finds its code exactly once, and the tests that must notice it are there and fast."""

import ast
import re
from pathlib import Path

import pytest

from tests.planted.bugs import BUGS
from tests.planted.edits import BrokenEdit, Edit

ROOT = Path(__file__).parents[2]


def test_every_bug_can_be_planted():
    broken = {}
    for name, bug in BUGS.items():
        for edit in bug.edits:
            try:
                edit.check(ROOT / "src")
                assert edit.old != edit.new, name
            except (BrokenEdit, SyntaxError) as error:
                broken[name] = str(error)
    assert not broken, "\n".join(f"{name}: {reason}" for name, reason in broken.items())


def test_the_tests_that_must_notice_a_bug_are_there_and_fast():
    broken = []
    for test in sorted({test for bug in BUGS.values() for test in bug.tests}):
        file, _, function = test.partition("::")
        text = (ROOT / file).read_text() if (ROOT / file).is_file() else ""
        if not re.search(rf"^def {function}\(", text, re.MULTILINE) if function else not text:
            broken.append(f"{test}: is gone")
        elif re.search(rf"@pytest.mark.slow\n(?:@.*\n)*def {function or 'test'}\(", text) and function:
            broken.append(f"{test}: is slow")
    assert not broken, "\n".join(broken)


CODE = """
class Noise:
    def scale(self, clip):
        for _ in range(3):
            self.used += 1
        return clip * self.multiplier + (  # a comment
            clip)

def scale(x):
    return x + x
"""


@pytest.fixture
def source(tmp_path):
    (tmp_path / "sightline").mkdir()
    (tmp_path / "sightline" / "some.py").write_text(CODE)
    return tmp_path


@pytest.mark.parametrize(
    ("edit", "after"),
    [
        (Edit("Noise.scale", "clip*self.multiplier", "clip"), "return clip + clip"),
        (Edit("Noise.scale", "self.used += 1", ""), "for _ in range(3):\n            pass"),
        (Edit("some.scale", "return x + x", "y = x\nreturn y"), "y = x\n    return y"),
        (Edit("some", "", "scale = None"), "return x + x\nscale = None"),
    ],
)
def test_code_is_found_by_its_syntax(edit, after, source):
    text = edit.apply(source).read_text()
    ast.parse(text)
    assert after in text


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (Edit("Noise.scale", "clip", "0"), "Noise.scale: has this code 2 times"),
        (Edit("Noise.scale", "clip + 1", "0"), "has this code 0 times"),
        (Edit("scale", "x + x", "x"), "names sightline.some.Noise.scale, sightline.some.scale"),
        (Edit("other", "x + x", "x"), "other: names nothing"),
    ],
)
def test_code_that_is_gone_or_ambiguous_is_an_error(edit, says, source):
    with pytest.raises(BrokenEdit, match=says):
        edit.apply(source)
