"""A round's schedule, chosen from public values: it changes the work, never the claims."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import sightline
from sightline import algorithms, engine
from sightline.engine.execution import DryExecution
from sightline.engine.round import TrainingRound
from sightline.errors import Refused
from sightline.events import Gaussian, Poisson
from sightline.ledger import Ledger
from sightline.mechanisms import LocalSchedule, Public, Schedules, StateRule
from sightline.mechanisms.samplers import Full, PoissonCohorts, ThinnedCohorts, thin_sampler
from sightline.randomness import Streams
from tests.hierarchy.test_hierarchy_runs import flat


@pytest.fixture
def controlled(monkeypatch):
    """Lets an algorithm ask for a schedule at the beginning of every round."""

    originals = dict(algorithms.REGISTRY)

    def install(name, schedule_at, most_steps):
        base = originals[name]

        def round_(state, r, settings):
            r.control.set_schedule(schedule_at(r.time), most_steps=most_steps)
            return base.round(state, r, settings)

        monkeypatch.setitem(algorithms.REGISTRY, name, replace(base, round=round_))

    return install


def test_a_schedule_is_the_work_of_another_file(treed, tmp_path, controlled):
    other = {"local.steps": 3, "local.learning_rate": 0.1, "algorithm.local_aggregation": 1}
    expected = sightline.run(treed(**other), out=tmp_path / "file")
    controlled("h2fdp", lambda time: LocalSchedule(3, 0.1), 6)  # K_l stays 6 / 2 = 3, so m = 1
    run = sightline.run(treed(), out=tmp_path / "schedule")
    setting = engine.build_experiment(treed())
    np.testing.assert_array_equal(flat(run, setting), flat(expected, setting))
    assert run.epsilon == expected.epsilon


def test_the_ledger_is_the_plan_whatever_is_chosen(treed, tmp_path, controlled):
    """All trusted and sampled: what is claimed does not tell which schedule was chosen."""
    changes = {"topology.trusted": 1.0, "sampling.clients": {"scheme": "poisson", "rate": 0.6}}
    schedules = [
        lambda time: LocalSchedule(2, 0.1, {"edge-0": 0.2, "edge-2": 0.5}),
        lambda time: LocalSchedule(6 - time, 0.2),
        lambda time: LocalSchedule(8),
    ]
    bodies = []
    for number, schedule_at in enumerate(schedules):
        controlled("h2fdp", schedule_at, 8)
        run = sightline.run(treed(**changes), out=tmp_path / str(number))
        bodies.append([release.body() for release in run.ledger])
        assert run.ledger.composition("client-0", "cloud") == {Poisson(0.6, Gaussian(0.8)): 9}
    assert bodies[0] == bodies[1] == bodies[2]


def test_segments_of_examples_are_claimed_at_the_most_steps(treed, tmp_path, controlled):
    controlled("h2fdp", lambda time: LocalSchedule(3), 12)
    changes = {"privacy.unit": "sample", "privacy.noise_multiplier": None, "privacy.epsilon": 4.0}
    experiment = treed(**changes)
    sizes = engine.build_experiment(experiment).federation.sizes
    run = sightline.run(experiment, out=tmp_path / "run")
    (event,) = run.ledger.composition("client-4", "edge-2")
    assert (event.steps, event.rate) == (4, 4 / sizes[4])  # 12 steps in 3 segments
    assert 3.99 < run.epsilon <= 4.0


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "pfedme"])
def test_flat_algorithms_follow_the_schedule(treed, tmp_path, controlled, algorithm):
    open_ = {"privacy": {"unit": "none"}, "algorithm": {"name": algorithm}, "rounds": 2}
    expected = sightline.run(treed(**open_, **{"local.steps": 2, "local.learning_rate": 0.05}), out=tmp_path / "file")
    controlled(algorithm, lambda time: LocalSchedule(2, 0.05), 6)
    run = sightline.run(treed(**open_), out=tmp_path / "schedule")
    setting = engine.build_experiment(treed(**open_))
    np.testing.assert_array_equal(flat(run, setting), flat(expected, setting))


def test_beyond_the_plan_is_refused(treed, tmp_path, controlled):
    controlled("h2fdp", lambda time: LocalSchedule(7), 6)
    with pytest.raises(Refused, match="at most 6 local steps"):
        sightline.run(treed(), out=tmp_path / "steps")
    controlled("h2fdp", lambda time: LocalSchedule(6, rates={"edge-0": 0.7}), 6)
    with pytest.raises(Refused, match="participation of at most"):
        sightline.run(treed(**{"sampling.clients": {"scheme": "poisson", "rate": 0.6}}), out=tmp_path / "rate")
    controlled("h2fdp", lambda time: LocalSchedule(6, rates={"edge-0": 0.5}), 6)
    with pytest.raises(Refused, match="no rate that can be lowered"):
        sightline.run(treed(**{"sampling.clients": {"scheme": "fixed", "rate": 0.6}}), out=tmp_path / "fixed")


def test_a_thinned_sampler_draws_less_and_claims_the_same():
    whole = PoissonCohorts(2000, 0.5)
    less = thin_sampler(whole, 0.2, "edge-0")
    assert isinstance(less, ThinnedCohorts)
    assert less.hidden_event(Gaussian(1.0)) == whole.hidden_event(Gaussian(1.0)) == Poisson(0.5, Gaussian(1.0))
    assert less.expected == pytest.approx(400)
    schedules = Schedules(Streams.from_seed(0))
    drawn = [len(less.draw(1, np.random.default_rng(seed), schedules)) for seed in range(50)]
    assert np.mean(drawn) == pytest.approx(400, abs=5 * np.sqrt(2000 * 0.2 * 0.8 / 50))
    assert thin_sampler(Full(10), 0.5, "edge-0").hidden_event(Gaussian(1.0)) == Gaussian(1.0)
    assert thin_sampler(whole, 0.5, "edge-0") is whole


def test_a_segment_is_refused_to_clients_that_keep_something(treed):
    """What they keep is made of un-noised steps: an example drawn once would be in every later sum, at no charge."""
    setting = engine.build_experiment(treed(**{"privacy.unit": "sample", "privacy.where": "edge"}))
    execution, start = DryExecution(setting.federation.sizes.tolist()), Public(torch.zeros(1))
    r = TrainingRound(setting, Ledger(participants=setting.participants), execution, 1)
    asked = {"steps": 2, "most_steps": 2, "learning_rate": 0.1, "step_norm": 0.2}
    free = r.train(r.sample(r.channels[0]), start, **asked)
    assert r.release_means([(free, r.channels[0])])
    kept = r.train(r.sample(r.channels[0]), start, memory=StateRule("control"), **asked)
    with pytest.raises(Refused, match="drawn or not"):
        r.release_means([(kept, r.channels[0])])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"step_norm": None}, "the length of every step"),
        ({"learning_rate": None}, "the length of every step"),
        ({"step_norm": 30.0}, "reach beyond the clip norm"),
        ({"learning_rate": 30.0}, "reach beyond the clip norm"),
        ({"steps": 3}, "1 to most_steps=2"),
    ],
)
def test_a_segment_whose_steps_have_no_ball_is_refused(treed, changes, words):
    """The law of the first draw rests on both; a site is told them by whom it does not trust."""
    setting = engine.build_experiment(treed(**{"privacy.unit": "sample", "privacy.where": "edge"}))
    execution, start = DryExecution(setting.federation.sizes.tolist()), Public(torch.zeros(1))
    r = TrainingRound(setting, Ledger(participants=setting.participants), execution, 1)
    asked = {"steps": 2, "most_steps": 2, "learning_rate": 0.1, "step_norm": 0.2} | changes
    with pytest.raises(Refused, match=words):
        r.release_means([(r.train(r.sample(r.channels[0]), start, **asked), r.channels[0])])
