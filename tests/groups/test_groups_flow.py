"""The class-based flow against brute force, the paper's examples, and the corrected closed form."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline.accounting import Accountant, epsilon
from sightline.errors import InvalidInput
from sightline.events import Gaussian, Poisson
from sightline.ledger import GroupPlan, Rhythm, Threat, planned_pairs
from sightline.ledger.group_pairs import Costing, epsilon_matrix, worst_by_class
from sightline.topology import STRUCTURES, Era, Memberships, constant_memberships
from tests.oracle.groups_paths import closed_form, counts

RHYTHM = {False: Rhythm.EPOCH, True: Rhythm.INTERVAL}
UNIT = Gaussian(1.0)


def table(schedule, period, epochs, *, plus=False, events=None):
    """(events, workers, workers) of releases."""
    plan = GroupPlan(schedule, period, epochs, events or (UNIT,) * schedule.count, RHYTHM[plus])
    pairs = planned_pairs(plan)
    found = pairs.release_counts(slice(None))
    return found[:, pairs.class_of][:, :, pairs.class_of]


@st.composite
def schedules(draw):
    workers = draw(st.integers(1, 6))
    count = draw(st.integers(1, 4))
    some = st.lists(st.sets(st.integers(0, workers - 1)), min_size=count, max_size=count)
    some = some.filter(any).map(lambda groups: tuple(tuple(sorted(group)) for group in groups))
    since = sorted({1} | draw(st.sets(st.integers(2, 5), max_size=2)))
    return Memberships(workers, tuple(Era(interval, draw(some)) for interval in since))


@given(schedules(), st.integers(1, 4), st.integers(1, 12), st.booleans())
@settings(max_examples=400)
def test_it_equals_brute_force_path_counting(schedule, period, epochs, plus):
    events = tuple(Gaussian(1.0 + m) for m in range(schedule.count))
    found = table(schedule, period, epochs, plus=plus, events=events)
    eras = [(era.since, era.groups) for era in schedule.eras]
    expected = counts(schedule.workers, eras, period, epochs, plus=plus)
    for n in range(schedule.workers):
        for i in range(schedule.workers):
            if n != i:
                assert [expected[n][i].get(m, 0) for m in range(schedule.count)] == found[:, n, i].tolist(), (n, i)


@given(schedules(), st.integers(1, 4), st.integers(1, 10), st.booleans(), st.sampled_from(Threat))
@settings(max_examples=100)
def test_both_threat_models_speak_of_the_right_pairs(schedule, period, epochs, plus, threat):
    pairs = planned_pairs(GroupPlan(schedule, period, epochs, (UNIT,) * schedule.count, RHYTHM[plus]))
    matrix, releases = epsilon_matrix(pairs, threat, Costing(1e-5, Accountant.RDP))
    of = pairs.class_of
    expected = counts(schedule.workers, [(e.since, e.groups) for e in schedule.eras], period, epochs, plus=plus)
    worst = np.full(schedule.workers, np.nan)
    for n in range(schedule.workers):
        for i in range(schedule.workers):
            mates = all(any(n in g and i in g for g in era.groups) for era in schedule.eras)
            if n == i:
                continue
            if threat is Threat.OUT_OF_GROUP and mates:
                assert np.isnan(matrix[of[n], of[i]])
                continue
            times = sum(expected[n][i].values())
            assert releases[of[n], of[i]] == times
            assert matrix[of[n], of[i]] == epsilon({UNIT: times}, 1e-5, accountant=Accountant.RDP)
            worst[n] = np.nanmax([worst[n], matrix[of[n], of[i]]])
    found = worst_by_class(pairs, threat, Costing(1e-5, Accountant.RDP))[of]
    np.testing.assert_array_equal(found, worst)


def test_example_1_one_group_of_three():
    found = table(constant_memberships(3, STRUCTURES["global"](3, 1)), 1, 4)[0]
    assert [found[n][i] for n in range(3) for i in range(3) if n != i] == [3] * 6


def test_example_2_a_string_of_two_groups():
    found = table(constant_memberships(3, STRUCTURES["string"](3, 2)), 2, 4)[0]
    assert [[int(found[n][i]) for i in range(3) if i != n] for n in range(3)] == [[3, 2], [5, 5], [2, 3]]


def test_example_3_the_same_string_with_dp_ogl_plus():
    found = table(constant_memberships(3, STRUCTURES["string"](3, 2)), 2, 4, plus=True)[0]
    assert (found[0][2], found[2][0]) == (1, 1)


def test_the_printed_floor_contradicts_the_papers_own_examples():
    printed = 2 * max(0, (4 - 1) // 2 - 1)
    assert printed == 0 != table(constant_memberships(3, STRUCTURES["string"](3, 2)), 2, 4)[0][0][2]


@given(
    st.sampled_from(["global", "clusters", "ring", "string"]), st.integers(1, 5), st.integers(1, 3), st.integers(1, 5),
    st.integers(1, 30), st.booleans(),
)  # fmt: skip
@settings(max_examples=150)
def test_the_corrected_closed_form(structure, groups, more, period, epochs, plus):
    workers = groups * more + (groups > 1)
    shape = STRUCTURES[structure](workers, groups)
    found = table(constant_memberships(workers, shape), period, epochs, plus=plus)[0]
    for n in range(workers):
        for i in range(workers):
            if n != i:
                assert found[n][i] == closed_form(shape, period, epochs, n, i, plus=plus)


def test_the_ring_of_the_paper():
    found = table(constant_memberships(100, STRUCTURES["ring"](100, 4)), 10, 200)[0]
    assert (found[5][6], found[5][30], found[5][60]) == (199, 190, 180)
    assert (found[25][26], found[25][60], found[25][75]) == (389, 370, 380)


@pytest.mark.parametrize(
    ("noise", "expected"),
    [(2.0, {199: 36.06, 190: 34.88, 180: 33.58}), (3.0, {199: 20.69, 190: 20.10, 180: 19.41})],
)
def test_the_checked_epsilons_of_figure_4(noise, expected):
    event = Poisson(0.7, Gaussian(noise))
    pairs = planned_pairs(GroupPlan(constant_memberships(100, STRUCTURES["ring"](100, 4)), 10, 200, (event,) * 4))
    by_rdp, releases = epsilon_matrix(pairs, Threat.EVERYONE, Costing(1e-5, Accountant.RDP))
    by_pld, _ = epsilon_matrix(pairs, Threat.EVERYONE, Costing(1e-5))
    for times, value in expected.items():
        (found,) = set(by_rdp[(releases == times) & ~np.isnan(by_rdp)].tolist())
        assert found == pytest.approx(value, rel=0.01)  # the orders that are tried differ
    assert (by_pld < by_rdp)[~np.isnan(by_pld)].all()


def test_epsilon_falls_with_the_period_and_the_distance():
    ring = constant_memberships(40, STRUCTURES["ring"](40, 10))
    values = [table(ring, period, 101)[0][1][21] for period in (1, 5, 10, 25)]
    assert values == sorted(values, reverse=True)
    row = table(ring, 10, 101)[0][1]
    assert [int(row[i]) for i in (2, 5, 9, 13, 17, 21)] == [100, 90, 80, 70, 60, 50]


def test_groups_may_differ_in_rate_and_noise():
    schedule = constant_memberships(4, ((0, 1), (1, 2), (2, 3)))
    events = (Poisson(0.5, Gaussian(1.0)), Gaussian(2.0), Gaussian(2.0))
    pairs = planned_pairs(GroupPlan(schedule, 1, 6, events))
    matrix, _ = epsilon_matrix(pairs, Threat.EVERYONE, Costing(1e-5))
    assert matrix[1, 0] == epsilon({events[0]: 5, events[1]: 4}, 1e-5)
    worst = worst_by_class(pairs, Threat.EVERYONE, Costing(1e-5))
    np.testing.assert_array_equal(worst, np.nanmax(matrix, axis=1))


def test_ten_thousand_workers_cost_what_their_classes_cost():
    schedule = constant_memberships(10_000, STRUCTURES["ring"](10_000, 100))
    pairs = planned_pairs(GroupPlan(schedule, 10, 1000, (Poisson(0.7, Gaussian(2.0)),) * 100))
    assert len(pairs) == 200
    worst = worst_by_class(pairs, Threat.EVERYONE, Costing(1e-5))[pairs.class_of]
    assert worst.shape == (10_000,)
    assert worst.max() == epsilon({Poisson(0.7, Gaussian(2.0)): 999 + 990}, 1e-5)


@pytest.mark.parametrize(
    ("schedule", "period", "epochs", "word"),
    [(constant_memberships(2, ((0, 1),)), 0, 5, "period"), (constant_memberships(2, ((0, 1),)), 1, 0, "epochs")],
)
def test_bad_plans_are_refused(schedule, period, epochs, word):
    with pytest.raises(InvalidInput, match=word):
        GroupPlan(schedule, period, epochs, (UNIT,))
