"""`python -m papers.hierarchy [PART ...]`: run, then write papers/docs/hierarchy.md."""

from pathlib import Path

from papers.hierarchy.figures import PARTS, work
from papers.hierarchy.page import write_page
from papers.jobs import command

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "papers" / "docs" / "hierarchy.md"

if __name__ == "__main__":
    command("hierarchy", PARTS, work=work, home=HERE, write_page=write_page, page=PAGE)
