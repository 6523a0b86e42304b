"""Control on real runs: sound for every choice, from released values only, resumable to the bit, drawn and told."""

import json

import pytest

import sightline
from sightline import engine
from sightline.algorithms.hierarchy import control, control_search
from sightline.apps.cli.run import summary_lines
from sightline.config import parse
from sightline.engine import loop
from sightline.errors import InvalidInput
from tests.engine.conftest import TINY, changed
from tests.engine.leftovers import left_behind

CONTROL = {"energy": 1, "delay": 1, "accuracy": 1, "tau_max": 8}
TREE = changed(
    TINY,
    {
        "topology": {"kind": "tree", "subnets": 3, "trusted": ["edge-0"]},
        "algorithm": {"name": "h2fdp", "local_aggregation": 2, "control": CONTROL},
        "data.clients": 12, "local": {"steps": 4, "batch_size": 4, "learning_rate": 0.2}, "rounds": 6,
        "sampling.clients": {"scheme": "full"}, "resources": {"model": "wireless"},
        "privacy": {"unit": "client", "epsilon": 20.0, "delta": 1e-3, "clip_norm": 0.5},
    },
)  # fmt: skip
DEAR = {"algorithm.control": CONTROL | {"energy": 30, "delay": 0}}


def run(path, **changes):
    return sightline.run(parse(changed(TREE, changes)), out=path)


def test_all_planned_steps_are_done_in_no_more_intervals_than_planned(tmp_path):
    for name, changes in (("even", {}), ("dear", DEAR), ("fine", {"algorithm.control": CONTROL | {"accuracy": 50}})):
        done = run(tmp_path / name, **changes)
        decided = done.summary["control"]
        assert 24 <= sum(decided["tau"]) < 24 + 8
        assert len(decided["tau"]) == done.summary["rounds_done"] <= 6
        assert all(tau % 2 == 0 and tau <= 8 for tau in decided["tau"])
        assert done.rounds[-1]["test_accuracy"] is not None
        assert done.epsilon <= 20.0
        assert "finished" in done.summary["status"]


def test_an_early_end_says_why(tmp_path):
    done = run(tmp_path / "dear", **DEAR)
    rounds = done.summary["rounds_done"]
    assert rounds < 6
    reason = f"algorithm.control chose longer intervals: all 24 planned local steps were done in {rounds} of 6 rounds"
    reason += "; epsilon is that of the whole plan"
    assert done.summary["stopped"] == reason
    assert done.summary["status"] == "finished"
    assert reason in done.report.read_text()
    assert ("ended early", reason) in summary_lines(done.summary)


def test_dear_energy_is_saved(tmp_path):
    even, dear = run(tmp_path / "even"), run(tmp_path / "dear", **DEAR)
    assert dear.summary["energy_joule"] < 0.8 * even.summary["energy_joule"]
    assert sum(dear.summary["control"]["tau"]) / dear.summary["rounds_done"] > 5
    assert min(dear.summary["control"]["devices_untrusted"]) < 4
    assert dear.epsilon == pytest.approx(even.epsilon)  # an early end is charged in full


@pytest.mark.parametrize(
    "worst", [(2, 1, 1), (8, 4, 4), (8, 1, 4), (2, 4, 1)], ids=lambda choice: "tau{} s{} s{}".format(*choice)
)
@pytest.mark.parametrize("unit", ["client", "sample"])
def test_epsilon_holds_whatever_is_chosen(tmp_path, monkeypatch, worst, unit):
    """A controller that always takes an extreme choice stays within the budget that the noise was calibrated for."""
    tau, trusted, untrusted = worst
    monkeypatch.setattr(
        control, "search_choice", lambda *args, **kwargs: control_search.Choice(tau, trusted, untrusted, 0, 0, 0)
    )
    done = run(tmp_path / "run", **{"privacy.unit": unit, "privacy.where": "edge"})
    assert set(done.summary["control"]["tau"]) == {tau}
    assert 0 < done.epsilon <= 20.0
    planned = engine.plan_releases(
        engine.calibrate_noise(
            engine.build_experiment(parse(changed(TREE, {"privacy.unit": unit, "privacy.where": "edge"})))
        )
    )
    assert len(done.ledger) <= len(planned)


def test_choices_do_not_depend_on_private_data(tmp_path):
    """Without estimates steering them, decisions are the same for other data: they read public facts alone."""
    one, other = (
        run(tmp_path / "one"),
        run(tmp_path / "other", **{"data.alpha": 3.0, "data.size_sigma": 0.0, "data.size_min": 30}),
    )
    assert one.summary["control"] == other.summary["control"]


def test_estimates_only_ever_shorten_the_step(tmp_path):
    open_ = {"privacy": {"unit": "client", "noise_multiplier": 0.01, "clip_norm": 5.0}}
    fixed = run(tmp_path / "fixed", **open_)
    estimated = run(tmp_path / "estimated", **open_, **{"algorithm.control": CONTROL | {"smoothness": "estimate"}})
    assert max(row["smoothness_seen"] for row in estimated.rounds) > 0
    assert fixed.rounds[0]["step_size"] == estimated.rounds[0]["step_size"]
    assert estimated.rounds[-1]["step_size"] < fixed.rounds[-1]["step_size"]
    for decision in ("tau", "devices_trusted", "devices_untrusted"):  # how many noises are pooled follows no release
        assert [row[decision] for row in fixed.rounds] == [row[decision] for row in estimated.rounds]
    for before, after in zip(estimated.rounds, estimated.rounds[1:], strict=False):
        bound = min(1 / after["tau"], 1 / 6) / max(before["smoothness_seen"], 1e-9)
        assert after["step_size"] <= bound * (1 + 1e-6)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedavgm", "scaffold", "hfl_dp"])
def test_any_algorithm_on_a_tree_can_be_controlled(tmp_path, algorithm):
    own = {"local_aggregation": 2} if algorithm == "hfl_dp" else {"upcycle": 0.5} if algorithm == "fedavgm" else {}
    done = run(tmp_path / "run", algorithm={"name": algorithm, "control": CONTROL, **own})
    assert 24 <= sum(done.summary["control"]["tau"]) < 32
    assert done.epsilon <= 20.0


@pytest.mark.parametrize(
    "changes", [{"algorithm.control": CONTROL | {"smoothness": "estimate"}}, DEAR], ids=["estimate", "dear"]
)
def test_interrupted_anywhere_it_ends_with_the_same_bits(tmp_path, monkeypatch, changes):
    experiment = parse(changed(TREE, changes | {"privacy.epsilon": 2000.0}))
    whole = sightline.run(experiment, out=tmp_path / "whole")
    for call in (1, 3):
        calls = iter(range(1, 100))
        save = loop.save_checkpoint

        def crash(*args, save=save, calls=calls, call=call):
            if next(calls) == call:
                raise KeyboardInterrupt
            save(*args)

        monkeypatch.setattr(loop, "save_checkpoint", crash)
        with pytest.raises(KeyboardInterrupt):
            sightline.run(experiment, out=tmp_path / str(call))
        monkeypatch.undo()
        sightline.run(experiment, out=tmp_path / str(call), resume=True)
        assert left_behind(tmp_path / str(call)) == left_behind(whole.directory)


def test_the_report_draws_the_decisions_and_the_costs(tmp_path):
    done = run(tmp_path / "run")
    page = done.report.read_text()
    for words in (
        "Decisions of the control",
        "Length of the interval",
        "trusted edge",
        "Step size",
        "Energy of a round",
    ):
        assert words in page
    assert json.loads(json.dumps(done.summary))["control"]["tau"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"algorithm.control": 1}, "must be a table"),
        ({"algorithm.control": {"energie": 1}}, 'did you mean "energy"'),
        ({"algorithm.control": {"energy": -1}}, "must be a number >= 0"),
        ({"algorithm.control": {"accuracy": 0}}, "almost no training"),
        ({"algorithm.control": {"tau_max": 2.5}}, "whole number"),
        ({"algorithm.control": {"tau_max": 3}}, "largest interval must be"),
        ({"algorithm.control": {"smoothness": 0}}, "positive number"),
        ({"resources": None}, "energy and delay need a model"),
        ({"privacy": {"unit": "none"}}, "there is no noise"),
        ({"sampling.clients": {"scheme": "fixed", "rate": 0.5}}, "does not cover smaller cohorts"),
        ({"topology": {"kind": "star"}, "algorithm": {"name": "fedavg", "control": CONTROL}, "privacy.where": "server"},
         "trusted and untrusted subnets"),
        ({"local": {"epochs": 1, "batch_size": 4, "learning_rate": 0.1}, "algorithm": {"name": "fedavg", "control": CONTROL}},
         "number of local steps"),
    ],
)  # fmt: skip
def test_what_cannot_be_controlled_is_refused_in_one_line(changes, reason):
    with pytest.raises(InvalidInput, match=reason):
        engine.build_experiment(parse(changed(TREE, changes)))
