"""Every algorithm, run by the engine, ends where a naive loop over numpy vectors ends."""

import math

import numpy as np
import pytest

import sightline
from sightline import engine
from sightline.engine.checkpoint import load_checkpoint
from tests.oracle import algorithms_naive as naive

LR, MOMENTUM, ROUNDS = 0.2, 0.3, 5


def ran(tiny, tmp_path, name, *, steps=None, momentum=MOMENTUM, local=(), **settings):
    """(the run, its last checkpoint, the naive problem, the naive start, the cohorts) of an experiment without privacy."""
    work = {"local.epochs": None, "local.steps": steps} if steps else {"local.epochs": 2}
    experiment = tiny(
        rounds=ROUNDS,
        algorithm={"name": name, **settings},
        privacy={"unit": "none"},
        **{"local.learning_rate": LR, "local.momentum": momentum, **work, **dict(local)},
    )
    setting = engine.build_experiment(experiment)
    run = sightline.run(experiment, out=tmp_path / "run")
    count = (lambda size: steps) if steps else (lambda size: 2 * math.ceil(size / 4))
    problem = naive.Softmax(setting.federation, seed=0, steps=count, batch_size=4)
    cohorts = [problem.cohort(time, 0.6) for time in range(1, ROUNDS + 1)]
    assert any(len(cohort) < 6 for cohort in cohorts)
    return run, load_checkpoint(run.directory), problem, setting.start.numpy().astype(float), cohorts


def close(found, expected):
    np.testing.assert_allclose(found.numpy(), expected, rtol=2e-4, atol=2e-5)


def test_fedprox(tiny, tmp_path):
    _, end, problem, start, cohorts = ran(tiny, tmp_path, "fedprox", mu=0.7)
    close(end.state["model"].value, naive.fedavg(problem, start, cohorts, lr=LR, momentum=MOMENTUM, proximal=0.7))


def test_fedavgm(tiny, tmp_path):
    _, end, problem, start, cohorts = ran(tiny, tmp_path, "fedavgm", server_momentum=0.4)
    server = naive.momentum_server(0.4)
    close(end.state["model"].value, naive.server_optimised(problem, start, cohorts, server, lr=LR, momentum=MOMENTUM))


@pytest.mark.parametrize("name", ["fedadagrad", "fedadam", "fedyogi"])
def test_adaptive_servers(tiny, tmp_path, name):
    settings = {"beta1": 0.8, "tau": 0.01} | ({} if name == "fedadagrad" else {"beta2": 0.95})
    _, end, problem, start, cohorts = ran(tiny, tmp_path, name, server_learning_rate=0.2, **settings)
    server = naive.adaptive_server(name, len(start), eta=0.2, **settings)
    close(end.state["model"].value, naive.server_optimised(problem, start, cohorts, server, lr=LR, momentum=MOMENTUM))


def test_scaffold_needs_only_one_vector_when_everybody_takes_the_same_steps(tiny, tmp_path):
    _, end, problem, start, cohorts = ran(tiny, tmp_path, "scaffold", steps=3, momentum=0.0)
    model, control, own = naive.scaffold(problem, start, cohorts, lr=LR)
    close(end.state["model"].value, model)
    close(end.state["control"].value, control)
    assert set(end.memories["control"].values) == set(own)
    for client, vector in own.items():
        close(end.memories["control"].values[client], vector)


@pytest.mark.parametrize("local", [{}, {"local.epochs": 4, "local.stragglers": 0.7}])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_scaffolds_control_stays_the_mean_of_the_clients_own(tiny, tmp_path, momentum, local):
    _, end, problem, _, _ = ran(tiny, tmp_path, "scaffold", momentum=momentum, local=local)
    weights = problem.sizes / problem.sizes.sum()
    mean = sum(weights[n] * value.numpy().astype(float) for n, value in end.memories["control"].values.items())
    assert np.abs(mean).max() > 1e-3
    close(end.state["control"].value, mean)


def test_feddyn(tiny, tmp_path):
    _, end, problem, start, cohorts = ran(tiny, tmp_path, "feddyn", alpha=0.5)
    close(end.state["model"].value, naive.feddyn(problem, start, cohorts, lr=LR, momentum=MOMENTUM, alpha=0.5))


def test_pfedme(tiny, tmp_path):
    settings = {"penalty": 3.0, "inner_steps": 4, "personal_learning_rate": 0.1}
    run, end, problem, start, cohorts = ran(tiny, tmp_path, "pfedme", **settings)
    model, personal = naive.pfedme(problem, start, cohorts, lr=LR, penalty=3.0, inner_steps=4, inner_lr=0.1)
    close(end.state["model"].value, model)
    assert set(end.memories["personal"].values) == set(personal)
    for client, vector in personal.items():
        close(end.memories["personal"].values[client], vector)
    right = total = 0
    for client in range(6):
        shard = problem.federation.clients[client].test
        w = personal.get(client, model)
        scores = shard.x @ w[:15].reshape(3, 5).T + w[15:]
        right, total = right + int((scores.argmax(1) == shard.y).sum()), total + len(shard)
    assert run.test_accuracy == pytest.approx(right / total)


def test_upcycled_fedavg(tiny, tmp_path):
    _, end, problem, start, cohorts = ran(tiny, tmp_path, "fedavg", upcycle={"mu": 1.0, "lambda": 2.0, "growth": 0.5})
    x = start
    for time, cohort in enumerate(cohorts, 1):
        after = naive.fedavg(Shifted(problem, time - 1), x, [cohort], lr=LR, momentum=MOMENTUM)
        x = after + 1 / (1 + 2 * math.sqrt(time)) * (after - x)
    close(end.state["model"].value, x)


class Shifted:
    """A problem whose first round is a later one."""

    def __init__(self, problem, rounds):
        self.sizes, self.batches = problem.sizes, lambda client, time: problem.batches(client, time + rounds)
