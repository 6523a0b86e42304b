"""The noise has the scale it claims, and no two draws share it."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from sightline.errors import InvalidInput
from sightline.mechanisms import Aggregate, with_gaussian_noise
from sightline.randomness import Purpose, Streams


def draw(seed=0, size=200_000, noise_multiplier=1.7, sensitivity=0.3, **names):
    rng = Streams.from_seed(seed).rng(Purpose.NOISE, **names)
    nothing = Aggregate(torch.zeros(size, dtype=torch.float64), sensitivity)
    return with_gaussian_noise(nothing, noise_multiplier=noise_multiplier, rng=rng).numpy().astype(np.float64)


def test_it_is_gaussian_of_the_claimed_scale():
    noise = draw()
    std = 1.7 * 0.3
    assert stats.kstest(noise, "norm", args=(0, std)).pvalue > 1e-4
    assert abs(noise.std() / std - 1) < 4 / math.sqrt(2 * len(noise))


@pytest.mark.parametrize(
    "other", [{"round": 1}, {"participant": 3}, {"use": 1}, {"seed": 1}, {"round": 1, "participant": 3}]
)
def test_streams_are_independent(other):
    correlation = np.corrcoef(draw(), draw(**other))[0, 1]
    assert abs(correlation) < 5 / math.sqrt(200_000)


def test_the_same_stream_gives_the_same_noise():
    assert np.array_equal(draw(round=4, participant=2), draw(round=4, participant=2))


@pytest.mark.parametrize("noise_multiplier", [0.0, -1.0, math.nan, math.inf])
def test_no_noise_is_refused(noise_multiplier):
    with pytest.raises(InvalidInput, match="noise_multiplier"):
        draw(noise_multiplier=noise_multiplier)


def test_os_streams_differ_and_survive_a_restart(tmp_path):
    one = Streams.from_operating_system(tmp_path / "one")
    again = Streams.from_operating_system(tmp_path / "one")
    other = Streams.from_operating_system(tmp_path / "other")
    keys = {streams.key(Purpose.NOISE) for streams in (one, again, other)}
    assert len(keys) == 2
    assert (tmp_path / "one").stat().st_mode & 0o777 == 0o600
    assert "one" not in repr(one)
    assert str(one.root) not in repr(one)


def test_a_secret_that_others_may_read_is_refused(tmp_path):
    Streams.from_operating_system(tmp_path / "one")
    (tmp_path / "one").chmod(0o644)
    with pytest.raises(InvalidInput, match="chmod 600"):
        Streams.from_operating_system(tmp_path / "one")


@pytest.mark.parametrize("size", [0, 1, 16, 31, 33, 64])
def test_a_root_that_is_not_of_256_bits_is_refused(size, tmp_path):
    """Two sites with an empty noise-root.secret drew the same noise, bit for bit: it could be computed."""
    Streams.from_operating_system(tmp_path / "one")
    (tmp_path / "one").write_bytes(bytes(size))
    with pytest.raises(InvalidInput, match=f"has {size} bytes instead of 32"):
        Streams.from_operating_system(tmp_path / "one")
