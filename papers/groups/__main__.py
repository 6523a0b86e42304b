"""`python -m papers.groups [PART ...]`: run, then write papers/docs/groups.md."""

from pathlib import Path

from papers.groups.cells import PARTS, work
from papers.groups.page import write_page
from papers.jobs import command

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "papers" / "docs" / "groups.md"

if __name__ == "__main__":
    command("groups", PARTS, work=work, home=HERE / "results", write_page=write_page, page=PAGE)
