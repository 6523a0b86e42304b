"""Compiled normal numbers: the function of the words that torch's path is, with its moments and its tails."""

import numpy as np
import pytest
import torch
from scipy import stats

from sightline.randomness import KeystreamGenerator
from sightline.training.compiled import compile_kernels, library
from sightline.training.compiled import library as noise
from sightline.training.dp_sgd_settings import DPSGDSettings, draw_gaussian, gaussian_steps

FOUND = library.find_library()
NONE = (
    isinstance(FOUND, library.Missing) and compile_kernels.find_compiler() is None
)  # with a compiler there must be code
pytestmark = pytest.mark.skipif(NONE, reason="there is no C compiler here, and no compiled code was shipped")
RNG = np.random.default_rng
EXTREME = [
    0,
    -1,
    1,
    -(2**63),
    -(2**63) + 1,
    2**63 - 1,
    2**31,
    -(2**31),
    2**31 - 1,
    2**32 - 1,
    *(1 << k for k in range(63)),
]


class Words:
    """A bit generator that hands out prescribed words."""

    def __init__(self, words):
        self.words = words

    def random_raw(self, count):
        return self.words[:count].view(np.uint64).copy()


class Prescribed:
    """A generator over them, as `random_words` reads it."""

    def __init__(self, words):
        self.bit_generator = Words(words)


def hard_words():
    """Extreme words beside each other and beside random ones, and words of every magnitude."""
    rng = RNG(0)
    words = rng.integers(-(2**63), 2**63 - 1, 40_001)
    words[: len(EXTREME)] = words[-len(EXTREME) :] = EXTREME
    half = len(words) // 2
    words[half : half + len(EXTREME)] = EXTREME[::-1]
    words[1000:10_000] >>= rng.integers(0, 63, 9_000)
    return words


def test_every_word_gives_the_numbers_of_the_other_path():
    words = hard_words()
    size = 2 * len(words)
    plain, compiled = (draw_gaussian(size, rng=Prescribed(words), path=path) for path in ("torch", "compiled"))
    assert compiled.isfinite().all()
    torch.testing.assert_close(compiled, plain, rtol=1e-6, atol=0.0)
    assert not torch.equal(compiled, plain)  # another path, other last bits


def test_numbers_are_those_of_the_definition_in_double():
    words = hard_words()
    both = noise.normals_of(torch.from_numpy(words)).double().numpy().reshape(2, -1)
    radius = np.sqrt(-2 * np.log(np.maximum(np.abs(words.astype(np.float32)).astype(float) * 2.0**-63, 2.0**-64)))
    angle = np.roll(words.astype(np.int32), -(len(words) // 2)).astype(float) * (np.pi / 2**31)
    assert np.abs(both - radius * np.array([np.cos(angle), np.sin(angle)])).max() < 1e-5
    np.testing.assert_allclose(np.hypot(*both), radius, rtol=1e-6, atol=1e-9)


def test_tails_reach_as_far():
    words = np.zeros(2, np.int64)
    z = draw_gaussian(2, rng=Prescribed(words), path="compiled")
    assert float(z[0]) == pytest.approx(np.sqrt(2 * 64 * np.log(2)), rel=1e-6)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 511, 1023, 1025])
def test_any_number_of_numbers(size):
    plain, compiled = (draw_gaussian(size, rng=RNG(size), path=path) for path in ("torch", "compiled"))
    assert compiled.shape == (size,)
    torch.testing.assert_close(compiled, plain, rtol=1e-6, atol=0.0)


def test_moments_and_law():
    z = draw_gaussian(400_000, rng=RNG(1), path="compiled").double().numpy()
    moments = [float((z**k).mean()) for k in (1, 2, 3, 4)]
    assert moments == pytest.approx([0, 1, 0, 3], abs=0.04)
    assert stats.kstest(z, "norm").pvalue > 1e-4
    half = len(z) // 2
    assert abs(np.corrcoef(z[:half], z[half:])[0, 1]) < 0.01


def test_the_ciphers_words_will_do():
    def steps(path):
        return next(gaussian_steps(700, rng=KeystreamGenerator(bytes(32)), path=path))

    torch.testing.assert_close(steps("compiled"), steps("torch"), rtol=1e-6, atol=0.0)


def test_settings_take_the_path_and_draw_the_same_words():
    def noises(path):
        how = DPSGDSettings(1.0, [1.0], [0.5], [3], [2.0], [RNG(0)], [RNG(7)])
        steps = how.noise_of(0, 40, path)
        return torch.stack([next(steps) for _ in range(500)])

    torch.testing.assert_close(noises("compiled"), noises("torch"), rtol=1e-6, atol=0.0)


def test_without_compiled_code_torch_draws_the_same_bits(monkeypatch):
    monkeypatch.setattr(noise, "find_library", lambda: library.Missing("there is none"))
    assert noise.noise_missing() == "there is none"
    assert torch.equal(draw_gaussian(99, rng=RNG(1), path="compiled"), draw_gaussian(99, rng=RNG(1)))
