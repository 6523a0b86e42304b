"""Fixed points and first steps that can be worked out by hand: f_i(w) = a_i / 2 |w - b_i|^2, gradient steps."""

import numpy as np
import pytest
import torch

from sightline import engine
from sightline.engine.checkpoint import load_checkpoint
from sightline.mechanisms import effective_steps
from sightline.training import LocalWork
from sightline.training.local_work import Descent

CURVATURE = torch.tensor([0.5, 1.0, 1.5, 2.0, 2.5, 3.0])


class Quadratics:
    """A worker whose client i has the loss a_i / 2 |w - b_i|^2; client i takes `steps[i]` gradient steps."""

    def __init__(self, setting, public, secret):
        self.dimension, self.sizes = setting.model.parameters, setting.federation.sizes.tolist()
        generator = torch.Generator().manual_seed(1)
        self.optima = torch.randn(6, self.dimension, generator=generator)
        self.rate = setting.experiment.local.learning_rate

    nodes = None
    steps = (5, 5, 5, 5, 5, 5)

    def close(self):
        pass

    def run(self, call):
        terms, recall = call.add_state_terms().task.terms, call.state
        for place, client in enumerate(call.cohort):
            start = call.starts if call.starts.dim() == 1 else call.starts[place]
            w = start.clone()
            descent = Descent.begin(LocalWork(self.rate), terms, w, place)
            for _ in range(self.steps[client]):
                descent.step(w, CURVATURE[client] * (w - self.optima[client]))
            if recall is not None:
                recall.keep_state(client, start, w, float(self.steps[client]), noised=False)
            yield [client], w[None]


class UnequalQuadratics(Quadratics):
    steps = (1, 2, 3, 4, 5, 5)


def settled(tiny, tmp_path, name, *, rounds, worker=Quadratics, lr=0.2, **settings):
    """(the last checkpoint, the worker, the weights of the mean)."""
    experiment = tiny(
        rounds=rounds, evaluate_every=rounds, algorithm={"name": name, **settings}, privacy={"unit": "none"},
        **{"sampling.clients": {"scheme": "full"}, "local.epochs": None, "local.steps": 5, "local.learning_rate": lr},
    )  # fmt: skip
    setting = engine.build_experiment(experiment)
    (tmp_path / "run").mkdir()
    engine.run_loop(setting, tmp_path / "run", worker, resume=False)
    sizes = torch.tensor(setting.federation.sizes.tolist(), dtype=torch.float64)
    return load_checkpoint(tmp_path / "run"), worker(setting, None, None), sizes / sizes.sum()


def optimum(weights, optima):
    """argmin sum_i weights_i / 2 |w - b_i|^2."""
    weights = weights.double()
    return ((weights[:, None] * optima.double()).sum(0) / weights.sum()).float()


def close(found, expected, atol=1e-4):
    torch.testing.assert_close(found, expected, atol=atol, rtol=1e-3)


def test_fedavg_and_fedprox_settle_at_the_optimum_of_their_own_weights(tiny, tmp_path):
    # D y_i = (1 - (1 - eta (a_i + mu))^K) (a_i / (a_i + mu)) (b_i - w): the mean update vanishes at that mean of the b_i
    for name, mu, settings in (("fedavg", 0.0, {}), ("fedprox", 0.7, {"mu": 0.7})):
        (tmp_path / name).mkdir()
        end, worker, p = settled(tiny, tmp_path / name, name, rounds=60, **settings)
        pull = (1 - (1 - 0.2 * (CURVATURE + mu)) ** 5) * CURVATURE / (CURVATURE + mu)
        close(end.state["model"].value, optimum(p * pull, worker.optima))


@pytest.mark.parametrize(("name", "settings"), [("scaffold", {}), ("feddyn", {"alpha": 0.8})])
def test_scaffold_and_feddyn_settle_at_the_true_optimum(tiny, tmp_path, name, settings):
    end, worker, p = settled(tiny, tmp_path, name, rounds=120, **settings)
    truth = optimum(p * CURVATURE, worker.optima)
    assert torch.dist(truth, optimum(p * (1 - (1 - 0.2 * CURVATURE) ** 5), worker.optima)) > 0.1
    close(end.state["model"].value, truth, atol=1e-3)


def test_scaffold_settles_at_the_true_optimum_with_unequal_work_too(tiny, tmp_path):
    end, worker, p = settled(tiny, tmp_path, "scaffold", rounds=200, worker=UnequalQuadratics)
    close(end.state["model"].value, optimum(p * CURVATURE, worker.optima), atol=1e-3)
    for client, own in end.memories["control"].values.items():
        close(own, CURVATURE[client] * (end.state["model"].value - worker.optima[client]), atol=1e-2)


def test_scaffold_with_equal_clients_is_fedavg(tiny, tmp_path, monkeypatch):
    equal = {"CURVATURE": torch.ones(6)}
    monkeypatch.setitem(globals(), "CURVATURE", equal["CURVATURE"])
    monkeypatch.setattr(Quadratics, "optima", property(lambda self: torch.ones(6, self.dimension), lambda self, v: None), raising=False)  # fmt: skip
    models = []
    for name in ("scaffold", "fedavg"):
        (tmp_path / name).mkdir()
        models.append(settled(tiny, tmp_path / name, name, rounds=6)[0].state["model"].value)
    close(models[0], models[1], atol=1e-6)


def test_the_first_two_steps_of_the_server_optimisers(tiny, tmp_path):
    # one client's worth of work is D = mean_i (1 - (1 - eta a_i)^K) (b_i - w); the servers see D_1, then D_2
    for rounds in (1, 2):
        (tmp_path / str(rounds)).mkdir()
    first, worker, p = settled(tiny, tmp_path / "1", "fedavgm", rounds=1, server_momentum=0.5)
    second, *_ = settled(tiny, tmp_path / "2", "fedavgm", rounds=2, server_momentum=0.5)
    pull = (p * (1 - (1 - 0.2 * CURVATURE) ** 5)).float()

    def mean_update(w):
        return (pull[:, None] * (worker.optima - w)).sum(0)

    w0 = first.state["model"].value - first.state["velocity"].value
    close(first.state["velocity"].value, mean_update(w0))
    step = 0.5 * mean_update(w0) + mean_update(first.state["model"].value)
    close(second.state["model"].value, first.state["model"].value + step)


def test_the_first_step_of_yogi(tiny, tmp_path):
    # v_0 = tau^2 is below D^2: v_1 = tau^2 + (1 - b2) D^2; m_1 = (1 - b1) D; the step is eta m_1 / (sqrt(v_1) + tau)
    end, _, _ = settled(tiny, tmp_path, "fedyogi", rounds=1, server_learning_rate=0.1, beta1=0.9, beta2=0.99, tau=1e-3)
    update = end.state["first"].value / 0.1
    assert bool((update**2 > 1e-6).all())
    close(end.state["second"].value, 1e-6 + 0.01 * update**2, atol=1e-7)


def test_momentum_counts_as_more_steps():
    gradients = np.array([1.0, 2.0, 4.0])
    velocity = total = 0.0
    for gradient in gradients:
        velocity = 0.5 * velocity + gradient
        total += velocity
    ones = sum(sum(0.5**k for k in range(step)) for step in (1, 2, 3))
    assert effective_steps(3, 0.5) == pytest.approx(ones)
    assert total / effective_steps(3, 0.5) == pytest.approx((1.75 * 1 + 1.5 * 2 + 1 * 4) / (1.75 + 1.5 + 1))
