"""docs/libraries.md and docs/from-opacus.md: every block runs as it stands."""

import re
from pathlib import Path

import pytest

from sightline.accounting import epsilon
from sightline.ledger import read_ledger
from tests.commands import program

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
ALONE = BLOCK.findall((DOCS / "libraries.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("number", range(len(ALONE)))
def test_a_piece_works_alone_in_about_ten_lines(number, tmp_path):
    program(ALONE[number], tmp_path)
    statements = [line for line in ALONE[number].splitlines() if line and not line.startswith(("import", "from"))]
    assert len(statements) <= 16


def test_the_page_from_opacus_is_one_program(tmp_path):
    program("\n".join(BLOCK.findall((DOCS / "from-opacus.md").read_text(encoding="utf-8"))), tmp_path)
    rows = read_ledger(tmp_path / "steps.sqlite")
    assert len(rows) == 80  # the fifth epoch took no step
    assert 3.99 < epsilon({rows[0].event: 80}, 1e-5) <= 4.0
