"""Every combination of the registries runs with an epsilon that is confirmed, or is refused with the reason."""

import json
import math
import shutil

import pytest

from sightline import accounting, algorithms
from sightline.apps.report import RunView, summarise_run
from sightline.engine import RunRecord
from sightline.errors import InvalidInput
from sightline.ledger import export_ledger
from sightline.plugins import BrokenLaw
from sightline.testing import confirm_ledger
from sightline.testing.reaccount import confirm_composition, list_kinds
from tests.laws import combinations as laws
from tests.laws.table import page

DRAWS = 20_000
"""Of a Monte Carlo check: a claim whose delta is a fifth too small is caught, at five standard errors."""


def one_line(reason):
    """`name=value: reason; way out`, on one line."""
    assert "\n" not in reason
    assert "=" in reason.split(":")[0]
    return reason


HIDDEN = {"poisson": {"poisson"}, "balanced": {"allocation"}, "check_ins": {"poisson", "allocation"}}
"""What a way of drawing makes of an event, where it is a secret."""


def hides(c):
    """The kinds of coins that a combination's promise may rest on, and no others."""
    found = {"split"} if c.split == "yes" else set()
    personal = algorithms.REGISTRY[
        c.algorithm
    ].facts.personal  # each client's own model goes to everyone, with its own noise
    if c.unit == "client" and c.where in ("server", "edge") and not personal:
        found |= HIDDEN.get(c.clients, set())
    if c.unit == "sample" and c.mechanism == "gaussian" and c.noise != "correlated":  # else batches are fixed
        found |= HIDDEN.get(c.samples, set())
    return found


def traced(c, ledger):
    """What was asked for is in the ledger, and no amplification that was not: no setting is silently ignored."""
    events = [release["event"] for release in export_ledger(ledger)["releases"]]
    found = set().union(*(list_kinds(event) for event in events))
    found |= {"poisson" for event in events if event["kind"] == "segment" and event["rate"] < 1}
    assert found & {"poisson", "allocation", "split"} == hides(c), (c, found)
    if "without_replacement" in found:
        assert (c.clients, c.adjacency) == ("fixed", "replace"), (c, found)


def checked(c, directory, *, draws):
    """Run a combination and hold what it says against what its exported ledger says to other code."""
    laws.run(c, directory)
    record = RunRecord.open(directory)
    ledger, facts = record.ledger(), record.facts
    record.close()
    said = summarise_run(RunView.read(directory))
    assert said["releases"] == len(ledger) > 0
    if c.unit == "none":
        assert said["epsilon"] is None
        assert any("clear" in list_kinds(release["event"]) for release in export_ledger(ledger)["releases"])
        return
    traced(c, ledger)
    worst = confirm_ledger(ledger, set(facts["trusted"]), laws.DELTA, draws=draws)
    claimed = math.inf if said["epsilon"] is None else said["epsilon"]
    assert claimed >= worst * (1 - 1e-12), (c, claimed, worst)


@pytest.fixture(scope="module")
def covered():
    """Combinations that hold every pair that can be had, and the pairs that cannot."""
    return laws.covering()


@pytest.mark.parametrize("algorithm", laws.DIMENSIONS["algorithm"])
def test_an_algorithm_runs_and_is_confirmed(algorithm, tmp_path):
    """The fast twin of the test of all pairs: the first combination that is not refused, with privacy if there is one."""
    private_first = sorted(laws.whole(algorithm=algorithm), key=lambda c: c.unit == "none")
    checked(next(c for c in private_first if not laws.refusal(c)), tmp_path / "run", draws=DRAWS)


@pytest.mark.slow
def test_every_pair_runs_and_is_confirmed_or_is_refused_with_the_reason(covered, tmp_path):
    chosen, hopeless = covered
    for number, c in enumerate(chosen):
        checked(c, tmp_path / str(number), draws=DRAWS)
    for pair, reason in hopeless.items():
        assert reason, pair
        one_line(reason)


def test_a_refused_combination_leaves_nothing_behind(tmp_path):
    for number, c in enumerate(list(laws.whole(clients="balanced", algorithm="scaffold"))[::7]):
        if laws.refusal(c):
            with pytest.raises(InvalidInput):
                laws.run(c, tmp_path / str(number))
            assert not (tmp_path / str(number)).exists()


def test_the_check_can_fail():
    """Noise of 1 claimed to be 1.2, a use that was not counted, a schedule that was known: each is caught."""
    gaussian = json.dumps({"kind": "gaussian", "noise_multiplier": 1.0})
    hidden = json.dumps({"kind": "allocation", "steps": 4, "uses": 2, "event": json.loads(gaussian)})
    too_small = [
        (((gaussian, 1),), accounting.gaussian(noise=1.2, steps=1)),
        (((gaussian, 3),), accounting.gaussian(noise=1.0, steps=2)),
        (((gaussian, 2),), accounting.balanced(noise=1.0, steps=4, uses=2)),
        (((hidden, 2),), accounting.balanced(noise=1.0, steps=4, uses=2)),
    ]
    for composition, claimed in too_small:
        with pytest.raises(BrokenLaw):
            confirm_composition(composition, claimed.epsilon(delta=laws.DELTA), laws.DELTA, draws=DRAWS)


def test_the_page_is_current():
    assert laws.PAGE.read_text() == page(), "python -m tests.laws.table writes it again"


def test_promises_that_nobody_makes_are_refused_with_the_reason():
    for mode, reason in laws.promises().items():
        assert not reason or one_line(reason), mode


@pytest.mark.slow
@pytest.mark.parametrize("topology", laws.DIMENSIONS["topology"])
def test_the_whole_product_is_confirmed_or_is_refused_with_the_reason(topology, tmp_path):
    """The planned ledger of everything that can run is confirmed; a tenth of it is run, always the same."""
    for number, c in enumerate(laws.whole(topology=topology)):
        try:
            ledger, trusted = laws.planned(c)
        except InvalidInput as error:
            one_line(str(error))
            continue
        if c.unit != "none":
            traced(c, ledger)
            confirm_ledger(ledger, trusted, laws.DELTA, draws=DRAWS)
        if number % 10 == 0:
            checked(c, tmp_path / "run", draws=DRAWS)
            shutil.rmtree(tmp_path / "run")
