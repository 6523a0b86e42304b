import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sightline.errors import InvalidInput
from sightline.events import Adjacency
from sightline.mechanisms import clip_update, clipped_sum, sum_sensitivity

vectors = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=20).map(torch.tensor)


@given(vectors, st.floats(1e-3, 1e3))
def test_the_norm_is_bounded(update, clip_norm):
    bounded = clip_update(update, clip_norm=clip_norm)
    assert bounded.value.double().norm().item() <= clip_norm
    assert not bounded.rejected


@given(vectors)
def test_inside_the_ball_nothing_changes(update):
    norm = update.double().norm().item()
    assert torch.equal(clip_update(update, clip_norm=max(norm, 1e-9)).value, update)


@given(vectors, st.floats(1e-3, 1e3))
def test_the_direction_stays(update, clip_norm):
    value = clip_update(update, clip_norm=clip_norm).value
    norm = update.double().norm().item()
    expected = update.double() * min(1.0, clip_norm / norm) if norm else update.double()
    torch.testing.assert_close(value.double(), expected, rtol=3e-6, atol=1e-12)


def test_the_smallest_ball_holds():
    """At 3e-44 rounding alone made the same vector 1.5 times as long as its ball."""
    value = clip_update(torch.ones(100_000), clip_norm=1e-30).value
    assert value.double().norm() <= 1e-30


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e30])
def test_a_broken_update_becomes_zero_or_small(bad):
    bounded = clip_update(torch.tensor([bad, 1.0]), clip_norm=1.0)
    assert bounded.value.norm() <= 1.0
    assert bounded.rejected == (not math.isfinite(bad))


@pytest.mark.parametrize("clip_norm", [0.0, -1.0, math.nan, math.inf, 3e-44])
def test_a_senseless_ball_is_refused(clip_norm):
    with pytest.raises(InvalidInput, match="clip_norm"):
        clip_update(torch.ones(2), clip_norm=clip_norm)


@given(st.lists(vectors.map(lambda v: torch.nn.functional.pad(v, (0, 20 - len(v)))), min_size=1, max_size=8), st.data())
def test_one_update_moves_the_sum_by_its_sensitivity(updates, data):
    def total(some, adjacency=Adjacency.ADD_REMOVE):
        return clipped_sum(enumerate(some), dimension=20, clip_norm=1.5, adjacency=adjacency)

    place = data.draw(st.integers(0, len(updates) - 1))
    without = [u for n, u in enumerate(updates) if n != place]
    replaced = [u if n != place else -u for n, u in enumerate(updates)]
    whole = total(updates)
    assert (whole.value - total(without).value).norm() <= whole.sensitivity + 1e-9
    other = total(replaced, Adjacency.REPLACE)
    assert (whole.value - other.value).norm() <= other.sensitivity + 1e-9


def test_sensitivity_follows_the_adjacency():
    assert sum_sensitivity(0.7, Adjacency.ADD_REMOVE) == 0.7
    assert sum_sensitivity(0.7, Adjacency.REPLACE) == 1.4


def test_an_empty_sum_is_zero():
    empty = clipped_sum([], dimension=3, clip_norm=1.0, adjacency=Adjacency.ADD_REMOVE)
    assert torch.equal(empty.value, torch.zeros(3, dtype=torch.float64))
