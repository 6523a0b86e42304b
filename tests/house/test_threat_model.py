"""The threat model names tests: each of them exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "threat-model.md").read_text()
LINKS = re.findall(r"\[(test_\w+)\]\(\.\./(tests/[\w/]+\.py)\)", PAGE)


@pytest.mark.parametrize(("name", "path"), LINKS, ids=[name for name, _ in LINKS])
def test_the_test_exists(name, path):
    assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.MULTILINE)


def test_every_row_of_a_table_has_a_test_or_says_that_there_is_none():
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| what |")]
    assert len(rows) > 20
    for row in rows:
        cell = row.strip("| ").rpartition("|")[2]
        assert "](../tests/" in cell or cell.strip() == "not tested", row


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\((?!http)([^)#]+)", PAGE))))
def test_every_link_leads_somewhere(link):
    assert (ROOT / "docs" / link).exists()
