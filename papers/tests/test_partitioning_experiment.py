"""The partitioning reproduction: figures are judged by their numbers, tables by their runs."""

import json
from pathlib import Path

import pytest

from papers import published
from papers.findings import Verdict
from papers.paired import Estimate
from papers.partitioning.claims import NOISE, list_findings
from papers.partitioning.training.__main__ import PARTS
from papers.partitioning.training.claims import judge_regimes, noise_length, say_to_authors
from papers.partitioning.training.page import write_page
from sightline import accounting
from sightline.config import parse

SHARES = {"baseline": 0.0, "published": 1.0, "ours": 1.5}


def training_runs(noisy: float, printed: float = 0.0):
    """Return rows of three seeds: amplification gains `noisy` or `printed` points, our accountant half as much again."""
    rows = []
    for table, source in (("table1", "fashion_mnist"), ("table1", "cifar10"), ("table2", "fashion_mnist")):
        for regime, gain in (("noisy", noisy), ("printed", printed)):
            for parts in (1, 3, 8):
                for method, share in SHARES.items():
                    for seed in range(3):
                        accuracy = (70 - parts + seed + share * gain + 0.01 * seed * share) / 100
                        rows.append(
                            {"table": table, "regime": regime, "source": source, "method": method, "parts": parts, "seed": seed,
                             "accuracy": accuracy, "noise_multiplier": 1.0, "pretrained_accuracy": 0.6}
                        )  # fmt: skip
    for regime in ("scratch", "finetuning"):
        for scheme, accuracy in (("poisson", 0.70), ("balanced", 0.70 + printed / 100)):
            rows.append(
                {"table": "section4.2", "regime": regime, "source": "fashion_mnist", "method": scheme, "parts": 1, "seed": 0,
                 "accuracy": accuracy, "noise_multiplier": 1.0, "pretrained_accuracy": None}
            )  # fmt: skip
    return rows


def verdicts(rows, result: str, word: str, folder: Path):
    return [f.verdict for f in list_findings(rows, folder) if f.result == result and word in f.claim]


@pytest.mark.parametrize(
    ("noisy", "printed", "verdict"),
    [
        (3.0, 0.1, Verdict.REGIME),
        (3.0, 3.0, Verdict.REPRODUCED),
        (0.5, 0.1, Verdict.SAME_SIGN),
        (-2.0, 0.1, Verdict.NOT_REPRODUCED),
    ],
)
def test_the_gain_of_amplification_is_judged_in_both_regimes(noisy, printed, verdict, tmp_path: Path):
    rows = training_runs(noisy, printed)
    assert verdicts(rows, "Table 1", "amplification gains", tmp_path) == [verdict, verdict]
    assert judge_regimes(2.0, Estimate(printed, 0.1, 3), Estimate(noisy, 0.1, 3)) is verdict


def test_a_gap_far_from_the_papers_has_its_sign_alone(tmp_path: Path):
    rows = training_runs(3.0)
    assert verdicts(rows, "Table 1", "8 submodels", tmp_path)[-1] is Verdict.REPRODUCED
    worse = [row | {"accuracy": row["accuracy"] - 0.2 * (row["parts"] == 8)} for row in rows]
    assert verdicts(worse, "Table 1", "8 submodels", tmp_path)[-1] is Verdict.SAME_SIGN


def test_batches_that_train_otherwise_are_not_alike(tmp_path: Path):
    assert verdicts(training_runs(3.0, 0.2), "Section 4.2", "train alike", tmp_path) == [Verdict.REPRODUCED] * 2
    assert verdicts(training_runs(3.0, 5.0), "Section 4.2", "train alike", tmp_path) == [Verdict.NOT_REPRODUCED] * 2


def test_a_gain_is_paired_and_the_best_of_three_is_shown(tmp_path: Path):
    found = [
        f
        for f in list_findings(training_runs(3.0), tmp_path)
        if f.result == "Table 1" and "3 submodels: amp" in f.claim
    ]
    assert "`noisy` +3.0 ± 0.0 (3 seeds), best of 3 69.0 -> 72.0" in found[0].published
    assert len(say_to_authors(training_runs(3.0))) == 3


def test_a_residual_network_has_rows_of_its_own(tmp_path: Path):
    rows = training_runs(3.0)
    missing = [f.result for f in list_findings(rows, tmp_path) if f.verdict is Verdict.NOT_RUN]
    assert missing == ["Table 1, ResNet", "Table 2, ResNet", "Section 4.2, ResNet"]
    some = [row for row in rows if (row["table"], row["regime"], row["source"]) == ("table1", "noisy", "fashion_mnist")]
    rows += [row | {"regime": "resnet", "source": "cifar10"} for row in some]
    assert verdicts(rows, "Table 1, ResNet", "amplification gains", tmp_path) == [Verdict.REPRODUCED] * 2
    assert verdicts(rows, "Table 2, ResNet", "", tmp_path) == [Verdict.NOT_RUN]


def test_a_figure_is_judged_by_its_numbers(tmp_path: Path):
    for poisson, verdict in (([1e-6, 1e-4], Verdict.NOT_REPRODUCED), ([1e-4, 1e-3], Verdict.REPRODUCED)):
        curves = {
            "Poisson, moments": [[60, 70], poisson],
            "balanced (3)": [[60, 70], [1e-7, 1e-6 if verdict is Verdict.REPRODUCED else 1e-4]],
        }
        (tmp_path / "figure_4.json").write_text(json.dumps([curves]))
        assert verdicts([], "Figure 4", "balanced", tmp_path) == [verdict]


def options_of(finding):
    words = finding.command.split()
    return {word[2:]: float(words[place + 1]) for place, word in enumerate(words) if word.startswith("--")}


@pytest.mark.parametrize("finding", NOISE[:6], ids=lambda finding: f"{finding.result}, {finding.claim}")
def test_the_noise_that_is_enough_costs_eight(finding):
    option, divisor = options_of(finding), 5000 if "Table 1" in finding.result else 25_000
    scheme = accounting.split(
        noise=option["noise"], parts=int(option["parts"]), rate=option["rate"], steps=int(option["steps"]),
        unsplit_noise=option["unsplit-noise"],
    )  # fmt: skip
    assert 7.99 < scheme.epsilon(delta=1e-5) <= 8
    assert finding.points[0].ours == pytest.approx(option["noise"] / divisor * 1e4, rel=2e-4)


@pytest.mark.parametrize("finding", NOISE[3:6], ids=lambda finding: finding.claim)
def test_table_2_recomputes_with_all_users_and_a_clip_ratio(finding):
    parts, point = int(options_of(finding)["parts"]), finding.points[0]
    found = published.calibrate_published(
        lambda z: published.split_moments(z, parts, 1.0, 250, unsplit_noise=z / 1.17), epsilon=8.0, delta=1e-5
    )
    assert found / 25_000 * 1e4 == pytest.approx(point.published, abs=6e-4)
    assert point.published == pytest.approx(point.paper, abs=6e-3)


def test_a_noise_of_the_same_size_is_longer_with_more_weights():
    assert noise_length("table1", "printed", 2.0) == pytest.approx(2.0 / 2500 * 5770**0.5)
    assert noise_length("table1", "noisy", 2.0, "cifar10") == pytest.approx(2.0 / 27 * 19498**0.5)


@pytest.mark.slow
def test_every_cell_has_a_key_of_its_own_and_is_an_experiment():
    cells = [cell for name, part in PARTS.items() if name != "quick" for cell in part()]
    keys = {cell.key for cell in cells}
    assert len(keys) == len(cells) == (40 + 48) + (40 + 24) + 20 + 3 * 7
    assert {cell.key for cell in PARTS["quick"]()} <= keys
    for cell in cells[::17]:
        assert parse(cell.plain).rounds


def test_the_page_says_what_the_results_say(tmp_path: Path):
    write_page(training_runs(3.0), tmp_path / "partitioning.md")
    page = (tmp_path / "partitioning.md").read_text()
    assert "| 3 | amplified as published | 1.000 |" in page
    assert (tmp_path / "partitioning-table-1.svg").stat().st_size > 1000
