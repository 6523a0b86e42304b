"""Use fewer examples than there are."""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sightline.data.federation import Client, Shard
from sightline.data.source import Shift
from sightline.data.table import Index, Table
from sightline.errors import invalid
from sightline.randomness import Purpose, Streams


def draw_subsample(
    examples: int, *, keep: int, rng: np.random.Generator, owner: NDArray[np.int64] | None = None
) -> Index:
    """`keep` random positions out of `examples`, in ascending order; with `owner`, at least one per owner."""
    if owner is None:
        return np.sort(rng.permutation(examples)[:keep])
    shuffled = rng.permutation(examples)
    _, first = np.unique(owner[shuffled], return_index=True)
    rest = np.delete(shuffled, first)
    return np.sort(np.concatenate([shuffled[first], rest])[:keep])


def keep_fewer(
    table: Table, *, name: str, keep: int | None, rng: np.random.Generator, every_owner: bool = False
) -> Table:
    """The table with `keep` random examples left, or as it is when `keep` is None; `name` is the setting's name."""
    if keep is None or keep == len(table):
        return table
    if keep > len(table):
        invalid(name, keep, f"the source has {len(table):,} examples", f"give at most {len(table)}, or leave it out")
    owner = table.owner if every_owner else None
    index = draw_subsample(len(table), keep=keep, rng=rng, owner=owner)
    note = f"{name}: {keep:,} of {len(table):,} examples, chosen at random"
    kept_owner = table.owner[index] if table.owner is not None else None
    return dataclasses.replace(table, x=table.x[index], y=table.y[index], owner=kept_owner, notes=(*table.notes, note))


def split_examples(part: Index, *, test_fraction: float, rng: np.random.Generator) -> tuple[Index, Index]:
    """A client's examples, shuffled, as (train, test).

    Guarantees: at least one training example; with two or more examples and a positive fraction, at least one test
    example; else the test size is the nearest whole number to n x test_fraction.
    """
    shuffled = rng.permutation(part)
    wanted = int(np.floor(len(part) * test_fraction + 0.5)) if test_fraction > 0 else 0
    size = min(max(wanted, int(test_fraction > 0)), len(part) - 1)
    return shuffled[size:], shuffled[:size]


def deal_clients(
    table: Table,
    parts: Sequence[Index],
    *,
    test_fraction: float,
    streams: Streams,
    cluster: NDArray[np.int64] | None = None,
    shift: Shift = Shift.NONE,
) -> tuple[tuple[Client, ...], Shard]:
    """The clients, and the union of their test shards.

    All inputs lie in one array: the training shards one after the other, then the test shards; every shard, and the
    union of the test shards, is a view into it.
    """
    pairs = [
        split_examples(part, test_fraction=test_fraction, rng=streams.rng(Purpose.SPLIT, participant=client))
        for client, part in enumerate(parts)
    ]
    groups = [0] * len(parts) if cluster is None else [int(group) for group in cluster]
    indices = [train for train, _ in pairs] + [test for _, test in pairs]
    shards, tail = lay_out(table, indices, groups + groups, shift=shift, tail_from=len(pairs))
    clients = tuple(
        Client(train, test, None if cluster is None else group)
        for train, test, group in zip(shards[: len(pairs)], shards[len(pairs) :], groups, strict=True)
    )
    return clients, tail


def lay_out(
    table: Table, indices: Sequence[Index], groups: Sequence[int], *, shift: Shift, tail_from: int = 0
) -> tuple[list[Shard], Shard]:
    """One shard per index, each seen as its cluster sees it, and one shard over all from number `tail_from` on."""
    ends = np.cumsum([0, *(len(index) for index in indices)])
    x = table.empty(int(ends[-1]))
    y = np.empty(int(ends[-1]), dtype=np.int64)
    for index, group, start, end in zip(indices, groups, ends[:-1], ends[1:], strict=True):
        table.encode(index, x[start:end], turns=group if shift is Shift.ROTATION else 0)
        y[start:end] = table.y[index]
        if shift is Shift.LABELS:
            y[start:end] = (y[start:end] + group) % table.classes
    everything = Shard(x, y)
    shards = [everything.take(slice(start, end)) for start, end in itertools.pairwise(ends)]
    return shards, everything.take(slice(int(ends[tail_from]), None))
