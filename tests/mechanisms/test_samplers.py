"""Every sampler draws what its event says."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from sightline.config import ClientSampler
from sightline.errors import InvalidInput
from sightline.events import Adjacency, FixedCohort, Gaussian, Poisson, WithoutReplacement
from sightline.mechanisms import SAMPLERS, Cohorts, Schedules, build_sampler
from sightline.randomness import Purpose, Streams

EVENT = Gaussian(1.3)
N, ROUNDS = 12, 4000
SETTINGS = {
    "full": ClientSampler(scheme="full"),
    "poisson": ClientSampler(scheme="poisson", rate=0.3),
    "fixed": ClientSampler(scheme="fixed", rate=0.25),
    "turns": ClientSampler(scheme="turns", groups=5),
    "drawn turns": ClientSampler(scheme="turns", groups=5, rate=0.4),
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
    assert {one.scheme for one in SETTINGS.values()} | {"balanced", "check_ins"} == set(SAMPLERS)


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


def test_turns_are_a_public_partition_and_keep_everybody_apart():
    """Groups that are as equal as can be, another partition for another seed, and never two turns within b steps."""
    chosen = sampler("turns")
    assert sorted(place for group in chosen.places for place in group) == list(range(N))
    assert sorted(len(group) for group in chosen.places) == [2, 2, 2, 3, 3]
    rows = drawn("turns")
    for member in range(N):
        assert set(np.diff(np.flatnonzero(rows[:, member]))) == {5}
    assert (rows[:-5] == rows[5:]).all()
    cohorts = [Cohorts(20, seed=seed) for seed in range(8)]
    built = [build_sampler(SETTINGS["turns"], population=N, adjacency=Adjacency.ADD_REMOVE, cohorts=c) for c in cohorts]
    assert len({one.places for one in built}) == 8
    assert built[0].places == sampler("turns").places


def test_draws_inside_of_turns_are_independent_with_the_claimed_rate():
    rows, chosen = drawn("drawn turns"), sampler("drawn turns")
    active = np.zeros_like(rows)
    for time in range(ROUNDS):
        active[time, list(chosen.active_places(time))] = 1
    assert not rows[active == 0].any()
    own = rows[active == 1]
    assert stats.binomtest(int(own.sum()), own.size, 0.4).pvalue > 1e-4
    for group in chosen.places:
        turns = rows[:, list(group)][active[:, group[0]] == 1]
        assert np.abs(np.corrcoef(turns.T)[~np.eye(len(group), dtype=bool)]).max() < 5 / np.sqrt(len(turns))
        assert abs(np.corrcoef(turns[:-1, 0], turns[1:, 0])[0, 1]) < 5 / np.sqrt(len(turns))
    assert chosen.hidden_event(EVENT) == Poisson(0.4, EVENT)
    assert sampler("turns").hidden_event(EVENT) == EVENT


def test_turns_of_more_groups_than_members_are_refused():
    with pytest.raises(InvalidInput, match="groups=13"):
        build_sampler(ClientSampler(scheme="turns", groups=13), population=N, adjacency=Adjacency.ADD_REMOVE)


def test_turns_of_cohorts_that_come_every_few_rounds():
    often = build_sampler(
        ClientSampler(scheme="turns", groups=3), population=N, adjacency=Adjacency.ADD_REMOVE, cohorts=Cohorts(6, 2)
    )
    assert [often.active_places(time) for time in (2, 4, 6)] == list(often.places)
    assert often.active_places(8) == often.places[0]
