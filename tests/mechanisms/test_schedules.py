"""Schedules: exactly k uses of T steps, every subset equally likely, members independent, nothing written down."""

import math
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from sightline import accounting
from sightline.config import ClientSampler
from sightline.errors import InvalidInput
from sightline.events import Adjacency, Allocation, Gaussian, Poisson, Repeat, with_known_coins
from sightline.mechanisms import Allotment, Cohorts, Schedules, build_sampler
from sightline.randomness import Purpose, Streams

RARE = 1e-6
"""Below this a true hypothesis is rejected: once in a million seeds, and the seed is fixed."""


def table(allotment, members, *, epochs=1, seed=3, **names):
    """(epochs x steps, members): who is used when, as the run would ask for it."""
    schedules = Schedules(Streams.from_seed(seed))
    rows = np.zeros((epochs * allotment.steps, members), dtype=bool)
    for step in range(len(rows)):
        rows[step, schedules.members_used(step, allotment, members=members, **names)] = True
    return rows


def naive(streams, steps, uses, members, epoch):
    """The same coins, one member at a time, with a list of the steps that it is used in."""
    rng = streams.rng(Purpose.SCHEDULE, round=epoch)
    used = [[] for _ in range(members)]
    for step in range(steps):
        coins = [int(coin) for coin in rng.integers(steps - step, size=members)]
        for member, coin in enumerate(coins):
            if coin < uses - len(used[member]):
                used[member].append(step)
    return used


@pytest.mark.parametrize(
    ("steps", "uses", "members", "epochs"), [(7, 3, 40, 3), (10, 1, 9, 2), (5, 5, 4, 1), (1, 1, 3, 4)]
)
def test_everybody_is_used_exactly_so_often_in_every_epoch(steps, uses, members, epochs):
    rows = table(Allotment(steps, uses), members, epochs=epochs).reshape(epochs, steps, members)
    assert (rows.sum(1) == uses).all()
    for epoch in range(epochs):
        expected = naive(Streams.from_seed(3), steps, uses, members, epoch)
        assert [np.flatnonzero(rows[epoch, :, n]).tolist() for n in range(members)] == expected


def test_all_subsets_are_equally_likely():
    rows = table(Allotment(6, 2), 30_000)
    subsets = {subset: number for number, subset in enumerate(combinations(range(6), 2))}
    found = np.bincount([subsets[tuple(np.flatnonzero(member))] for member in rows.T], minlength=15)
    assert stats.chisquare(found).pvalue > RARE


def test_members_epochs_and_schedules_are_independent():
    subsets = {subset: number for number, subset in enumerate(combinations(range(4), 2))}

    def numbers(rows):
        return np.array([subsets[tuple(np.flatnonzero(member))] for member in rows.T])

    rows = table(Allotment(4, 2), 12_000, epochs=2)
    first, second = numbers(rows[:4]), numbers(rows[4:])
    other = numbers(table(Allotment(4, 2), 12_000, line=1))
    owner = numbers(table(Allotment(4, 2), 12_000, participant=5))
    pairs = [(first[0::2], first[1::2]), (first, second), (first, other), (first, owner), (other, owner)]
    for one, two in pairs:
        joint = np.zeros((6, 6))
        np.add.at(joint, (one, two), 1)
        assert stats.chi2_contingency(joint).pvalue > RARE


def test_check_ins_come_once_or_not_at_all():
    rows = table(Allotment(5, 1, 0.4), 20_000)
    assert set(rows.sum(0)) == {0, 1}
    assert stats.binomtest(int(rows.sum()), 20_000, 0.4).pvalue > RARE
    assert stats.chisquare(rows.sum(1)).pvalue > RARE


def test_asked_again_it_answers_the_same():
    schedules, allotment = Schedules(Streams.from_seed(1)), Allotment(8, 3)
    ask = lambda step: schedules.members_used(step, allotment, members=50).tolist()  # noqa: E731
    whole = [ask(step) for step in range(16)]
    assert [ask(step) for step in (5, 5, 2, 15, 9)] == [whole[step] for step in (5, 5, 2, 15, 9)]


def test_it_keeps_one_number_a_member_and_tells_nobody():
    schedules = Schedules(Streams.from_seed(1))
    schedules.members_used(700, Allotment(1000, 100), members=400)
    (walk,) = schedules._walks.values()
    assert walk.left.shape == (400,)
    assert "left" not in repr(walk)
    assert "rng" not in repr(walk)


def test_the_event_is_the_samplers_own():
    inner = Gaussian(1.3)
    settings = ClientSampler(scheme="balanced", uses=3, epochs=2)
    sampler = build_sampler(settings, population=9, adjacency=Adjacency.ADD_REMOVE, cohorts=Cohorts(20))
    assert sampler.hidden_event(inner) == Allocation(10, 3, inner)
    assert with_known_coins(sampler.hidden_event(inner)) == Repeat(3, inner)
    assert sampler.expected == pytest.approx(2.7)
    assert [sampler.joint_name(time) for time in (1, 10, 11)] == ["schedule 1", "schedule 1", "schedule 2"]
    assert sum(sampler.takes_part_in_plan(time) for time in range(1, 21)) == 6
    opted = ClientSampler(scheme="check_ins", rate=0.25)
    sampler = build_sampler(opted, population=8, adjacency=Adjacency.ADD_REMOVE, cohorts=Cohorts(10))
    assert sampler.hidden_event(inner) == Poisson(0.25, Allocation(10, 1, inner))
    assert sampler.expected == pytest.approx(0.2)


def test_a_scheduled_sampler_draws_what_its_schedule_uses_and_nothing_from_the_rounds_own_stream():
    settings = ClientSampler(scheme="balanced", uses=3, epochs=2)
    sampler = build_sampler(settings, population=9, adjacency=Adjacency.ADD_REMOVE, cohorts=Cohorts(20))
    schedules, again = Schedules(Streams.from_seed(7)), Schedules(Streams.from_seed(7))
    drawn = []
    for time in range(1, 21):
        rng = np.random.default_rng(time)
        cohort = sampler.draw(time, rng, schedules, line=2)
        assert cohort == tuple(again.members_used(time - 1, sampler.allotment, members=9, line=2).tolist())
        assert rng.random() == np.random.default_rng(time).random()
        drawn.extend(cohort)
    assert [drawn.count(member) for member in range(9)] == [6] * 9
    assert sampler.load(Cohorts(20)) == {"steps": 20, "uses": 3, "chance": 1.0, "epochs": 2}


def test_more_uses_than_steps_are_refused():
    settings = ClientSampler(scheme="balanced", uses=6, epochs=2)
    with pytest.raises(InvalidInput, match=r"uses=6.*epoch of the schedule has steps, 5"):
        build_sampler(settings, population=9, adjacency=Adjacency.ADD_REMOVE, cohorts=Cohorts(10))


STEPS, USES, NOISE, DRAWS = 6, 2, 0.9, 60_000
SUBSETS = [list(subset) for subset in combinations(range(STEPS), USES)]


def log_ratio(seen):
    """log dP/dQ of all steps together: the mean over every schedule, one by one."""
    each = seen / NOISE**2 - 0.5 / NOISE**2
    return np.logaddexp.reduce([each[subset].sum(0) for subset in SUBSETS]) - math.log(len(SUBSETS))


def one_dimension(*, present):
    """What DRAWS observers see of one subject whose value is 1: the sampler's own schedules, fresh noise every step."""
    noise = NOISE * np.random.default_rng(11).standard_normal((STEPS, DRAWS))
    return noise + (table(Allotment(STEPS, USES), DRAWS, seed=8) if present else 0.0)


@pytest.mark.parametrize("epsilon", [0.25, 1.0, 2.0, 3.0])
def test_what_the_sampler_really_reveals_is_within_the_claim(epsilon):
    """Monte Carlo of both directions; a false alarm needs a deviation of six standard errors."""
    claimed = accounting.balanced(noise=NOISE, steps=STEPS, uses=USES).delta(epsilon=epsilon)
    forward = -np.expm1(np.minimum(epsilon - log_ratio(one_dimension(present=True)), 0.0))
    backward = -np.expm1(np.minimum(epsilon + log_ratio(one_dimension(present=False)), 0.0))
    for gain in (forward, backward):
        assert gain.mean() <= claimed + 6 * gain.std() / math.sqrt(DRAWS)
    assert forward.mean() > 0.3 * claimed


def test_a_schedule_that_is_known_breaks_the_claim():
    """The test above can fail: to an observer of the schedule the same steps reveal more than is claimed."""
    epsilon = 2.0
    claimed = accounting.balanced(noise=NOISE, steps=STEPS, uses=USES).delta(epsilon=epsilon)
    seen = one_dimension(present=True)
    used = table(Allotment(STEPS, USES), DRAWS, seed=8)
    known = ((seen / NOISE**2 - 0.5 / NOISE**2) * used).sum(0)
    assert (-np.expm1(np.minimum(epsilon - known, 0.0))).mean() > 2 * claimed
