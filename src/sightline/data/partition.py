"""Partition examples among clients: pure functions of labels or owners and a generator, applied to a table."""

import dataclasses
import heapq
import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sightline.data.federation import Client, Index, Shard, Shift, Table
from sightline.errors import invalid
from sightline.randomness import Purpose, Streams


def deal_iid(examples: int, *, clients: int, rng: np.random.Generator) -> list[Index]:
    """Shuffle the examples and cut them into `clients` parts.

    Guarantees: every example is dealt exactly once; sizes differ by at most one.

    >>> [len(part) for part in deal_iid(7, clients=3, rng=np.random.default_rng(0))]
    [3, 2, 2]
    """
    return np.array_split(rng.permutation(examples), clients)


FEW = 10
"""Minimum examples per client, or half the mean if data are scarce."""


def deal_dirichlet(
    labels: NDArray[np.int64], *, clients: int, concentration: float, rng: np.random.Generator
) -> list[Index]:
    r"""Split each class c among the clients in proportions p_c ~ Dirichlet(concentration, ..., concentration).

    Then top up every client below the minimum, one random example at a time, from the largest client.

    Guarantees: every example is dealt exactly once. Every client has at least min(10, n // (2 clients)) examples, and
    at least one. (Redrawing until all are large enough, as is often done, need not end for small concentrations.)

    Reference: Hsu, Qi, Brown 2019; Yurochkin et al. 2019.
    """
    pieces: list[list[Index]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        for client, piece in enumerate(np.split(members, _class_cuts(len(members), clients, concentration, rng))):
            pieces[client].append(piece)
    parts = [rng.permutation(np.concatenate(piece)) for piece in pieces]
    return _top_up(parts, least=max(1, min(FEW, len(labels) // (2 * clients))))


def _class_cuts(examples: int, clients: int, concentration: float, rng: np.random.Generator) -> Index:
    shares = rng.dirichlet(np.full(clients, concentration))
    # For tiny concentrations all gamma draws underflow to zero, and their normalisation is NaN.
    if not np.isfinite(shares).all():
        invalid("data.concentration", concentration, "the Dirichlet draw is not finite", "use 0.01 .. 1000")
    return np.minimum(np.floor(np.cumsum(shares[:-1]) * examples), examples).astype(np.int64)


def _top_up(parts: list[Index], *, least: int) -> list[Index]:
    sizes = [len(part) for part in parts]
    given: list[list[int]] = [[] for _ in parts]
    # Redrawing until every client is large enough would change the distribution by an unknown amount. This moves at
    # most ten examples per client.
    richest = [(-size, client) for client, size in enumerate(sizes)]
    heapq.heapify(richest)
    for client, size in enumerate(list(sizes)):
        for _ in range(least - size):
            negative, giver = heapq.heappop(richest)
            sizes[giver] = -negative - 1
            given[client].append(int(parts[giver][sizes[giver]]))
            heapq.heappush(richest, (negative + 1, giver))
    kept = [part[: sizes[client]] for client, part in enumerate(parts)]
    return [np.concatenate([part, np.array(new, dtype=np.int64)]) for part, new in zip(kept, given, strict=True)]


def label_shards(
    labels: NDArray[np.int64], *, clients: int, labels_per_client: int, rng: np.random.Generator
) -> list[Index]:
    """Give each client `labels_per_client` labels; the holders of a label share its examples equally.

    Guarantees: every client has exactly `labels_per_client` labels. The number of clients per label differs by at most
    one. No example is dealt twice, and every example of a held label is dealt (if clients x labels_per_client is less
    than the number of labels, some labels are held by no client).
    """
    present = np.unique(labels)
    if labels_per_client > len(present):
        reason = f"the data has {len(present)} labels"
        invalid("data.labels_per_client", labels_per_client, reason, f"give at most {len(present)}")
    holds = _assign_labels(len(present), clients, labels_per_client, rng)
    pieces: list[list[Index]] = [[] for _ in range(clients)]
    for column, label in enumerate(present):
        holders = np.flatnonzero(holds[:, column])
        members = rng.permutation(np.flatnonzero(labels == label))
        if len(holders) > len(members):
            reason = f"label {label} has {len(members)} examples for {len(holders)} clients"
            invalid("data.clients", clients, reason, "give fewer clients, fewer labels_per_client or more examples")
        for client, piece in zip(holders, np.array_split(members, max(1, len(holders))), strict=False):
            pieces[client].append(piece)
    return [rng.permutation(np.concatenate(piece)) for piece in pieces]


def _assign_labels(labels: int, clients: int, each: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Give each client in turn the `each` labels with the fewest holders so far; break ties at random."""
    holds = np.zeros((clients, labels), dtype=np.bool_)
    held = np.zeros(labels, dtype=np.int64)
    for client in range(clients):
        chosen = np.lexsort((rng.random(labels), held))[:each]
        holds[client, chosen] = True
        held[chosen] += 1
    return holds


def cluster_of(clusters: Sequence[int]) -> NDArray[np.int64]:
    """Return the cluster of each client, where cluster k has `clusters[k]` clients.

    >>> cluster_of([1, 3]).tolist()
    [0, 1, 1, 1]
    """
    return np.repeat(np.arange(len(clusters)), clusters)


def deal_clusters(examples: int, *, clusters: Sequence[int], reuse: bool, rng: np.random.Generator) -> list[Index]:
    """Deal the examples evenly to the clients of all clusters.

    With `reuse` every cluster gets its own shuffle of the whole data set, and all clients get examples // max(clusters)
    of it, so the largest cluster decides (R-DPCFL, appendix C.1-C.2: {3, 6, 6, 6} and 60,000 examples give 10,000
    each).

    Guarantees: inside one cluster no example is dealt twice. Without `reuse` every example is dealt exactly once.
    """
    # The default deals every example once. With copies at several clients, epsilon protects one copy only.
    if not reuse:
        return deal_iid(examples, clients=sum(clusters), rng=rng)
    each = examples // max(clusters)
    shuffles = [rng.permutation(examples) for _ in clusters]
    return [
        shuffle[client * each : (client + 1) * each]
        for shuffle, members in zip(shuffles, clusters, strict=True)
        for client in range(members)
    ]


def share_by_cluster(examples: int, *, clusters: Sequence[int], rng: np.random.Generator) -> list[Index]:
    """Split a common test set into one share per cluster, proportional to the cluster's number of clients.

    >>> [len(share) for share in share_by_cluster(70, clusters=[3, 6, 6, 6], rng=np.random.default_rng(0))]
    [10, 20, 20, 20]
    """
    cuts = np.cumsum(clusters)[:-1] * examples // sum(clusters)
    return np.split(rng.permutation(examples), cuts)


def by_owner(owner: NDArray[np.int64], *, clients: int) -> list[Index]:
    """Give client i the examples whose owner is i."""
    return _owner_runs(owner, np.arange(clients))


def one_user_each(owner: NDArray[np.int64], *, clients: int) -> list[Index]:
    """Make one client per user, for the `clients` users with most examples (ties: smaller user number first).

    Guarantees: each client is one person. Users beyond the first `clients` are left out.
    """
    # Which users have most examples is treated as public here; the federation's notes say so.
    users, counts = np.unique(owner, return_counts=True)
    _check_users(clients, len(users))
    return _owner_runs(owner, users[np.lexsort((users, -counts))][:clients])


def grouped_users(owner: NDArray[np.int64], *, clients: int, rng: np.random.Generator) -> list[Index]:
    """Deal all users, in random order, each to the client with the fewest examples so far.

    Guarantees: every example is dealt exactly once; no user's examples are at two clients.
    """
    users, counts = np.unique(owner, return_counts=True)
    _check_users(clients, len(users))
    index = np.empty(len(users), dtype=np.int64)
    smallest = [(0, client) for client in range(clients)]
    for user in rng.permutation(len(users)):
        size, client = smallest[0]
        index[user] = client
        heapq.heapreplace(smallest, (size + int(counts[user]), client))
    return by_owner(index[np.searchsorted(users, owner)], clients=clients)


def _owner_runs(owner: NDArray[np.int64], wanted: NDArray[np.int64]) -> list[Index]:
    order = np.argsort(owner, kind="stable")
    sorted_owner = owner[order]
    starts = np.searchsorted(sorted_owner, wanted, side="left")
    ends = np.searchsorted(sorted_owner, wanted, side="right")
    return [order[start:end] for start, end in zip(starts, ends, strict=True)]


def _check_users(clients: int, users: int) -> None:
    if users < clients:
        invalid(
            "data.clients",
            clients,
            f"the data has {users} users, and each client needs one",
            f"use at most {users}",
        )


__all__ = [
    "by_owner",
    "cluster_of",
    "deal_clusters",
    "deal_dirichlet",
    "deal_iid",
    "grouped_users",
    "label_shards",
    "one_user_each",
    "share_by_cluster",
]


def draw_subsample(
    examples: int, *, keep: int, rng: np.random.Generator, owner: NDArray[np.int64] | None = None
) -> Index:
    """Return `keep` random positions out of `examples`, ascending; with `owner`, at least one per owner."""
    if owner is None:
        return np.sort(rng.permutation(examples)[:keep])
    # One example of every owner first, so that no client ends up empty.
    shuffled = rng.permutation(examples)
    _, first = np.unique(owner[shuffled], return_index=True)
    rest = np.delete(shuffled, first)
    return np.sort(np.concatenate([shuffled[first], rest])[:keep])


def keep_fewer(
    table: Table, *, name: str, keep: int | None, rng: np.random.Generator, every_owner: bool = False
) -> Table:
    """Return the table with `keep` random examples, or unchanged if None; `name` is the setting's name."""
    if keep is None or keep == len(table):
        return table
    if keep > len(table):
        invalid(name, keep, f"the source has {len(table):,} examples", f"give at most {len(table)}, or remove it")
    owner = table.owner if every_owner else None
    index = draw_subsample(len(table), keep=keep, rng=rng, owner=owner)
    note = f"{name}: {keep:,} of {len(table):,} examples, chosen at random"
    kept_owner = table.owner[index] if table.owner is not None else None
    return dataclasses.replace(table, x=table.x[index], y=table.y[index], owner=kept_owner, notes=(*table.notes, note))


def split_examples(part: Index, *, test_fraction: float, rng: np.random.Generator) -> tuple[Index, Index]:
    """Return a client's examples, shuffled, as (train, test).

    Guarantees: at least one training example. With two or more examples and a positive fraction, at least one test
    example; otherwise the test size is the nearest whole number to n x test_fraction.
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
    """Return the clients, and the union of their test shards.

    All inputs lie in one array: the training shards in order, then the test shards. Every shard, and the union of the
    test shards, is a view into it.
    """
    pairs = [
        # Each client splits by its own stream, so one client's split does not depend on the others.
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
    """Return one shard per index, transformed for its cluster, and one shard over all from index `tail_from` on."""
    ends = np.cumsum([0, *(len(index) for index in indices)])
    # One array and one conversion for all shards: data sets are copied once, however many clients there are. The arrays
    # are writable only because torch warns about read-only memory; never write to them.
    x = table.empty(int(ends[-1]))
    y = np.empty((int(ends[-1]), *table.y.shape[1:]), dtype=table.y.dtype)
    for index, group, start, end in zip(indices, groups, ends[:-1], ends[1:], strict=True):
        table.encode(index, x[start:end], turns=group if shift is Shift.ROTATION else 0)
        y[start:end] = table.y[index]
        if shift is Shift.LABELS:
            y[start:end] = (y[start:end] + group) % table.classes
    everything = Shard(x, y)
    shards = [everything.take(slice(start, end)) for start, end in itertools.pairwise(ends)]
    return shards, everything.take(slice(int(ends[tail_from]), None))
