"""Every party can run its part of every algorithm with the values that it holds; a hidden transfer is found."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from sightline.algorithms import dp_ogl, dsgd
from sightline.algorithms.hierarchy import control, h2fdp
from sightline.config import parse
from sightline.engine import build_experiment, plan_releases
from sightline.engine.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from sightline.engine.projection import check_projection, list_kinds_of_parties
from sightline.errors import InvalidInput, Refused
from sightline.mechanisms import ABSENT, COUNTED, Public, combine_public
from sightline.plugins import BrokenLaw
from sightline.testing import check_algorithm
from sightline.topology import CLOUD
from tests.engine.conftest import TINY, changed
from tests.engine.many_kinds import KINDS
from tests.laws import combinations as laws

TREE = {"topology": {"kind": "tree", "subnets": [3, 1, 2], "trusted": ["edge-0", "edge-1"]}}
CONTROL = {
    "algorithm.control": {"energy": 1, "delay": 1, "accuracy": 1, "tau_max": 8}, "resources": {"model": "wireless"},
    "sampling.clients": {"scheme": "poisson", "rate": 0.5}, "local.steps": 4, "rounds": 4,
}  # fmt: skip
GRAPH = {
    "topology": {"kind": "graph", "structure": "ring"}, "algorithm": {"name": "dsgd"}, "privacy.where": "client",
    "sampling.clients": {"scheme": "full"}, "rounds": 4,
}  # fmt: skip
MOVING = {
    "topology": {"kind": "groups", "file": "moving.json", "period": 2}, "algorithm": {"name": "dp_ogl"}, "data.clients": 4,
    "rounds": 5,
}  # fmt: skip


def built(*changes):
    plain = TINY
    for change in changes:
        plain = changed(plain, change)
    return build_experiment(parse(plain))


@pytest.fixture
def moving(tmp_path, monkeypatch):
    """Two groups; a worker moves from one to the other after two epochs."""
    monkeypatch.chdir(tmp_path)
    groups = '{"workers": 4, "groups": [[0, 1, 2], [2, 3]], "schedule": [{"from": 3, "groups": [[0, 1], [1, 2, 3]]}]}'
    (tmp_path / "moving.json").write_text(groups)
    return built(MOVING)


@pytest.mark.parametrize("topology", laws.DIMENSIONS["topology"])
def test_every_algorithm_keeps_the_law(topology):
    walked = 0
    for algorithm, unit, where, upcycle in product(
        *(laws.DIMENSIONS[n] for n in ("algorithm", "unit", "where", "upcycle"))
    ):
        wanted = {"topology": topology, "algorithm": algorithm, "unit": unit, "where": where, "upcycle": upcycle}
        for c in laws.whole(**wanted, split="no", adjacency="add_remove", noise="independent", mechanism="gaussian"):
            try:
                setting = laws.built(c)
                plan_releases(setting, rounds=1)
            except InvalidInput:
                continue
            check_projection(setting)
            walked += 1
            break
    assert walked


def test_control_and_newcomers_keep_the_law(moving):
    check_projection(built(KINDS["tree"], CONTROL))
    check_projection(moving)
    assert any(release.what == "the group's model, for new members" for release in plan_releases(moving))


def test_the_kinds_of_parties():
    assert list_kinds_of_parties(built(KINDS["tree"]), 2) == [
        "edge-0", "edge-2", CLOUD, "client-0", "client-4"
    ]  # fmt: skip
    assert list_kinds_of_parties(built(), 2) == ["server"]
    assert len(list_kinds_of_parties(built(KINDS["groups"]), 2)) == 3  # a master, a worker of one group and of two


def test_edges_models_that_are_not_sent_up_are_found(monkeypatch):
    monkeypatch.setattr(h2fdp, "lift_models", lambda r, models: [models[c.name] for c in r.channels])
    with pytest.raises(BrokenLaw, match="cloud shows a value that it does not hold"):
        check_projection(built(KINDS["tree"]))


def test_a_model_that_newcomers_did_not_get_is_found(monkeypatch, moving):
    monkeypatch.setattr(dp_ogl, "show_to_newcomers", lambda state, r: state)
    with pytest.raises(BrokenLaw, match="does not hold the model that it trains"):
        check_projection(moving)


def test_neighbours_who_only_get_a_step_are_found(monkeypatch):
    setting = built(GRAPH)
    check_projection(setting)

    def steps_only(state, r, settings):
        r.show, own = lambda shown: [value for value, _, _, _ in shown], r.show
        try:
            return dsgd.run_round(state, r, settings)
        finally:
            r.show = own

    with pytest.raises(BrokenLaw, match="does not hold the model that it trains"):
        check_projection(replace(setting, algorithm=replace(setting.algorithm, round=steps_only)))


def test_a_look_at_an_edges_value_is_found(monkeypatch):
    """The cloud reads the gradient of a local aggregation, as control did before version 0.2."""
    monkeypatch.setattr(control, "sgd_noise", lambda r, means: Public(torch.tensor([means[0][0].value.value.norm()])))
    with pytest.raises(BrokenLaw, match="does not hold the value"):
        check_projection(built(KINDS["tree"], CONTROL))


def test_absent_values_stay_absent_and_raise_when_looked_at():
    here, there = (
        Public(torch.ones(2), frozenset({1}), frozenset({"a", "b"})),
        Public(ABSENT, frozenset({2}), frozenset({"b"})),
    )
    joined = 2.0 * (here + there)
    assert joined.value is ABSENT
    assert (joined.sources, joined.held_by) == (frozenset({1, 2}), frozenset({"b"}))
    assert here.is_held_by(frozenset({"a"}))
    assert not joined.is_held_by(frozenset({"a"}))
    assert Public(torch.ones(1)).is_held_by(frozenset({"anyone"}))
    for look in (
        lambda: joined.value.norm(),
        lambda: torch.stack([joined.value]),
        lambda: Public(COUNTED).value.tolist(),
    ):
        with pytest.raises(Refused, match="does not hold the value"):
            look()
    for look in (lambda: float(joined.value), lambda: combine_public(lambda value: value + 1, Public(COUNTED))):
        with pytest.raises(TypeError):
            look()


def test_a_row_that_is_only_counted_sends_nothing():
    """dp_ogl_plus: where an interval starts is a mean that nobody holds."""
    setting = built(KINDS["groups"], {"algorithm": {"name": "dp_ogl_plus"}, "rounds": 4})
    check_projection(setting)
    assert any("counted as seen" in release.what for release in plan_releases(setting))


def test_a_plugin_that_hides_a_transfer_is_refused(monkeypatch):
    check_algorithm(h2fdp.ALGORITHM, tables={"local": {"steps": 10}})
    monkeypatch.setattr(h2fdp, "lift_models", lambda r, models: [models[c.name] for c in r.channels])
    with pytest.raises(BrokenLaw, match="every party holds the values that it uses"):
        check_algorithm(h2fdp.ALGORITHM, tables={"local": {"steps": 10}})


def test_who_holds_a_value_survives_a_checkpoint(tmp_path):
    state = {
        "edge": Public(torch.ones(2), frozenset({0}), frozenset({"edge-0", "cloud"})),
        "model": Public(torch.zeros(2)),
    }
    save_checkpoint(tmp_path, Checkpoint(1, state, 1, "head", {}))
    read = load_checkpoint(tmp_path)
    assert {name: value.held_by for name, value in read.state.items()} == {
        "edge": frozenset({"edge-0", "cloud"}),
        "model": None,
    }


def with_round(setting, change, **more):
    """The experiment with an algorithm whose state is changed after every round."""
    own = setting.algorithm

    def changed_round(state, r, settings):
        return change(own.round(state, r, settings), r.time)

    return replace(setting, algorithm=replace(own, round=changed_round, **more))


@pytest.mark.parametrize("giver", range(3))
@pytest.mark.parametrize("taker", range(3))
def test_a_transfer_between_any_two_groups_is_found(giver, taker):
    """Groups of a ring are alike, and a walk of one of them would miss transfers between the others."""
    setting = built(KINDS["groups"], {"rounds": 5})

    def give(state, time):
        return dict(state) | {f"group-{taker}": state[f"group-{giver}"]}

    if giver == taker:
        plan_releases(with_round(setting, give))
        return
    with pytest.raises(BrokenLaw, match="does not hold the model"):
        plan_releases(with_round(setting, give))


def test_a_late_transfer_is_found():
    setting = built(KINDS["groups"], {"rounds": 9})

    def give(state, time):
        return dict(state) | ({"group-1": state["group-0"]} if time == 7 else {})

    with pytest.raises(BrokenLaw, match="does not hold the model"):
        plan_releases(with_round(setting, give))


def test_a_personal_model_that_its_client_was_never_sent_is_found():
    """The state holds another group's model and the published models are made of it: no row of the ledger says so."""
    setting = built(KINDS["groups"], {"topology.period": 100})

    def peek(state, time):
        return dict(state) | {"group-1 peek": state["group-0"]}

    def models(state, clients):
        return dict.fromkeys(clients, state["group-1 peek"]) if "group-1 peek" in state else {}

    with pytest.raises(Refused, match="does not hold its own model"):
        plan_releases(with_round(setting, peek, models=models))
