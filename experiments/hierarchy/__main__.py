"""`python -m experiments.hierarchy [PART ...]`: run, then write docs/reproduction/hierarchy.md."""

from pathlib import Path

from experiments.hierarchy.figures import PARTS, work
from experiments.hierarchy.page import write_page
from experiments.jobs import command

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "reproduction" / "hierarchy.md"

if __name__ == "__main__":
    command("hierarchy", PARTS, work=work, home=HERE, write_page=write_page, page=PAGE)
