"""The reproduction's runs are valid experiments with names of their own, and its page is written from results."""

import pytest

from experiments.hierarchy.costs import cost_to
from experiments.hierarchy.figures import PARTS
from experiments.hierarchy.page import write_page
from sightline.config import parse

CELLS = [cell for part in PARTS.values() for cell in part()]


def test_every_cell_is_an_experiment_with_a_key_of_its_own():
    assert len({cell.key for cell in CELLS}) == len(CELLS)
    for cell in CELLS:
        assert parse(cell.plain).topology.kind == "tree"


def test_the_cost_is_what_was_spent_when_the_target_was_first_reached():
    row = {"curve": [[2, 0.1, 1.0, 10.0], [4, 0.5, 2.0, 20.0], [6, 0.4, 3.0, 30.0]]}
    assert cost_to(row, 0.3, "energy") == 2.0
    assert cost_to(row, 0.3, "delay") == 20.0
    assert cost_to(row, 0.9, "energy") is None


@pytest.mark.parametrize("figures", [("fig4",), ("fig4", "fig5", "fig6", "fig7", "fig8", "fig9", "fig10")])
def test_the_page_tells_what_there_is(tmp_path, figures):
    pytest.importorskip("matplotlib")
    rows = [
        {
            "key": cell.key, "figure": cell.figure, "name": cell.name, "data": cell.data, "seed": cell.seed,
            "facts": cell.facts, "accuracy": 0.5, "epsilon": None if cell.name == "HFL" else 1.0, "rounds": 2,
            "curve": [[1, 0.2, 1.0, 2.0], [2, 0.5 if cell.name == "HFL" else 0.3, 2.0, 4.0]], "cpu_seconds": 60.0,
            "control": {"tau": [20.0], "devices_trusted": [5.0], "devices_untrusted": [4.0]} if "control" in str(cell.plain) else None,
        }
        for cell in CELLS
        if cell.figure in figures
    ]  # fmt: skip
    write_page(rows, tmp_path / "hierarchy.md")
    page = (tmp_path / "hierarchy.md").read_text()
    assert "| without privacy (HFL) | 35.0 | 100% |" in page
    assert ("figure 5" in page.split("Seed 0.")[1]) == ("fig5" in figures)
    assert ("What the weights do" in page) == ("fig8" in figures)
    assert (tmp_path / "hierarchy.svg").exists()
