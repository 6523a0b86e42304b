"""The map lists every module by its first line, and its core exists as listed."""

from tests.house.write_map import MAP, first_lines, with_modules


def test_the_map_is_current():
    text = MAP.read_text(encoding="utf-8")
    assert with_modules(text) == text, "run: python -m tests.house.write_map"


def test_every_module_says_what_it_is_in_one_line():
    assert [str(path) for path, line in first_lines().items() if not line.endswith((".", ":")) or len(line) > 120] == []
