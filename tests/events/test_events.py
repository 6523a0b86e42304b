import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline.errors import InvalidInput
from sightline.events import (
    Allocation,
    Clear,
    ConvexSegment,
    Event,
    Exponential,
    FixedCohort,
    Gaussian,
    Poisson,
    Pooled,
    PooledDraws,
    Product,
    Pure,
    Repeat,
    ReplacedSegment,
    Segment,
    Split,
    WithoutReplacement,
    from_json,
    scale_noise,
    to_json,
    with_known_coins,
)

noise = st.floats(0.1, 100)
LEAVES = st.one_of(
    st.builds(Gaussian, noise),
    st.builds(Pure, st.floats(0, 10)),
    st.builds(Exponential, st.floats(0, 10)),
    st.just(Clear()),
    st.builds(lambda z: Segment(4, 0.1, 0.3, Gaussian(z)), noise),
    st.builds(lambda z: ReplacedSegment(4, 0.1, 0.3, Gaussian(z)), noise),
    st.builds(lambda z: ConvexSegment(4, 0.1, Gaussian(z)), noise),
)
EVENTS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(Poisson, st.floats(0.01, 1), inner),
        st.builds(Split, st.integers(1, 9), inner),
        st.builds(Repeat, st.integers(0, 9), inner),
        st.builds(Pooled, st.integers(1, 9), inner),
        st.builds(PooledDraws, st.floats(0.01, 1), st.integers(0, 9), inner),
        st.builds(lambda e: Allocation(9, 3, e), inner),
        st.builds(lambda e: WithoutReplacement(3, 9, e), inner),
        st.builds(lambda e: FixedCohort(3, 9, e), inner),
        st.builds(lambda e: Product(tuple(e)), st.lists(inner, max_size=3)),
    ),
    max_leaves=6,
)


@given(EVENTS)
def test_json_gives_the_event_back(event):
    assert from_json(to_json(event)) == event


@given(EVENTS)
def test_known_coins_leave_no_coin(event):
    kinds = str(with_known_coins(event))
    assert not any(
        word in kinds
        for word in ("Poisson", "Split", "Allocation", "WithoutReplacement", "FixedCohort", "Pooled", "Segment")
    )


@given(EVENTS)
def test_scaling_twice_is_scaling_once(event):
    assert str(scale_noise(scale_noise(event, 2.0), 4.0)) == str(scale_noise(event, 8.0))


def test_the_registry_knows_every_event():
    assert set(Event.registry.values()) == {
        Gaussian, Clear, Pure, Exponential, Poisson, WithoutReplacement, Split, Allocation, Repeat, Product,
        Pooled, PooledDraws, FixedCohort, Segment, ReplacedSegment, ConvexSegment,
    }  # fmt: skip


@pytest.mark.parametrize(
    "make",
    [
        lambda: Gaussian(0.0),
        lambda: Gaussian(math.nan),
        lambda: Gaussian(math.inf),
        lambda: Poisson(0.0, Clear()),
        lambda: Poisson(1.1, Clear()),
        lambda: WithoutReplacement(5, 4, Clear()),
        lambda: FixedCohort(0, 4, Clear()),
        lambda: Split(0, Clear()),
        lambda: Allocation(3, 4, Clear()),
        lambda: Repeat(-1, Clear()),
        lambda: Pure(-0.1),
        lambda: Gaussian(True),
        lambda: Exponential(True),
        lambda: Poisson(True, Clear()),
        lambda: Repeat(True, Clear()),
        lambda: from_json({"kind": "gausian", "noise_multiplier": 1.0}),
        lambda: from_json({"kind": "gaussian"}),
        lambda: from_json({"kind": "gaussian", "noise_multiplier": "1"}),
        lambda: from_json({"kind": "poisson", "rate": 0.5, "event": 3}),
        lambda: from_json({"kind": "product", "events": [1]}),
        lambda: from_json({"kind": "split", "parts": 2.5, "event": {"kind": "clear"}}),
        lambda: from_json([]),
    ],
)
def test_impossible_events_are_refused(make):
    with pytest.raises(InvalidInput):
        make()


def test_events_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Gaussian(1.0).noise_multiplier = 2.0


def test_who_knows_a_schedule_sees_every_use_of_it():
    assert with_known_coins(Allocation(10, 3, Gaussian(2.0))) == Repeat(3, Gaussian(2.0))
    assert with_known_coins(Poisson(0.5, Allocation(10, 3, Split(2, Gaussian(2.0))))) == Repeat(3, Gaussian(2.0))
