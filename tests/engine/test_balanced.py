"""Balanced participation and check-ins in whole runs: what the ledger says is what ran, and no more is told."""

import math
from collections import Counter

import numpy as np
import pytest

import sightline
from sightline import accounting, engine
from sightline.errors import InvalidInput, Refused
from sightline.events import Adjacency, Allocation, Clear, Gaussian, Poisson, Repeat, Unit
from sightline.ledger import Ledger, Release
from sightline.mechanisms import Schedules
from tests.engine.conftest import TINY, changed

BALANCED = {"sampling.clients": {"scheme": "balanced", "uses": 2}}
EPOCHS = {"sampling.clients": {"scheme": "balanced", "uses": 1, "epochs": 2}}
CHECK_INS = {"sampling.clients": {"scheme": "check_ins", "rate": 0.5}}
SAMPLES = {
    "privacy.unit": "sample",
    "sampling": {"clients": {"scheme": "full"}, "samples": {"scheme": "balanced", "uses": 3, "epochs": 2}},
}


@pytest.mark.parametrize(
    ("changes", "composition", "scheme"),
    [
        (BALANCED, {Allocation(4, 2, Gaussian(0.8)): 1}, accounting.balanced(noise=0.8, steps=4, uses=2)),
        (EPOCHS, {Allocation(2, 1, Gaussian(0.8)): 2}, accounting.balanced(noise=0.8, steps=2, uses=1, epochs=2)),
        (CHECK_INS, {Poisson(0.5, Allocation(4, 1, Gaussian(0.8))): 1},
         accounting.check_ins(noise=0.8, steps=4, chance=0.5)),
    ],
)  # fmt: skip
def test_the_ledger_charges_the_schedule_once(tiny, tmp_path, changes, composition, scheme):
    run = sightline.run(tiny(**changes), out=tmp_path / "run")
    for client in range(6):
        assert run.ledger.composition(f"client-{client}", "public") == composition
    assert run.epsilon == scheme.epsilon(delta=1e-5)
    known = run.ledger.composition("client-1", "server")
    assert known[Clear()] == 4
    assert Repeat(2, Gaussian(0.8)) in known or Repeat(1, Gaussian(0.8)) in known


def test_the_whole_schedule_is_charged_with_its_first_round(tiny, tmp_path):
    run = sightline.run(tiny(**EPOCHS), out=tmp_path / "run")
    spent = [row["epsilon"]["public"] for row in run.rounds]
    one = accounting.balanced(noise=0.8, steps=2, uses=1).epsilon(delta=1e-5)
    assert spent == [one, one, run.epsilon, run.epsilon]


@pytest.mark.parametrize("changes", [BALANCED, CHECK_INS])
def test_ledger_and_counts_are_the_same_for_every_seed(tiny, tmp_path, changes):
    runs = [sightline.run(tiny(seed=seed, **changes), out=tmp_path / str(seed)) for seed in (0, 1)]
    told = [([release.body() for release in run.ledger], run.summary["uplink_floats"]) for run in runs]
    assert told[0] == told[1]


def took_part(run):
    """Client -> the rounds that it sent something in, where participation is no secret."""
    found = {f"client-{n}": [] for n in range(6)}
    for release in run.ledger:
        if release.source in found:
            found[release.source].append(release.time)
    return found


def test_noise_at_the_clients_counts_exactly_the_uses(tiny, tmp_path):
    run = sightline.run(tiny(**EPOCHS, **{"privacy.where": "client"}), out=tmp_path / "run")
    assert all([(time - 1) // 2 for time in times] == [0, 1] for times in took_part(run).values())
    for client in range(6):
        assert run.ledger.composition(f"client-{client}", "server") == {Gaussian(0.8): 2}
    assert run.epsilon == accounting.gaussian(noise=0.8, steps=2).epsilon(delta=1e-5)


@pytest.mark.parametrize(
    ("changes", "scheme"),
    [
        (BALANCED, accounting.balanced(noise=1.0, steps=4, uses=2)),
        (BALANCED | {"privacy.where": "client"}, accounting.gaussian(noise=1.0, steps=2)),
        (CHECK_INS | {"privacy.where": "client"}, accounting.gaussian(noise=1.0, steps=1)),
    ],
)
def test_calibration_is_for_the_uses(tiny, changes, scheme):
    target = {"privacy.noise_multiplier": None, "privacy.epsilon": 3.0}
    setting = engine.calibrate_noise(engine.build_experiment(tiny(**changes, **target)))
    assert setting.mechanism.noise_multiplier == scheme.calibrated(epsilon=3.0, delta=1e-5).noise_multiplier


def test_the_budget_stops_before_an_epoch_that_exceeds_it(tiny, tmp_path):
    one = accounting.balanced(noise=0.8, steps=2, uses=1).epsilon(delta=1e-5)
    limit = {"privacy.stop_at_epsilon": one * 1.01}
    stopped = sightline.run(tiny(**EPOCHS, **limit), out=tmp_path / "epochs")
    assert (stopped.summary["rounds_done"], stopped.epsilon) == (2, one)
    nothing = sightline.run(tiny(**BALANCED, **{"privacy.stop_at_epsilon": 0.1}), out=tmp_path / "none")
    assert (nothing.summary["rounds_done"], nothing.epsilon, len(nothing.ledger)) == (0, 0.0, 0)


def test_every_example_is_used_exactly_so_often(tiny, tmp_path, monkeypatch):
    used, real = Counter(), Schedules.members_used

    def watched(self, step, allotment, **names):
        found = real(self, step, allotment, **names)
        used.update((names["participant"], step // allotment.steps, int(example)) for example in found)
        return found

    monkeypatch.setattr(Schedules, "members_used", watched)
    run = sightline.run(tiny(**SAMPLES), out=tmp_path / "run")
    sizes = engine.build_experiment(tiny(**SAMPLES)).federation.sizes.tolist()
    assert used == {
        (n, epoch, example): 3 for n, size in enumerate(sizes) for epoch in (0, 1) for example in range(size)
    }
    for client, size in enumerate(sizes):
        steps = 2 * 2 * math.ceil(size / 4)  # two rounds an epoch of the schedule, two passes a round
        assert run.ledger.composition(f"client-{client}", "public") == {Allocation(steps, 3, Gaussian(0.8)): 2}


def test_each_clients_examples_get_their_own_noise(tiny):
    target = {"privacy.noise_multiplier": None, "privacy.epsilon": 3.0}
    setting = engine.calibrate_noise(engine.build_experiment(tiny(**SAMPLES, **target)))
    for plan in setting.mechanism.plans.values():
        scheme = accounting.balanced(noise=1.0, steps=plan.allotment.steps, uses=3, epochs=2)
        assert plan.noise_multiplier == scheme.calibrated(epsilon=3.0, delta=1e-5).noise_multiplier


def test_a_server_that_steps_for_all_claims_the_schedule_of_examples(tiny, tmp_path):
    changes = SAMPLES | {"privacy.where": "server", "local.epochs": None, "local.steps": 1}
    changes["sampling"] = {"samples": {"scheme": "balanced", "uses": 2}}
    run = sightline.run(tiny(**changes), out=tmp_path / "run")
    assert run.ledger.composition("client-3", "public") == {Allocation(4, 2, Gaussian(0.8)): 1}
    assert run.epsilon == accounting.balanced(noise=0.8, steps=4, uses=2).epsilon(delta=1e-5)


def test_using_everything_always_is_the_full_batch(tiny, tmp_path):
    """k = T: the schedule has nothing to choose, and the models are those of full batches, bit for bit but rounding."""
    always = {"privacy.unit": "sample", "local.steps": 2, "local.epochs": None, "local.batch_size": 1000}
    laid = {"sampling": {"samples": {"scheme": "balanced", "uses": 8}}}
    runs = [
        sightline.run(tiny(**always, **how), out=tmp_path / name)
        for name, how in (("laid", laid), ("full", {"sampling": {"samples": {"scheme": "full"}}}))
    ]
    assert runs[0].epsilon == pytest.approx(runs[1].epsilon, rel=1e-9)
    assert np.isclose(runs[0].summary["test_loss"], runs[1].summary["test_loss"], rtol=1e-4)


REFUSED = [
    (BALANCED | {"privacy.adjacency": "replace"}, "add/remove"),
    (SAMPLES | {"privacy.adjacency": "replace"}, "add/remove"),
    ({"sampling.clients": {"scheme": "balanced", "uses": 5}}, "uses=5"),
    ({"sampling.clients": {"scheme": "balanced", "uses": 1, "epochs": 3}}, "epochs=3"),
    ({"sampling.clients": {"scheme": "poisson", "rate": 0.5, "epochs": 2}}, "epochs=2"),
    ({"sampling.clients": {"scheme": "check_ins"}}, "rate"),
    ({"sampling.samples": {"scheme": "balanced", "uses": 1}}, "draws of examples gain nothing"),
    (
        SAMPLES
        | {"sampling": {"samples": {"scheme": "check_ins", "rate": 0.5}, "clients": {"scheme": "fixed", "rate": 0.5}}},
        "every client must take part in every round",
    ),
    (SAMPLES | {"sampling": {"samples": {"scheme": "balanced", "uses": 10**6}}}, "sampling.samples.uses"),
    (BALANCED | {"algorithm.name": "scaffold"}, "keep state"),
    (CHECK_INS | {"algorithm.name": "feddyn"}, "keep state"),
]


@pytest.mark.parametrize(("changes", "reason"), REFUSED)
def test_what_would_not_hold_is_refused(tiny, changes, reason):
    with pytest.raises(InvalidInput, match=reason):
        engine.build_experiment(tiny(**changes))


def test_members_that_come_and_go_have_no_schedule(tmp_path):
    (tmp_path / "groups.json").write_text(
        '{"workers": 6, "groups": [[0, 1, 2], [3, 4, 5]], "schedule": [{"from": 2, "groups": [[0, 1, 3], [2, 4, 5]]}]}'
    )
    topology = {"kind": "groups", "file": str(tmp_path / "groups.json")}
    plain = changed(TINY, {"topology": topology, "algorithm": {"name": "dp_ogl"}} | BALANCED)
    with pytest.raises(Refused, match="members join and leave"):
        engine.build_experiment(sightline.config.parse(plain))


GROUPS = {"topology": {"kind": "groups", "structure": "ring", "groups": 2, "period": 2}}


@pytest.mark.parametrize(("algorithm", "event"), [("dp_ogl", (4, 2)), ("dp_ogl_plus", (2, 2))])
def test_every_group_has_a_schedule_of_its_own(tiny, tmp_path, algorithm, event):
    run = sightline.run(tiny(**BALANCED, **GROUPS, **{"algorithm.name": algorithm}), out=tmp_path / "run")
    held = Allocation(*event, Gaussian(0.8))
    counts = Counter(run.ledger.composition(f"client-{n}", f"client-{(n + 1) % 6}")[held] for n in range(6))
    assert counts == {2: 2, 1: 4}  # the two bridging workers are in two groups


def release(time, **changes):
    facts = {"source": "server", "subjects": frozenset({"client-0"}), "unit": Unit.CLIENT,
             "adjacency": Adjacency.ADD_REMOVE, "event": Allocation(4, 2, Gaussian(1.0)),
             "audience": frozenset({"public"}), "joint": "schedule 1"}  # fmt: skip
    return Release(time=time, **(facts | changes))


@pytest.mark.parametrize(
    "second",
    [
        release(1),
        release(2, event=Allocation(4, 2, Gaussian(2.0))),
        release(2, subjects=frozenset({"client-0", "client-1"})),
        release(2, coins_known_to=frozenset({"public"})),
    ],
)
def test_nothing_hides_under_a_charge_that_was_made_before(second):
    ledger = Ledger([release(1)])
    with pytest.raises(Refused, match="joint=schedule 1"):
        ledger.append([second])
    assert len(ledger) == 1
    ledger.append([release(2), release(3)])
    assert ledger.composition("client-0", "public") == {Allocation(4, 2, Gaussian(1.0)): 1}
