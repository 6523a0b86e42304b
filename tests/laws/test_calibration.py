"""Noise that was calibrated keeps every subject within its target, against everybody whom nobody trusts."""

import json
from functools import lru_cache

import pytest

from sightline import accounting, engine
from sightline.config import parse
from sightline.engine import plan_releases
from sightline.events import from_json
from sightline.ledger import export_ledger
from sightline.mechanisms import MECHANISMS
from sightline.testing.reaccount import count_charges, find_reached, read_names
from tests.laws.combinations import DELTA, Combination, plain

TARGET = 6.0
SAMPLE = {"unit": "sample", "where": "client"}
CASES = {
    "central": {"clients": "poisson"},
    "local": {"where": "client"},
    "by trust": {"topology": "tree", "where": "edge"},
    "by trust, in segments": {"topology": "tree", "where": "edge", "algorithm": "h2fdp", "clients": "poisson"},
    "groups": {"topology": "groups", "algorithm": "dp_ogl", "clients": "poisson"},
    "groups of their own": {"topology": "groups", "algorithm": "dp_ogl_plus"},
    "clusters": {"topology": "clusters", "algorithm": "rdpcfl", "unit": "sample", "where": "client", "samples": "poisson"},
    "examples at the client": SAMPLE | {"samples": "poisson"},
    "examples at the server": SAMPLE | {"samples": "poisson", "where": "server"},
    "segments": SAMPLE | {"samples": "poisson", "topology": "tree", "algorithm": "h2fdp", "where": "edge"},
    "output": SAMPLE | {"mechanism": "output"},
    "objective": SAMPLE | {"mechanism": "objective"},
}  # fmt: skip


def test_every_mechanism_is_calibrated_here():
    asked = {(c.mechanism, c.unit, c.where) for c in (Combination(**words) for words in CASES.values())}
    assert asked == {key for key in MECHANISMS if key[1] != "none"}


@lru_cache(maxsize=1024)
def epsilon_of(composition):
    events = {from_json(json.loads(text)): times for text, times in composition}
    return accounting.epsilon(events, DELTA)


@pytest.mark.parametrize("name", CASES)
def test_nobody_costs_more_than_the_target_against_anybody(name):
    """Found from the exported ledger of the plan, by a search that is not the ledger's own."""
    file = plain(Combination(**CASES[name]))
    del file["privacy"]["noise_multiplier"]
    file["privacy"]["epsilon"] = TARGET
    if CASES[name].get("topology") == "groups":
        file["topology"] |= {"groups": 3, "noise_factors": [1.0, 0.7, 1.3]}
    setting = engine.calibrate_noise(engine.build_experiment(parse(file)))
    releases = json.loads(json.dumps(export_ledger(plan_releases(setting))))["releases"]
    people = set().union(*(read_names(release["subjects"]) for release in releases))
    onlookers = set().union(*(read_names(r["audience"]) | read_names(r["coins_known_to"]) for r in releases))
    worst = dict.fromkeys(people, 0.0)
    for observer in onlookers - set(setting.topology.trusted):
        seen = find_reached(releases, observer)
        for subject in people - {observer}:
            found = count_charges(releases, subject, seen, observer)
            worst[subject] = max(worst[subject], epsilon_of(tuple(sorted(found.items()))))
    assert len(worst) == len(setting.clients)
    assert max(worst.values()) <= TARGET * (1 + 1e-9)
    assert max(worst.values()) > 0.98 * TARGET  # and the pair that needs most noise gets no more than it needs
