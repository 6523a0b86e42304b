"""The reproduction's own files: every cell is a valid experiment, and the page says what the results say."""

from pathlib import Path

from experiments.jobs import read, run_jobs
from experiments.upcycled.numbers import PAPER, gain, verdict
from experiments.upcycled.page import write_page
from experiments.upcycled.parts import PARTS
from experiments.upcycled.runner import run_cell
from sightline.config import parse

ROOT = Path(__file__).parents[2]


def test_every_cell_is_a_valid_experiment_with_a_key_of_its_own():
    keys = []
    for part, cells in PARTS.items():
        for cell in cells():
            assert cell.part.split("-")[0] == part
            experiment = parse(cell.plain)
            assert ("upcycle" in experiment.algorithm.settings) == cell.upcycled
            keys.append(cell.key)
    assert len(set(keys)) == len(keys)
    assert sum(key.startswith("table1/") for key in keys) == 7 * 2 * 4 * 4
    assert sum(key.startswith("table3/") for key in keys) == 7 * 2 * 4 * 2


def test_private_cells_halve_their_rounds():
    for part in ("published", "output", "objective", "gradient", "table5"):
        for cell in PARTS[part]():
            assert cell.plain["rounds"] == (40 if cell.upcycled else 80)


def test_a_cell_runs_once_and_is_found_again(tmp_path):
    cells = [
        cell for cell in PARTS["table1"]() if cell.key in ("table1/iid/fedavg/plain/0", "table1/iid/fedavg/upcycled/0")
    ]
    for cell in cells:
        cell.plain["rounds"] = 2
        cell.plain["data"]["clients"] = 4
    run_jobs(cells, tmp_path / "results.jsonl", work=run_cell, workers=1, title="two")
    first = (tmp_path / "results.jsonl").read_text()
    run_jobs(cells, tmp_path / "results.jsonl", work=run_cell, workers=1, title="two")
    assert (tmp_path / "results.jsonl").read_text() == first
    rows = read(tmp_path / "results.jsonl")
    assert [row["key"] for row in rows] == [cell.key for cell in cells]
    assert rows[0]["releases"] == rows[1]["releases"] == 2
    write_page(rows, tmp_path / "upcycled.md")
    text = (tmp_path / "upcycled.md").read_text()
    assert f"{100 * rows[0]['accuracy']:.2f}" in text
    assert "98.06 → 98.83" in text


def test_gain_is_paired_by_seed_and_the_verdict_follows_the_paper():
    pair = {
        False: [{"seed": 0, "accuracy": 0.5}, {"seed": 1, "accuracy": 0.7}],
        True: [{"seed": 1, "accuracy": 0.71}, {"seed": 0, "accuracy": 0.53}],
    }
    mean, error = gain(pair)
    assert round(mean, 6) == 2.0
    assert round(error, 6) == 1.0
    assert verdict(2.0, 1.0, 0.5) == "agrees"
    assert verdict(-2.0, 1.0, 0.5) == "differs"
    assert verdict(0.5, 1.0, 0.5) == "tie"


def test_the_papers_table_is_whole():
    for table, columns in (("table1", 6), ("table3", 6), ("table4", 1), ("table5", 1)):
        assert len(PAPER[table]) == 7
        assert all(len(row) == columns for row in PAPER[table].values())
