"""Correlated noise over the steps of a client's round: fixed batches, the noise of the dense inverse, one charge a round."""

import math
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import sightline
from sightline.accounting import epsilon, make_strategy
from sightline.accounting.strategies import make_buffers
from sightline.config import Correlated, parse
from sightline.engine import build_experiment
from sightline.errors import InvalidInput, Refused
from sightline.events import Gaussian
from sightline.mechanisms import CallId, PrivateSteps, event_of
from sightline.mechanisms.dp_sgd import correlate_plan
from sightline.randomness import Streams
from sightline.runtimes import Simulator
from sightline.training.dp_sgd_settings import DPSGDSettings, gaussian_steps
from tests.oracle.correlated_dense import dense_matrix, largest_move


def experiment(**more):
    """Two clients of 36 examples, batches of 9, two epochs a round."""
    asked = {
        "name": "steps", "rounds": 3,
        "data": {"source": "digits", "clients": 2, "partition": "iid", "train_samples": 90},
        "model": {"name": "linear"}, "local": {"epochs": 2, "batch_size": 9, "learning_rate": 0.1},
        "privacy": {"unit": "sample", "epsilon": 8.0, "delta": 1e-3, "clip_norm": 0.5, "noise": "correlated"},
    }  # fmt: skip
    for key, value in more.items():
        section, _, name = key.partition("__")
        asked[section] = (asked.get(section, {}) | {name: value}) if name else value
    return asked


@pytest.mark.parametrize(
    "strategy",
    [
        make_strategy("bsr", steps=12, separation=4, uses=3),
        make_strategy("band", steps=12, separation=4, uses=3, bands=3),
        make_buffers((0.25, 0.25), (0.9, 0.5), steps=12),
    ],
    ids=lambda one: one.name,
)
def test_the_noise_of_steps_is_that_of_the_dense_inverse(strategy):
    rng = np.random.default_rng
    batches = [[np.arange(2)] * 12]
    how = DPSGDSettings(1.0, [1.0], [0.5], [12], [2.0], [rng(0)], [rng(7)], batches, strategies=[strategy])
    made = torch.stack(list(how.noise_of(0, 5))).double().numpy()
    fresh = torch.stack(list(islice(gaussian_steps(5, rng=rng(7)), 12))).double().numpy()
    dense = np.linalg.solve(dense_matrix(strategy.coefficients, 12), fresh)
    np.testing.assert_allclose(made, dense, rtol=0, atol=1e-6)
    assert len(made) == 12, "a stream ends with its last step"


@pytest.mark.parametrize(("steps", "batch"), [(12, 10), (7, 5), (4, 10), (9, 19)])
def test_a_round_costs_the_largest_move_of_any_example(steps, batch):
    plan = correlate_plan(PrivateSteps(1.0, 2.0, batch / 40, steps, float(batch)), 40, Correlated())
    uses = math.ceil(steps / plan.groups)
    moved = largest_move(dense_matrix(plan.strategy.coefficients, steps), plan.groups, uses)
    event = event_of(plan)
    assert isinstance(event, Gaussian)
    assert event.noise_multiplier == pytest.approx(2.0 / moved, rel=1e-12)
    assert event.noise_multiplier <= 2.0 / moved * (1 + 1e-15)


def test_an_example_is_in_one_batch_of_every_epoch_and_its_steps_are_an_epoch_apart():
    setting = build_experiment(parse(experiment()))
    clients = Simulator(setting, Streams.from_seed(0), Streams.from_seed(1))
    plan = setting.mechanism.facts.private_steps[0]
    assert (plan.groups, plan.steps) == (4, 8)
    for number, use in ((1, 0), (2, 0), (3, 1)):
        laid = clients.clients.grouped_batches(0, plan, CallId(number, use), np.random.default_rng(0))
        where = {n: [step for step, batch in enumerate(laid) if n in batch] for n in range(36)}
        assert all(len(steps) == 2 for steps in where.values())
        assert all(later - earlier >= plan.groups for steps in where.values() for earlier, later in pairwise(steps))


def test_a_run_states_its_rounds_composed_and_goes_on_to_the_same_bits(tmp_path):
    whole = sightline.run(experiment(), out=tmp_path / "whole", progress=False)
    assert whole.epsilon == pytest.approx(8.0, abs=1e-3)
    told = Path(whole.report).read_text(encoding="utf-8")
    assert "over 8 steps of a client&#39;s round" in told
    assert "at least 4 apart, at most 2 of them" in told
    noise = whole.summary["noise_multiplier"]
    plan = correlate_plan(PrivateSteps(0.5, noise, 0.25, 8, 9.0), 36, Correlated())
    moved = largest_move(dense_matrix(plan.strategy.coefficients, 8), 4, 2)
    told = epsilon({Gaussian(noise / moved): 3}, 1e-3)
    assert whole.ledger.epsilon("client-0", "public", delta=1e-3) == pytest.approx(told, rel=1e-6)
    with pytest.raises(ZeroDivisionError):
        sightline.run(experiment(), out=tmp_path / "part", progress=False, on_round=lambda row: 1 / (row["round"] - 2))
    part = sightline.run(experiment(), out=tmp_path / "part", progress=False, resume=True)
    for own, other in zip(whole.model().parameters(), part.model().parameters(), strict=True):
        assert torch.equal(own, other)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"sampling": {"samples": {"scheme": "poisson"}}}, "needs fixed batches"),
        ({"privacy__correlated": {"separation": 3}}, "leave it out"),
        ({"privacy__correlated": {"restart": 2}}, "leave it out"),
        ({"privacy__correlated": {"bands": 1}}, "no gain"),
        (
            {"privacy__where": "server", "local": {"steps": 1, "batch_size": 9, "learning_rate": 0.1}},
            "only available where clients add it",
        ),
        ({"privacy__adjacency": "replace"}, "add_remove"),
        ({"local__batch_size": 36}, "no gain"),
        ({"algorithm": {"name": "fedavg", "split": {"parts": 2}}, "model": {"name": "mlp", "hidden": [8]}}, "split"),
    ],
)
def test_what_has_no_bound_is_refused_in_a_line(more, words):
    with pytest.raises((Refused, InvalidInput), match=words) as caught:
        build_experiment(parse(experiment(**more)))
    assert "\n" not in str(caught.value)


def test_steps_that_are_not_the_streams_are_refused():
    strategy, rng = make_strategy("bsr", steps=12, separation=4, uses=3), np.random.default_rng(0)
    with pytest.raises(InvalidInput, match="the noise stream has 12"):
        DPSGDSettings(1.0, [1.0], [0.5], [8], [2.0], [rng], [rng], [[np.arange(2)] * 8], strategies=[strategy])
    with pytest.raises(InvalidInput, match="the noise stream has 12"):
        DPSGDSettings(1.0, [1.0], [0.5], [12], [2.0], [rng], [rng], strategies=[strategy])
