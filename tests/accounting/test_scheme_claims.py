"""Calculators agree with runs, and say for whom their numbers hold: observer, adjacency, what noise is relative to."""

import json
from typing import Any

import pytest

from sightline import accounting, engine
from sightline.accounting import SCHEMES
from sightline.accounting.compositions import canonical_form
from sightline.apps.cli.main import run_arguments
from sightline.config import parse
from sightline.engine import plan_releases
from sightline.errors import InvalidInput, Refused
from sightline.events import Gaussian
from sightline.ledger import export_ledger
from tests.laws.combinations import Combination, federation, plain
from tests.serve.serve_asking import asking, site_of

TOLD = ("observer", "adjacency", "noise_relative_to")
BY_EXAMPLE = {"unit": "sample", "samples": "poisson"}
TREE = BY_EXAMPLE | {"topology": "tree", "algorithm": "h2fdp", "where": "edge"}

RUNS: dict[str, tuple[dict[str, str], dict[str, Any], accounting.Scheme]] = {
    "poisson": ({"clients": "poisson"}, {}, accounting.poisson(noise=1, rate=0.5, steps=4)),
    "gaussian": ({}, {}, accounting.gaussian(noise=1, steps=4)),
    "gaussian, replace": ({"adjacency": "replace"}, {}, accounting.gaussian(noise=1, steps=4)),
    "fixed": ({"clients": "fixed"}, {}, accounting.fixed(noise=1, cohort=3, clients=6, steps=4)),
    "fixed, replace": (
        {"clients": "fixed", "adjacency": "replace"},
        {},
        accounting.fixed(noise=2, cohort=3, clients=6, steps=4, adjacency="replace"),
    ),
    "balanced": ({"clients": "balanced"}, {}, accounting.balanced(noise=1, steps=4, uses=2)),
    "check-ins": ({"clients": "check_ins"}, {}, accounting.check_ins(noise=1, steps=4, chance=0.5)),
    "split": (
        {"clients": "poisson", "split": "yes"},
        {},
        accounting.split(noise=1, parts=2, rate=0.5, steps=4, unsplit_noise=1),
    ),
    "correlated": (
        {"clients": "turns", "noise": "correlated"},
        {},
        accounting.correlated(noise=1, steps=4, separation=2, uses=2),
    ),
    "pooled": ({"where": "client"}, {}, accounting.pooled(noise=1, clients=6, rate=1.0, steps=4)),
    "pooled, everyone": (
        {"where": "client", "clients": "poisson"},
        {"everyone_sends_noise": True},
        accounting.pooled(noise=1, clients=6, rate=0.5, steps=4, everyone=True),
    ),
    "segment": (TREE, {}, accounting.segment(noise=1, steps=5, rate=4 / 14, segments=8, first_step=0.12501)),
    "convex": (TREE, {"sensitivity": "convex"}, accounting.convex(noise=1, steps=2, rate=12 / 14, segments=8)),
    "clustered": (
        BY_EXAMPLE | {"topology": "clusters", "algorithm": "rdpcfl", "where": "client"},
        {},
        accounting.clustered(noise=1, samples=10, batch_size=4, rounds=4, selections=0, selection_epsilon=0.1),
    ),
}
"""What is different about a run, what its `[privacy]` says besides, and the calculator's call for it."""


@pytest.mark.parametrize("name", RUNS)
def test_a_calculator_says_what_the_ledger_of_a_run_claims_against_another_client(name):
    words, privacy, scheme = RUNS[name]
    c = Combination(**words)
    file = plain(c)
    file["privacy"] |= privacy
    if "sensitivity" in privacy:
        del file["privacy"]["clip_norm"]
    setting = engine.build_experiment(parse(file), federation=federation(c.topology == "clusters"))
    planned = plan_releases(engine.calibrate_noise(setting))
    claimed = accounting.epsilon(planned.composition("client-0", "client-1"), 1e-3)
    assert scheme.epsilon(delta=1e-3) == pytest.approx(claimed, rel=2e-4)
    assert scheme.epsilon(delta=1e-3) >= planned.epsilon("client-0", "public", 1e-3) * (1 - 2e-4)


def test_every_scheme_is_compared_with_a_run():
    alone = {"dropout", "convex-once"}  # splitting into two parts, and Poisson sampling of segments
    assert set(SCHEMES) == {name.partition(",")[0] for name in RUNS} | alone


def test_a_fixed_cohort_is_counted_against_a_client_that_was_not_drawn():
    """1 of 2 clients, 10 steps: `account fixed` said 13.64, and another client that was not drawn faces 17.86."""
    found = accounting.fixed(noise=1.0, cohort=1, clients=2, steps=10)
    assert canonical_form(found.composition) == canonical_form({Gaussian(1.0): 10})
    assert found.epsilon(delta=1e-5) == pytest.approx(17.86, abs=0.01)
    for adjacency in ("add_remove", "replace"):
        whole = accounting.fixed(noise=2.0, cohort=9, clients=10, steps=1, adjacency=adjacency)
        assert isinstance(whole.events[0][0], Gaussian)
    for numbers in ({"cohort": 3}, {"cohort": 0}, {"clients": 0}):
        with pytest.raises(InvalidInput):
            accounting.fixed(**({"noise": 1.0, "cohort": 1, "clients": 2, "steps": 1} | numbers))


def answered(capsys, *words: str) -> tuple[int, str, str]:
    code = run_arguments(list(words))
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.parametrize("name", SCHEMES)
def test_every_answer_names_observer_adjacency_and_what_noise_is_relative_to(name, capsys, tmp_path):
    small = {"steps": 20, "uses": 4, "rounds": 5}
    example = {key: small.get(key, value) for key, value in SCHEMES[name].example.items()}
    options = [word for key, value in example.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    code, plainly, _ = answered(capsys, "account", name, *options, "--delta", "1e-5", "--accountant", "rdp")
    assert code == 0
    code, out, _ = answered(capsys, "account", name, *options, "--delta", "1e-5", "--accountant", "rdp", "--json")
    told = json.loads(out)
    for key in TOLD:
        assert told[key]
        assert f"{key} " in plainly
    assert told["adjacency"] == "add_remove"
    ask = asking(site_of(tmp_path))
    numbers = "&".join(f"{key}={value}" for key, value in example.items())
    found = json.loads(ask(f"/api/account?scheme={name}&{numbers}&delta=1e-5").body)
    assert {key: found[key] for key in TOLD} == {key: told[key] for key in TOLD}
    assert "noise relative to" in ask(f"/calculator?scheme={name}&{numbers}&delta=1e-5").body.decode()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("fixed", "--cohort", "2", "--clients", "9", "--steps", "3", "--adjacency", "replace"), "half of this number"),
        (("pooled", "--clients", "9", "--rate", "0.5", "--steps", "3"), "not the server that gathers"),
        (("split", "--parts", "2", "--rate", "0.1", "--steps", "3"), "give --unsplit-noise"),
        (("h2fdp", "--rate", "0.05", "--steps", "10"), "2 eta m G"),
    ],
)
def test_calibrations_say_it_too(words, said, capsys):
    code, out, _ = answered(
        capsys, "calibrate", *words, "--epsilon", "4", "--delta", "1e-3", "--accountant", "rdp", "--json"
    )
    assert code == 0
    told = json.loads(out)
    assert set(TOLD) < set(told)
    assert said in told["observer"] + told["noise_relative_to"]
    assert told["adjacency"] == ("replace" if "replace" in words else "add_remove")


def test_an_unsplit_noise_is_translated_into_the_key_of_a_run(capsys):
    """`--unsplit-noise` is a multiplier, `algorithm.split.unsplit_noise` its ratio to the noise of the parts."""
    words = ["split", "--noise", "0.5", "--parts", "2", "--rate", "0.1", "--steps", "3", "--unsplit-noise", "1"]
    code, out, _ = answered(capsys, "account", *words, "--delta", "1e-3")
    assert code == 0
    assert "algorithm.split.unsplit_noise = 2 in a run" in out


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (("convex", "--noise", "1", "--steps", "20", "--rate", "0.2", "--segments", "1", "--once"), "--once"),
        (("convex-once", "--noise", "1", "--rate", "0.2", "--segments", "1"), "--rate"),
        (("convex-once", "--noise", "1", "--chance", "0.2", "--steps", "20", "--segments", "1"), "--steps"),
        (("balanced", "--noise", "2", "--steps", "10", "--uses", "5", "--seed", "3"), "seed=3"),
        (
            ("balanced", "--noise", "2", "--steps", "10", "--uses", "5", "--certified", "--accountant", "rdp"),
            "accountant=rdp",
        ),
    ],
)
def test_flags_that_would_be_ignored_or_mean_something_else_are_refused(words, refused, capsys):
    """`account convex --once` read `--rate` as another probability and ignored `--steps`."""
    code, out, err = answered(capsys, "account", *words, "--delta", "1e-5")
    assert (code, out) == (2, "")
    assert refused in err
    assert err.count("\n") == 1


def test_moments_of_a_certificate_are_refused_in_python_too():
    with pytest.raises(Refused, match="certificate"):
        accounting.balanced(noise=2.0, steps=10, uses=5, certified=True).epsilon(delta=1e-5, accountant="rdp")


def test_the_calculators_of_groups_and_trees_say_it_too(tmp_path):
    ask = asking(site_of(tmp_path))
    for query in ("groups?workers=8&groups=2&epochs=4&period=2&delta=1e-3", "tree?devices=4&rounds=3&delta=1e-3"):
        found = json.loads(ask(f"/api/{query}").body)
        assert (found["adjacency"], found["noise_relative_to"]) == ("add_remove", "the clip norm")
        assert "one clip norm" in ask(f"/{query}").body.decode()


def test_an_exported_ledger_says_its_unit_and_adjacency(capsys, tmp_path):
    ledger = plan_releases(engine.build_experiment(parse(plain(Combination())), federation=federation(False)))
    (tmp_path / "ledger.json").write_text(json.dumps(export_ledger(ledger)))
    words = ["--subject", "client-0", "--observer", "public", "--delta", "1e-3", "--json"]
    code, out, _ = answered(capsys, "account", "ledger", str(tmp_path / "ledger.json"), *words)
    assert code == 0
    told = json.loads(out)
    assert (told["unit"], told["adjacency"], told["observer"]) == ("client", "add_remove", ["public"])
    assert told["noise_relative_to"]
