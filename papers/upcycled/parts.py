"""The parts of the reproduction by name."""

from collections.abc import Callable, Iterator

from papers.upcycled.causes import gradient_clips, longer_runs, losses, server_rates
from papers.upcycled.cells import Cell
from papers.upcycled.grid import real_grid, synthetic_grid
from papers.upcycled.private import figure3, figure4, figure7, figure8, figure9, table5
from papers.upcycled.tables import real_table, synthetic_table

HALF, QUARTER = 0.5, 0.25
"""Of the rounds: runs with 30% stragglers cost more."""


def quick() -> Iterator[Cell]:
    """Some runs of other parts, again: two minutes on two cores."""
    yield from (cell for cell in synthetic_table("table1", 0.9) if cell.algorithm in ("fedavg", "scaffold"))
    yield from (cell for cell in figure3() if cell.data == "iid" and cell.variant in ("printed", "coded"))


PARTS: dict[str, Callable[[], Iterator[Cell]]] = {
    "table1": lambda: synthetic_table("table1", 0.9),
    "clips": gradient_clips,
    "yogi": server_rates,
    "losses": losses,
    "tries": longer_runs,
    "figure3": figure3,
    "figure4": figure4,
    "table3": lambda: synthetic_table("table3", 0.3, share=HALF),
    "letters": lambda: real_table("letters", "letters", 0.9),
    "letters30": lambda: real_table("letters30", "letters", 0.3, share=QUARTER),
    "letters26": lambda: real_table("letters26", "letters26", 0.9),
    "letters26-30": lambda: real_table("letters26-30", "letters26", 0.3, share=QUARTER),
    "tweets": lambda: real_table("tweets", "sent140", 0.9),
    "tweets30": lambda: real_table("tweets30", "sent140", 0.3, share=QUARTER),
    "figure7": figure7,
    "figure8": figure8,
    "figure9": figure9,
    "table5": table5,
    "grid": synthetic_grid,
    "grid-real": real_grid,
    "quick": quick,
}
