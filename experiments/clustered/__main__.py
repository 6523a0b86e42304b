"""`python -m experiments.clustered [PART ...]`: run, then write docs/reproduction/clustered.md."""

from pathlib import Path

from experiments.clustered.page import write_page
from experiments.clustered.parts import PARTS, work
from experiments.jobs import command

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "reproduction" / "clustered.md"

if __name__ == "__main__":
    command("clustered", PARTS, work=work, home=HERE, write_page=write_page, page=PAGE)
