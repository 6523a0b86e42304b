"""What is released minus what it was computed from has the claimed distribution, whichever mechanism releases it."""

import math
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import repeat

import numpy as np
import pytest
import torch
from scipy import stats

from sightline.events import Gaussian, Poisson, Pooled, Pure
from sightline.mechanisms import (
    MECHANISMS,
    ConvexSegments,
    EveryoneNoisesMean,
    NoPrivacy,
    PooledMean,
    SegmentSums,
)
from sightline.randomness import EVERYONE, Purpose, Streams
from sightline.topology import client_name
from tests.laws.noise import (
    CASES,
    LAWS,
    NEEDED,
    expected_cohort,
    mechanism_classes,
    noises_in,
    noted_run,
    private_keys,
    spread_noise,
    standard_noises,
)

NEVER = 1e-7
"""The probability with which a test of one vector raises a false alarm; there are some five hundred."""
SIGMAS = 6.5


@cache
def run_of(name):
    case = CASES[name]
    return noted_run(case.setting(), case.rounds)


@cache
def noises_of(name):
    return np.array(standard_noises(run_of(name)))


def spread_of(name):
    """The relative standard deviation of the scale of one noise vector: half of its kurtosis's; more for Gamma norms."""
    dimension = noises_of(name).shape[1]
    return math.sqrt((1.5 if "objective" in name else 0.5) / dimension)


every_case = pytest.mark.parametrize("name", CASES)


def test_every_mechanism_is_registered_and_has_a_law_of_its_noise_and_a_case(monkeypatch):
    """A mechanism that is new, or that nothing in the registry leads to, is red until its noise is measured."""
    reached = Counter()
    for kind in mechanism_classes():
        # A mechanism that differs by channel has no mean of its own: it is reached when it is resolved.
        method = "mean" if hasattr(kind, "mean") else "at"
        whole = getattr(kind, method)

        def noted(self, *a, whole=whole):
            reached[type(self)] += 1
            return whole(self, *a)

        monkeypatch.setattr(kind, method, noted)
    for case in CASES.values():
        noted_run(case.setting(), 1)
    assert set(reached) | {NoPrivacy} == mechanism_classes() == set(LAWS)
    assert {case.asked for case in CASES.values()} == private_keys()
    assert {key for key in MECHANISMS if key not in private_keys()} == {
        ("gaussian", "none", where) for where in ("server", "client", "edge")
    }
    assert [kind for kind, law in LAWS.items() if law is None] == [NoPrivacy]


@every_case
def test_it_is_normal_with_the_claimed_scale_in_every_coordinate(name):
    noises = noises_of(name)
    assert len(noises) >= 4
    for noise in noises:
        assert stats.kstest(noise, "norm").pvalue > NEVER
        assert abs(noise.std() - 1) < SIGMAS * spread_of(name)
        assert abs(noise.mean()) < SIGMAS / math.sqrt(len(noise))
    pooled = math.sqrt((noises**2).mean())
    assert abs(pooled - 1) < SIGMAS * spread_of(name) / math.sqrt(len(noises))
    by_coordinate = stats.chi2(len(noises)).cdf((noises**2).sum(0))
    assert by_coordinate.min() > NEVER / 100
    assert by_coordinate.max() < 1 - NEVER / 100


@every_case
def test_it_shares_nothing_with_itself_or_with_any_other(name):
    """No coordinate, client, channel or round has the noise of another, at whatever shift."""
    noises = noises_of(name)
    length = noises.shape[1]
    spectra = np.fft.rfft(noises - noises.mean(1, keepdims=True))
    for place, one in enumerate(spectra):
        together = np.abs(np.fft.irfft(one.conj() * spectra[place:], length)) / length
        together[0, 0] = 0.0
        assert together.max() < (SIGMAS + 0.5) / math.sqrt(length)


@every_case
def test_it_has_the_resolution_of_a_float(name):
    run = run_of(name)
    for call, release in run.noisy():
        value = call.value_of(release)
        assert value.dtype is torch.float32
        assert len(value.unique()) > 0.98 * len(value)


@every_case
def test_nobody_gets_less_noise_than_it_needs(name):
    """The claimed noise is at least what every subject of the release was found to need."""
    run = run_of(name)
    subjects = set()
    for call, release in run.noisy():
        for client in (n for n in NEEDED if client_name(n) in release.subjects):
            subjects.add(client)
            if isinstance(release.event, Pure):
                assert release.event.epsilon <= 1 / NEEDED[client] * (1 + 1e-12)
            else:
                got = noises_in(release.event)[0] * spread_noise(run, release)
                assert got >= NEEDED[client] * call.context.channel.noise_factor * (1 - 1e-12)
    assert subjects == set(NEEDED)


@every_case
def test_what_is_called_post_processing_is_made_of_what_was_sent(name):
    run = run_of(name)
    mechanism, sizes = run.setting.mechanism, run.setting.federation.sizes
    for call in run.calls:
        if EVERYONE not in call.outcome.values or not call.left or isinstance(mechanism, EveryoneNoisesMean):
            continue
        alike = call.context.unit == "client" or isinstance(mechanism, SegmentSums)
        weights = {n: 1.0 if alike else float(sizes[n]) for n in call.left}
        mean = sum(weights[n] * value.double() for n, value in call.left.items()) / sum(weights.values())
        torch.testing.assert_close(call.outcome.values[EVERYONE].double(), mean, rtol=1e-5, atol=1e-6)


@every_case
def test_the_noise_that_a_mean_is_said_to_have_is_what_it_has(name):
    """The public number that controllers work with."""
    run = run_of(name)
    for call in run.calls:
        members, said = call.updates.cohort.members, call.outcome.noise_std
        if not said or run.setting.splitter is not None or not (members or call.context.channel.trusted):
            continue
        of_everyone = isinstance(run.setting.mechanism, EveryoneNoisesMean)
        of_members = (call.left and not of_everyone) or isinstance(run.setting.mechanism, SegmentSums)
        divisor = max(1, len(members)) if of_members else expected_cohort(run, call)
        clean = sum(clean_update(run, call, n) for n in members) / divisor
        found = float((call.outcome.values[EVERYONE].double() - clean).std())
        assert found == pytest.approx(said, rel=SIGMAS * math.sqrt(0.5 / run.worker.dimension))


def clean_update(run, call, member):
    """A known client's clipped update."""
    task, channel = call.updates.task, call.context.channel
    if isinstance(run.setting.mechanism, ConvexSegments):
        return run.worker.update(member, call.updates.at).double()
    radius = 0.5 * (
        task.learning_rate * task.steps if isinstance(run.setting.mechanism, SegmentSums) else channel.clip_factor
    )
    update = run.worker.update(member, call.updates.at).double()
    return update * min(1.0, radius / float(update.norm()))


def test_a_pool_has_as_many_noises_as_it_claims():
    run, found = run_of("by trust, at the devices"), 0
    for call, release in run.noisy():
        if isinstance(release.event, Pooled):
            found += 1
            assert release.event.noises == len(call.left) - 1
    assert found
    assert isinstance(run.setting.mechanism.at(run.calls[0].context.channel), PooledMean)


def test_a_star_pools_the_noises_of_all_senders_but_one():
    run = run_of("local")
    for call, release in run.noisy():
        claimed = release.event.noises if isinstance(release.event, Pooled) else 1
        assert claimed == (len(call.left) - 1 if len(call.left) > 2 else 1)
        assert isinstance(release.event, Gaussian) or release.coins_known_to == {"server"}
    everyone = run_of("local, of everyone")
    for call, release in everyone.noisy():
        assert release.event == Poisson(0.5, Pooled(5, Gaussian(NEEDED[5])))
        assert len(call.left) == len(call.updates.cohort.members)


class Ones(np.random.Generator):
    """Draws nothing: every standard normal number is one."""

    def standard_normal(self, size=None, **more):
        return np.ones(size)


EXACT = [name for name in CASES if not any(word in name for word in ("objective", "integers", "of everyone"))]


@pytest.mark.parametrize("name", EXACT)
def test_one_standard_normal_number_moves_a_value_by_exactly_the_claimed_deviation(name, monkeypatch):
    """With ones in the place of all noise, what is released minus the sum is the standard deviation itself."""
    whole = Streams.rng

    def ones(self, purpose, **names):
        rng = whole(self, purpose, **names)
        return Ones(rng.bit_generator) if purpose in (Purpose.NOISE, Purpose.CORRELATED) else rng

    monkeypatch.setattr(Streams, "rng", ones)
    monkeypatch.setattr(
        "sightline.training.dp_sgd_settings.gaussian_steps", lambda size, *, rng, path: repeat(torch.ones(size))
    )
    case = CASES[name]
    for noise in standard_noises(noted_run(case.setting(), 2)):
        noise = noise[:-1] if "adaptive" in name else noise  # a count's noise is in integers
        np.testing.assert_allclose(noise, 1.0, rtol=2e-3 if "strongly" in name else 1e-3)


def test_the_law_can_fail():
    """Noise that is a twentieth less than claimed is seen."""
    case = CASES["local"]
    setting = case.setting()
    claimed = replace(setting.mechanism, noise_event=lambda z: Gaussian(1.05 * z))
    noises = np.array(standard_noises(noted_run(replace(setting, mechanism=claimed), case.rounds)))
    assert abs(math.sqrt((noises**2).mean()) - 1) > SIGMAS * math.sqrt(0.5 / noises.size)
