"""Examples stay with the person who made them."""

import heapq

import numpy as np
from numpy.typing import NDArray

from sightline.data.table import Index
from sightline.errors import invalid


def by_owner(owner: NDArray[np.int64], *, clients: int) -> list[Index]:
    """Client i gets the examples whose owner is i."""
    return _owner_runs(owner, np.arange(clients))


def one_user_each(owner: NDArray[np.int64], *, clients: int) -> list[Index]:
    """One client per user, for the `clients` users with most examples (ties: the smaller user number first).

    Guarantees: each client is one person. Users beyond the first `clients` are left out.
    """
    users, counts = np.unique(owner, return_counts=True)
    _check_users(clients, len(users))
    return _owner_runs(owner, users[np.lexsort((users, -counts))][:clients])


def grouped_users(owner: NDArray[np.int64], *, clients: int, rng: np.random.Generator) -> list[Index]:
    """All users, each in exactly one client: in random order, each joins the client with the fewest examples so far.

    Guarantees: every example is dealt exactly once; nobody's examples are at two clients.
    """
    users, counts = np.unique(owner, return_counts=True)
    _check_users(clients, len(users))
    place = np.empty(len(users), dtype=np.int64)
    smallest = [(0, client) for client in range(clients)]
    for user in rng.permutation(len(users)):
        size, client = smallest[0]
        place[user] = client
        heapq.heapreplace(smallest, (size + int(counts[user]), client))
    return by_owner(place[np.searchsorted(users, owner)], clients=clients)


def _owner_runs(owner: NDArray[np.int64], wanted: NDArray[np.int64]) -> list[Index]:
    order = np.argsort(owner, kind="stable")
    sorted_owner = owner[order]
    starts = np.searchsorted(sorted_owner, wanted, side="left")
    ends = np.searchsorted(sorted_owner, wanted, side="right")
    return [order[start:end] for start, end in zip(starts, ends, strict=True)]


def _check_users(clients: int, users: int) -> None:
    if users < clients:
        invalid("data.clients", clients, f"the data have {users} users, and a client needs one", f"use at most {users}")
