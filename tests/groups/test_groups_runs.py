"""The ledger of a training run is what the calculator plans, for the same settings: also stopped, resumed or changed."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

import sightline
from sightline import engine
from sightline.accounting import Accountant
from sightline.algorithms import dp_ogl
from sightline.engine.execution import DryExecution
from sightline.engine.round import TrainingRound
from sightline.errors import InvalidInput, Refused
from sightline.events import Clear, Gaussian, Poisson
from sightline.ledger import GroupPlan, Ledger, Rhythm, Threat, ledger_pairs, planned_pairs
from sightline.ledger.group_pairs import Costing, epsilon_matrix
from sightline.mechanisms import Public
from sightline.topology import Channel, Groups
from tests.engine.test_resume import Crash, crash_in, left_behind
from tests.groups.test_groups_flow import schedules

EVENT = Poisson(0.6, Gaussian(0.8))


def workers(count):
    return [f"client-{n}" for n in range(count)]


def matrices(ledger, schedule, period, rounds, *, plus, events=None):
    """(epsilon, releases) by the ledger and by the plan, worker by worker."""
    rhythm = Rhythm.INTERVAL if plus else Rhythm.EPOCH
    plan = planned_pairs(GroupPlan(schedule, period, rounds + 1, events or (EVENT,) * schedule.count, rhythm))
    by_plan = epsilon_matrix(plan, Threat.EVERYONE, Costing(1e-5, Accountant.RDP))
    found = ledger_pairs(ledger, workers(schedule.workers))
    of = [found.class_of[name] for name in workers(schedule.workers)]
    by_ledger = found.epsilon(1e-5, accountant=Accountant.RDP), found.releases()
    return [m[np.ix_(of, of)] for m in by_ledger], [m[np.ix_(plan.class_of, plan.class_of)] for m in by_plan]


def assert_equal(ledger, schedule, period, rounds, *, plus, events=None):
    by_ledger, by_plan = matrices(ledger, schedule, period, rounds, plus=plus, events=events)
    off = ~np.eye(schedule.workers, dtype=bool)
    np.testing.assert_array_equal(by_ledger[1][off], by_plan[1][off])
    np.testing.assert_allclose(by_ledger[0][off], by_plan[0][off], rtol=1e-12)


@pytest.mark.parametrize("algorithm", ["dp_ogl", "dp_ogl_plus"])
@pytest.mark.parametrize("structure", ["global", "clusters", "ring", "string"])
def test_a_run_has_the_matrix_of_its_plan(grouped, tmp_path, algorithm, structure):
    experiment = grouped(**{"algorithm.name": algorithm, "topology.structure": structure})
    run = sightline.run(experiment, out=tmp_path / "run")
    schedule = engine.build_experiment(experiment).topology.schedule
    assert_equal(run.ledger, schedule, 2, 4, plus=algorithm == "dp_ogl_plus")
    assert run.summary["trusted"] == [f"group-{m}" for m in range(schedule.count)]
    assert run.ledger.composition("client-0", "group-0")[Clear()] > 0
    worst = max(
        run.ledger.epsilon(a, b, 1e-5) for a in workers(9) for b in workers(9) if a != b
    )  # fmt: skip
    assert run.epsilon == worst == run.summary["observers"]["other workers"]
    assert ("out-of-group workers" in run.summary["observers"]) == (structure != "global")


class Sketch:
    """A setting whose topology is exchanged, for plans of many shapes without data."""

    def __init__(self, setting, schedule, period, algorithm):
        self.setting = replace(setting, topology=Groups(schedule, period, True), samplers={}, algorithm=algorithm)

    def ledger(self, rounds):
        ledger = Ledger(participants=self.setting.participants)
        execution = DryExecution([10] * 6)
        algorithm = self.setting.algorithm
        state = algorithm.init(Public(self.setting.start[:1]), self.setting.clients, None)
        for time in range(1, rounds + 1):
            state = algorithm.round(state, TrainingRound(self.setting, ledger, execution, time), dp_ogl.DPOGL())
            state = {name: Public(v.value, ledger.frontier(v.sources)) for name, v in state.items()}
        return ledger


@given(schedules(), st.integers(1, 3), st.integers(1, 9), st.booleans())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_algorithms_own_releases_flow_as_planned(grouped, schedule, period, rounds, plus):
    setting = engine.build_experiment(grouped(**{"data.clients": 6, "privacy.noise_multiplier": 0.8}))
    setting = setting.with_noise({0: 0.8})
    ledger = Sketch(setting, schedule, period, dp_ogl.PLUS if plus else dp_ogl.ALGORITHM).ledger(rounds)
    assert_equal(ledger, schedule, period, rounds, plus=plus)


def test_changed_memberships_rates_and_noises(grouped, membership, tmp_path):
    file = membership(
        workers=6, groups=[[0, 1, 2], [2, 3], [4, 5]], schedule=[{"from": 2, "groups": [[0, 1], [3, 4], [2, 5, 4]]}],
        rates=[0.5, 0.6, 1.0], noise_factors=[1.0, 2.0, 1.0], clip_factors=[1.0, 1.0, 3.0],
    )  # fmt: skip
    experiment = grouped(**{"topology": {"kind": "groups", "file": file, "period": 2}, "data.clients": 6})
    run = sightline.run(experiment, out=tmp_path / "run")
    events = (Poisson(0.5, Gaussian(0.8)), Poisson(0.6, Gaussian(1.6)), Poisson(1.0, Gaussian(0.8)))
    schedule = engine.build_experiment(experiment).topology.schedule
    assert_equal(run.ledger, schedule, 2, 4, plus=False, events=events)
    assert run.ledger.composition("client-2", "client-5") == {events[1]: 2, events[2]: 2}  # it left group 0 behind
    joined = [r for r in run.ledger if "new members" in r.what]
    assert {(r.source, tuple(sorted(r.audience))) for r in joined} == {
        ("group-1", ("client-4",)), ("group-2", ("client-2",)),
    }  # fmt: skip


@pytest.mark.parametrize("algorithm", ["dp_ogl", "dp_ogl_plus"])
def test_a_run_stopped_by_its_budget_still_equals_its_plan(grouped, tmp_path, algorithm):
    experiment = grouped(**{"rounds": 8, "algorithm.name": algorithm})
    whole = sightline.run(experiment, out=tmp_path / "whole")
    spent = sorted({row["epsilon"]["other workers"] for row in whole.rounds})
    limit = (spent[-2] + spent[-1]) / 2
    stopped = sightline.run(
        grouped(**{"rounds": 8, "algorithm.name": algorithm, "privacy.stop_at_epsilon": limit}),
        out=tmp_path / "stopped",
    )
    done = stopped.summary["rounds_done"]
    assert stopped.summary["status"] == "stopped"
    assert done < 8
    assert stopped.epsilon == spent[-2] <= limit
    assert_equal(
        stopped.ledger, engine.build_experiment(experiment).topology.schedule, 2, done, plus=algorithm == "dp_ogl_plus"
    )


@pytest.mark.parametrize("algorithm", ["dp_ogl", "dp_ogl_plus"])
@pytest.mark.parametrize(("name", "call"), [("save_checkpoint", 3), ("evaluate_models", 2)])
def test_an_interrupted_run_ends_as_an_unbroken_one(grouped, tmp_path, monkeypatch, algorithm, name, call):
    experiment = grouped(**{"algorithm.name": algorithm})
    with monkeypatch.context() as patch:
        crash_in(patch, engine.loop, name, call, before=True)
        with pytest.raises(Crash):
            sightline.run(experiment, out=tmp_path / "broken")
    sightline.run(experiment, out=tmp_path / "whole")
    again = sightline.run(experiment, out=tmp_path / "broken", resume=True)
    assert left_behind(tmp_path / "broken") == left_behind(tmp_path / "whole")
    assert_equal(
        again.ledger, engine.build_experiment(experiment).topology.schedule, 2, 4, plus=algorithm == "dp_ogl_plus"
    )


def test_the_ledger_does_not_tell_who_took_part(grouped, tmp_path):
    bodies = []
    for seed in (1, 2, 3):
        run = sightline.run(grouped(seed=seed), out=tmp_path / str(seed))
        bodies.append([release.body() for release in run.ledger])
    assert bodies[0] == bodies[1] == bodies[2]


def test_noise_at_the_workers_gives_masters_an_epsilon(grouped, tmp_path):
    run = sightline.run(grouped(**{"privacy.where": "client"}), out=tmp_path / "run")
    assert run.summary["trusted"] == []
    assert math.isfinite(run.epsilon)
    masters = [run.ledger.epsilon(n, f"group-{m}", 1e-5) for n in workers(9) for m in range(3)]
    assert run.summary["observers"]["masters"] == max(masters)
    assert not any(isinstance(release.event, Clear) for release in run.ledger)


def test_epsilon_is_calibrated_to_the_worst_pair(grouped, tmp_path):
    changes = {"privacy.noise_multiplier": None, "privacy.epsilon": 6.0}
    run = sightline.run(grouped(**changes), out=tmp_path / "run")
    assert 5.99 < run.epsilon <= 6.0
    pairs = ledger_pairs(run.ledger, workers(9)).epsilon(1e-5)
    assert np.nanmax(pairs) == run.epsilon


def test_personal_models_are_means_of_group_models(grouped, tmp_path):
    run = sightline.run(grouped(), out=tmp_path / "run")
    models = load_file(run.directory / "model.safetensors")
    weight = [models[f"client-{n}/output.weight"].numpy() for n in range(9)]
    np.testing.assert_array_equal(weight[1], weight[2])
    np.testing.assert_allclose(weight[3], (weight[2] + weight[4]) / 2, atol=1e-6)


def test_the_period_decides_when_groups_mix(grouped, tmp_path):
    run = sightline.run(grouped(**{"topology.period": 4}), out=tmp_path / "run")
    assert run.ledger.composition("client-1", "client-4").total() == 0
    assert run.ledger.composition("client-1", "client-2").total() == 4


@pytest.mark.parametrize("algorithm", ["dp_ogl", "dp_ogl_plus"])
def test_upcycled_groups_release_what_plain_ones_do(grouped, tmp_path, algorithm):
    plain = sightline.run(grouped(**{"algorithm.name": algorithm}), out=tmp_path / "plain")
    moved = sightline.run(grouped(**{"algorithm": {"name": algorithm, "upcycle": 0.5}}), out=tmp_path / "moved")
    assert [r.body() for r in plain.ledger] == [r.body() for r in moved.ledger]
    assert moved.summary["test_loss"] != plain.summary["test_loss"]


def optimise_by_hand(optimizer, steps, *, rate, beta, beta2=0.99, tau=1e-3):
    """The server rules of Reddi et al. 2021 and of FedAvgM in plain NumPy: how far a model moves over the steps."""
    model, first, second = np.zeros(3), np.zeros(3), np.full(3, tau**2)
    for step in steps:
        if optimizer == "sgd":
            first = beta * first + step
            model = model + rate * first
            continue
        first, square = beta * first + (1 - beta) * step, step**2
        if optimizer == "adagrad":
            second = second + square
        elif optimizer == "adam":
            second = beta2 * second + (1 - beta2) * square
        else:
            second = second - (1 - beta2) * square * np.sign(second - square)
        model = model + rate * first / (np.sqrt(second) + tau)
    return model


@pytest.mark.parametrize("optimizer", dp_ogl.OPTIMIZERS)
def test_masters_step_by_the_rules_of_server_optimisers(optimizer):
    """Section V-C: each group has moments of its own, made of its own releases."""
    channels = tuple(Channel(f"group-{m}", (m, m + 1), frozenset({f"group-{m}"})) for m in range(2))
    chosen = dp_ogl.DPOGL(optimizer, server_learning_rate=0.5, server_momentum=0.6)
    rows = np.random.default_rng(0).normal(size=(2, 4, 3)).astype(np.float32)
    state = dp_ogl.init_state(Public(torch.zeros(3)), range(3), chosen)
    for t in range(4):
        steps = [Public(torch.from_numpy(rows[m, t]), frozenset({10 * m + t})) for m in range(2)]
        state = dp_ogl.move_models(state, channels, steps, chosen)
    for m in range(2):
        expected = optimise_by_hand(optimizer, rows[m].astype(float), rate=0.5, beta=0.6)
        np.testing.assert_allclose(state[f"group-{m}"].value.numpy(), expected, rtol=1e-4, atol=1e-6)
        assert state[f"group-{m}"].sources == frozenset(10 * m + t for t in range(4))


@pytest.mark.parametrize("algorithm", ["dp_ogl", "dp_ogl_plus"])
def test_a_masters_optimiser_costs_nothing(grouped, tmp_path, algorithm):
    plain = sightline.run(grouped(**{"algorithm.name": algorithm}), out=tmp_path / "plain")
    chosen = {"name": algorithm, "server_optimizer": "yogi", "server_momentum": 0.9}
    moved = sightline.run(grouped(algorithm=chosen), out=tmp_path / "moved")
    assert [r.body() for r in plain.ledger] == [r.body() for r in moved.ledger]
    assert moved.summary["test_loss"] != plain.summary["test_loss"]
    for robust in ("median", "trimmed_mean"):
        with pytest.raises(Refused, match=rf"server_optimizer={robust}: one worker moves it further .* erratum 13"):
            sightline.run(grouped(algorithm={"name": algorithm, "server_optimizer": robust}), out=tmp_path / "none")
    with pytest.raises(InvalidInput, match=r"algorithm\.server_optimizer=rmsprop: is unknown"):
        sightline.run(grouped(algorithm={"name": algorithm, "server_optimizer": "rmsprop"}), out=tmp_path / "none")


def test_label_groups_say_that_membership_is_public(grouped, tmp_path):
    run = sightline.run(grouped(**{"topology.structure": "labels"}), out=tmp_path / "run")
    assert "membership is treated as public" in run.report.read_text()


def test_label_groups_are_refused_where_the_labels_are_elsewhere(grouped):
    experiment = grouped(**{"topology.structure": "labels"})
    known = replace(engine.build_experiment(experiment).federation, elsewhere=True)
    with pytest.raises(InvalidInput, match="no labels are known here; give a membership file"):
        engine.build_experiment(experiment, federation=known)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"algorithm.name": "dp_ogl_plus", "rounds": 5}, InvalidInput, "rounds=5"),
        ({"algorithm.name": "dp_ogl_plus", "privacy.unit": "sample"}, Refused, "privacy.unit"),
        ({"algorithm.name": "fedavg"}, InvalidInput, "topology.kind=groups"),
        ({"topology": {"kind": "star"}}, InvalidInput, "topology.kind=star"),
        ({"topology.structure": "rings"}, InvalidInput, 'did you mean "ring"'),
        ({"topology.structure": None}, InvalidInput, "structure"),
        ({"topology.groups": 10}, InvalidInput, "groups=10"),
        ({"topology.groups": 2.5}, InvalidInput, "whole number"),
        ({"topology.period": 0}, InvalidInput, "topology.period=0"),
        ({"topology.perod": 3}, InvalidInput, 'did you mean "period"'),
        ({"topology.rates": [0.5]}, InvalidInput, "rates"),
        ({"topology.rates": [0.5, 0.5, 1.5]}, InvalidInput, "rates=1.5"),
        ({"topology.noise_factors": [1.0, 0.0, 1.0]}, InvalidInput, "noise_factors"),
        ({"topology.label_share": 2}, InvalidInput, "label_share"),
        ({"topology.structure": None, "topology.file": "nowhere.json"}, InvalidInput, "no such file"),
    ],
)
def test_what_cannot_be_run_is_said_in_one_line(grouped, changes, error, words):
    if "topology.label_share" in changes:
        changes = changes | {"topology.structure": "labels"}
    with pytest.raises(error, match=None) as caught:
        engine.build_experiment(grouped(**changes))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"workers": 3}', '{"workers": 3, "groups": [[0, 3]]}', '{"workers": 3, "groups": [[0, 0]]}',
     '{"workers": 0, "groups": [[0]]}', '{"workers": 3, "groups": []}', '{"workers": 3, "groups": [[0.5]]}',
     '{"workers": 3, "groups": [[0]], "schedule": [{"from": 1, "groups": [[1]]}]}',
     '{"workers": 3, "groups": [[0]], "schedule": [{"from": 2, "groups": [[1], [2]]}]}',
     '{"workers": 3, "groups": [[0]], "rate": [1]}', '{"workers": true, "groups": [[0]]}', "[" * 20000],
)  # fmt: skip
def test_strange_membership_files_are_refused(tmp_path, text):
    path = tmp_path / "groups.json"
    path.write_text(text)
    with pytest.raises(InvalidInput):
        sightline.topology.read_memberships(path)


def test_a_membership_file_for_other_workers_is_refused(grouped, membership):
    file = membership(workers=3, groups=[[0, 1, 2]])
    with pytest.raises(InvalidInput, match="3 workers"):
        engine.build_experiment(grouped(**{"topology": {"kind": "groups", "file": file}}))


@pytest.mark.parametrize("where", ["server", "client"])
@pytest.mark.parametrize("structure", ["global", "ring"])
@pytest.mark.parametrize("seed", [1, 2, 4])
def test_the_printed_epsilon_covers_every_pair(grouped, tmp_path, where, structure, seed):
    changes = {"privacy.unit": "sample", "privacy.where": where, "topology.structure": structure, "seed": seed}
    if where == "server":
        changes |= {"local.epochs": None, "local.steps": 1}
    run = sightline.run(grouped(**changes), out=tmp_path / "run")
    names = workers(len(run.metadata["sizes"]))
    worst = max(run.ledger.epsilon(s, o, 1e-5) for s in names for o in names if s != o)
    assert run.summary["observers"]["other workers"] == pytest.approx(worst, rel=1e-12)
    assert run.epsilon >= worst
