"""The exact solver against a general one; the privacy loss of sampled outputs against the bound; runs and refusals."""

import math

import numpy as np
import pytest
from scipy import stats

import sightline
from sightline import accounting, engine
from sightline.engine.checkpoint import load_checkpoint
from sightline.errors import InvalidInput, Refused
from sightline.events import Adjacency, Pure
from sightline.mechanisms.convex_solver import Regression, from_unit, minimise_regression, to_unit, unit_examples
from sightline.mechanisms.perturbation import REMAINDER, Objective, isotropic_noise
from sightline.randomness import Purpose, Streams
from tests.oracle import algorithms_convex as oracle

PRIVATE = {"unit": "sample", "mechanism": "objective", "epsilon": 20.0}
PROX = {"algorithm": {"name": "fedprox", "mu": 0.5}}


def problem(rng, *, n=7, features=2, classes=3, mu=0.3):
    x = rng.standard_normal((n, features)) * 2
    x = x * np.minimum(1, oracle.HALF / np.linalg.norm(x, axis=1, keepdims=True))
    y = rng.integers(0, classes, n)
    size = classes * (features + 1)
    return x, y, rng.standard_normal(size), rng.standard_normal(size) * 0.3, mu, classes


@pytest.mark.parametrize("seed", range(4))
def test_the_solver_equals_a_general_optimiser(seed):
    x, y, anchor, linear, mu, classes = problem(np.random.default_rng(seed), mu=[1.0, 0.1, 0.01, 3.0][seed])
    ours = Regression(unit_examples(x.astype(np.float32)), y, classes, anchor, mu, 0.0, linear)
    found = minimise_regression(ours, gradient_tolerance=1e-10)
    assert np.linalg.norm(ours.value_and_gradient(found)[1]) <= 1e-10
    weights = np.full(len(y), 1 / len(y))
    slow = oracle.minimiser(oracle.augmented(x), y, weights, classes, mu=mu, anchor=anchor, linear=linear)
    np.testing.assert_allclose(found, slow, atol=1e-5)
    np.testing.assert_allclose(
        ours.hessian(found), oracle.hessian(found, ours.features, y, weights, classes, mu=mu), atol=1e-6
    )


def test_weight_decay_is_a_proximal_term_towards_zero():
    x, y, _, _, _, classes = problem(np.random.default_rng(5))
    zero = np.zeros(9)
    unit = unit_examples(x.astype(np.float32))
    decay = minimise_regression(Regression(unit, y, classes, zero + 0.7, 0.0, 0.4), gradient_tolerance=1e-10)
    near = minimise_regression(Regression(unit, y, classes, zero, 0.4, 0.0), gradient_tolerance=1e-10)
    np.testing.assert_allclose(decay, near, atol=1e-8)


def test_the_unit_space_gives_the_same_logits():
    rng = np.random.default_rng(0)
    w = rng.standard_normal(4 * 3 + 4)
    x = rng.standard_normal((5, 3)) * 0.3
    v = to_unit(w, 4).reshape(4, 4)
    np.testing.assert_allclose(
        unit_examples(x.astype(np.float32)) @ v.T, x @ w[:12].reshape(4, 3).T + w[12:], atol=1e-6
    )
    np.testing.assert_allclose(from_unit(to_unit(w, 4), 4), w)


def test_noise_has_the_gamma_norm_and_no_direction():
    rng = np.random.default_rng(1)
    drawn = np.array([isotropic_noise(6, rate=3.0, rng=rng) for _ in range(4000)])
    assert stats.kstest(np.linalg.norm(drawn, axis=1), stats.gamma(6, scale=1 / 3).cdf).pvalue > 1e-4
    assert np.abs((drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).mean(axis=0)).max() < 0.03


def log_density(v, x, y, weights, classes, *, mu, anchor, rate):
    """Of the perturbed minimiser at v: the noise that leads to v, and the Jacobian on the way."""
    noise = -(oracle.loss_gradient(v, x, y, weights, classes) + mu * (v - anchor))
    sign, determinant = np.linalg.slogdet(oracle.hessian(v, x, y, weights, classes, mu=mu))
    assert sign > 0
    return -rate * np.linalg.norm(noise) + determinant


@pytest.mark.parametrize("adjacency", [Adjacency.REPLACE, Adjacency.ADD_REMOVE])
@pytest.mark.parametrize(("rate", "mu"), [(3.0, 0.5), (0.05, 0.02)])
def test_the_privacy_loss_of_its_outputs_never_exceeds_epsilon(adjacency, rate, mu):
    """Neighbours that differ as much as they can: all of one class against one of another, longest features."""
    rng = np.random.default_rng(2)
    n, classes = 3, 2
    x = oracle.augmented(np.array([[1.0], [-1.0], [1.0]]))
    y, weights = np.array([0, 1, 0]), np.full(n, 1 / n)
    other_x, other_y, other_weights = x.copy(), y.copy(), weights.copy()
    if adjacency is Adjacency.REPLACE:
        other_y[2] = 1
    else:
        other_weights[2] = 0.0
    mechanism = Objective({0: n}, classes, adjacency, 0.0, 1e-9, noise_rate=rate)
    epsilon = mechanism.epsilon(0, mu) * (1 - REMAINDER)
    losses = []
    for _ in range(150):
        noise = isotropic_noise(4, rate=rate, rng=rng)
        v = minimise_regression(Regression(x, y, classes, np.zeros(4), mu, 0.0, noise), gradient_tolerance=1e-10)
        shared = {"mu": mu, "anchor": np.zeros(4), "rate": rate}
        losses.append(
            log_density(v, x, y, weights, classes, **shared)
            - log_density(v, other_x, other_y, other_weights, classes, **shared)
        )
    assert max(np.abs(losses)) <= epsilon + 1e-6
    if (rate, adjacency) == (3.0, Adjacency.ADD_REMOVE):
        assert max(np.abs(losses)) > 0.4 * epsilon  # the bound is not empty


def test_epsilon_and_rate_are_inverse_and_by_hand():
    by_rate = Objective({0: 100}, 10, Adjacency.REPLACE, 0.0, 1e-9, noise_rate=10.0)
    spent = by_rate.epsilon(0, 0.5)
    assert spent == pytest.approx((10 * 2 * math.sqrt(2) / 100 + 0.9 / (100 * 0.5)) / 0.99)
    by_epsilon = Objective({0: 100}, 10, Adjacency.REPLACE, 0.0, 1e-9).with_noise({0: 1 / spent})
    assert by_epsilon.rate(0, 0.5) == pytest.approx(10.0)


def test_a_run_sends_the_minimiser_of_the_perturbed_objective(tiny, tmp_path):
    """One client, one round: the model's own first-order condition gives the noise back."""
    experiment = tiny(
        rounds=1, privacy={"unit": "sample", "mechanism": "objective", "noise_rate": 5.0},
        **{"data.clients": 1, "sampling.clients": {"scheme": "full"}}, **PROX,
    )  # fmt: skip
    setting = engine.build_experiment(experiment)
    run = sightline.run(experiment, out=tmp_path / "run")
    v = to_unit(load_checkpoint(run.directory).state["model"].value.double().numpy(), 3)
    shard = setting.federation.clients[0].train
    x, start = oracle.augmented(shard.x.astype(float)), to_unit(setting.start.double().numpy(), 3)
    weights = np.full(len(shard), 1 / len(shard))
    noise = isotropic_noise(18, rate=5.0, rng=Streams.from_seed(0).rng(Purpose.NOISE, round=1, participant=0))
    found = -(oracle.loss_gradient(v, x, shard.y, weights, 3) + 0.5 * (v - start))
    np.testing.assert_allclose(found, noise, atol=1e-4)


def test_the_ledger_charges_pure_epsilon_and_calibration_meets_the_target(tiny, tmp_path):
    full = {"sampling.clients": {"scheme": "full"}}
    run = sightline.run(tiny(privacy=dict(PRIVATE), **full, **PROX), out=tmp_path / "run")
    assert 19.9 < max(run.ledger.epsilon(f"client-{n}", "public", 1e-5) for n in range(6)) <= 20.0
    found = run.ledger.composition("client-0", "public")
    assert all(isinstance(event, Pure) for event in found)
    assert accounting.epsilon(dict(found), 1e-5) <= sum(event.epsilon * times for event, times in found.items()) + 1e-9
    text = run.report.read_text()
    assert "gradient norm" in text


@pytest.mark.parametrize(
    ("changes", "law"),
    [
        ({"algorithm": {"name": "fedavg"}}, "proximal or L2"),
        ({"algorithm": {"name": "fedprox", "mu": 0.0}}, "proximal or L2"),
        ({"model": {"name": "mlp"}, **PROX}, "network"),
        ({"algorithm": {"name": "feddyn"}}, "is proved only for"),
        ({"algorithm": {"name": "scaffold"}, "local.weight_decay": 0.1}, "is proved only for"),
        ({"local.stragglers": 0.5, **PROX}, "no partial result"),
        ({"privacy.unit": "client", **PROX}, "single examples"),
        ({"privacy.where": "server", **PROX}, "client adds the noise"),
        ({"privacy.epsilon": 0.01, **PROX}, "curvature"),
        ({"privacy.sensitivity": "clipped_model", **PROX}, "does not support this bound"),
        ({"privacy.epsilon": None, "privacy.noise_std": 1.0, **PROX}, "does not apply to mechanism"),
    ],
)
def test_what_has_no_guarantee_is_refused_before_a_run_exists(tiny, tmp_path, changes, law):
    with pytest.raises(InvalidInput, match=law) as caught:
        sightline.run(tiny(**{"privacy": dict(PRIVATE), **changes}), out=tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_features_that_are_too_long_are_refused_by_the_solver():
    with pytest.raises(Refused, match="norm"):
        unit_examples(np.ones((2, 3), dtype=np.float32))
