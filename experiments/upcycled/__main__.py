"""`python -m experiments.upcycled [PART ...]`: run, then write docs/reproduction/upcycled.md."""

from pathlib import Path

from experiments.jobs import command
from experiments.upcycled.page import write_page
from experiments.upcycled.parts import PARTS
from experiments.upcycled.runner import run_cell

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "reproduction" / "upcycled.md"

if __name__ == "__main__":
    command("upcycled", PARTS, work=run_cell, home=HERE, write_page=write_page, page=PAGE)
