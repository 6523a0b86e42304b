"""Every test that the threat model names exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "threat-model.md").read_text()
LINKS = re.findall(r"\[(test_\w+)\]\(\.\./(tests/[\w/]+\.py)\)", PAGE)


def test_the_tests_exist():
    files = {path: (ROOT / path).read_text() if (ROOT / path).is_file() else "" for _, path in LINKS}
    assert not [link for link in LINKS if not re.search(rf"^def {link[0]}\(", files[link[1]], re.MULTILINE)]


def test_every_row_of_a_table_has_a_test_or_says_that_there_is_none():
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| what |")]
    assert len(rows) > 20
    for row in rows:
        cell = row.strip("| ").rpartition("|")[2]
        assert "](../tests/" in cell or cell.strip() == "not tested", row


def test_every_link_leads_somewhere():
    links = set(re.findall(r"\]\((?!http)([^)#]+)", PAGE))
    assert not [link for link in links if not (ROOT / "docs" / link).exists()]
