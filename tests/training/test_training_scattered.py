"""Fetching examples when they are asked for gives the rows of the pile."""

import numpy as np
import torch

from sightline.data import Shard
from sightline.training.fast.stacked import ExamplePile, ScatteredExamples, pile_of


def test_scattered_rows_are_the_piles_rows():
    rng = np.random.default_rng(0)
    shards = [Shard(rng.normal(size=(size, 2, 3)).astype(np.float32), rng.integers(0, 4, size)) for size in (5, 1, 8)]
    pile, scattered = ExamplePile(shards), ScatteredExamples(shards)
    assert pile.nothing == scattered.nothing
    index = np.full((3, 4), pile.nothing)
    for member in range(3):
        drawn = pile.rows(member, rng.integers(0, len(shards[member]), member + 1))
        assert np.array_equal(drawn, scattered.rows(member, drawn - pile.offsets[member]))
        index[member, : member + 1] = drawn
    for one, other in zip(pile.take(torch.from_numpy(index)), scattered.take(torch.from_numpy(index)), strict=True):
        assert torch.equal(one, other)


def test_few_rows_are_fetched_and_many_are_piled():
    shards = [Shard(np.zeros((10, 2), np.float32), np.zeros(10, np.int64))] * 2
    assert type(pile_of(shards, 5.0)) is ScatteredExamples
    assert type(pile_of(shards, 15.0)) is ExamplePile
