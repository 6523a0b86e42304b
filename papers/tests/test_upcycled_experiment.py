"""The reproduction's own files: every cell is a valid experiment, and the page says what the results say."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from papers.findings import Verdict
from papers.jobs import LINES, in_order, read, run_jobs
from papers.upcycled.cells import ALGORITHMS, DATA_SEED, SYNTHETIC, TUNING, Tuned, linear_cell
from papers.upcycled.claims import explain_again, find_results, measure_sizes, say_to_authors
from papers.upcycled.claims_private import read_epsilons, read_others
from papers.upcycled.grid import find_best
from papers.upcycled.networks import WORDS, count_words, pool_pixels, softmax_twice
from papers.upcycled.numbers import PAPER, average_gains, select_pair
from papers.upcycled.page import write_page
from papers.upcycled.parts import PARTS
from papers.upcycled.private import ADMITTED, as_published
from papers.upcycled.runner import run_cell
from papers.upcycled.tuned import TUNED
from sightline.config import parse

ROOT = Path(__file__).parents[2]
KEPT = in_order(read(ROOT / "papers" / "upcycled" / LINES), PARTS)


def test_every_cell_is_a_valid_experiment_with_a_key_of_its_own():
    keys = []
    for part, cells in PARTS.items():
        for cell in cells() if part != "quick" else ():
            assert cell.part == part
            experiment = parse(cell.plain)
            assert ("upcycle" in experiment.algorithm.settings) == cell.upcycled
            keys.append(cell.key)
    assert len(set(keys)) == len(keys)
    assert sum(key.startswith("table1/") for key in keys) == 7 * 2 * 4 * 3
    assert {cell.key for cell in PARTS["quick"]()} < set(keys)


def test_private_cells_halve_their_rounds():
    for part in ("figure3", "figure4", "figure7", "figure8", "figure9", "table5"):
        cells = list(PARTS[part]())
        for cell in cells:
            twins = [c for c in cells if (c.data, c.algorithm, c.variant) == (cell.data, cell.algorithm, cell.variant)]
            plain = next(c for c in twins if not c.upcycled)
            assert cell.plain["rounds"] == plain.plain["rounds"] // (2 if cell.upcycled else 1)


def test_the_code_squares_a_standard_deviation():
    assert [as_published((1.0, 0.8), coded=True)(up)["noise_std"] for up in (False, True)] == [1.0, 0.64]
    assert [as_published((0.27, 0.2))(up)["noise_std"] for up in (False, True)] == [0.27, 0.2]


def small_cell(tuned: Tuned, *, seed: int = 0, **more):
    """A run of two rounds and four clients."""
    return linear_cell("table1", "fedavg", "iid", tuned, seed=seed, rounds=2, data={"clients": 4}, **more)


def test_a_cell_runs_once_and_is_found_again(tmp_path):
    cells = [small_cell(Tuned(0.1)), small_cell(Tuned(0.1, 0.9))]
    run_jobs(cells, tmp_path / LINES, work=run_cell, workers=1, title="two")
    first = (tmp_path / LINES).read_text()
    run_jobs(cells, tmp_path / LINES, work=run_cell, workers=1, title="two")
    assert (tmp_path / LINES).read_text() == first
    rows = read(tmp_path / LINES)
    assert [row["key"] for row in rows] == [cell.key for cell in cells]
    assert rows[0]["releases"] == rows[1]["releases"] == 2
    write_page(rows, tmp_path / "upcycled.md")
    text = (tmp_path / "upcycled.md").read_text()
    assert f"{100 * rows[0]['accuracy']:.2f}" in text
    assert "98.06 → 98.83" in text


def test_seeds_share_the_data_set_and_a_tiny_gradient_clip_holds_the_model_still():
    first, second = (run_cell(small_cell(Tuned(0.1), seed=seed)) for seed in (0, 1))
    assert first["loss"] != second["loss"]
    still = run_cell(replace(small_cell(Tuned(0.1)), gradient_clip=1e-9))
    assert still["curve"][0][1] == pytest.approx(still["curve"][1][1], abs=1e-6)
    assert first["curve"][0][1] != pytest.approx(first["curve"][1][1], abs=1e-6)


def test_a_gain_is_paired_by_seed_over_all_algorithms():
    rows = [
        {"part": "p", "data": "iid", "algorithm": name, "variant": "", "setting": f"lr1,u{int(up)}", "upcycled": up,
         "seed": seed, "accuracy": 0.5 + 0.1 * seed + 0.01 * step * up}
        for name, step in (("a", 1), ("b", 3)) for up in (False, True) for seed in (0, 1, 2)
    ]  # fmt: skip
    pairs = [select_pair(rows, "p", "iid", name, u="u1") for name in "ab"]
    found = average_gains(pairs)
    assert (round(found.mean, 6), round(found.error, 6), found.seeds) == (2.0, 0.0, 3)


@pytest.mark.parametrize("data", [*SYNTHETIC, "letters", "letters26", "sent140"])
def test_reported_settings_are_the_grids_best_and_no_reported_run_has_its_seed(data: str):
    grid = [row for row in KEPT if row["part"] in ("grid", "grid-real")]
    assert all(row["seed"] == TUNING for row in grid)
    for algorithm in ALGORITHMS:
        found = tuple(find_best(grid, data, algorithm, upcycled=up) for up in (False, True))
        assert found == tuple(tuned.words for tuned in TUNED[data][algorithm])
    assert all(row["seed"] != TUNING for row in KEPT if row["part"] not in ("grid", "grid-real"))


def test_data_sets_have_the_sizes_of_table_2():
    sizes = measure_sizes()
    assert set(sizes) == set(DATA_SEED) == set(PAPER["table2"])
    assert all(abs(sizes[name][0] / PAPER["table2"][name][0] - 1) < 0.15 for name in sizes)


def test_the_papers_table_is_whole():
    for table, columns in (("table1", 6), ("table3", 6), ("table4", 2), ("table5", 1)):
        assert len(PAPER[table]) == 7
        assert all(len(row) == columns for row in PAPER[table].values())


def test_every_figure_and_table_has_a_row_and_most_that_were_run_are_not_contradicted():
    findings = find_results(KEPT)
    results = {finding.result.split(" (")[0] for finding in findings}
    assert results == {*(f"Figure {n}" for n in range(2, 10)), *(f"Table {n}" for n in range(1, 6))}
    run = [finding for finding in findings if finding.verdict is not Verdict.NOT_RUN]
    assert sum(finding.verdict is not Verdict.NOT_REPRODUCED for finding in run) >= 0.8 * len(run)
    assert all(sentence.endswith(".") for sentence in say_to_authors(KEPT))


def test_words_are_counted_and_pixels_averaged():
    counts = count_words(np.array([[3, 3, 0, WORDS + 3, 7]]))
    assert counts.shape == (1, WORDS)
    assert (counts[0, 3], counts[0, 7], counts.sum()) == (3, 1, 4)
    images = np.arange(2 * 28 * 28, dtype=np.float32).reshape(2, 1, 28, 28)
    pooled = pool_pixels(images)
    assert pooled.shape == (2, 49)
    assert pooled[1, 8] == images[1, 0, 4:8, 4:8].mean()
    assert pool_pixels(np.ones((1, 1, 16, 8))).shape == (1, 32)


def test_softmax_twice_gives_probabilities():
    given = softmax_twice(input_shape=(20,), classes=10)(torch.randn(3, 20))
    assert torch.allclose(given.sum(dim=1), torch.ones(3))


def made_rows(part: str, data: str, algorithms: tuple[str, ...], variant: str, gap: float, seeds=(0, 1, 2)):
    """Runs that were never made: upcycled has `gap` more loss and less accuracy, give or take a little by seed."""
    return [
        {"part": part, "data": data, "algorithm": name, "variant": variant, "setting": "lr1,u0.3" if up else "lr1",
         "upcycled": up, "seed": seed, "loss": 1 + up * (gap + 0.001 * seed), "accuracy": 0.5 - up * gap,
         "curve": [[1, 1 + up * gap, 0.5]]}
        for name in algorithms for up in (False, True) for seed in seeds
    ]  # fmt: skip


def judge_iid(printed: float, epsilon8: float):
    others = tuple(name for name in ADMITTED if name != "fedprox")
    rows = made_rows("figure4", "iid", others, "objective-printed", printed)
    rows += made_rows("figure4", "iid", others, "objective-epsilon8", epsilon8)
    return next(f for f in read_others(rows) if f.result == "Figure 4" and "Syn(iid)" in f.claim)


def test_other_algorithms_are_judged_by_most_of_them_in_both_variants():
    assert judge_iid(-0.1, -0.1).verdict is Verdict.REPRODUCED
    mixed = judge_iid(-0.1, 0.1)
    assert mixed.verdict is Verdict.REGIME
    assert "at epsilon 8 for both higher for fedavg, fedavgm, fedyogi" in mixed.cause
    assert judge_iid(0.1, 0.1).verdict is Verdict.NOT_REPRODUCED
    assert {f.verdict for f in read_others([])} == {Verdict.NOT_RUN}


def test_further_runs_of_a_column_stand_with_its_own_seeds():
    rows = made_rows("table1", "syn00", ALGORITHMS, "", 0.1)
    assert explain_again(rows, "Table 1", "syn00") == ""
    rows += made_rows("tries", "syn00", ALGORITHMS, "more seeds", 0.1, seeds=range(3, 10))
    told = explain_again(rows, "Table 1", "syn00")
    assert "with ten seeds -10.00 ± 0.00 (10 seeds), higher for 0 of 7" in told
    assert "clearly lower for fedavg -10.00" in told
    assert explain_again(rows, "Table 1", "iid") == ""


def test_the_printed_epsilons_stand_beside_what_their_noise_costs():
    first, second, third = read_epsilons()
    assert "1.592 → 1.402" in first.published
    assert "0.773 → 0.682" in second.published
    assert "7.36 → 7.25" in third.published
    assert "5.75 → 5.42 pure, 2.58 → 3.50" in third.ours
