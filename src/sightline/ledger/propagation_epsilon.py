"""Epsilon of planned pairs: only different counts reach the accountant, each once."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sightline import accounting
from sightline.accounting import Accountant
from sightline.errors import invalid
from sightline.ledger.propagation import Ints, Pairs, Threat

Floats = NDArray[np.float64]

TABLE = 20_000_000
"""Keys up to this are looked up in a table, larger ones by sorting."""


@dataclass(frozen=True)
class Costing:
    """How counts become epsilon."""

    delta: float
    accountant: Accountant = Accountant.PLD

    def of(self, pairs: Pairs, counts: Ints) -> float:
        """Epsilon of one vector of counts."""
        held = {event: int(times) for event, times in zip(pairs.events, counts, strict=True) if times}
        return accounting.epsilon(held, self.delta, accountant=self.accountant)


def epsilon_matrix(pairs: Pairs, threat: Threat, costing: Costing) -> tuple[Floats, Ints]:
    """(classes, classes): epsilon with NaN where the threat model says nothing, and the number of releases."""
    epsilon = np.full((len(pairs), len(pairs)), np.nan)
    releases = np.zeros(epsilon.shape, dtype=np.int64)
    known: dict[int, float] = {}
    for rows in pairs.subject_chunks():
        counts = pairs.release_counts(rows)
        found = _evaluate_counts(pairs, counts, costing, known)
        epsilon[rows] = np.where(pairs.allowed_pairs(threat, rows), found, np.nan)
        releases[rows] = counts.sum(0)
    return epsilon, releases


def worst_by_class(pairs: Pairs, threat: Threat, costing: Costing) -> Floats:
    """Per class of subjects the epsilon of its worst observer; NaN where there is none."""
    known: dict[int, float] = {}
    worst = np.full(len(pairs), np.nan)
    for rows in pairs.subject_chunks():
        counts, allowed = pairs.release_counts(rows), pairs.allowed_pairs(threat, rows)
        anybody = allowed.any(1)
        if len(pairs.events) == 1:  # epsilon grows with the count: only the largest of each row is needed
            counts = np.where(allowed, counts[0], 0).max(1)[None, :, None]
            found = _evaluate_counts(pairs, counts, costing, known)[:, 0]
        else:
            found = np.where(allowed, _evaluate_counts(pairs, counts, costing, known), -np.inf).max(1)
        worst[rows] = np.where(anybody, found, np.nan)
    return worst


def _evaluate_counts(pairs: Pairs, counts: Ints, costing: Costing, known: dict[int, float]) -> Floats:
    """Epsilon of every vector of counts; equal vectors share a key and are accounted once."""
    base = int(pairs.plan.made[-1]) * pairs.plan.schedule.count + 1
    if base ** len(pairs.events) > 2**62:
        law = "so many different events over so many epochs cannot be told apart in one number"
        invalid("events", len(pairs.events), law, "use fewer different rates and noise factors")
    keys = np.zeros(counts.shape[1:], dtype=np.int64)
    for some in counts:
        keys = keys * base + some
    return map_keys(keys, lambda key: costing.of(pairs, counts_of_key(key, base, len(pairs.events))), known)


def counts_of_key(key: int, base: int, places: int) -> Ints:
    """The counts behind a key.

    >>> counts_of_key(5 * 10 + 7, 10, 2).tolist()
    [5, 7]
    """
    return np.array([key // base ** (places - 1 - place) % base for place in range(places)], dtype=np.int64)


def map_keys(keys: Ints, value: Callable[[int], float], known: dict[int, float]) -> Floats:
    """`value` of every key, called once per different key."""
    largest = int(keys.max(initial=0))
    if largest < TABLE:
        present = np.zeros(largest + 1, dtype=bool)
        present[keys] = True
        different = np.flatnonzero(present)
    else:
        different = np.unique(keys)
    for key in different.tolist():
        if key not in known:
            known[key] = value(key)
    values = np.array([known[key] for key in different.tolist()])
    return (
        values[np.searchsorted(different, keys)]
        if largest >= TABLE
        else _lookup_table(different, values, largest)[keys]
    )


def _lookup_table(different: Ints, values: Floats, largest: int) -> Floats:
    table = np.zeros(largest + 1)
    table[different] = values
    return table
