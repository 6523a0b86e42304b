"""The tree stays within the limits of `size.toml`, and the gate can see growth."""

from tests.house import size


def test_the_tree_is_within_its_limits():
    assert size.find_excess(size.measure(walk=False)) == []


def test_every_row_has_a_limit_a_goal_and_a_beginning():
    for name, row in size.read_limits().items():
        assert {"before", "goal"} <= set(row), name
        assert len({"most", "least"} & set(row)) == 1, name


def test_growth_is_seen():
    assert size.find_excess({"source files": 10_000.0}) == [
        f"source files = 10000: the limit in size.toml is {size.read_limits()['source files']['most']:g}"
    ]
    assert size.find_excess({"a number without a limit": 1.0})


def test_docstrings_and_trailing_comments_do_not_count(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(
        '"""Title.\n\n# not a comment\n"""\n# one\nx = 1  # two\n\n\ndef f():\n    """Doc."""\n    return x\n'
    )
    assert size.comment_share([path]) == 100 * 1 / 3
