"""The generator against its definition, by moments: thousands of draws, five standard errors."""

import numpy as np
import pytest

from sightline.config import Data
from sightline.data import load_federation
from sightline.data.sources.synthetic import Truth, client_size, draw_examples, draw_shared_truth, draw_truth
from sightline.randomness import Purpose, Streams

DRAWS = 4000


def truths(alpha: float, beta: float) -> list[Truth]:
    settings = Data(source="synthetic", partition="natural", alpha=alpha, beta=beta, features=6, classes=3)
    rng = np.random.default_rng(0)
    return [draw_truth(settings, rng) for _ in range(DRAWS)]


@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 0.0), (0.5, 0.5), (1.0, 2.0), (3.0, 0.25)])
def test_models_and_centres_have_the_stated_variances(alpha: float, beta: float) -> None:
    """Entry variance 1 + alpha (weights, bias) and 1 + beta (centre); covariance inside one client alpha and beta."""
    drawn = truths(alpha, beta)
    for values, shared in (
        (np.array([np.append(truth.weight.ravel(), truth.bias) for truth in drawn]), alpha),
        (np.array([truth.center for truth in drawn]), beta),
    ):
        covariance = np.cov(values, rowvar=False)
        error = 5 * (1 + shared) * np.sqrt(2 / DRAWS)
        np.testing.assert_allclose(np.diag(covariance), 1 + shared, atol=error)
        between = covariance[~np.eye(len(covariance), dtype=bool)]
        np.testing.assert_allclose(between, shared, atol=error)
        np.testing.assert_allclose(values.mean(axis=0), 0, atol=5 * np.sqrt((1 + shared) / DRAWS))


def test_examples_follow_their_truth() -> None:
    truth = truths(1.0, 1.0)[0]
    x, y = draw_examples(truth, 20_000, np.random.default_rng(1))
    variance = np.arange(1, 7) ** -1.2
    np.testing.assert_allclose(x.mean(axis=0), truth.center, atol=5 * np.sqrt(1 / 20_000))
    np.testing.assert_allclose(np.cov(x, rowvar=False), np.diag(variance), atol=5 * np.sqrt(2 / 20_000))
    np.testing.assert_allclose(x.var(axis=0) / variance, 1, atol=5 * np.sqrt(2 / 20_000))
    np.testing.assert_array_equal(y, np.argmax(x @ truth.weight.T + truth.bias, axis=1))


def test_sizes_are_lognormal_above_the_minimum() -> None:
    settings = Data(source="synthetic", partition="natural", size_mean=6.0, size_sigma=0.5, size_min=50)
    rng = np.random.default_rng(2)
    logs = np.log([client_size(settings, rng) - 50 + 0.5 for _ in range(DRAWS)])
    assert logs.mean() == pytest.approx(6.0, abs=5 * 0.5 / np.sqrt(DRAWS))
    assert logs.std() == pytest.approx(0.5, abs=5 * 0.5 / np.sqrt(2 * DRAWS))
    tiny = Data(source="synthetic", partition="natural", size_mean=-50.0, size_sigma=0.0, size_min=7)
    assert client_size(tiny, rng) == 7


def test_iid_clients_share_one_truth() -> None:
    settings = Data(source="synthetic", partition="natural", iid=True, features=20, clients=12, test_fraction=0.0)
    streams = Streams.from_seed(5)
    federation = load_federation(settings.model_copy(update={"test_fraction": 0.2}), streams=streams)
    truth = draw_shared_truth(settings, streams.rng(Purpose.SYNTHETIC))
    x = np.concatenate([client.train.x for client in federation.clients])
    y = np.concatenate([client.train.y for client in federation.clients])
    assert (np.argmax(x @ truth.weight.T + truth.bias, axis=1) == y).mean() > 0.9999
    np.testing.assert_allclose(x.mean(axis=0), 0, atol=5 / np.sqrt(len(x)))
    assert "Syn(iid)" in federation.notes[0]


def test_heterogeneity_grows_with_alpha_and_beta() -> None:
    """The clients' means move apart with beta, and the clients' favourite classes with alpha's common part."""

    def spread(beta: float) -> float:
        settings = Data(source="synthetic", partition="natural", clients=60, beta=beta, features=20)
        federation = load_federation(settings, streams=Streams.from_seed(0))
        means = np.array([client.train.x.mean() for client in federation.clients])
        return float(means.var())

    assert spread(4.0) == pytest.approx(4.0 + 1 / 20, rel=0.6)
    assert spread(0.0) == pytest.approx(1 / 20, rel=0.6)
