"""The tree stays within the limits of `size.toml`, and the gate can see growth."""

import pytest

from tests.house import size


@pytest.fixture(scope="module")
def numbers():
    """Everything that is counted without a run."""
    return size.measure(walk=False)


def test_the_tree_is_within_its_limits(numbers):
    excess = size.find_excess(numbers)
    if excess:
        pytest.fail("the tree is beyond the limits of size.toml:\n" + "\n".join(excess), pytrace=False)


def test_the_table_of_the_architecture_page_is_current(numbers):
    """The last two rows need a run, so `make size` prints them and this test leaves them out."""
    static = size.format_table(numbers).splitlines()
    shown = size.read_page().splitlines()
    if shown[: len(static)] != static:
        pytest.fail("docs/architecture.md: old size table; run python -m tests.house.size --write", pytrace=False)
    rows = [line.split(" | ")[0].removeprefix("| ") for line in shown[len(static) :]]
    assert rows == ["files of a quickstart round", "call depth of a quickstart round"]


def test_riddle_words_are_found_with_their_lines(tmp_path, monkeypatch):
    words = ["who" + "ever", "Some" + "body", "an" + "ew", "so" + " many", "so" + "\nmany"]
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text("fine\n" + "\n".join(words), encoding="utf-8")
    monkeypatch.setattr(size, "ROOT", tmp_path)
    assert [line.split(": ")[0] for line in size.find_riddles()] == [f"docs/page.md:{n}" for n in (2, 3, 4, 5, 6)]


def test_every_row_has_a_limit_a_goal_and_a_beginning():
    for name, row in size.read_limits().items():
        assert {"before", "goal"} <= set(row), name
        assert len({"most", "least"} & set(row)) == 1, name


def test_growth_is_seen():
    most = size.read_limits()["source files"]["most"]
    assert size.find_excess({"source files": most}) == []
    (line,) = size.find_excess({"source files": most + 1})
    assert line.startswith(f"source files={most + 1}: above most={most} in size.toml; ")
    (line,) = size.find_excess({"comment lines per 100 lines of code": 0.0})
    assert line.startswith("comment lines per 100 lines of code=0: below least=")
    (line,) = size.find_excess({"a number without a limit": 1.0})
    assert line == "a number without a limit=1: size.toml has no limit for it; add a row with before, most and goal"


def test_docstrings_and_trailing_comments_do_not_count(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(
        '"""Title.\n\n# not a comment\n"""\n# one\nx = 1  # two\n\n\ndef f():\n    """Doc."""\n    return x\n'
    )
    assert size.comment_share([path]) == 100 * 1 / 3
