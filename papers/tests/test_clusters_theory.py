"""Lemmas 4.1 and 4.2 against simulation: the variance of real noisy updates, the overlap of fitted components."""

import json

import numpy as np
import pytest
import torch
from scipy.stats import norm

from papers.convergence import command
from papers.theory.clustered import (
    component_overlap,
    expected_separation,
    overlap_of_larger_batch,
    update_noise,
)
from sightline.algorithms.clustered.mixture import fit_mixture
from sightline.apps.cli.main import run_arguments
from sightline.data.federation import Kind, Shard
from sightline.errors import InvalidInput
from sightline.models import build_model
from sightline.training import LocalWork, dp_sgd
from sightline.training.dp_sgd_settings import DPSGDSettings

RNG = np.random.default_rng


def updates_of(shard, model, *, repeats, batch, z, clip_norm, eta, epochs=1, seed=0):
    """The same client again and again, with fresh batches and fresh noise."""
    steps = epochs * -(-len(shard) // batch)
    start = model.init(RNG(7))
    blocks = dp_sgd(
        model,
        start,
        [shard] * repeats,
        LocalWork(eta),
        DPSGDSettings(
            clip_norm=clip_norm,
            noise_std=[z * clip_norm] * repeats,
            sample_rates=[batch / len(shard)] * repeats,
            steps=[steps] * repeats,
            divisors=[float(batch)] * repeats,
            sampling_rngs=[RNG([seed, 1, n]) for n in range(repeats)],
            noise_rngs=[RNG([seed, 2, n]) for n in range(repeats)],
        ),
    )
    found = torch.empty(repeats, model.parameters)
    for index, ends in blocks:
        found[torch.as_tensor(index)] = ends - start
    return found.double().numpy()


def client(features, *, turn=0.0, examples=64, seed=0):
    """Labels follow a plane; another cluster's plane is turned."""
    rng = RNG(seed)
    x = rng.standard_normal((examples, features)).astype(np.float32)
    y = (np.cos(turn) * x[:, 0] + np.sin(turn) * x[:, 1] > 0).astype(np.int64)
    return Shard(x, y)


def linear(features):
    return build_model("linear", input_shape=(features,), classes=2, kind=Kind.VECTOR, settings={})


@pytest.mark.parametrize(("batch", "epochs", "z"), [(64, 1, 1.0), (16, 1, 3.0), (8, 2, 3.0), (20, 1, 3.0)])
def test_the_variance_of_noisy_updates_is_lemma_4_1(batch, epochs, z):
    """500 repeats of 402 parameters know the variance to .5 %; the batches' luck adds up to b / (p z^2) < 2 %."""
    model, how = linear(200), {"clip_norm": 0.7}
    found = updates_of(client(200), model, repeats=500, batch=batch, z=z, eta=0.01, epochs=epochs, **how)
    lemma = update_noise(
        samples=64, batch_size=batch, parameters=model.parameters, noise_multiplier=z, learning_rate=0.01,
        epochs=epochs, **how,
    )  # fmt: skip
    assert lemma.steps == epochs * -(-64 // batch)
    assert found.var(axis=0, ddof=1).sum() == pytest.approx(lemma.variance, rel=0.03)


def test_the_overlap_of_fitted_components_is_lemma_4_2():
    """Two clusters of 600 clients with real noisy updates: fitted separation, overlap, and who is misplaced.

    The share of misplaced clients has a standard deviation of .6 %: the tolerance is 4.5 of them.
    """
    model, batch, z, clip_norm, eta, many = linear(4), 64, 4.0, 1.0, 0.05, 600
    how = {"batch": batch, "z": z, "clip_norm": clip_norm, "eta": eta}
    both = [updates_of(client(4, turn=turn), model, repeats=many, seed=s, **how) for s, turn in enumerate((0.0, 0.8))]
    noiseless = [updates_of(client(4, turn=turn), model, repeats=1, **(how | {"z": 0.0}))[0] for turn in (0.0, 0.8)]
    distance = float(np.linalg.norm(noiseless[0] - noiseless[1]))
    noise = update_noise(
        samples=64, batch_size=batch, parameters=model.parameters, clip_norm=clip_norm, noise_multiplier=z,
        learning_rate=eta,
    )  # fmt: skip
    assert 1.5 < expected_separation(noise, distance) < 2.5
    fitted = fit_mixture(np.concatenate(both), 2, seed=0)
    assert fitted.mss == pytest.approx(expected_separation(noise, distance), rel=0.05)
    assert fitted.mpo == pytest.approx(component_overlap(noise, distance), rel=0.25)
    truth = np.repeat([0, 1], many)
    wrong = min(np.mean(fitted.assigned != truth), np.mean(fitted.assigned == truth))
    assert wrong == pytest.approx(component_overlap(noise, distance) / 2, abs=0.03)


def test_the_papers_form_when_the_batch_divides():
    found = update_noise(
        samples=8000, batch_size=32, parameters=28938, clip_norm=3, noise_multiplier=1.5, learning_rate=0.005, epochs=2
    )
    assert found.variance == pytest.approx(2 * 8000 * 0.005**2 * 28938 * 9 * 1.5**2 / 32**3)


def test_overlaps_by_quadrature_and_at_the_edges():
    noise = update_noise(samples=100, batch_size=10, parameters=50, clip_norm=1, noise_multiplier=1, learning_rate=0.1)
    distance = 3 * noise.radius
    grid = np.linspace(-30, 30, 200_001)
    common = np.minimum(norm.pdf(grid), norm.pdf(grid - 3)).sum() * (grid[1] - grid[0])
    assert component_overlap(noise, distance) == pytest.approx(common, rel=1e-6)
    assert component_overlap(noise, 0.0) == 1
    assert overlap_of_larger_batch(noise, distance, factor=1) == component_overlap(noise, distance)
    assert overlap_of_larger_batch(noise, distance, factor=4) == pytest.approx(2 * norm.sf(3))
    assert overlap_of_larger_batch(noise, distance, factor=4, noise_ratio=2) == component_overlap(noise, distance)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch_size": 101}, "b=101"),
        ({"samples": 0}, "N=0"),
        ({"clip_norm": 0.0}, "c=0.0"),
        ({"noise_multiplier": float("nan")}, "z=nan"),
    ],
)
def test_bad_settings_are_one_line(change, words):
    good = {"samples": 100, "batch_size": 10, "parameters": 5, "clip_norm": 1.0, "noise_multiplier": 1.0}
    with pytest.raises(InvalidInput, match=words):
        update_noise(**(good | {"learning_rate": 0.1} | change))


SETTING = "--samples 8000 --batch 32 --parameters 28938 --clip-norm 1 --noise 1.3 --eta 0.005".split()


def test_the_command(capsys):
    assert run_arguments(["clustered", *SETTING, "--distance", "0.3", "--larger", "250", "--json"], command) == 0
    found = json.loads(capsys.readouterr().out)
    noise = update_noise(
        samples=8000, batch_size=32, parameters=28938, clip_norm=1, noise_multiplier=1.3, learning_rate=0.005
    )
    assert found["variance"] == noise.variance
    assert found["overlap"] == component_overlap(noise, 0.3)
    assert found["overlap_of_larger_batch"] == overlap_of_larger_batch(noise, 0.3, factor=250)
    assert run_arguments(["clustered", *SETTING], command) == 0
    assert "distance_for_mss_2" in capsys.readouterr().out


def test_the_command_teaches(capsys):
    assert run_arguments(["clustered", *SETTING, "--larger", "2"], command) == 2
    assert "give --distance" in capsys.readouterr().err
