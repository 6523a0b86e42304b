"""`python -m papers.clustered [PART ...]`: run, then write papers/docs/clustered.md."""

from pathlib import Path

from papers.clustered.page import write_page
from papers.clustered.parts import PARTS, work
from papers.jobs import command

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "papers" / "docs" / "clustered.md"

if __name__ == "__main__":
    command("clustered", PARTS, work=work, home=HERE, write_page=write_page, page=PAGE)
