"""Audits of mechanisms that keep their word find nothing; audits of broken ones find it."""

import json
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from sightline.apps.audit import audit
from sightline.apps.audit.audit import DROWNED
from sightline.apps.cli.audit import audit_svg
from sightline.apps.cli.main import run_arguments, sightline
from sightline.config import parse, to_toml
from sightline.errors import InvalidInput
from tests.audit.breaking import (
    everybody_is_sampled,
    halved,
    same_noise_every_round,
    same_noise_for_everybody,
    unclipped,
)
from tests.audit.cases import OUTSIDE
from tests.audit.cases import audited as of_case
from tests.laws.combinations import Combination, plain

CONFIDENCE = 1 - 1e-4
"""An honest mechanism is accused once in ten thousand seeds; the seeds are fixed."""


def audited(trials=200, canaries=300, rounds=2, delta=0.05, confidence=CONFIDENCE, changes=None, runs=0, **words):
    plainly = plain(Combination(**words))
    for section, keys in (changes or {}).items():
        plainly[section] |= keys
    return audit(
        parse(plainly), trials=trials, canaries=canaries, rounds=rounds, delta=delta, confidence=confidence, seed=1,
        delta_of_canaries=min(delta, DROWNED / canaries), runs=runs,
    )  # fmt: skip


HONEST = {
    "central": {},
    "sampled": {"clients": "poisson"},
    "replaced": {"adjacency": "replace"},
    "local": {"where": "client"},
    "balanced": {"clients": "balanced"},
    "split": {"split": "yes"},
    "groups": {"topology": "groups", "algorithm": "dp_ogl"},
    "edge": {"topology": "tree", "where": "edge"},
    "examples in parts": {"unit": "sample", "where": "server", "samples": "full", "split": "yes"},
    "examples in segments": {
        "unit": "sample",
        "where": "edge",
        "samples": "full",
        "topology": "tree",
        "algorithm": "h2fdp",
    },
    "examples in convex segments": {
        "unit": "sample",
        "where": "edge",
        "samples": "poisson",
        "topology": "tree",
        "algorithm": "h2fdp",
        "changes": {"privacy": {"sensitivity": "convex"}},
    },
}


@pytest.mark.parametrize("words", HONEST.values(), ids=HONEST)
@pytest.mark.slow
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
PARTED = {"unit": "sample", "where": "server", "samples": "full", "split": "yes", "trials": 24, "changes": QUIET}
SEGMENTS = {"unit": "sample", "where": "edge", "samples": "full", "topology": "tree", "algorithm": "h2fdp", "trials": 30,
            "changes": QUIET}  # fmt: skip
BROKEN = {
    "halved": (halved, {}),
    "halved, local": (halved, {"where": "client"}),
    "halved, groups": (halved, {"topology": "groups", "algorithm": "dp_ogl", "changes": QUIET}),
    "halved, edge": (halved, {"topology": "tree", "where": "edge"}),
    "unclipped": (unclipped, {}),
    "unclipped, local": (unclipped, {"where": "client"}),
    "one seed for all rounds": (same_noise_every_round, {}),
    "one seed for all clients": (same_noise_for_everybody, {"where": "client"}),
    "unclipped, examples in parts": (unclipped, PARTED),
    "unclipped, segments": (unclipped, SEGMENTS),
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


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "tiny.toml"
    file.write_text(to_toml(parse(plain(Combination()))))
    return file


@pytest.mark.parametrize("ending", ["svg", "html"])
def test_a_claim_that_stands_is_said_to_and_drawn(file, tmp_path, ending):
    picture = tmp_path / f"audit.{ending}"
    done = CliRunner().invoke(
        sightline, ["audit", str(file), "--trials", "30", "--canaries", "40", "--plot", str(picture)]
    )
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1].startswith("not refuted: the attacks found ")
    drawn = picture.read_text()
    root = ElementTree.fromstring(drawn[drawn.index("<svg") : drawn.index("</svg>") + 6])
    words = " ".join(root.itertext())
    assert "Audit of combination: not refuted" in words
    assert " found, ≤ " in words
    assert "repeated" in words
    assert "canaries" in words


def test_words_in_a_picture_are_text():
    told = {"refuted": True, "observer": "<b>", "subject": "&", "unit": "client", "rounds": 1, "confidence": 0.95,
            "epsilon_lower": 2.0, "epsilon_upper": 1.0, "delta": 0.1,
            "findings": [{"method": "<i>", "delta": 0.1, "epsilon_lower": 2.0, "epsilon_upper": 1.0}]}  # fmt: skip
    words = " ".join(ElementTree.fromstring(audit_svg("<script>", told)).itertext())
    assert "<script>: REFUTED" in words
    assert "<b> about &" in words
    assert "<i>" in words


def test_a_claim_that_is_broken_is_said_to_be_and_exits_with_1(file, monkeypatch, capsys):
    unclipped(monkeypatch)
    assert (
        run_arguments(["audit", str(file), "--trials", "60", "--canaries", "40", "--delta", "0.2", "--rounds", "1"])
        == 1
    )
    out, err = capsys.readouterr()
    assert out.splitlines()[-1].startswith("REFUTED")
    assert "refuted" in err


@pytest.mark.parametrize("wrong", ["audit.png", "no/such/folder/audit.svg"])
def test_a_picture_that_cannot_be_drawn_is_refused_before_the_work(file, wrong, capsys):
    assert run_arguments(["audit", str(file), "--plot", wrong]) == 2
    assert f"plot={wrong}" in capsys.readouterr().err


def test_the_command(file):
    done = CliRunner().invoke(sightline, ["audit", str(file), "--trials", "30", "--canaries", "40", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert {"epsilon_lower", "epsilon_upper", "confidence", "refuted", "findings"} <= set(told)
    assert told["epsilon_lower"] <= told["epsilon_upper"]


@pytest.mark.parametrize("words", [(), ("--delta", "0.01")])
def test_the_headline_and_every_line_below_it_speak_of_one_delta(file, words, capsys):
    """Forty canaries at the file's delta would drown the bound of one run: then all is said at a smaller one."""
    asked = ("audit", str(file), "--set", "privacy.delta=0.01", "--trials", "20", "--canaries", "40", "--runs", "0")
    asked += words
    assert run_arguments([*asked, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["delta"] == (0.01 if words else 0.03 / 40)
    assert {(one["delta"], one["epsilon_upper"]) for one in told["findings"]} == {
        (told["delta"], told["epsilon_upper"])
    }
    assert told["epsilon_lower"] == max(one["epsilon_lower"] for one in told["findings"])
    assert told["file_delta"] == 0.01
    assert (told["file_epsilon"] < told["epsilon_upper"]) == (not words)
    assert run_arguments(list(asked)) == 0
    said = capsys.readouterr().out
    assert said.count("delta = 0.01") == 1
    assert ("at the file's delta = 0.01" in said) == (not words)


@pytest.mark.parametrize("wrong", [{"trials": 3}, {"canaries": 1}, {"rounds": -1}, {"delta": 1.5}])
def test_numbers_that_make_no_sense_are_refused(wrong):
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        audited(**wrong)


def test_few_canaries_are_not_guessed_twice():
    """A group of which the observer sees one worker: no guess, no bound."""
    finding = audited(trials=20, topology="groups", algorithm="dp_ogl").findings[1]
    assert finding.details["guesses"] <= finding.details["canaries"]
    assert finding.lower == 0


def test_a_lone_canary_is_not_guessed():
    """Of one subject that is named and no other that is seen alike nothing is said by one run."""
    finding = of_case(**OUTSIDE["dp_ogl"] | {"trials": 20}).findings[1]
    assert (finding.details["canaries"], finding.details["guesses"], finding.lower) == (1, 0, 0)


def test_what_is_told_to_another_group_is_heard_there(monkeypatch):
    """Unclipped, the subject drowns the noise of its own group; who is outside hears of it through common workers."""
    words = OUTSIDE["dp_ogl"] | {"trials": 100}
    assert not of_case(**words).broken
    unclipped(monkeypatch)
    found = of_case(**words)
    assert (found.facts["observer"], found.facts["subject"]) == ("client-5", "client-0")
    assert found.broken


@pytest.mark.parametrize("observer", ["cloud", "public", "edge-1", "client-3"])
@pytest.mark.slow
def test_every_observer_of_a_tree_sees_something(observer):
    """Half of the noise of nothing: an observer that saw nothing would find nothing."""
    found = of_case(topology="tree", where="edge", observer=observer, trials=80, canaries=10,
                    changes={"privacy": {"noise_multiplier": 0.05}})  # fmt: skip
    assert found.lower > 1.5


def test_the_same_seed_attacks_the_same_subject():
    one, other = (of_case(trials=20, canaries=10, topology="tree", where="edge") for _ in range(2))
    assert one == other
    assert one.facts["subject"] == "client-0"


def test_a_subject_that_nobody_knows_is_refused_with_the_nearest_name():
    with pytest.raises(InvalidInput, match=r"subject=client-66.*client-"):
        of_case(trials=20, subject="client-66")


def test_nothing_claimed_nothing_audited():
    with pytest.raises(InvalidInput, match="nothing with a guarantee"):
        audited(unit="none")


def test_an_observer_that_nobody_knows_is_refused_with_the_nearest_name():
    with pytest.raises(InvalidInput, match=r"observer=edge-7.*edge-1"):
        audit(parse(plain(Combination(topology="tree", where="edge"))), trials=20, observer="edge-7")
    with pytest.raises(InvalidInput, match=r"observer=edge-1,public: .* coalitions are not attacked"):
        audit(parse(plain(Combination(topology="tree", where="edge"))), trials=20, observer="edge-1,public")
