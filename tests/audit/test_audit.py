"""Audits of mechanisms that keep their word find nothing; audits of broken ones find it."""

import json

import pytest
from click.testing import CliRunner

from sightline.audit import audit
from sightline.cli.main import sightline
from sightline.config import parse
from sightline.errors import InvalidInput
from tests.audit.breaking import (
    everybody_is_sampled,
    halved,
    same_noise_every_round,
    same_noise_for_everybody,
    unclipped,
)
from tests.laws.combinations import Combination, plain

CONFIDENCE = 1 - 1e-4
"""An honest mechanism is accused once in ten thousand seeds; the seeds are fixed."""


def audited(trials=200, canaries=300, rounds=2, delta=0.05, confidence=CONFIDENCE, changes=None, **words):
    plainly = plain(Combination(**words))
    for section, keys in (changes or {}).items():
        plainly[section] |= keys
    return audit(
        parse(plainly), trials=trials, canaries=canaries, rounds=rounds, delta=delta, confidence=confidence, seed=1
    )


HONEST = {
    "central": {},
    "sampled": {"clients": "poisson"},
    "replaced": {"adjacency": "replace"},
    "local": {"where": "client"},
    "balanced": {"clients": "balanced"},
    "split": {"split": "yes"},
    "groups": {"topology": "groups", "algorithm": "dp_ogl"},
    "edge": {"topology": "tree", "where": "edge"},
}


@pytest.mark.parametrize("words", HONEST.values(), ids=HONEST)
def test_an_honest_mechanism_is_not_accused(words):
    found = audited(trials=60, canaries=60, **words)
    assert not found.broken
    assert 0 <= found.lower <= found.upper


def test_both_methods_find_something_of_what_there_is_to_find():
    found = audited(trials=300, delta=1e-5, confidence=0.95)
    repeated, one_run = found.findings
    assert repeated.lower > 0.3
    assert one_run.lower > 0.7


RARELY = {"sampling": {"clients": {"scheme": "poisson", "rate": 0.05}}}
QUIET = {"privacy": {"noise_multiplier": 2.0}}
BROKEN = {
    "halved": (halved, {}),
    "halved, local": (halved, {"where": "client"}),
    "halved, groups": (halved, {"topology": "groups", "algorithm": "dp_ogl", "changes": QUIET}),
    "halved, edge": (halved, {"topology": "tree", "where": "edge"}),
    "unclipped": (unclipped, {}),
    "unclipped, local": (unclipped, {"where": "client"}),
    "one seed for all rounds": (same_noise_every_round, {}),
    "one seed for all clients": (same_noise_for_everybody, {"where": "client"}),
    "wrong sampler": (everybody_is_sampled, {"clients": "poisson", "changes": RARELY}),
}


@pytest.mark.parametrize(("broken", "words"), BROKEN.values(), ids=BROKEN)
def test_a_broken_mechanism_is_caught(broken, words, monkeypatch):
    broken(monkeypatch)
    found = audited(delta=0.02 if "clients" in words else 0.2, confidence=0.95, canaries=10, **words)
    assert found.findings[0].lower > found.findings[0].upper
    assert found.broken


def test_one_run_catches_it_too(monkeypatch):
    unclipped(monkeypatch)
    finding = audited(trials=20, canaries=600, delta=1e-5, confidence=0.95, changes=QUIET).findings[1]
    assert finding.lower > finding.upper


def test_the_command(tmp_path):
    from sightline.config import to_toml

    file = tmp_path / "tiny.toml"
    file.write_text(to_toml(parse(plain(Combination()))))
    done = CliRunner().invoke(sightline, ["audit", str(file), "--trials", "30", "--canaries", "40", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert {"epsilon_lower", "epsilon_upper", "confidence", "refuted", "findings"} <= set(told)
    assert told["epsilon_lower"] <= told["epsilon_upper"]


@pytest.mark.parametrize("wrong", [{"trials": 3}, {"canaries": 1}, {"rounds": -1}, {"delta": 1.5}])
def test_numbers_that_make_no_sense_are_refused(wrong):
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        audited(**wrong)


def test_few_canaries_are_not_guessed_twice():
    """A group of which the observer sees one worker: no guess, no bound."""
    finding = audited(trials=20, topology="groups", algorithm="dp_ogl").findings[1]
    assert finding.details["guesses"] <= finding.details["canaries"]
    assert finding.lower == 0


def test_nothing_claimed_nothing_audited():
    with pytest.raises(InvalidInput, match="nothing is claimed"):
        audited(unit="none")


def test_an_observer_that_nobody_knows_is_refused_with_the_nearest_name():
    with pytest.raises(InvalidInput, match=r"observer=edge-7.*edge-1"):
        audit(parse(plain(Combination(topology="tree", where="edge"))), trials=20, observer="edge-7")
