"""A budget that is asked along the way says what accounting for every step would say, at a fraction of its cost."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline import accounting
from sightline.accounting import Accountant, Headroom, accountant
from sightline.events import Allocation, Clear, Gaussian, Poisson, Pure, Split, WithoutReplacement

EVENTS = {
    "gaussian": Gaussian(30.0),
    "poisson": Poisson(0.2, Gaussian(4.0)),
    "fixed": WithoutReplacement(2, 10, Gaussian(5.0)),
    "balanced": Allocation(20, 4, Gaussian(8.0)),
    "split": Poisson(0.5, Split(2, Gaussian(12.0))),
    "choices": Pure(0.01),
}


def steps_within(room, event, most):
    """How often an event may be repeated before it no longer fits, asked one by one."""
    return next((times for times in range(1, most + 2) if not room.fits({event: times})), most + 2) - 1


@pytest.fixture
def asked(monkeypatch):
    """The compositions that the accountant was asked about."""
    seen = []

    def counted(events, delta, **more):
        seen.append(dict(events))
        return accounting.epsilon(events, delta, **more)

    monkeypatch.setattr(accountant, "epsilon", counted)
    return seen


@pytest.mark.parametrize("accountant", list(Accountant))
@pytest.mark.parametrize("name", EVENTS)
def test_it_stops_where_every_single_step_would_stop(name, accountant):
    event, most = EVENTS[name], 120
    spent = [accounting.epsilon({event: times}, 1e-5, accountant=accountant) for times in range(1, most + 1)]
    for place in (0, 7, 60, 118):
        limit = (spent[place] + spent[place + 1]) / 2
        expected = next(times for times, epsilon in enumerate(spent) if epsilon > limit)
        assert steps_within(Headroom(limit, 1e-5, accountant=accountant), event, most) == expected
        assert steps_within(Headroom(spent[place], 1e-5, accountant=accountant), event, most) >= place + 1


@settings(max_examples=40)
@given(
    st.floats(0.3, 6.0),
    st.lists(st.tuples(st.sampled_from([Gaussian(12.0), Poisson(0.3, Gaussian(6.0)), Pure(0.05)]), st.integers(1, 9))),
)
def test_whatever_fits_is_within_the_limit_in_any_order_of_asking(limit, path):
    room, total = Headroom(limit, 1e-5), {}
    for event, times in path:
        total[event] = total.get(event, 0) + times
        assert room.fits(total) == (accounting.epsilon(total, 1e-5) <= limit)


def test_a_long_way_asks_the_accountant_seldom(asked):
    event = Poisson(0.01, Gaussian(2.0))
    limit = accounting.epsilon({event: 10_000}, 1e-5) * 1.0000001
    assert steps_within(Headroom(limit, 1e-5), event, 10_300) == 10_000
    assert len(asked) < 200
    assert max(times for one in asked for times in one.values()) > 10_000, "it must have looked beyond the end"


def test_nothing_in_the_clear_ever_fits():
    room = Headroom(1e9, 1e-5)
    assert not room.fits({Clear(): 1})
    assert room.fits({Gaussian(1.0): 8})
    assert not room.fits({Gaussian(1.0): 8, Clear(): 1})


def test_forgetting_costs_time_only(monkeypatch):
    monkeypatch.setattr(accountant, "FAMILIES", 2)
    room = Headroom(1.0, 1e-5)
    for number in range(10):
        assert room.fits({Gaussian(100.0 + number): 20})
    assert not room.fits({Gaussian(1.0): 20})
