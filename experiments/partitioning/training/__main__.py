"""`python -m experiments.partitioning.training [PART ...]`: run, then write docs/reproduction/partitioning.md."""

from collections.abc import Callable, Iterator
from pathlib import Path

from experiments.jobs import command
from experiments.partitioning.training.cells import Cell, quick, sampling, table1, table2
from experiments.partitioning.training.page import write_page
from experiments.partitioning.training.runner import pretrain, run_cell

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs" / "reproduction" / "partitioning.md"
PARTS: dict[str, Callable[[], Iterator[Cell]]] = {
    "table1": table1,
    "table2": table2,
    "section4.2": sampling,
    "quick": quick,
}

if __name__ == "__main__":
    command(
        "partitioning.training", PARTS, work=run_cell, home=HERE, write_page=write_page, page=PAGE, prepare=pretrain
    )
