"""Use fewer examples than there are."""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from sightline.data.table import Index, Table
from sightline.errors import invalid


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
