"""`python -m papers.upcycled [PART ...]`: run, then write papers/docs/upcycled.md."""

from pathlib import Path

from papers.jobs import command
from papers.upcycled.page import write_page
from papers.upcycled.parts import PARTS
from papers.upcycled.runner import run_cell

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "papers" / "docs" / "upcycled.md"

if __name__ == "__main__":
    command("upcycled", PARTS, work=run_cell, home=HERE, write_page=write_page, page=PAGE)
