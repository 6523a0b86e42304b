"""`python -m experiments.groups [PART ...]`: run, then write docs/reproduction/groups.md."""

from pathlib import Path

from experiments.groups.cells import PARTS, work
from experiments.groups.page import write_page
from experiments.jobs import command

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "reproduction" / "groups.md"

if __name__ == "__main__":
    command("groups", PARTS, work=work, home=HERE / "results", write_page=write_page, page=PAGE)
