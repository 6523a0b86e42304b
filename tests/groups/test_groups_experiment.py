"""The reproduction's runs are valid experiments with keys of their own, and its claims are judged by the results."""

import json

import pytest

from experiments.groups.cells import NOISE, PARTS, PERIODS, SIZES, STRUCTURES
from experiments.groups.claims import claims
from experiments.groups.page import accuracies, counted
from sightline.config import parse

CELLS = [cell for part in PARTS.values() for cell in part()]
RING = STRUCTURES[3].name


def rows(ring: float, small: float = 0.4):
    """Everybody at .5, the ring of four groups and the small groups as given."""
    few = {cell.name for cell in (*SIZES, *NOISE)}
    found = []
    for cell in CELLS:
        value = ring if cell.name == RING else small if cell.name in few else 0.5
        found.append(
            {"key": cell.key, "test_accuracy": [0.1, value], "epsilon": {"other workers": 3.0}, "source": cell.source}
        )
    return found


def verdicts(found, result: str) -> list[str]:
    return [claim.verdict for claim in claims(found, {}) if claim.result == result]


def test_every_cell_is_a_valid_experiment_with_a_key_of_its_own():
    assert len({cell.key for cell in CELLS}) == len(CELLS)
    for cell in CELLS:
        experiment = parse(cell.plain)
        assert experiment.data.clients == cell.workers
        assert (experiment.privacy.unit == "client") == cell.private
    assert {cell.name for cell in (*SIZES, *PERIODS, *NOISE)} <= {cell.name for cell in CELLS}


def test_the_verdict_follows_the_runs():
    assert verdicts(rows(ring=0.9), "Figure 3 (a), (b)")[0] == "reproduced"
    assert verdicts(rows(ring=0.3), "Figure 3 (a), (b)")[0] == "not reproduced"
    assert verdicts(rows(ring=0.9), "Figure 3 (c), (d)")[0] == "reproduced"
    assert verdicts(rows(ring=0.9, small=0.95), "Figure 3 (c), (d)")[0] == "not reproduced"
    assert verdicts(rows(ring=0.9), "Figure 5 (a), (b)")[0] == "reproduced"


def test_what_was_not_run_is_not_claimed():
    assert verdicts([row for row in rows(ring=0.9) if row["source"] == "mnist"], "Figure 5 (a), (b)") == []
    assert claims([], {}) == []
    assert accuracies([]) == ""


def test_seeds_stand_side_by_side():
    assert f"| {RING} | 90.0 / 90.0 | 90.0 | 90.0 / 90.0 | 90.0 | 3.0 |" in accuracies(rows(ring=0.9))


def test_accounting_claims_follow_the_counts():
    found = counted()
    assert [claim.verdict for claim in claims([], found) if claim.result == "Figure 4 (c)"] == ["reproduced"]
    leaking = json.loads(json.dumps(found))
    leaking["(c) CL (4, 2)"]["rdp_pairs"] = [1.0, 35.84]
    assert [claim.verdict for claim in claims([], leaking) if claim.result == "Figure 4 (c)"] == ["not reproduced"]


@pytest.mark.parametrize("name", ["(a) RI+ (4, 2)", "(a) RI (4, 10)"])
def test_the_kept_counts_are_what_the_accountant_finds_today(name: str):
    from experiments.groups.figure4 import curves
    from sightline.ledger.group_privacy import answer_question

    mean, _ = counted()[name]["t=200"]
    asked = curves(None, None)[name.removeprefix("(a) ")]
    assert answer_question(asked).mean == pytest.approx(mean, abs=0.01)
