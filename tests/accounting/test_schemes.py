"""Schemes, budgets, exchange with dp_accounting, and the two commands."""

import json
import math

import pytest
from click.testing import CliRunner

from sightline import accounting
from sightline.accounting import BudgetLine
from sightline.apps.cli.account import account_command as account
from sightline.apps.cli.account import calibrate_command as calibrate
from sightline.errors import InvalidInput
from sightline.events import (
    Allocation,
    Clear,
    Exponential,
    Gaussian,
    Poisson,
    Product,
    Pure,
    Repeat,
    Split,
    WithoutReplacement,
)


def test_schemes_are_the_events_they_say():
    assert dict(accounting.check_ins(noise=1.0, steps=9, chance=0.5).composition) == {
        Poisson(0.5, Allocation(9, 1, Gaussian(1.0))): 1
    }
    dropout = accounting.dropout(noise=1.0, rate=0.1, steps=5, unsplit_noise=2.0)
    assert dropout.composition == accounting.split(noise=1.0, parts=2, rate=0.1, steps=5, unsplit_noise=2.0).composition
    assert dropout.with_noise(2.0).composition == {Poisson(0.1, Product((Gaussian(4.0), Split(2, Gaussian(2.0))))): 5}


def test_check_ins_cost_less_than_checking_in_for_sure():
    sure = accounting.balanced(noise=1.0, steps=50, uses=1).epsilon(delta=1e-5)
    assert accounting.check_ins(noise=1.0, steps=50, chance=0.5).epsilon(delta=1e-5) < sure


def test_scheme_delta_is_the_inverse_of_epsilon():
    scheme = accounting.split(noise=1.3, parts=3, rate=0.1, steps=100)
    assert scheme.delta(epsilon=scheme.epsilon(delta=1e-5)) == pytest.approx(1e-5, rel=0.01)


@pytest.mark.parametrize("steps", [0, -1, 1.5])
def test_bad_counts_are_refused(steps):
    with pytest.raises(InvalidInput, match="steps="):
        accounting.gaussian(noise=1.0, steps=steps)


def test_one_budget_for_unlike_releases():
    """Round one at rate one, later rounds sampled, selections by the exponential mechanism: one calibration."""
    lines = [
        BudgetLine("round one", Gaussian(1.0), 1, weight=3.0),
        BudgetLine("later rounds", Poisson(0.1, Gaussian(1.0)), 200),
        BudgetLine("selections", Exponential(0.05), 4),
    ]
    budget = accounting.share_budget(lines, epsilon=4.0, delta=1e-5)
    assert 4.0 * (1 - 1e-4) <= budget.epsilon <= 4.0
    assert budget.noise_of("round one") == pytest.approx(3 * budget.noise_multiplier)
    assert accounting.epsilon(budget.composition, 1e-5) == budget.epsilon
    alone = budget.epsilons_alone()
    assert max(alone.values()) < 4.0 < sum(alone.values())


EXCHANGED = [
    Gaussian(1.5),
    Clear(),
    Pure(0.7),
    Poisson(0.1, Gaussian(2.0)),
    WithoutReplacement(5, 50, Gaussian(2.0)),
    Repeat(3, Gaussian(1.0)),
    Product((Gaussian(1.0), Pure(0.3))),
]


@pytest.mark.parametrize("event", EXCHANGED, ids=repr)
def test_events_survive_the_exchange(event):
    back = accounting.from_dp_event(accounting.to_dp_event(event))
    if isinstance(event, Pure):
        assert back.epsilon == pytest.approx(event.epsilon)
    elif isinstance(event, Product):
        assert back.events[1].epsilon == pytest.approx(0.3)
    else:
        assert back == event


def test_compositions_become_composed_events():
    given = {Poisson(0.1, Gaussian(2.0)): 10, Gaussian(3.0): 1}
    back = accounting.from_dp_event(accounting.to_dp_event(given))
    assert accounting.epsilon({back: 1}, 1e-5) == accounting.epsilon(given, 1e-5)


def test_what_the_other_library_does_not_know_is_refused():
    import dp_accounting

    with pytest.raises(InvalidInput, match="split"):
        accounting.to_dp_event(Split(2, Gaussian(1.0)))
    with pytest.raises(InvalidInput, match="ZCDpEvent"):
        accounting.from_dp_event(dp_accounting.ZCDpEvent(0.1))
    assert accounting.from_dp_event(dp_accounting.LaplaceDpEvent(2.0)) == Pure(0.5)
    assert accounting.from_dp_event(dp_accounting.NoOpDpEvent()) == Product(())


def asked(command, *words):
    result = CliRunner().invoke(command, [*words, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_account_prints_one_json_object():
    found = asked(account, *"poisson --noise 2.05 --rate 0.1 --steps 1000 --delta 1e-5 --interval".split())
    assert found["epsilon"] == pytest.approx(8.0042, rel=1e-4)
    assert found["interval"][0] < found["interval"][1] == found["epsilon"]
    assert (found["delta"], found["accountant"], found["scheme"]) == (1e-5, "pld", "poisson")


def test_an_interval_is_of_the_accountant_that_was_asked_for():
    """With --accountant rdp the interval was that of pld, and did not hold the epsilon beside it."""
    words = "gaussian --noise 4 --steps 10 --delta 1e-5 --accountant rdp --interval".split()
    with pytest.raises(InvalidInput, match="--interval=rdp: only the accountant pld gives a lower bound"):
        CliRunner().invoke(account, words, catch_exceptions=False)


def test_an_unsplit_noise_that_is_too_small_is_named():
    """The advice was to drop releases without noise, and there was none."""
    words = "split --parts 2 --rate 0.5 --steps 1000 --delta 1e-5 --epsilon 3".split()
    with pytest.raises(InvalidInput, match=r"--unsplit-noise=2\.0: the unsplit part alone costs more than epsilon=3"):
        CliRunner().invoke(calibrate, [*words, "--unsplit-noise", "2"], catch_exceptions=False)
    assert asked(calibrate, *words, "--unsplit-noise", "60")["epsilon"] <= 3


@pytest.mark.parametrize(
    "words",
    [
        "gaussian --noise 4 --steps 10",
        "balanced --noise 2 --steps 20 --uses 5 --epochs 2",
        "split --noise 1.3 --parts 3 --rate 0.1 --steps 10 --unsplit-noise 2",
        "dropout --noise 1.3 --rate 0.1 --steps 10",
        "check-ins --noise 1.3 --chance 0.1 --steps 10",
    ],
)
@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_every_scheme_is_accounted(words, accountant):
    found = asked(account, *words.split(), "--delta", "1e-5", "--accountant", accountant)
    assert 0 < found["epsilon"] < math.inf


@pytest.mark.parametrize(
    "words",
    [
        "gaussian --steps 10",
        "poisson --rate 0.1 --steps 100",
        "balanced --steps 20 --uses 5",
        "split --parts 3 --rate 0.1 --steps 10 --unsplit-noise 2",
        "dropout --rate 0.1 --steps 10",
        "check-ins --chance 0.1 --steps 10",
    ],
)
def test_calibrate_meets_the_budget(words):
    found = asked(calibrate, *words.split(), "--epsilon", "3", "--delta", "1e-5")
    assert 3 * (1 - 3e-4) <= found["epsilon"] <= 3 or found["noise_multiplier"] < 0.02
    assert found["noise_multiplier"] > 0


def test_people_get_lines():
    result = CliRunner().invoke(account, "gaussian --noise 4 --steps 10 --delta 1e-5".split())
    assert result.exit_code == 0
    assert result.output.startswith("epsilon")
