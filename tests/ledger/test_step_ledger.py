"""A ledger of one repeated step: the budget to the step, files that go on, and those that do not."""

import math
import sqlite3
from contextlib import closing, suppress
from dataclasses import replace

import pytest

from sightline.accounting import epsilon
from sightline.errors import BudgetExhausted, InvalidInput, Refused
from sightline.events import Gaussian, Poisson, Unit
from sightline.ledger import LedgerDamaged, StepKind, StepLedger, read_ledger

KIND = StepKind("samples", Unit.SAMPLE, "trainer", "noisy mean")
DELTA = 1e-5


def take_all(steps):
    """How many steps the budget allows."""
    with suppress(BudgetExhausted):
        while True:
            steps.charge()
    return steps.steps


@pytest.mark.parametrize("planned", [0, 1, 5, 10**4])
@pytest.mark.parametrize("event", [Gaussian(8.0), Poisson(0.5, Gaussian(3.0))])
@pytest.mark.parametrize("handed_over", [False, True])
def test_as_many_steps_are_taken_as_the_budget_holds(event, planned, handed_over):
    """The largest count whose composition is within it, whatever was planned."""
    most = 0
    while epsilon({event: most + 1}, DELTA) <= 1.5:
        most += 1
    assert most > 1
    with StepLedger(None, replace(KIND, handed_over=handed_over), delta=DELTA, budget=1.5) as steps:
        steps.begin(event, planned=planned)
        assert take_all(steps) == most
        assert steps.epsilon() == epsilon({event: most}, DELTA) <= 1.5
        assert steps.ledger.epsilon("samples", "public", DELTA) == steps.epsilon()
        if handed_over:
            assert steps.ledger.epsilon("samples", "trainer", DELTA) == math.inf


def test_a_file_goes_on_and_its_steps_count(tmp_path):
    for _ in range(3):
        with StepLedger(tmp_path / "a", KIND, delta=DELTA) as steps:
            steps.begin(Gaussian(8.0))
            steps.charge()
    with StepLedger(tmp_path / "a", KIND, delta=DELTA, budget=epsilon({Gaussian(8.0): 4}, DELTA)) as steps:
        assert (steps.steps, steps.event) == (3, Gaussian(8.0))
        steps.begin(steps.event)
        assert take_all(steps) == 4
    rows = list(read_ledger(tmp_path / "a"))
    assert [(row.time, row.inputs) for row in rows] == [(1, ()), (2, (0,)), (3, (1,)), (4, (2,))]


@pytest.mark.parametrize(
    "other",
    [{"subject": "clients"}, {"source": "server"}, {"unit": Unit.CLIENT}, {"what": "sum"}, {"handed_over": True}],
)
def test_steps_of_another_kind_are_not_added(tmp_path, other):
    with StepLedger(tmp_path / "a", KIND, delta=DELTA) as steps:
        steps.begin(Gaussian(8.0))
        steps.charge()
    with pytest.raises(InvalidInput, match="is not a step of this kind"):
        StepLedger(tmp_path / "a", replace(KIND, **other), delta=DELTA)


def test_another_event_is_refused(tmp_path):
    with StepLedger(tmp_path / "a", KIND, delta=DELTA) as steps:
        steps.begin(Gaussian(8.0))
        steps.charge()
        with pytest.raises(Refused, match="all steps of a ledger must be equal"):
            steps.begin(Gaussian(9.0))


def test_a_file_that_was_edited_is_not_read(tmp_path):
    with StepLedger(tmp_path / "a", KIND, delta=DELTA) as steps:
        steps.begin(Gaussian(8.0))
        for _ in range(3):
            steps.charge()
    with closing(sqlite3.connect(tmp_path / "a")) as connection, connection:
        connection.execute("DELETE FROM release WHERE id = 1")
    with pytest.raises(LedgerDamaged):
        StepLedger(tmp_path / "a", KIND, delta=DELTA)


def test_nothing_is_charged_before_the_event_is_known_or_after_the_end():
    with StepLedger(None, KIND, delta=DELTA) as steps:
        with pytest.raises(InvalidInput, match="call begin"):
            steps.charge()
        steps.begin(Gaussian(8.0))
        steps.charge()
    with pytest.raises(InvalidInput, match="no step was begun"):
        steps.charge()


@pytest.mark.parametrize(
    "settings", [{"delta": 0.0}, {"delta": DELTA, "budget": 0.0}, {"delta": DELTA, "budget": math.nan}]
)
def test_a_budget_that_is_none_is_told(settings):
    with pytest.raises(InvalidInput):
        StepLedger(None, KIND, **settings)


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(InvalidInput, match="no such file"):
        read_ledger(tmp_path / "nothing")
