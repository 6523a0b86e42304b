"""Each client holds examples of only a few labels."""

import numpy as np
from numpy.typing import NDArray

from sightline.data.table import Index
from sightline.errors import invalid


def label_shards(
    labels: NDArray[np.int64], *, clients: int, labels_per_client: int, rng: np.random.Generator
) -> list[Index]:
    """Each client gets `labels_per_client` labels; its holders share a label's examples equally.

    Guarantees: exactly `labels_per_client` labels at every client; the number of clients per label differs by at most
    one between labels; no example is dealt twice, and every example of a label that somebody holds is dealt (when
    clients x labels_per_client is less than the number of labels, some labels are held by nobody).
    """
    present = np.unique(labels)
    if labels_per_client > len(present):
        law = f"the data have {len(present)} labels"
        invalid("data.labels_per_client", labels_per_client, law, f"give at most {len(present)}")
    holds = _assign_labels(len(present), clients, labels_per_client, rng)
    pieces: list[list[Index]] = [[] for _ in range(clients)]
    for column, label in enumerate(present):
        holders = np.flatnonzero(holds[:, column])
        members = rng.permutation(np.flatnonzero(labels == label))
        if len(holders) > len(members):
            law = f"label {label} has {len(members)} examples for the {len(holders)} clients that are to hold it"
            invalid("data.clients", clients, law, "give fewer clients, fewer labels_per_client or more examples")
        for client, piece in zip(holders, np.array_split(members, max(1, len(holders))), strict=False):
            pieces[client].append(piece)
    return [rng.permutation(np.concatenate(piece)) for piece in pieces]


def _assign_labels(labels: int, clients: int, each: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Client by client, the `each` labels that the fewest clients hold so far; ties by lot."""
    holds = np.zeros((clients, labels), dtype=np.bool_)
    held = np.zeros(labels, dtype=np.int64)
    for client in range(clients):
        chosen = np.lexsort((rng.random(labels), held))[:each]
        holds[client, chosen] = True
        held[chosen] += 1
    return holds
