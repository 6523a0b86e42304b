"""Streams from the operating system are the keystream of AES-256-CTR, and nothing else."""

import copy
import ctypes
import gc
import pickle
import signal
import subprocess
import sys
import threading
import time
from types import BuiltinMethodType

import numpy as np
import pytest
from scipy import stats

from sightline.mechanisms.integer_noise import rounded_gaussian
from sightline.randomness import KeystreamBits, KeystreamGenerator, Purpose, Streams
from sightline.training.dp_sgd_settings import draw_gaussian

NIST_KEY = "603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4"
NIST_COUNTER = "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff"
NIST_OUTPUT = (
    "0bdf7df1591716335e9a8b15c860c502" "5a6e699d536119065433863c8f657b94"
    "1bc12c9c01610d5d0d8bd6a3378eca62" "2956e1c8693536b1bee99c73a31576b6"
)  # fmt: skip
"""SP 800-38A, F.5.5 CTR-AES256.Encrypt: the output blocks."""
DRAWS = 200_000
LEAST = 1e-4


@pytest.fixture
def secret(tmp_path):
    """Streams whose root is known, as if it had come from the operating system."""
    path = tmp_path / "root"
    path.write_bytes(bytes(range(32)))
    path.chmod(0o600)
    return Streams.from_operating_system(path)


def known_bits():
    return KeystreamBits(bytes.fromhex(NIST_KEY), counter=bytes.fromhex(NIST_COUNTER))


def test_arrays_are_the_published_keystream():
    assert known_bits().random_raw(8).astype("<u8").tobytes().hex() == NIST_OUTPUT
    assert known_bits().random_raw() == int.from_bytes(bytes.fromhex(NIST_OUTPUT)[:8], "little")


def test_numpy_itself_gets_the_published_keystream():
    """Each of the four functions that numpy calls takes the next word: all of it, its lower half, its upper 53 bits."""
    words = [int(word) for word in np.frombuffer(bytes.fromhex(NIST_OUTPUT), "<u8")]
    rng = np.random.Generator(known_bits())
    assert rng.integers(0, 1 << 64, size=3, dtype=np.uint64).tolist() == words[:3]
    assert rng.random() == (words[3] >> 11) * 2.0**-53
    assert rng.integers(0, 1 << 32, size=2, dtype=np.uint32).tolist() == [word & 0xFFFFFFFF for word in words[4:6]]
    assert rng.bytes(4) == (words[6] & 0xFFFFFFFF).to_bytes(4, "little")


def test_no_word_is_used_twice():
    """One at a time or many at once, in any mixture: together they are the keystream up to where it was enciphered."""
    bits = known_bits()
    rng, drawn = np.random.Generator(bits), []
    for size in (1, 300, 2, 1):
        drawn += [int(rng.integers(0, 1 << 64, dtype=np.uint64)) for _ in range(size)]
        drawn += bits.random_raw(size).tolist()
    assert len(set(drawn)) == len(drawn)
    whole = set(known_bits().random_raw(1000).tolist())
    assert set(drawn) <= whole


def numbers(rng):
    """Every kind of number that the project draws."""
    return [
        rng.standard_normal(50), rng.random(50), rng.random(), rng.standard_normal(), rng.integers(7, size=50),
        rng.permutation(50), rng.choice(50, 9, replace=False), rng.gumbel(size=9), rng.gamma(50, 1.0),
        draw_gaussian(51, rng=rng).numpy(), rounded_gaussian(1e5, 50, rng),
    ]  # fmt: skip


def test_the_same_key_gives_the_same_numbers_and_any_other_name_others(secret):
    first = numbers(secret.rng(Purpose.NOISE, round=2, participant=3))
    for one, other in zip(first, numbers(secret.rng(Purpose.NOISE, round=2, participant=3)), strict=True):
        np.testing.assert_array_equal(one, other)
    words = {
        int(streams.rng(purpose, **names).bit_generator.random_raw())
        for streams in (secret, secret.fresh_streams(1), Streams(secret.root + b"question"))
        for purpose in Purpose
        for names in ({}, {"round": 1}, {"participant": 1}, {"use": 1})
    }
    assert len(words) == 3 * len(Purpose) * 4


def test_streams_of_two_purposes_are_uncorrelated(secret):
    noise, cohort = (secret.rng(purpose).standard_normal(DRAWS) for purpose in (Purpose.NOISE, Purpose.COHORT))
    assert abs(np.corrcoef(noise, cohort)[0, 1]) < 5 / np.sqrt(DRAWS)


def test_normal_and_uniform_numbers_have_their_laws(secret):
    rng = secret.rng(Purpose.NOISE)
    assert stats.kstest(rng.standard_normal(DRAWS), "norm").pvalue > LEAST
    assert stats.kstest([rng.standard_normal() for _ in range(20_000)], "norm").pvalue > LEAST
    assert stats.kstest(draw_gaussian(DRAWS, rng=rng).numpy(), "norm").pvalue > LEAST
    assert stats.kstest(rounded_gaussian(1e6, DRAWS, rng) / 1e6, "norm").pvalue > LEAST
    assert stats.kstest(rng.random((DRAWS // 2, 2)).ravel(), "uniform").pvalue > LEAST
    assert stats.kstest([rng.random() for _ in range(20_000)], "uniform").pvalue > LEAST
    assert stats.chisquare(np.bincount(rng.integers(10, size=DRAWS))).pvalue > LEAST
    firsts = np.bincount([rng.permutation(10)[0] for _ in range(20_000)])
    assert stats.chisquare(firsts).pvalue > LEAST


def test_the_rarest_words_give_the_farthest_normal_numbers(monkeypatch):
    """The tail probability of a word is never 0, so no noise is infinite; the signs are those of the last bit."""
    rng = KeystreamGenerator(bytes(32))
    words = np.array([0, 1, 2**64 - 2, 2**64 - 1], np.uint64)
    monkeypatch.setattr(rng.bit_generator, "random_raw", lambda size: words)
    most, least, *middle = rng.standard_normal(4)
    assert least == pytest.approx(stats.norm.ppf(2.0**-65), rel=1e-12)
    assert most == -least
    assert middle == [0.0, 0.0]


def reachable(thing, seen):
    """Everything that a generator refers to, by its attributes and what they refer to."""
    if id(thing) in seen or isinstance(thing, type) or type(thing).__name__ in ("module", "function", "dict"):
        return
    seen[id(thing)] = thing
    for other in gc.get_referents(thing):
        reachable(other, seen)
    for other in getattr(thing, "__dict__", {}).values():
        reachable(other, seen)


def test_no_philox_is_within_reach_of_a_secret_stream(secret, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("Philox was asked for")

    monkeypatch.setattr(np.random, "Philox", refuse)
    for streams in (secret, secret.fresh_streams(3), Streams(secret.root + b"question")):
        rng = streams.rng(Purpose.NOISE)
        numbers(rng)
        seen = {}
        reachable(rng, seen)
        assert any(isinstance(thing, KeystreamBits) for thing in seen.values())
        assert not any(isinstance(thing, np.random.BitGenerator) for thing in seen.values())
    with pytest.raises(AssertionError, match="Philox"):
        Streams.from_seed(0).rng(Purpose.NOISE)


@pytest.mark.parametrize("twice", [copy.deepcopy, pickle.dumps])
def test_a_secret_stream_is_not_copied(secret, twice):
    with pytest.raises(TypeError, match="drawn twice"):
        twice(secret.rng(Purpose.NOISE))


@pytest.fixture
def interrupts():
    """Python hears an interrupt, also where a shell started the tests in the background and had it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_does_not_put_zeros_in_the_place_of_noise(secret):
    """Ctrl-C while numpy draws word by word is raised when the draw is over, and no word was lost to it."""
    unbroken, drawn = np.empty(300_000), np.empty(300_000)
    secret.rng(Purpose.NOISE).random(out=unbroken)
    rng = secret.rng(Purpose.NOISE)
    timer = threading.Timer(0.01, lambda: ctypes.pythonapi.PyErr_SetInterruptEx(signal.SIGINT))

    def draw_and_wait():
        timer.start()
        rng.random(out=drawn)
        timer.join()
        time.sleep(0.1)

    with pytest.raises(KeyboardInterrupt):
        draw_and_wait()
    assert np.array_equal(drawn, unbroken)


def test_the_cipher_is_no_python_code():
    """An exception that is raised in a callback is lost, and numpy gets a zero: no interrupt may be raised there."""
    assert type(known_bits()._update) is BuiltinMethodType


def test_a_seeded_run_loads_no_cipher():
    """The package is needed by streams from the operating system only."""
    code = (
        "import sys, sightline.randomness as r\n"
        "import sightline.engine\n"
        "r.Streams.from_seed(0).rng(r.Purpose.NOISE).random()\n"
        "sys.exit('cryptography' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
