"""A canary in all its turns: the stream keeps its promise, and one that counts a single use is caught."""

from importlib import import_module

import pytest

from sightline.accounting.strategies import column_norm
from sightline.apps.audit.attack import gram_matrix, turn_weights
from sightline.config import parse
from sightline.engine import build_experiment
from tests.audit.cases import audited
from tests.engine.conftest import TINY, changed

ROUNDS = 8
STREAM = {"clients": "turns", "noise": "correlated", "rounds": ROUNDS}


@pytest.fixture(autouse=True)
def longer_runs(monkeypatch):
    monkeypatch.setattr("tests.laws.combinations.ROUNDS", ROUNDS)


def noised(sigma, **clients):
    """What is changed in the file: the noise, and how clients take turns."""
    return {
        "privacy": {"noise_multiplier": sigma},
        "sampling": {"clients": {"scheme": "turns", "groups": 2} | clients},
    }


def test_a_stream_keeps_its_promise():
    found = audited(trials=20, runs=2, canaries=400, changes=noised(1.0), **STREAM)
    assert not found.broken, found
    assert 2 < found.findings[1].lower < found.findings[1].upper


def test_the_sensitivity_of_one_column_only_is_caught(monkeypatch):
    """Four uses that are charged as one: many canaries in a few runs are enough to see it."""
    monkeypatch.setattr(
        import_module("sightline.accounting.strategies"),
        "compute_sensitivity",
        lambda strategy, *, separation, uses: column_norm(strategy),
    )
    found = audited(trials=20, runs=2, canaries=400, changes=noised(1.0), **STREAM)
    assert found.broken, found
    assert found.lower > 1.5 * found.upper


def test_an_attacker_adds_up_what_the_noise_leaves():
    """u^T C^T C: the weights of a client's turns, with C written out by hand."""
    file = {"rounds": 4, "sampling.clients": {"scheme": "turns", "groups": 2}, "privacy.noise": "correlated"}
    setting = build_experiment(parse(changed(TINY, file)))
    gram = [[1.25, 0.5, 0, 0], [0.5, 1.25, 0.5, 0], [0, 0.5, 1.25, 0.5], [0, 0, 0.5, 1.0]]
    assert gram_matrix(setting, 4).tolist() == gram
    sampler = setting.sampler_of(setting.topology.top)
    seen = [(time, "server") for time in range(1, 5)]
    for client in range(6):
        rows = turn_weights(setting, client, seen)
        turns = [time - 1 for time in range(1, 5) if client in sampler.active_places(time)]
        assert rows.tolist() == [gram[turn] for turn in turns]


KINDS = {
    "star": noised(1.0),
    "drawn in secret": noised(1.0, rate=0.5),
    "restarted": noised(1.0) | {"privacy": {"noise_multiplier": 1.0, "correlated": {"restart": 4}}},
    "in buffers": noised(1.0) | {"privacy": {"noise_multiplier": 1.0, "correlated": {"strategy": "blt"}}},
}
PLACES = {
    "tree": {"topology": "tree", "where": "edge"},
    "groups": {"topology": "groups", "algorithm": "dp_ogl"},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_stream_keeps_its_promise(kind):
    found = audited(trials=160, runs=2, canaries=200, confidence=1 - 1e-5, changes=KINDS[kind], **STREAM)
    assert not found.broken, found


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_every_edge_and_group_keeps_its_promise(place):
    found = audited(trials=160, canaries=10, confidence=1 - 1e-5, changes=noised(1.0), **STREAM, **PLACES[place])
    assert not found.broken, found


@pytest.mark.slow
def test_one_client_tells_by_the_likelihood_ratio(monkeypatch):
    """Runs with and without one client, added up along the strategy: the broken sensitivity is seen in them alone."""
    honest = audited(trials=400, changes=noised(1.0), **STREAM).findings[0]
    assert 1 < honest.lower < honest.upper
    monkeypatch.setattr(
        import_module("sightline.accounting.strategies"),
        "compute_sensitivity",
        lambda strategy, *, separation, uses: column_norm(strategy),
    )
    broken = audited(trials=400, changes=noised(1.0), **STREAM).findings[0]
    assert broken.lower > broken.upper
    assert broken.details["attack"] == "turns"
