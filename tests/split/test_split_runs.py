"""Whole runs on parts: the ledger says what ran, one part is the plain run, secrets stay secret, refusals are clear."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import sightline
from sightline import accounting, engine
from sightline.config import parse
from sightline.errors import InvalidInput, Refused
from sightline.events import Gaussian, Poisson, Pooled, Product, Repeat, Split
from sightline.ledger import NOBODY, Ledger
from sightline.mechanisms import CallId, CentralMean
from sightline.mechanisms.clip_and_noise import sum_and_noise
from sightline.randomness import Purpose, Streams
from sightline.runtimes import Simulator
from sightline.training.call import CallKind, TrainingCall
from tests.engine.conftest import changed

from .conftest import TINY

SAMPLE = {"privacy.unit": "sample", "sampling.clients": {"scheme": "full"}}
AT_SERVER = SAMPLE | {"privacy.where": "server", "local": {"steps": 1, "batch_size": 4, "learning_rate": 0.2}}
KINDS = {
    "central": {},
    "at the clients": {"privacy.where": "client"},
    "samples": SAMPLE,
    "samples, server": AT_SERVER,
    "no privacy": {"privacy": {"unit": "none"}},
}


def weights_of(run):
    """The bits of every tensor: the file also names its ledger, which differs."""
    tensors = load_file(run.directory / "model.safetensors")
    return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}


def alone(release):
    """A release without the noises that others add to it: of split models they are not counted."""
    if not isinstance(release.event, Pooled):
        return release
    return replace(release, event=release.event.event, coins_known_to=NOBODY)


@pytest.mark.parametrize("kind", KINDS)
def test_one_part_is_the_plain_run(tiny, tmp_path, kind):
    """d = 1: the same ledger, and the same model up to float32 rounding (bit for bit in the client unit)."""
    plain = sightline.run(tiny(**{"algorithm.split": None, **KINDS[kind]}), out=tmp_path / "plain")
    one = sightline.run(tiny(**{"algorithm.split": {"parts": 1}, **KINDS[kind]}), out=tmp_path / "one")
    assert [release.body() for release in one.ledger] == [alone(release).body() for release in plain.ledger]
    if kind in ("central", "at the clients", "no privacy"):
        assert weights_of(one) == weights_of(plain)
    left, right = (load_file(run.directory / "model.safetensors") for run in (one, plain))
    for name in left:
        torch.testing.assert_close(left[name], right[name], rtol=1e-4, atol=1e-5)


EVENTS = {
    "central": Poisson(0.6, Product((Gaussian(1.6), Split(2, Gaussian(0.8))))),
    "at the clients": Product((Gaussian(1.6), Split(2, Gaussian(0.8)))),
    "samples, server": Product((Gaussian(1.6), Split(2, Gaussian(0.8)))),
}


@pytest.mark.parametrize("kind", EVENTS)
def test_the_ledger_says_what_the_splitter_did(tiny, tmp_path, kind):
    changes = {"algorithm.split": {"parts": 2, "unsplit_noise": 2.0}, **KINDS[kind]}
    if kind == "samples, server":
        changes["sampling.samples"] = {"scheme": "full"}
    run = sightline.run(tiny(**changes), out=tmp_path / "run")
    assert EVENTS[kind] in {release.event for release in run.ledger}


def test_epsilon_is_the_scheme_of_the_same_name(tiny, tmp_path):
    split = {"parts": 2, "unsplit_noise": 2.0}
    run = sightline.run(tiny(**{"algorithm.split": split}), out=tmp_path / "run")
    scheme = accounting.split(noise=0.8, parts=2, rate=0.6, steps=3, unsplit_noise=1.6)
    assert run.epsilon == pytest.approx(scheme.epsilon(delta=1e-5), rel=1e-9)
    copy = Ledger()
    copy.append(list(run.ledger))
    against_server = copy.composition("client-0", "server")
    assert accounting.epsilon(against_server, 1e-5) == np.inf  # it received the updates in the clear


def test_epsilon_of_samples_is_the_scheme(tiny, tmp_path):
    run = sightline.run(tiny(**SAMPLE), out=tmp_path / "run")
    worst = 0.0
    for size in engine.build_experiment(tiny(**SAMPLE)).federation.sizes.tolist():
        batch = min(4, size)
        steps = 3 * 2 * -(-size // batch)
        scheme = accounting.split(noise=0.8, parts=2, rate=batch / size, steps=steps, unsplit_noise=0.8)
        worst = max(worst, scheme.epsilon(delta=1e-5))
    assert run.epsilon == pytest.approx(worst, rel=1e-9)


@pytest.mark.parametrize("kind", ["central", "samples"])
def test_noise_is_calibrated_to_the_split_run(tiny, tmp_path, kind):
    wanted = {"privacy.noise_multiplier": None, "privacy.epsilon": 3.0}
    run = sightline.run(tiny(**KINDS[kind], **wanted), out=tmp_path / "run")
    if kind == "samples":
        worst = max(run.ledger.epsilon(f"client-{n}", "public", 1e-5) for n in range(6))
        assert worst <= 3.0
        assert worst > 2.99
    else:
        full = engine.plan_releases(engine.calibrate_noise(engine.build_experiment(tiny(**wanted))))
        assert 2.999 < full.epsilon("client-0", "public", 1e-5) <= 3.0


def test_more_parts_cost_less(tiny):
    def spent(parts):
        experiment = tiny(**{"algorithm.split": {"parts": parts, "unsplit_noise": 50.0}})
        return engine.plan_releases(engine.calibrate_noise(engine.build_experiment(experiment))).epsilon(
            "client-0", "public", 1e-5
        )

    assert spent(4) < spent(2) < spent(1)


def test_the_noisy_sum_is_the_naive_one(tiny):
    """Every member's update clipped in two balls, and noise z C, z r C0 from the round's own stream."""
    split = {"parts": 2, "unsplit_clip_norm": 0.1, "unsplit_noise": 3.0}
    setting = engine.calibrate_noise(
        engine.build_experiment(tiny(**{"algorithm.split": split, "sampling.clients": {"scheme": "full"}}))
    )
    mechanism, splitter = setting.mechanism, setting.splitter
    assert isinstance(mechanism, CentralMean)
    updates = [torch.randn(setting.model.parameters, generator=torch.manual_seed(n)) for n in range(4)]
    updates.append(torch.full((setting.model.parameters,), torch.nan))
    value, rejected = sum_and_noise(
        enumerate(updates),
        mechanism.new_sum(setting.model.parameters),
        clip_norm=0.5,
        noise_multiplier=0.8,
        adjacency=setting.adjacency,
        rng=np.random.default_rng(9),
    )
    draws = np.random.default_rng(9)
    expected = torch.zeros(setting.model.parameters, dtype=torch.float64)
    for piece, radius, std in ((~splitter.unsplit, 0.5, 0.4), (splitter.unsplit, 0.1, 0.24)):
        total = sum(u[piece].double() * min(1.0, radius / float(u[piece].double().norm())) for u in updates[:4])
        expected[piece] = total + std * torch.from_numpy(draws.standard_normal(int(piece.sum())))
    torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-5)
    assert rejected == 1


def test_what_clients_hand_over_is_their_part(tiny):
    setting = engine.calibrate_noise(engine.build_experiment(tiny()))
    streams = Streams.from_seed(3)
    worker = Simulator(setting, Streams.from_seed(0), streams)
    blocks = worker.run(TrainingCall(CallKind.TRAIN, range(6), setting.start, CallId(2, 0), parts=setting.splitter))
    found = {member: end for members, ends in blocks for member, end in zip(members, ends, strict=True)}
    for client in range(6):
        drawn = streams.rng(Purpose.ASSIGNMENT, round=2, participant=client, use=0)
        sub = setting.splitter.splitting.submodels[int(setting.splitter.splitting.draw(1, rng=drawn)[0])]
        moved = torch.nonzero(found[client] != setting.start).flatten().tolist()
        assert moved
        assert set(moved) <= set(sub.positions.tolist())


def test_assignments_leave_no_trace(tiny, tmp_path, monkeypatch):
    """Two runs that differ in their assignments only: ledger, traffic and facts are the same."""
    one = sightline.run(tiny(), out=tmp_path / "one")
    real = Streams.rng

    def other(self, purpose, *, round=0, participant=-1, use=0):
        moved = round + 1000 if purpose is Purpose.ASSIGNMENT and round else round
        return real(self, purpose, round=moved, participant=participant, use=use)

    monkeypatch.setattr(Streams, "rng", other)
    two = sightline.run(tiny(), out=tmp_path / "two")
    assert weights_of(one) != weights_of(two)
    assert [release.body() for release in one.ledger] == [release.body() for release in two.ledger]
    open_facts = [
        {key: value for key, value in run.metadata.items() if key not in ("created", "seconds")} for run in (one, two)
    ]
    assert json.dumps(open_facts[0], sort_keys=True, default=str) == json.dumps(
        open_facts[1], sort_keys=True, default=str
    )
    assert one.summary["uplink_floats"] == two.summary["uplink_floats"]
    rows = [[row["uplink_floats"] for row in run.rounds] for run in (one, two)]
    assert rows[0] == rows[1]


def test_traffic_shrinks_with_the_parts(tiny, tmp_path):
    plain = sightline.run(tiny(**{"algorithm.split": None}), out=tmp_path / "plain").summary["uplink_floats"]
    parts = sightline.run(tiny(**{"algorithm.split": {"parts": 4}}), out=tmp_path / "parts").summary["uplink_floats"]
    assert parts < 0.4 * plain


@pytest.mark.parametrize("algorithm", [
    {"name": "fedavgm"}, {"name": "fedprox", "mu": 0.1}, {"name": "fedyogi"}, {"name": "fedavg", "upcycle": 0.3},
])  # fmt: skip
def test_other_algorithms_and_upcycling_run_on_parts(tiny, tmp_path, algorithm):
    run = sightline.run(tiny(algorithm=algorithm | {"split": {"parts": 2}}), out=tmp_path / "run")
    assert run.summary["status"] == "finished"
    assert run.epsilon == pytest.approx(
        accounting.split(noise=0.8, parts=2, rate=0.6, steps=3, unsplit_noise=0.8).epsilon(delta=1e-5), rel=1e-9
    )


def test_clients_that_keep_state_run_on_parts_in_private_steps(tiny, tmp_path):
    run = sightline.run(tiny(**SAMPLE | {"algorithm.name": "scaffold"}), out=tmp_path / "run")
    assert run.epsilon == sightline.run(tiny(**SAMPLE), out=tmp_path / "fedavg").epsilon


def test_local_models_run_on_parts(tiny, tmp_path):
    run = sightline.run(tiny(**{"algorithm.name": "local", "privacy.where": "client"}), out=tmp_path / "run")
    assert np.isfinite(run.epsilon)


def test_groups_run_on_parts(tiny, tmp_path):
    changes = {
        "topology": {"kind": "groups", "structure": "ring", "groups": 2, "period": 2},
        "algorithm.name": "dp_ogl",
        "sampling.clients": {"scheme": "poisson", "rate": 0.6},
    }
    run = sightline.run(tiny(**changes), out=tmp_path / "run")
    kinds = {type(release.event.event) for release in run.ledger if isinstance(release.event, Poisson)}
    assert kinds == {Product}
    assert np.isfinite(run.epsilon)


@pytest.mark.parametrize("unit", ["client", "sample"])
def test_two_processes_give_the_same_bits(tmp_path, unit):
    plain = changed(TINY, {
        "rounds": 2,
        "data": {"source": "digits", "clients": 4, "train_samples": 60},
        "model": {"name": "resnet", "channels": [4], "depth": 3, "groups": 2},
        "privacy.unit": unit,
        "sampling.clients": {"scheme": "full"},
    })  # fmt: skip
    runs = [sightline.run(parse(plain), out=tmp_path / str(n), workers=n) for n in (1, 2)]
    assert weights_of(runs[0]) == weights_of(runs[1])


NAMED = [[["hidden0.weight"], ["output.weight"], ["hidden0.bias"]], [["hidden0"], ["output.weight"]]]


@pytest.mark.parametrize(("kind", "split"), [
    ("central", {"parts": NAMED, "partition_weights": [0.7, 0.3]}),
    ("samples", {"parts": NAMED, "cycle": True}),
    ("samples, server", {"parts": NAMED[0], "part_weights": [0.3, 0.4, 0.3]}),
    ("at the clients", {"parts": 3, "part_weights": [0.3, 0.4, 0.3], "partitions": 2, "cycle": True}),
], ids=str)  # fmt: skip
def test_own_parts_and_draws_cost_as_the_fewest_equal_parts(tiny, tmp_path, split, kind):
    """Each has d = 2: the fewest parts of a partition, or floor(1 / 0.4). The run can be read and runs again."""
    run = sightline.run(tiny(**KINDS[kind] | {"algorithm.split": split}), out=tmp_path / "run")
    plain = sightline.run(tiny(**KINDS[kind] | {"algorithm.split": {"parts": 2}}), out=tmp_path / "plain")
    assert run.epsilon == plain.epsilon
    again = sightline.run(run.directory / "config.toml", out=tmp_path / "again")
    assert weights_of(again) == weights_of(run)
    assert "as costly as one of 2" in run.report.read_text()


@pytest.mark.parametrize(
    "optimizer",
    [
        {"momentum": 0.9, "weight_decay": 0.1},
        {"optimizer": "adamw", "weight_decay": 0.1},
    ],
)
def test_tensors_outside_a_named_part_stay_exactly_where_they_are(tiny, optimizer):
    changes = {"algorithm.split": {"parts": NAMED, "cycle": True}} | {f"local.{k}": v for k, v in optimizer.items()}
    setting = engine.calibrate_noise(engine.build_experiment(tiny(**changes)))
    worker = Simulator(setting, Streams.from_seed(0), Streams.from_seed(3))
    start = setting.start + 0.1  # No tensor is zero: weight decay would move each.
    seen = set()
    for number in (1, 2, 3, 4):
        blocks = worker.run(TrainingCall(CallKind.TRAIN, range(6), start, CallId(number, 0), parts=setting.splitter))
        for end in (end for _, ends in blocks for end in ends):
            tensors = setting.model.split(end - start)
            moved = frozenset(name for name, change in tensors.items() if bool((change != 0).any()))
            own = {frozenset(tensors_of(part)) | {"output.bias"} for part in NAMED[number % 2]}
            assert moved in own
            seen.add(moved)
    assert len(seen) == 4, "output.weight is a part of both partitions"


def tensors_of(part):
    return [name for word in part for name in ([word] if "." in word else [f"{word}.weight", f"{word}.bias"])]


REFUSED = {
    "replace": ({"privacy.adjacency": "replace", "sampling.clients": {"scheme": "full"}}, "add/remove"),
    "output": (
        {"privacy": {"unit": "sample", "mechanism": "output", "sensitivity": "clipped_model", "noise_std": 1.0}},
        "trains the whole model",
    ),
    "scaffold": ({"algorithm.name": "scaffold"}, "keep"),
    "scaffold, open": ({"algorithm.name": "scaffold", "privacy": {"unit": "none"}}, "keep"),
    "pfedme": ({"algorithm.name": "pfedme"}, "keep"),
    "dropout rate": ({"algorithm.split": "dropout", "model.dropout": 0.3}, "rate 0.5"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_guarantee_is_refused_before_a_run_exists(tmp_path, case):
    changes, words = REFUSED[case]
    with pytest.raises(Refused, match=words):
        sightline.run(parse(changed(TINY, changes)), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


MISTAKES = [
    ({"algorithm.split": {"part": 3}}, 'algorithm.split.part=3: unknown key; did you mean "parts"'),
    ({"algorithm.split": {"parts": 0}}, "algorithm.split.parts=0"),
    ({"algorithm.split": {"parts": 100}}, "there are only 8 hidden units"),
    ({"algorithm.split": {"parts": True}}, "algorithm.split.parts=True: must be a whole number"),
    ({"algorithm.split": {"parts": 2, "part_weights": [1.0, 0.0]}}, "algorithm.split.part_weights"),
    ({"algorithm.split": {"parts": 2, "part_weights": [1.0, float("inf")]}}, "algorithm.split.part_weights"),
    ({"algorithm.split": {"by": "layers"}}, "algorithm.split.by=layers"),
    ({"algorithm.split": "dropout"}, "has no dropout layer"),
    ({"algorithm.split": {"by": "dropout", "parts": 3}}, "it has two parts"),
    ({"algorithm.split": {"parts": 2, "unsplit_noise": 0.0}}, "unsplit_noise"),
    ({"algorithm.split": {"parts": 2, "unsplit_clip_norm": -1.0}}, "unsplit_clip_norm"),
    ({"model": {"name": "linear"}}, "parts are derived only for"),
]


@pytest.mark.parametrize(("changes", "words"), MISTAKES, ids=str)
def test_mistakes_are_one_line(tmp_path, changes, words):
    with pytest.raises(InvalidInput) as error:
        sightline.run(parse(changed(TINY, changes)), out=tmp_path / "run")
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_rate_one_has_no_poisson_around_it(tiny):
    setting = engine.build_experiment(
        tiny(**SAMPLE | {"local": {"epochs": 1, "batch_size": 10_000, "learning_rate": 0.1}})
    )
    events = {release.event for release in engine.plan_releases(setting)}
    assert Product((Gaussian(1.0), Split(2, Gaussian(1.0)))) in events
    assert not any(isinstance(event, Repeat | Poisson) for event in events)


def test_the_report_says_that_parts_are_secret(tiny, tmp_path):
    run = sightline.run(tiny(), out=tmp_path / "run")
    page = run.report.read_text()
    assert "one of 2 parts of the model" in page
    assert "split: trained share" in page


def test_balanced_examples_and_trees_run_on_parts(tiny, tmp_path):
    """Other samplers and topologies go around the splitter's event; each ledger is accounted again."""
    balanced = {"scheme": "balanced", "uses": 2}
    changes = SAMPLE | {"sampling": {"clients": {"scheme": "full"}, "samples": balanced}, "local.epochs": 1}
    run = sightline.run(tiny(**changes), out=tmp_path / "balanced")
    assert {type(release.event).__name__ for release in run.ledger} >= {"Allocation"}
    assert np.isfinite(run.epsilon)
    tree = {
        "topology": {"kind": "tree", "subnets": 2, "trusted": 0.5},
        "privacy.where": "edge",
        "algorithm": {"name": "h2fdp", "local_aggregation": 2, "split": {"parts": 2}},
        "local": {"steps": 4, "batch_size": 4, "learning_rate": 0.2},
        "sampling.clients": {"scheme": "full"},
    }
    run = sightline.run(tiny(**tree), out=tmp_path / "tree")
    events = {release.event for release in run.ledger}
    assert Product((Gaussian(0.8), Split(2, Gaussian(0.8)))) in events
    assert np.isfinite(run.epsilon)
