"""The reproduction's runs are valid experiments with keys of their own, and its findings are judged by the results."""

import json
from itertools import pairwise

import numpy as np
import pytest

from papers.findings import Verdict
from papers.groups.as_published import lemma_3_epsilon
from papers.groups.cells import GL, LOUD, NOISE, PARTS, QUIET, RI, SIZES, STRUCTURES, sort_ring
from papers.groups.claims import find_findings, say_to_authors
from papers.groups.counts import read_counted
from papers.groups.page import list_accuracies
from sightline.config import parse
from sightline.topology.groups import ring_groups

CELLS = list({cell.key: cell for part in PARTS.values() for cell in part()}.values())
FEW = {cell.name for cell in (*SIZES, *NOISE)}


def rows(printed: float, tuned: float, *, small: float = 0.3):
    """Everybody at .5, the ring of four groups as given in each regime, small groups too; seeds differ a little."""
    found = []
    for cell in CELLS:
        ring = {"printed": printed, "tuned": tuned}.get(cell.regime, tuned)
        value = ring if cell.name == RI.name else small if cell.name in FEW else 0.5
        plain = {"regime": cell.regime, "name": cell.name, "private": cell.private, "source": cell.source}
        found.append(
            plain
            | {"key": cell.key, "test_accuracy": [0.1, value + cell.seed / 100], "epsilon": {"other workers": 3.0}}
        )
    return found


def verdicts(found, result: str) -> list[Verdict]:
    return [finding.verdict for finding in find_findings(found, {}) if finding.result == result]


def test_every_cell_is_a_valid_experiment_with_a_key_of_its_own():
    assert len({cell.key for cell in CELLS}) == len(CELLS)
    for cell in CELLS:
        experiment = parse(cell.plain)
        assert experiment.data.clients == cell.workers
        assert (experiment.privacy.unit == "client") == cell.private


def test_the_quick_part_is_made_of_other_parts_runs():
    other = {cell.key for name, part in PARTS.items() if name != "quick" for cell in part()}
    assert {cell.key for cell in PARTS["quick"]()} < other


def test_the_verdict_follows_the_runs():
    assert verdicts(rows(0.9, 0.9), "Figure 3 (a), (b)")[0] is Verdict.REPRODUCED
    assert verdicts(rows(0.9, 0.3), "Figure 3 (a), (b)")[0] is Verdict.REGIME
    assert verdicts(rows(0.3, 0.3), "Figure 3 (a), (b)")[0] is Verdict.NOT_REPRODUCED
    assert verdicts(rows(0.9, 0.9), "Figure 3 (c), (d)")[0] is Verdict.REPRODUCED
    assert verdicts(rows(0.9, 0.9, small=0.95), "Figure 3 (c), (d)")[0] is Verdict.NOT_REPRODUCED
    assert verdicts(rows(0.9, 0.9), "Figure 5 (a), (b)")[0] is Verdict.REPRODUCED


def test_a_regime_is_named_where_the_verdict_depends_on_it():
    first = next(finding for finding in find_findings(rows(0.9, 0.3), {}) if finding.verdict is Verdict.REGIME)
    assert "holds at the printed rate, not at the tuned rate" in first.cause
    assert "+40.0 ± 0.0 (3 seeds)" in first.ours


def test_what_was_not_run_is_not_claimed():
    assert verdicts([row for row in rows(0.9, 0.9) if row["source"] == "mnist"], "Figure 5 (a), (b)") == []
    assert find_findings([], {}) == []
    assert list_accuracies([]) == ""


def test_means_stand_with_their_errors():
    found = list_accuracies(rows(0.9, 0.9))
    assert f"| tuned | {RI.name} | 91.0 ± 0.6 (3 seeds) | 91.0 ± 0.6 (3 seeds) | 3.0 |" in found


def test_equal_noise_per_model_is_equal_noise():
    assert LOUD.noise / 100 == RI.noise / 25
    assert QUIET.noise / 25 == GL.noise / 100


def test_accounting_findings_follow_the_counts():
    found = read_counted()
    assert [f.verdict for f in find_findings([], found) if f.result == "Figure 4 (c)"] == [Verdict.REPRODUCED]
    leaking = json.loads(json.dumps(found))
    leaking["(c) CL (4, 2)"]["rdp_least"] = 1.0
    with pytest.raises(ValueError, match="between clusters"):  # it fails, and no run says why
        find_findings([], leaking)
    cut = json.loads(json.dumps(found))
    cut["(a) RI+ (4, 2)"]["t=200"][0] = 20.0
    before, after = (
        [f.verdict for f in find_findings([], counted) if "at least 40%" in f.claim] for counted in (found, cut)
    )
    assert (before, after) == ([Verdict.SAME_SIGN], [Verdict.REPRODUCED])


def test_lemma_3_is_the_least_over_its_orders():
    orders = 1 + np.geomspace(1e-2, 62, 4000)
    spent = 40 * 2 * 0.7**2 * orders / 4 + np.log(1 / (1e-5 * orders)) / (orders - 1) + np.log(1 - 1 / orders)
    assert lemma_3_epsilon(40, rate=0.7, noise=2.0, delta=1e-5) == pytest.approx(spent.min(), rel=2e-3)


def test_the_authors_are_told_numbers_of_the_runs():
    first, second, third = say_to_authors(rows(0.9, 0.3))
    assert "+40.0" in first
    assert "-20.0" in first
    assert "50.0 -> " not in second
    assert "36.6 %" in third


@pytest.mark.parametrize("name", ["(a) RI+ (4, 2)", "(a) RI (4, 10)"])
def test_the_kept_counts_are_what_the_accountant_finds_today(name: str):
    from papers.groups.figure4 import curves
    from sightline.ledger.group_privacy import query_pairs

    mean, _ = read_counted()[name]["t=200"]
    asked = curves(None, None)[name.removeprefix("(a) ")]
    assert query_pairs(asked).mean == pytest.approx(mean, abs=0.01)


def test_a_sorted_ring_is_a_ring_of_the_same_workers_in_another_order():
    most = [worker % 4 for worker in range(40)]
    found, dealt = sort_ring(most, 4), ring_groups(40, 4)
    assert [len(group) for group in found] == [len(group) for group in dealt]
    assert {worker for group in found for worker in group} == set(range(40))
    assert all(len(set(one) & set(other)) == 1 for one, other in pairwise(found))
    assert all(len({most[n] for n in group}) == 4 for group in dealt)
    assert all(len({most[n] for n in group}) == 2 for group in found)


def test_structures_are_as_the_legend_has_them():
    assert [cell.name for cell in STRUCTURES][3:] == ["RI (100, 4, 10, 2)", "RI+ (100, 4, 2, 2)"]
