"""Clustered runs: what the ledger holds, who sees what, calibration, resumption, and clusters that are not as hoped."""

import math
from collections import Counter
from itertools import product

import numpy as np
import pytest
import torch

import sightline
from sightline import accounting, engine
from sightline.engine import plan_releases
from sightline.engine.round import TrainingRound
from sightline.errors import InvalidInput, Refused
from sightline.events import Exponential, Gaussian, Poisson, Repeat
from sightline.ledger import POST_PROCESSING
from sightline.mechanisms import Cohort
from sightline.topology import client_name
from sightline.topology.clusters import ELSEWHERE, SAME
from sightline.training.dp_sgd_settings import DPSGDSettings
from tests.engine.test_resume import Crash, crash_in, left_behind

TARGET = {"privacy.noise_multiplier": None, "privacy.epsilon": 6.0, "algorithm.selection_epsilon": None}
IFCA = {"algorithm.name": "ifca"}
ORACLE = {"algorithm": {"name": "oracle_clusters"}}
MRMTL = {"algorithm": {"name": "mrmtl"}, "topology": {"kind": "star"}}


def ran(experiment, tmp_path, name="run"):
    return sightline.run(experiment, out=tmp_path / name)


def uneven(*, clients, rng):
    """Clients of unequal sizes, in two kinds whose labels mean the opposite."""
    for number in range(clients):
        size = (20, 60, 33)[number % 3]
        x = rng.standard_normal((size + 10, 6)).astype(np.float32)
        y = ((x[:, 0] > 0) ^ (number % 2 == 0)).astype(np.int64)
        yield x[:size], y[:size], x[size:], y[size:]


OWN = {"data": {"source": f"{__name__}:uneven", "clients": 6, "partition": "natural"}, "topology.count": 2}


def test_round_one_is_one_release_per_client_and_the_rest_of_it_is_free(clustered, tmp_path):
    run = ran(clustered(), tmp_path)
    first = [release for release in run.ledger if release.time == 1]
    charged = [release for release in first if release.subjects]
    assert [(r.source, r.subjects, r.event) for r in charged] == [
        (client_name(n), frozenset({client_name(n)}), Gaussian(0.8)) for n in range(7)
    ]
    assert all(release.audience == {"server"} for release in charged)
    assert {release.event for release in first if not release.subjects} == {POST_PROCESSING}
    shown = frozenset().union(*(release.inputs for release in first if not release.subjects))
    assert shown == {release.id for release in charged}


@pytest.mark.parametrize("count", [3, 6])
def test_whoever_sees_a_clusters_first_model_sees_a_function_of_everybodys_update(clustered, tmp_path, count):
    """Who is in a cluster depends on the whole mixture: the flow must not stop at the members."""
    run = ran(clustered(rounds=1, **{"topology.count": count}), tmp_path)
    for n in range(7):
        for i in set(range(7)) - {n}:
            assert run.ledger.composition(client_name(n), client_name(i)) == {Gaussian(0.8): 1}


def test_models_know_the_choices_that_left_them_as_they_are(clustered, tmp_path):
    """In a round with choices, every model that is published or left depends on everybody's choice of that round."""
    run = ran(clustered(**IFCA, rounds=3, **{"algorithm.selection_rounds": 2}), tmp_path)
    shown = [release for release in run.ledger if release.time == 3 and "to choose from" in release.what]
    assert shown
    for release in shown:
        assert all(run.ledger.view(release.audience).composition(client_name(n))[Exponential(1.5)] for n in range(7))
    second = [release.id for release in run.ledger if release.time == 2 and isinstance(release.event, Exponential)]
    for release in shown:
        reached, waiting = set(), [release.id]
        while waiting:
            reached.add(waiting[-1])
            waiting += run.ledger[waiting.pop()].inputs
        assert set(second) <= reached


def test_later_rounds_are_small_batches_and_choices(clustered, tmp_path):
    experiment = clustered()
    run = ran(experiment, tmp_path)
    for client, size in enumerate(engine.build_experiment(experiment).federation.sizes):
        later = Repeat(math.ceil(size / 16), Poisson(16 / size, Gaussian(0.8)))
        seen = run.ledger.composition(client_name(client), "server")
        assert seen == {Gaussian(0.8): 1, later: 7, Exponential(1.5): 2}
    assert run.epsilon == accounting.epsilon(seen, 1e-4) == run.summary["observers"]["server"]
    assert run.summary["trusted"] == []


def test_round_one_may_have_batches_of_its_own(clustered, tmp_path):
    """b^1 of Lemma 4.2: steps of round one draw b^1 of the N examples, and are charged as such."""
    experiment = clustered(**{"algorithm.first_batch": 10, "local.epochs": 2})
    run = ran(experiment, tmp_path)
    for client, size in enumerate(engine.build_experiment(experiment).federation.sizes):
        first = Repeat(2 * math.ceil(size / 10), Poisson(10 / size, Gaussian(0.8)))
        seen = run.ledger.composition(client_name(client), "server")
        assert seen[first] == 1
        assert Gaussian(0.8) not in seen
    whole = ran(clustered(**{"algorithm.first_batch": 10_000}), tmp_path, "whole")
    assert [r.body() for r in whole.ledger] == [r.body() for r in ran(clustered(), tmp_path, "plain").ledger]


def test_only_the_candidates_are_tried(clustered, tmp_path):
    run = ran(clustered(**{"topology": {"kind": "clusters", "candidates": [2, 5]}}), tmp_path)
    assert [count for count, _ in run.metadata["clusters"]["tried"]] == [2, 5]


@pytest.mark.parametrize("noise", [0.2, 20.0])
@pytest.mark.parametrize("choices", [5, 7, 20])
def test_how_many_choices_there_are_does_not_depend_on_what_was_released(clustered, tmp_path, noise, choices):
    """Clear clusters are drawn for long, unclear ones briefly; a number that follows them would be no guarantee."""
    changes = {"privacy.noise_multiplier": noise, "algorithm.selection_rounds": choices}
    experiment = clustered(**changes)
    run, planned = ran(experiment, tmp_path), plan_releases(engine.calibrate_noise(engine.build_experiment(experiment)))
    for client in map(client_name, range(7)):
        seen = run.ledger.composition(client, "server")
        assert seen == planned.composition(client, "server")
        assert seen[Exponential(1.5)] == min(choices, 7)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("noise", [0.2, 20.0])
def test_who_is_not_in_every_round_makes_all_choices_too(clustered, tmp_path, noise, seed):
    """When they begin follows from released values: if only the cohort chose, so would a client's number of choices."""
    changes = {"sampling": {"clients": {"scheme": "poisson", "rate": 0.5}}, "privacy.noise_multiplier": noise}
    run = ran(clustered(seed=seed, **changes), tmp_path)
    for client in map(client_name, range(7)):
        assert run.ledger.composition(client, "server")[Exponential(1.5)] == 2


@pytest.mark.parametrize("changes", [{}, IFCA, ORACLE, {"topology.count": "auto"}, {"data.train_samples": 60}])
def test_every_kind_of_observer_is_the_worst_of_its_pairs(clustered, tmp_path, changes):
    run = ran(clustered(**changes), tmp_path)
    now = run.rounds[-1]["clusters"]["assignment"]
    names = [client_name(n) for n in range(7)]
    pairs = {(n, i): run.ledger.epsilon(names[n], names[i], 1e-4) for n in range(7) for i in range(7) if n != i}
    same = [epsilon for (n, i), epsilon in pairs.items() if now[n] == now[i]]
    other = [epsilon for (n, i), epsilon in pairs.items() if now[n] != now[i]]
    assert run.summary["observers"][SAME] == max(same, default=0.0)
    assert run.summary["observers"][ELSEWHERE] == max(other, default=0.0)
    assert run.summary["observers"]["public"] == max(run.ledger.epsilon(name, "public", 1e-4) for name in names)


def test_clusters_that_never_mix_learn_nothing_of_each_other(clustered, tmp_path):
    run = ran(clustered(**ORACLE), tmp_path)
    assert run.summary["observers"][ELSEWHERE] == 0.0
    assert run.summary["observers"][SAME] == run.summary["observers"]["server"] > 0


@pytest.mark.parametrize("changes", [OWN, OWN | IFCA, OWN | {"topology.count": "auto"}])
def test_epsilon_calibrates_every_client_to_its_own_size(clustered, tmp_path, changes):
    experiment = clustered(**(TARGET | changes))
    run = ran(experiment, tmp_path)
    assert run.summary["noise_multiplier"] < run.summary["noise_multiplier_max"]
    for client in range(6):
        assert run.ledger.epsilon(client_name(client), "server", 1e-4) <= 6.0
    assert 5.99 < run.epsilon <= 6.0
    assert engine.build_experiment(experiment).settings.selection_epsilon == pytest.approx(0.18)
    assert run.summary["clusters"]["purity"] is None
    assert run.summary["clusters"]["minority_accuracy"] is None


@pytest.mark.parametrize(
    "changes",
    [{}, IFCA, {"topology.count": "auto"}, {"sampling": {"clients": {"scheme": "poisson", "rate": 0.6}}},
     {"topology.count": 1}, {"topology.count": 7}, {"rounds": 3}, {"algorithm.selection_rounds": 0},
     IFCA | {"algorithm.selection_rounds": None, "algorithm.selects": "always"}],
)  # fmt: skip
@pytest.mark.parametrize("seed", [0, 1])
def test_no_path_costs_more_than_the_plan(clustered, tmp_path, changes, seed):
    experiment = clustered(seed=seed, **changes)
    setting = engine.calibrate_noise(engine.build_experiment(experiment))
    planned = plan_releases(setting)
    run = ran(experiment, tmp_path)
    for client in map(client_name, range(7)):
        happened, allowed = run.ledger.composition(client, "server"), planned.composition(client, "server")
        assert not Counter(happened) - Counter(allowed), "more than was planned"


RESUMED = ({}, IFCA, ORACLE, MRMTL, {"privacy": {"unit": "none"}})
CRASHES = (
    (engine.loop, "save_checkpoint", 5, True),
    (engine.loop, "evaluate_models", 3, True),
    (engine.loop.Ledger, "append", 9, False),
)


@pytest.mark.parametrize(
    ("changes", "crash"),
    [
        pytest.param(changes, crash, marks=[pytest.mark.slow] * (number % 2))
        for number, (changes, crash) in enumerate(product(RESUMED, CRASHES))
    ],
)
def test_an_interrupted_run_ends_as_an_unbroken_one(clustered, tmp_path, monkeypatch, changes, crash):
    """Every second pair is fast: each change at one or two crashes, each crash with two or three changes."""
    module, name, call, before = crash
    experiment = clustered(rounds=9, **changes)
    with monkeypatch.context() as patch:
        crash_in(patch, module, name, call, before=before)
        with pytest.raises(Crash):
            ran(experiment, tmp_path, "broken")
    whole = ran(experiment, tmp_path, "whole")
    again = sightline.run(experiment, out=tmp_path / "broken", resume=True)
    assert left_behind(tmp_path / "broken") == left_behind(tmp_path / "whole")
    assert again.metadata.get("clusters") == whole.metadata.get("clusters")
    assert again.summary["observers"] == whole.summary["observers"]


class Leaving(TrainingRound):
    """Client 6 is gone from round 4 on; client 5 comes only in round 2."""

    def here(self, cohort):
        away = {6} if self.time >= 4 else {5} if self.time == 1 else set()
        return Cohort(tuple(n for n in cohort.members if n not in away))

    def everyone(self):
        return self.here(super().everyone())

    def sample(self, channel=None):
        return self.here(super().sample(channel))


@pytest.mark.parametrize("changes", [{}, IFCA, {"privacy": {"unit": "none"}}])
def test_those_who_drop_out_or_come_late_stop_nobody(clustered, tmp_path, monkeypatch, changes):
    monkeypatch.setattr(engine.loop, "TrainingRound", Leaving)
    run = ran(clustered(**changes), tmp_path)
    assert run.summary["status"] == "finished"
    gone = [row["clusters"]["assignment"][6] for row in run.rounds]
    if not changes:
        assert run.ledger.composition("client-6", "server").total() == 3
        assert Gaussian(0.8) not in run.ledger.composition("client-5", "server")
        points = run.metadata["clusters"]["points"]
        assert points[5] == [None, None]
        assert None not in points[6]
    chosen = [row["round"] for row in run.rounds if row["clusters"]["how"] == "chosen" and row["round"] >= 4]
    assert len({gone[number - 1] for number in chosen} | {gone[-1]}) == 1
    assert any("absent" in note for note in run.summary["notes"])


def test_a_cluster_without_members_keeps_its_model(clustered, tmp_path):
    run = ran(clustered(**{"topology.count": 6, "rounds": 12}), tmp_path)
    assert run.summary["status"] == "finished"
    notes = [note for note in run.summary["notes"] if "was empty" in note]
    whereabouts = [row["clusters"]["assignment"] for row in run.rounds]
    expected = [m for m in range(6) if any(m not in some for some in whereabouts)]
    assert [int(note.split()[1]) for note in notes] == expected


def test_equal_clients_are_one_cluster(clustered, tmp_path):
    changes = {
        "data": {"source": f"{__name__}:equal", "clients": 5, "partition": "natural"},
        "privacy": {"unit": "none"},
        "topology.count": 3,
    }
    run = ran(clustered(**changes), tmp_path)
    assert run.summary["clusters"]["count"] == 1
    assert any("only 1 apart" in note for note in run.summary["notes"])
    assert any("nothing to choose from" in note for note in run.summary["notes"])
    assert sum("choice of one of 1" in release.what for release in run.ledger) == 2 * 5, "the list is fixed beforehand"


def equal(*, clients, rng):
    """The same examples for everybody."""
    x = rng.standard_normal((12, 3)).astype(np.float32)
    y = np.arange(12) % 2
    for _ in range(clients):
        yield x, y, x[:4], y[:4]


def test_one_client_is_a_cluster(clustered, tmp_path):
    changes = {"data": {"source": f"{__name__}:equal", "clients": 1, "partition": "natural"}, "topology.count": "auto"}
    run = ran(clustered(**changes), tmp_path)
    assert run.summary["clusters"]["count"] == 1
    assert run.summary["observers"][SAME] == run.summary["observers"][ELSEWHERE] == 0.0


def test_the_summary_and_the_facts_say_what_the_report_draws(clustered, tmp_path):
    run = ran(clustered(**{"topology.count": "auto"}), tmp_path)
    assert set(run.summary["clusters"]) == {"count", "mss", "purity", "minority_accuracy"}
    facts = run.metadata["clusters"]
    count = facts["count"]
    assert facts["truth"] == [0, 0, 1, 1, 2, 2, 2]
    assert facts["minority"] == 0
    assert np.shape(facts["points"]) == (7, 2)
    assert np.shape(facts["centres"]) == (count, 2)
    assert np.shape(facts["confidence"]) == (7, count)
    assert len(facts["radii"]) == count
    assert {tried for tried, _ in facts["tried"]} == {2, 3}
    row = run.rounds[-1]
    assert len(row["true_cluster_accuracy"]) == 3
    assert row["minority_accuracy"] == row["true_cluster_accuracy"][0]


@pytest.mark.parametrize("algorithm", ["fedavg", "local", "mrmtl"])
def test_baselines_say_how_the_minority_fares(clustered, tmp_path, algorithm):
    changes = {"algorithm": {"name": algorithm}, "topology": {"kind": "star"}, "rounds": 2}
    run = ran(clustered(**(TARGET | changes | {"algorithm.selection_epsilon": None})), tmp_path)
    assert 5.99 < run.epsilon <= 6.0
    assert run.summary["clusters"]["minority_accuracy"] == run.rounds[-1]["true_cluster_accuracy"][0]


def test_upcycling_moves_every_clusters_model(clustered, tmp_path):
    plain = ran(clustered(rounds=3), tmp_path, "plain")
    moved = ran(clustered(rounds=3, **{"algorithm.upcycle": 0.5}), tmp_path, "moved")
    charged = [sum(bool(release.subjects) for release in run.ledger) for run in (plain, moved)]
    assert charged[0] == charged[1]
    assert plain.epsilon == moved.epsilon
    assert plain.summary["test_loss"] != moved.summary["test_loss"]


def test_the_whole_batch_is_worked_on_in_pieces():
    """The clipped sum of a full batch must not need memory for all examples at once: pieces give the same sum."""
    from sightline import models
    from sightline.data import Kind, Shard
    from sightline.training import LocalWork, dp_sgd

    model = models.build_model("cnn", input_shape=(1, 12, 12), classes=4, kind=Kind.IMAGE, settings={})
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3000, 1, 12, 12)).astype(np.float32)
    shard, start = Shard(x, rng.integers(0, 4, 3000)), model.init(rng)
    pieces = [Shard(shard.x[k::3], shard.y[k::3]) for k in range(3)]

    def step(some, divisor):
        given = {"noise_std": [0.0], "sample_rates": [1.0], "steps": [1], "divisors": [divisor]}
        rngs = {"sampling_rngs": [np.random.default_rng(0)], "noise_rngs": [np.random.default_rng(0)]}
        ((_, ends),) = dp_sgd(model, start, [some], LocalWork(1.0), DPSGDSettings(clip_norm=0.1, **given, **rngs))
        return ends[0] - start

    parts = sum(step(piece, 3000.0) for piece in pieces)
    torch.testing.assert_close(step(shard, 3000.0), parts, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"topology.count": 0}, InvalidInput, "topology.count=0"),
        ({"topology.count": 8}, InvalidInput, "7 clients"),
        ({"topology.count": "automatic"}, InvalidInput, "topology.count=automatic"),
        ({"topology.candidates": [2, 3]}, InvalidInput, "count = 3 is given"),
        ({"topology": {"kind": "clusters", "candidates": [1, 9]}}, InvalidInput, "from 2 to 7"),
        ({"algorithm.first_batch": 0}, InvalidInput, "algorithm.first_batch=0"),
        ({"topology.cuont": 3}, InvalidInput, 'did you mean "count"'),
        ({"algorithm.selection_epsilon": None}, InvalidInput, "selection_epsilon=missing"),
        ({"algorithm.selection_rounds": -1}, InvalidInput, "selection_rounds=-1"),
        ({"algorithm.count": 3}, InvalidInput, "no such setting"),
        ({"algorithm.points": "principle"}, InvalidInput, 'did you mean "principal"'),
        ({"local.epochs": None, "local.steps": 5}, InvalidInput, "local.steps=5"),
        ({"privacy.unit": "client"}, Refused, "privacy.where=server"),
        ({"topology": {"kind": "star"}}, InvalidInput, "topology.kind=star"),
        ({"sampling": {"clients": {"scheme": "balanced", "uses": 3}}}, Refused, "sampling.clients.scheme"),
        (IFCA | {"topology.count": "auto"}, InvalidInput, "topology.count=auto"),
        (IFCA | {"algorithm.selects": "alway"}, InvalidInput, 'did you mean "always"'),
        (ORACLE | {"topology.count": 2}, InvalidInput, "topology.count=2"),
        (ORACLE | {"data": {"source": "digits", "clients": 7}}, InvalidInput, "data.partition=iid"),
        (MRMTL | {"algorithm.penalty": -1.0}, InvalidInput, "algorithm.penalty"),
    ],
)
def test_what_cannot_be_run_is_said_in_one_line(clustered, changes, error, words):
    with pytest.raises(error) as caught:
        engine.build_experiment(clustered(**changes))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
