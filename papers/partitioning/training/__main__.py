"""`python -m papers.partitioning.training [PART ...]`: run, then write papers/docs/partitioning.md."""

from collections.abc import Callable, Iterator
from pathlib import Path

from papers.jobs import command
from papers.partitioning.training.cells import Cell, quick, resnet, sampling, table1, table2
from papers.partitioning.training.page import write_page
from papers.partitioning.training.runner import pretrain, run_cell

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "papers" / "docs" / "partitioning.md"
PARTS: dict[str, Callable[[], Iterator[Cell]]] = {
    "table1": table1,
    "table2": table2,
    "section4.2": sampling,
    "resnet": resnet,
    "quick": quick,
}

if __name__ == "__main__":
    command(
        "partitioning.training", PARTS, work=run_cell, home=HERE, write_page=write_page, page=PAGE, prepare=pretrain
    )
