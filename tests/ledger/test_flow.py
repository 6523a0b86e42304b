"""The flow through the ledger against brute-force path enumeration, and the cases the papers draw."""

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline.errors import InvalidInput, Refused
from sightline.events import Adjacency, Clear, Gaussian, Poisson, Unit
from sightline.ledger import POST_PROCESSING, Ledger, Release, parties

NAMES = ("a", "b", "c", "d")


def release(time=1, *, of=(), to=(), event=None, **more):
    event = event or Gaussian(1.0)
    return Release(time, "x", parties(of), Unit.CLIENT, Adjacency.ADD_REMOVE, event, parties(to), **more)


def paths_from(ledger, start):
    """Every id that some chain of `inputs` leads to from `start`, by walking all chains."""
    seen = {start}
    for later in ledger:
        if later.id > start and seen & set(later.inputs):
            seen.add(later.id)
    return seen


def brute_force(ledger, subject, observers):
    total = Counter()
    for one in ledger:
        reaches = any(observers & ledger[other].audience for other in paths_from(ledger, one.id))
        if subject in one.subjects and reaches:
            total[one.event] += 1
    return total


@st.composite
def ledgers(draw):
    rows = []
    for place in range(draw(st.integers(1, 12))):
        subsets = st.sets(st.sampled_from(NAMES))
        inputs = tuple(sorted(draw(st.sets(st.integers(0, place - 1), max_size=3)))) if place else ()
        event = draw(st.sampled_from([Gaussian(1.0), Gaussian(2.0), Clear()]))
        rows.append(release(place, of=draw(subsets), to=draw(subsets), event=event, inputs=inputs))
    return Ledger(rows, participants=NAMES)


@given(ledgers(), st.sets(st.sampled_from(NAMES), min_size=1))
def test_flow_equals_brute_force(ledger, observers):
    for subject in NAMES:
        assert ledger.composition(subject, observers) == brute_force(ledger, subject, observers)


@given(ledgers(), st.sampled_from(NAMES))
def test_many_subjects_at_once_equal_each_by_itself(ledger, observer):
    found = ledger.passing_view(observer).compositions_of(frozenset(NAMES))
    assert found == {name: ledger.composition(name, observer) for name in NAMES}


@given(ledgers())
def test_views_that_grow_equal_views_made_at_once(ledger):
    grown = Ledger(participants=NAMES)
    for one in ledger:
        grown.append([one])
        for observer in NAMES:
            grown.view(observer)
    for subject, observer in itertools.product(NAMES, NAMES):
        assert grown.composition(subject, observer) == ledger.composition(subject, observer)


@given(ledgers(), st.data())
def test_a_preview_is_what_appending_gives(ledger, data):
    place = data.draw(st.integers(0, len(ledger)))
    rows = list(ledger)
    before = Ledger(rows[:place], participants=NAMES)
    for observer in NAMES:
        seen = before.view(observer).preview_with(rows[place:])
        assert seen.compositions().keys() == ledger.view(observer).compositions().keys()
    assert [before.composition(s, o) for s in NAMES for o in NAMES] == [
        Ledger(rows[:place], participants=NAMES).composition(s, o) for s in NAMES for o in NAMES
    ]


@given(ledgers(), st.sets(st.integers(0, 11)))
def test_a_frontier_flows_like_the_whole_set(ledger, ids):
    ids = {id for id in ids if id < len(ledger)}
    front = ledger.frontier(ids)
    assert front <= ids

    def ancestors(some):
        return {one.id for one in ledger if paths_from(ledger, one.id) & set(some)}

    assert ancestors(front) == ancestors(ids)


@given(ledgers())
@settings(max_examples=50)
def test_compositions_list_every_subject_once(ledger):
    for observer in NAMES:
        expected = {frozenset(found.items()) for name in NAMES if (found := ledger.composition(name, observer))}
        assert {key for key in ledger.view(observer).compositions() if key} == expected


def test_what_is_not_seen_is_not_charged():
    ledger = Ledger([release(of="a", to="b"), release(of="a", to="c")], participants="d")
    assert ledger.composition("a", "b") == {Gaussian(1.0): 1}
    assert ledger.epsilon("a", "d", 1e-5) == 0.0


def test_what_was_computed_from_it_reveals_it():
    ledger = Ledger([release(of="a", to="b"), release(of="b", to="c", inputs=(0,))])
    assert ledger.composition("a", "c") == {Gaussian(1.0): 1}


def test_post_processing_costs_nothing_more():
    rows = [release(of="a", to="b"), release(event=POST_PROCESSING, to="c", inputs=(0,))]
    assert Ledger(rows).composition("a", "c") == {Gaussian(1.0): 1}


def test_time_is_respected():
    with pytest.raises(InvalidInput, match="earlier releases"):
        Ledger([release(of="a", to="b", inputs=(1,)), release(of="a", to="b")])


def test_known_coins_count_the_inner_event():
    sampled = release(of="a", to=("b", "c"), event=Poisson(0.1, Gaussian(1.0)), coins_known_to=parties("b"))
    ledger = Ledger([sampled])
    assert ledger.composition("a", "b") == {Gaussian(1.0): 1}
    assert ledger.composition("a", "c") == {Poisson(0.1, Gaussian(1.0)): 1}
    assert ledger.composition("a", {"b", "c"}) == {Gaussian(1.0): 1}
    assert ledger.epsilon("a", "b", 1e-5) > ledger.epsilon("a", "c", 1e-5) > 0


def test_a_coalition_sees_the_union():
    ledger = Ledger([release(of="a", to="b"), release(of="a", to="c", event=Gaussian(2.0))])
    assert ledger.composition("a", {"b", "c"}) == {Gaussian(1.0): 1, Gaussian(2.0): 1}


def test_joint_releases_are_charged_once():
    rows = [release(time, of="a", to="b", joint="epoch-1") for time in range(5)]
    assert Ledger(rows).composition("a", "b") == {Gaussian(1.0): 1}


def test_clear_is_infinite():
    assert Ledger([release(of="a", to="b", event=Clear())]).epsilon("a", "b", 1e-5) == float("inf")


def test_units_and_adjacencies_do_not_mix():
    ledger = Ledger([release(of="a", to="b")])
    other = Release(1, "x", parties("a"), Unit.SAMPLE, Adjacency.ADD_REMOVE, Gaussian(1.0), parties("b"))
    with pytest.raises(Refused, match="do not add up"):
        ledger.append([other])
    assert len(ledger) == 1
