"""Sensitivities against a search over neighbouring data sets, noise against its own stream, and what is refused."""

import math

import numpy as np
import pytest

import sightline
from sightline import accounting
from sightline.config import parse
from sightline.engine.checkpoint import load_checkpoint
from sightline.errors import InvalidInput
from sightline.events import Adjacency, Gaussian
from sightline.mechanisms.convex_solver import Regression, minimise_regression
from sightline.mechanisms.perturbation import Bound, BoundTerms, output_sensitivity
from sightline.randomness import Purpose, Streams
from tests.oracle import algorithms_convex as oracle
from tests.oracle.fedavg_naive import softmax_gradient


def private(sensitivity, **noise):
    return {"unit": "sample", "mechanism": "output", "sensitivity": sensitivity, **(noise or {"noise_multiplier": 2.0})}


FULL = {"sampling.clients": {"scheme": "full"}}
ONE_STEP = {"sampling": {"clients": {"scheme": "full"}, "samples": {"scheme": "full"}}, "local.epochs": None,
            "local.steps": 1}  # fmt: skip
PROX = {"algorithm": {"name": "fedprox", "mu": 0.5}}


def facts(adjacency, *, curvature=0.5, tolerance=1e-9):
    return BoundTerms(1.0, adjacency, 0.1, curvature, tolerance)


@pytest.mark.parametrize("adjacency", Adjacency)
def test_no_neighbours_are_further_apart_than_the_strongly_convex_bound(adjacency):
    """A search over small data sets, each with one example replaced or zeroed out."""
    rng = np.random.default_rng(0)
    n, classes, mu = 3, 3, 0.5
    bound = output_sensitivity(Bound.STRONGLY_CONVEX, n, facts(adjacency, curvature=mu))
    furthest = 0.0
    for trial in range(60):
        sharp = trial % 2
        x = oracle.augmented(rng.standard_normal((n, 2)) * 9)
        y = rng.integers(0, classes, n)
        anchor = rng.standard_normal(9) * (8 if sharp else 1)
        weights = np.full(n, 1 / n)
        first = oracle.minimiser(x, y, weights, classes, mu=mu, anchor=anchor)
        if adjacency is Adjacency.REPLACE:
            y = y.copy()
            y[0] = (y[0] + 1) % classes
            second = minimise_regression(Regression(x, y, classes, anchor, mu), gradient_tolerance=1e-9)
        else:
            weights[0] = 0.0
            second = oracle.minimiser(x, y, weights, classes, mu=mu, anchor=anchor)
        furthest = max(furthest, float(np.linalg.norm(first - second)))
    assert furthest <= bound
    assert furthest > bound / 3


def test_no_neighbours_are_further_apart_than_a_mean_of_clipped_gradients_allows():
    rng = np.random.default_rng(1)
    n, furthest = 4, 0.0
    bound = output_sensitivity(Bound.PER_SAMPLE_MEAN, n, facts(Adjacency.ADD_REMOVE))
    for _ in range(100):
        x, y, w = rng.standard_normal((n, 2)) * 3, rng.integers(0, 3, n), rng.standard_normal(9)
        steps = [softmax_gradient(w, x[j : j + 1], y[j : j + 1], 3) for j in range(n)]
        clipped = [-0.1 * g * min(1, 1 / np.linalg.norm(g)) / n for g in steps]
        furthest = max(furthest, float(np.linalg.norm(sum(clipped) - sum(clipped[1:]))))
    assert furthest <= bound + 1e-12
    assert furthest > 0.99 * bound


def test_a_clipped_model_can_move_by_twice_the_clip_norm_whatever_the_data_set():
    """Why tau / |D| is no bound: one example of very many turns a long model around."""
    n = 1000
    targets = np.zeros(n)
    flipped = targets.copy()
    flipped[0] = 3 * n

    def trained(values):  # the minimiser of mean_j (w - t_j)^2, scaled up: any solver may do that
        w = (values.mean() - 1) * 100
        return w * min(1, 1 / abs(w))

    moved = abs(trained(targets) - trained(flipped))
    assert moved == pytest.approx(2.0) == output_sensitivity(Bound.CLIPPED_MODEL, n, facts(Adjacency.REPLACE))
    assert moved > 1000 * (1.0 / n)


def test_the_bounds_by_hand():
    replace, zero = facts(Adjacency.REPLACE), facts(Adjacency.ADD_REMOVE, tolerance=1e-3)
    assert output_sensitivity(Bound.STRONGLY_CONVEX, 10, replace) == pytest.approx(2 * math.sqrt(2) / 5, rel=1e-6)
    assert output_sensitivity(Bound.STRONGLY_CONVEX, 10, zero) == pytest.approx(math.sqrt(2) / 5 + 4e-3)
    assert output_sensitivity(Bound.PER_SAMPLE_MEAN, 10, replace) == pytest.approx(0.02)
    assert output_sensitivity(Bound.CLIPPED_MODEL, 10, zero) == 2.0


@pytest.mark.parametrize("kind", ["clipped_model", "strongly_convex", "per_sample_mean"])
def test_the_ledger_charges_one_gaussian_a_round_and_calibration_meets_the_target(tiny, tmp_path, kind):
    work = ONE_STEP if kind == "per_sample_mean" else FULL
    changes = {**work, **(PROX if kind == "strongly_convex" else {})}
    run = sightline.run(tiny(privacy=private(kind), **changes), out=tmp_path / "run")
    assert run.ledger.composition("client-1", "public") == {Gaussian(2.0): 4}
    assert run.epsilon == accounting.epsilon({Gaussian(2.0): 4}, 1e-5)
    assert run.summary["trusted"] == []
    target = sightline.run(tiny(privacy=private(kind, epsilon=3.0), **changes), out=tmp_path / "target")
    assert 2.99 < target.epsilon <= 3.0


def test_the_noise_is_what_the_event_says(tiny, tmp_path):
    """Two noises on one run: the models differ by the difference of the noises, drawn from the client's own stream."""
    models = []
    for z in (1.0, 3.0):
        changes = {"rounds": 1, "data.clients": 1, "privacy": private("clipped_model", noise_multiplier=z), **FULL}
        run = sightline.run(tiny(**changes), out=tmp_path / str(z))
        models.append(load_checkpoint(run.directory).state["model"].value.double().numpy())
    noise = Streams.from_seed(0).rng(Purpose.NOISE, round=1, participant=0).standard_normal(18)
    np.testing.assert_allclose(models[1] - models[0], 2.0 * 2.0 * noise, rtol=1e-4, atol=1e-5)


def test_absolute_noise_is_the_same_for_everybody(tiny, tmp_path):
    run = sightline.run(tiny(privacy=private("clipped_model", noise_std=3.0), **FULL), out=tmp_path / "run")
    assert run.ledger.composition("client-0", "public") == {Gaussian(1.5): 4}


def test_clipped_models_go_with_every_algorithm(tiny, tmp_path):
    for name in ("fedavgm", "scaffold", "feddyn", "pfedme", "fedyogi"):
        changes = {"rounds": 2, "algorithm": {"name": name, "upcycle": 0.5}, "privacy": private("clipped_model")}
        run = sightline.run(tiny(**changes, **FULL), out=tmp_path / name)
        assert run.epsilon == accounting.epsilon({Gaussian(2.0): 2}, 1e-5)


@pytest.mark.parametrize(
    ("changes", "law"),
    [
        (
            {"privacy": {"unit": "sample", "mechanism": "output", "noise_multiplier": 1.0}},
            "privacy.sensitivity=missing",
        ),
        ({"privacy": private("strongly_convex")}, "proximal or L2"),
        ({"privacy": private("strongly_convex"), "model": {"name": "mlp"}, **PROX}, "network"),
        ({"privacy": private("strongly_convex"), "algorithm": {"name": "feddyn"}}, "is proved only for"),
        ({"privacy": private("per_sample_mean")}, "one mean of clipped"),
        ({"privacy": private("as_published")}, 'no guarantee .* use sensitivity = "clipped_model"'),
        ({"privacy": private("clipped_model") | {"unit": "client"}}, "single examples"),
        ({"privacy": private("clipped_model") | {"where": "server"}}, "client adds the noise"),
        ({"privacy": private("clipped_model", noise_std=1.0, epsilon=1.0)}, "given too"),
        ({"privacy": private("clipped_model", noise_rate=1.0)}, "does not apply to mechanism"),
        (
            {"privacy": private("clipped_model"), "sampling": {"samples": {"scheme": "poisson"}}},
            "sampling of steps gains nothing",
        ),
        ({"privacy": private("nonsense")}, "sensitivity"),
    ],
)
def test_what_has_no_guarantee_is_refused_before_a_run_exists(tiny, tmp_path, changes, law):
    with pytest.raises(InvalidInput, match=law) as caught:
        sightline.run(tiny(**changes), out=tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_the_resolved_file_runs_again(tiny, tmp_path):
    import tomllib

    experiment = tiny(privacy=private("clipped_model", noise_std=3.0), **FULL)
    run = sightline.run(experiment, out=tmp_path / "run")
    assert parse(tomllib.loads((run.directory / "config.toml").read_text())) == experiment
