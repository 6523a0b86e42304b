"""Every sampler draws what its event says."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from sightline.config import ClientSampler
from sightline.events import Adjacency, FixedCohort, Gaussian, Poisson, WithoutReplacement
from sightline.mechanisms import SAMPLERS, Schedules, build_sampler
from sightline.randomness import Purpose, Streams

EVENT = Gaussian(1.3)
N, ROUNDS = 12, 4000
SETTINGS = {
    "full": ClientSampler(scheme="full"),
    "poisson": ClientSampler(scheme="poisson", rate=0.3),
    "fixed": ClientSampler(scheme="fixed", rate=0.25),
}


def sampler(name, adjacency=Adjacency.ADD_REMOVE):
    return build_sampler(SETTINGS[name], population=N, adjacency=adjacency)


def drawn(name):
    streams = Streams.from_seed(5)
    chosen = sampler(name)
    rows = np.zeros((ROUNDS, N), dtype=int)
    for time in range(ROUNDS):
        rows[time, list(chosen.draw(time, streams.rng(Purpose.COHORT, round=time), Schedules(streams)))] = 1
    return rows


def test_every_scheme_is_tested_here_or_among_the_schedules():
    assert set(SETTINGS) | {"balanced", "check_ins"} == set(SAMPLERS)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_expected_cohort_is_what_is_drawn(name):
    rows = drawn(name)
    assert abs(rows.sum(1).mean() - sampler(name).expected) <= 5 * rows.sum(1).std() / np.sqrt(ROUNDS)


def test_poisson_coins_are_independent_with_the_claimed_rate():
    rows = drawn("poisson")
    assert stats.binomtest(int(rows.sum()), rows.size, 0.3).pvalue > 1e-4
    sizes = np.bincount(rows.sum(1), minlength=N + 1)
    expected = stats.binom.pmf(np.arange(N + 1), N, 0.3) * ROUNDS
    keep = expected > 5
    found = np.append(sizes[keep], sizes[~keep].sum())
    wanted = np.append(expected[keep], expected[~keep].sum())
    assert stats.chisquare(found, wanted).pvalue > 1e-4
    assert np.abs(np.corrcoef(rows.T)[~np.eye(N, dtype=bool)]).max() < 5 / np.sqrt(ROUNDS)


def test_fixed_cohorts_have_one_size_and_no_favourites():
    rows = drawn("fixed")
    assert set(rows.sum(1)) == {3}
    assert stats.chisquare(rows.sum(0)).pvalue > 1e-4


def test_each_sampler_states_its_own_event():
    assert sampler("full").hidden_event(EVENT) == EVENT
    assert sampler("poisson").hidden_event(EVENT) == Poisson(0.3, EVENT)
    assert sampler("fixed", Adjacency.REPLACE).hidden_event(EVENT) == WithoutReplacement(3, N - 1, EVENT)


def test_fixed_cohorts_never_get_poissons_numbers():
    assert sampler("fixed").hidden_event(EVENT) == FixedCohort(3, N - 1, EVENT)
    assert replace(sampler("fixed"), hidden=False).hidden_event(EVENT) == EVENT


def test_a_fixed_cohort_of_nearly_all_hides_nobody():
    everyone_but_one = build_sampler(
        ClientSampler(scheme="fixed", rate=(N - 1) / N), population=N, adjacency=Adjacency.REPLACE
    )
    assert everyone_but_one.hidden_event(EVENT) == EVENT
