"""Every bug of the table can still be planted: its text is in the source, and its tests are there and fast."""

import ast
import re

import pytest

from tests.planted.bugs import BUGS, PACKAGE, ROOT, Edit


@pytest.mark.parametrize("name", BUGS)
def test_the_bug_can_be_planted(name):
    texts = {}
    for edit in BUGS[name].edits:
        text = texts.setdefault(edit.file, (ROOT / "src" / PACKAGE / edit.file).read_text())
        assert text.count(edit.old) == 1, f"{edit.file} has changed: adapt tests/planted/bugs.py"
        assert edit.old != edit.new
        texts[edit.file] = text.replace(edit.old, edit.new)
    for file, text in texts.items():
        if file.endswith(".py"):  # C is compiled when it is planted
            ast.parse(text)


@pytest.mark.parametrize("name", BUGS)
def test_the_tests_that_must_notice_it_are_there_and_fast(name):
    for test in BUGS[name].tests:
        file, _, function = test.partition("::")
        text = (ROOT / file).read_text()
        assert not function or re.search(rf"^def {function}\(", text, re.MULTILINE), test
        assert not re.search(rf"@pytest.mark.slow\n(?:@.*\n)*def {function}\(", text) or not function, test


def test_a_text_that_is_gone_is_an_error(tmp_path):
    (tmp_path / PACKAGE).mkdir()
    (tmp_path / PACKAGE / "some.py").write_text("a = 1\na = 1\n")
    for old in ("b = 1", "a = 1"):
        with pytest.raises(ValueError, match="not once"):
            Edit("some.py", old, "a = 2").apply(tmp_path)
