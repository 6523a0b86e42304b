"""Every draw that a release claims has a name, and is used once."""

from dataclasses import replace

import pytest

import sightline
from sightline.engine.round import TrainingRound
from sightline.errors import Refused
from sightline.events import Adjacency, Gaussian, Poisson, Unit
from sightline.ledger import Draw, Ledger, Release, parties
from tests.engine.many_kinds import experiment

DRAW = Draw("cohort", 3, -1, 0)
RELEASE = Release(
    3, "server", parties("client-0"), Unit.CLIENT, Adjacency.ADD_REMOVE, Poisson(0.5, Gaussian(1.0)),
    parties("public"), draw=DRAW,
)  # fmt: skip


def test_a_draw_is_used_once():
    ledger = Ledger()
    ledger.append([RELEASE])
    with pytest.raises(Refused, match="draw=cohort in round 3, use 0"):
        ledger.append([RELEASE])
    ledger.append([replace(RELEASE, draw=replace(DRAW, use=1))])
    ledger.append([replace(RELEASE, time=4, draw=replace(DRAW, round=4))])
    assert len(ledger) == 3


@pytest.mark.parametrize("draw", [replace(DRAW, round=2), replace(DRAW, round=4)], ids=["earlier", "later"])
def test_a_draw_belongs_to_its_round(draw):
    with pytest.raises(Refused, match="belongs to another"):
        Ledger().append([replace(RELEASE, draw=draw)])


def test_two_releases_of_one_moment_do_not_share_a_draw_and_nothing_is_written():
    ledger = Ledger()
    with pytest.raises(Refused, match="used before"):
        ledger.append([RELEASE, RELEASE])
    assert len(ledger) == 0


def test_the_name_of_a_draw_is_not_in_the_row():
    (made,) = Ledger().append([RELEASE])
    assert made.draw is None
    assert made.body() == replace(RELEASE, draw=None).body()


def test_one_draw_for_all_groups_is_refused(tmp_path, monkeypatch):
    """The bug that nothing saw: the groups' cohorts drawn from one stream."""
    honest = TrainingRound._draw_members

    def draw_members(self, channel):
        self._draws = 0
        return honest(self, channel)

    monkeypatch.setattr(TrainingRound, "_draw_members", draw_members)
    with pytest.raises(Refused, match="draw=cohort in round 1, use 0"):
        sightline.run(experiment("groups", rounds=2), out=tmp_path / "run", progress=False)


@pytest.mark.parametrize("times", [(3, 3), (4, 3)], ids=["twice", "backwards"])
def test_a_round_is_under_a_joint_charge_once(times):
    """The event of a schedule knows of one release a round: a second one would be free."""
    first, second = (replace(RELEASE, time=time, draw=None, joint="schedule 1") for time in times)
    ledger = Ledger([first])
    with pytest.raises(Refused, match="released twice under one charge"):
        ledger.append([second])
    with pytest.raises(Refused, match="released twice under one charge"):
        Ledger().append([first, second])
    assert len(ledger.append([replace(first, time=5)])) == 1
