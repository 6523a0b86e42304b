"""The reproduction's runs are valid experiments with names of their own, and its page is written from results."""

import numpy as np
import pytest

from papers.findings import Verdict
from papers.hierarchy.claims import judge_regimes, judge_shortfall, list_findings, say_to_authors
from papers.hierarchy.costs import judge_savings, saved_by_control
from papers.hierarchy.features import describe_images, orient_gradients
from papers.hierarchy.figures import PARTS
from papers.hierarchy.page import write_page
from papers.hierarchy.results import cost_to, jump_size
from papers.paired import Estimate
from sightline.config import parse

CELLS = [cell for name, part in PARTS.items() if name != "quick" for cell in part()]


def test_every_cell_is_an_experiment_with_a_key_of_its_own():
    assert len({cell.key for cell in CELLS}) == len(CELLS)
    for cell in CELLS:
        assert parse(cell.plain).topology.kind == "tree"


def test_the_quick_part_is_made_of_the_others_runs():
    quick = [cell.key for cell in PARTS["quick"]()]
    assert set(quick) < {cell.key for cell in CELLS}
    assert len(quick) == 7


def test_the_cost_is_what_was_spent_when_the_target_was_first_reached():
    row = {"curve": [[2, 0.1, 1.0, 10.0], [4, 0.5, 2.0, 20.0], [6, 0.4, 3.0, 30.0]]}
    assert cost_to(row, 0.3, "energy") == 2.0
    assert cost_to(row, 0.3, "delay") == 20.0
    assert cost_to(row, 0.9, "energy") is None


def test_jumps_are_counted_in_points_over_the_second_half():
    row = {"curve": [[at, share, 0, 0] for at, share in enumerate((0.1, 0.9, 0.5, 0.52, 0.50, 0.56))]}
    assert jump_size(row) == pytest.approx((2 + 6) / 2)


def test_a_size_that_another_noise_gives_depends_on_the_regime():
    small, large, other = Estimate(1.0, 0.1, 3), Estimate(5.0, 0.1, 3), Estimate(-5.0, 0.1, 3)
    assert judge_regimes(6.0, large, [small]) is Verdict.REPRODUCED
    assert judge_regimes(6.0, small, [None, large]) is Verdict.REGIME
    assert judge_regimes(6.0, small, [other]) is Verdict.SAME_SIGN
    assert judge_savings((20.0, 20.0), (large, large), ((other, None),)) is Verdict.SAME_SIGN
    assert judge_savings((20.0, 20.0), (large, None), ((Estimate(15, 1, 3),) * 2,)) is Verdict.REGIME


def naive_gradients(image, cells):
    """One image, pixel by pixel: four orientations, means over cells."""
    size = len(image)
    found = np.zeros((4, cells, cells))
    for i in range(size):
        for j in range(size):
            across = image[i, j + 1] - image[i, j - 1] if 0 < j < size - 1 else 0.0
            down = image[i + 1, j] - image[i - 1, j] if 0 < i < size - 1 else 0.0
            place = (np.arctan2(down, across) % np.pi) * 4 / np.pi
            for orientation in range(4):
                away = min(abs(place - orientation), 4 - abs(place - orientation))
                share = max(0.0, 1 - away) * np.hypot(across, down)
                found[orientation, i * cells // size, j * cells // size] += share / (size // cells) ** 2
    return found.ravel()


def test_features_are_those_of_the_image_alone_and_have_norm_one():
    rng = np.random.default_rng(0)
    images = rng.random((3, 1, 28, 28), dtype=np.float32)
    assert orient_gradients(images[:, 0], 7)[1] == pytest.approx(naive_gradients(images[1, 0], 7), abs=1e-5)
    found = describe_images(images)
    assert np.linalg.norm(found, axis=1) == pytest.approx(np.ones(3), abs=1e-5)
    assert found[2] == pytest.approx(describe_images(images[2:])[0], abs=1e-6)
    assert describe_images(rng.random((2, 3, 32, 32), dtype=np.float32)).shape == (2, 304)


def row_of(cell, accuracy):
    """What a run leaves, with this accuracy in the end."""
    control = "control" in cell.plain["algorithm"]
    spent = 0.5 if control else 1.0
    return {
        "key": cell.key, "figure": cell.figure, "name": cell.name, "data": cell.data, "seed": cell.seed,
        "facts": cell.facts, "epsilon": None if cell.name == "HFL" else 1.0, "rounds": 2, "cpu_seconds": 60.0,
        "curve": [[at, accuracy * at / 4, spent * at, spent * at] for at in range(1, 5)],
        "control": {"tau": [20.0], "devices_trusted": [5.0], "devices_untrusted": [4.0]} if control else None,
    }  # fmt: skip


@pytest.fixture
def rows():
    share = {"HFL": 0.90, "p=1": 0.89, "p=0.5": 0.85, "p=0": 0.80}
    return [row_of(cell, share.get(cell.name.split()[-1], 0.82) + 0.001 * cell.seed) for cell in CELLS]


def test_findings_tell_what_the_rows_say(rows):
    found = list_findings(rows)
    assert {one.result.split(",")[0] for one in found} == {f"Figure {n}" for n in range(4, 11)}
    assert [one.result for one in found if one.verdict is Verdict.NOT_RUN] == [
        "Figure 4", "Figure 4, CIFAR-10", *(f"Figure {n}, CNN" for n in (5, 6, 7, 9)),
    ]  # fmt: skip
    energy, delay = saved_by_control(rows, "fashion_mnist", "p=0.5", 0.75)
    assert energy.mean == delay.mean == pytest.approx(50)
    assert len(say_to_authors(rows)) == 3


def test_a_shortfall_in_one_of_two_settings_depends_on_the_regime():
    near, far = Estimate(1.0, 0.1, 3), Estimate(9.0, 0.1, 3)
    assert judge_shortfall(3.0, near, near) is Verdict.REPRODUCED
    assert judge_shortfall(3.0, near, far) is Verdict.REGIME
    assert judge_shortfall(3.0, far, None) is Verdict.NOT_REPRODUCED


def test_a_loss_that_is_not_convex_is_told_apart(rows):
    told = {one.result for one in list_findings(rows)}
    assert {"Figure 4, CNN, Fashion-MNIST", "Figure 4, clipped, CIFAR-10"} <= told
    fewer = [row for row in rows if (row["figure"], row["data"]) != ("cnn", "cifar10")]
    missing = [one.result for one in list_findings(fewer) if one.verdict is Verdict.NOT_RUN]
    assert "Figure 4, CNN, CIFAR-10" in missing


@pytest.mark.parametrize("figures", [("fig4",), None])
def test_the_page_tells_what_there_is(tmp_path, rows, figures):
    pytest.importorskip("matplotlib")
    write_page([row for row in rows if figures is None or row["figure"] in figures], tmp_path / "hierarchy.md")
    page = (tmp_path / "hierarchy.md").read_text()
    assert "| without privacy (HFL) |" in page
    assert ("| figure 7: devices |" in page) == (figures is None)
    assert ("What the weights do" in page) == (figures is None)
    assert (tmp_path / "hierarchy-figure-4-fashion-mnist.svg").exists()
