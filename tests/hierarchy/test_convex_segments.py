"""Convex segments: real paths with and without an example, what is claimed of them, and what is refused."""

import math

import numpy as np
import pytest
import torch

import sightline
from sightline import engine
from sightline.config import parse
from sightline.errors import InvalidInput, Refused
from sightline.events import ConvexSegment, Gaussian, Poisson
from sightline.mechanisms import CallId, ConvexSegments
from sightline.randomness import Streams
from sightline.runtimes import Simulator
from sightline.runtimes.local_trainer import client_rngs
from sightline.training.call import CallKind, LocalTask, TrainingCall

FILE = {
    "rounds": 2,
    "data": {"source": "digits", "clients": 8},
    "model": {"name": "linear"},
    "topology": {"kind": "tree", "subnets": 2, "trusted": ["edge-0"]},
    "algorithm": {"name": "h2fdp", "local_aggregation": 4},
    "local": {"steps": 8, "batch_size": 20, "learning_rate": 0.3},
    "privacy": {"unit": "sample", "where": "edge", "sensitivity": "convex", "noise_multiplier": 2.0, "delta": 1e-5},
}
STAR = {"topology": {"kind": "star"}, "algorithm": {"name": "fedavg"}, "local": {"steps": 4, "batch_size": 20, "learning_rate": 0.3}}  # fmt: skip
AT_CLIENT = STAR | {"privacy": FILE["privacy"] | {"where": "client"}}
AS_OUTPUT = STAR | {
    "local": {"epochs": 2, "batch_size": 20, "learning_rate": 0.3},
    "privacy": {"unit": "sample", "mechanism": "output", "sensitivity": "convex", "noise_multiplier": 2.0},
}


FIRST = CallId(1, 0)


def built(**changes):
    file = {**FILE, **{name: value for name, value in changes.items() if "." not in name}}
    for name, value in changes.items():
        if "." in name:
            section, key = name.split(".")
            file[section] = {**file[section], key: value}
    return parse(file)


def steps_of(setting, member, x, y, *, start, steps=None, learning_rate=None, at=FIRST):
    """The end of a segment of one device on other examples, with the mechanism's own plan and real streams."""
    federation = setting.federation
    client = federation.clients[member]
    shards = list(federation.clients)
    shards[member] = type(client)(type(client.train)(x, y), client.test, client.cluster)
    other = engine.build.replace(setting, federation=engine.build.replace(federation, clients=tuple(shards)))
    secret = Streams.from_seed(3)
    plan = setting.mechanism.plans[member]
    plan = engine.build.replace(plan, noise_multiplier=0.0, steps=steps or plan.steps)
    worker, task = Simulator(other, secret, secret), LocalTask(steps=steps, learning_rate=learning_rate)
    call = TrainingCall(CallKind.DP_SGD, [member], start, at, task, [plan])
    ((_, ends),) = worker.run(call)
    (rng,) = client_rngs(secret, sightline.randomness.Purpose.BATCHES, call)
    return ends[0].double(), worker.clients.grouped_batches(member, plan, at, rng)


@pytest.mark.parametrize("changes", [{}, {"local.batch_size": 60}, AT_CLIENT, AS_OUTPUT], ids=["once", "often", "star", "output"])  # fmt: skip
def test_an_example_moves_the_end_by_its_draws_and_no_more(changes):
    """Its label is changed to any other and its features to zero: as often as it was drawn, twice 2 eta / b at most."""
    setting = engine.build_experiment(built(**changes))
    eta, plan, shard = 0.3, setting.mechanism.plans[0], setting.federation.clients[0].train
    rng = np.random.default_rng(1)
    start = torch.from_numpy(rng.normal(size=setting.model.parameters)).float()
    assert np.linalg.norm(shard.x.reshape(len(shard), -1), axis=1).max() <= 1 + 1e-6
    steps, found = 4 if plan.steps == 8 else None, []
    before, batches = steps_of(setting, 0, shard.x, shard.y, start=start, steps=steps)
    for example in rng.choice(len(shard), 12, replace=False):
        x, y = shard.x.copy(), shard.y.copy()
        x[example], y[example] = -x[example], (y[example] + 1 + rng.integers(9)) % 10
        after, _ = steps_of(setting, 0, x, y, start=start, steps=steps)
        draws = sum(int(example in batch) for batch in batches)
        moved = float((before - after).norm())
        assert moved <= draws * 2 * 2 * eta / plan.expected_batch * (1 + 1e-4) + 1e-5
        assert draws <= math.ceil((steps or plan.steps) / plan.groups)
        found.append((draws, moved))
    assert any(moved > 0.1 * 2 * eta / plan.expected_batch for _, moved in found)


def test_groups_take_turns_and_draw_for_themselves():
    setting = engine.build_experiment(built())
    plan, secret = setting.mechanism.plans[0], Streams.from_seed(0)
    size = int(setting.federation.sizes[0])
    worker, used = Simulator(setting, secret, secret), np.zeros((400, size))
    plan = engine.build.replace(plan, steps=4)
    for number in range(400):
        batches = worker.clients.grouped_batches(0, plan, CallId(number + 1, 0), np.random.default_rng(number))
        assert len(batches) == 4
        for batch in batches:
            used[number, batch] += 1
            assert len(set(batch % plan.groups)) <= 1
    assert used.max() == 1  # one draw and one use in a segment
    assert used.mean() == pytest.approx(plan.rate, abs=4 * math.sqrt(plan.rate * (1 - plan.rate) / used.size))
    assert plan.rate == pytest.approx(4 * 20 / size)


def test_what_is_claimed(tmp_path):
    run = sightline.run(built(), out=tmp_path / "tree")
    setting = engine.build_experiment(built())
    assert isinstance(setting.mechanism, ConvexSegments)
    size = int(setting.federation.sizes[6])
    assert run.ledger.composition("client-6", "edge-1") == {Poisson(4 * 20 / size, Gaussian(2.0)): 4}
    star = sightline.run(built(**AT_CLIENT), out=tmp_path / "star")
    assert star.ledger.composition("client-6", "server") == {Poisson(4 * 20 / size, Gaussian(2.0)): 2}
    output = sightline.run(built(**AS_OUTPUT), out=tmp_path / "output")
    assert output.ledger.composition("client-6", "server") == {ConvexSegment(2, 1.0, Gaussian(2.0)): 2}
    assert output.epsilon == pytest.approx(sightline.accounting.gaussian(noise=1.0, steps=2).epsilon(delta=1e-5))
    privacy = AS_OUTPUT["privacy"] | {"adjacency": "replace", "noise_multiplier": None, "noise_std": 0.5}
    replaced = sightline.run(built(**AS_OUTPUT | {"privacy": privacy}), out=tmp_path / "replaced")
    (event,) = replaced.ledger.composition("client-6", "server")
    assert event.event.noise_multiplier == pytest.approx(0.5 / (2 * 2 * 0.3 / 20), rel=1e-3)  # both of two examples
    assert any("scaled to norm <= 1" in note for note in setting.federation.notes)


def test_noise_is_calibrated_to_the_budget(tmp_path):
    privacy = {key: value for key, value in FILE["privacy"].items() if key != "noise_multiplier"} | {"epsilon": 3.0}
    run = sightline.run(built(privacy=privacy), out=tmp_path / "run")
    assert 2.99 < run.epsilon <= 3.0


def test_an_absolute_noise_is_charged_for_what_it_is(tmp_path):
    privacy = {"unit": "sample", "mechanism": "output", "sensitivity": "convex", "noise_std": 0.5}
    run = sightline.run(built(**AS_OUTPUT | {"privacy": privacy}), out=tmp_path / "run")
    (event,) = run.ledger.composition("client-0", "server")
    assert event.event.noise_multiplier == pytest.approx(0.5 / (2 * 0.3 / 20), rel=1e-3)


NOT_CONVEX = [
    ({"model": {"name": "mlp"}}, "proven for softmax regression only"),
    ({"local.momentum": 0.5}, "momentum"),
    ({"local.learning_rate": 30.0}, "two paths diverge"),
    ({"local.weight_decay": 100.0}, "two paths diverge"),
    ({"privacy.unit": "client"}, "bounds the effect of one example"),
    ({"privacy.where": "server"}, "for several local steps"),
    ({"sampling": {"samples": {"scheme": "balanced", "uses": 2}}}, "independent draws"),
    (AT_CLIENT | {"algorithm": {"name": "scaffold"}}, "public L2 or proximal terms"),
    (AT_CLIENT | {"algorithm": {"name": "feddyn"}}, "public L2 or proximal terms"),
    ({"privacy.adjacency": "replace"}, "add/remove"),
]


@pytest.mark.parametrize(("changes", "words"), NOT_CONVEX, ids=[words + str(n) for n, (_, words) in enumerate(NOT_CONVEX)])  # fmt: skip
def test_what_is_not_proven_is_refused(changes, words, tmp_path):
    with pytest.raises((Refused, InvalidInput), match=words):
        sightline.run(built(**changes), out=tmp_path / "run")


def test_clipped_is_the_default_and_has_a_name():
    clipped = {**FILE["privacy"], "sensitivity": "clipped"}
    named, plain = (engine.build_experiment(built(privacy=one)) for one in (clipped, {**clipped, "sensitivity": None}))
    assert type(named.mechanism) is type(plain.mechanism)
    assert named.mechanism.plans == plain.mechanism.plans


def test_fedprox_has_a_public_term(tmp_path):
    changes = AT_CLIENT | {"algorithm": {"name": "fedprox", "mu": 0.1}}
    assert sightline.run(built(**changes), out=tmp_path / "run").summary["rounds_done"] == 2
