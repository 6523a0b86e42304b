"""Loss and accuracy of models on shards."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sightline.data.federation import Shard
from sightline.errors import invalid
from sightline.models.flat import FlatModel
from sightline.training.dispatch import dense_layers, worker_for
from sightline.training.fast.dense_stack import DenseSlots, DenseStack
from sightline.training.fast.stacked import ExamplePile, group_clients, whole_shards
from sightline.training.gradients import equal_chunks
from sightline.training.local_work import client_rows

BATCH = 512
"""Examples in one forward pass of an evaluation."""


@dataclass(frozen=True)
class Evaluation:
    """Mean cross entropy and share of right answers over `examples` examples (both NaN when there are none)."""

    loss: float
    accuracy: float
    examples: int


def evaluate_model(
    model: FlatModel, vector: Tensor, shard: Shard, *, batch: int = BATCH, apart: bool = False
) -> Evaluation:
    """Loss and accuracy of one model on one shard; `apart`: whatever the model is, no example changes another's."""
    losses, right = example_outcomes(model, vector, shard, batch=batch, apart=apart)
    return summarise_outcomes(losses, right)


def evaluate_many(
    model: FlatModel, vectors: Tensor, shards: Sequence[Shard], *, batch: int = BATCH
) -> list[Evaluation]:
    """One evaluation per shard: `vectors` is (d,), the same model for all in one pass, or (n, d), one each.

    Guarantees: entry i equals `evaluate_model(model, vectors[i], shards[i])` up to float32 rounding.
    """
    if tuple(vectors.shape) not in ((model.parameters,), (len(shards), model.parameters)):
        law = f"has shape ({model.parameters},) or ({len(shards)}, {model.parameters})"
        invalid("vectors", tuple(vectors.shape), law)
    layers = dense_layers(model) if vectors.dim() == 2 else None
    if layers is not None:
        return evaluate_stacked(layers, model, vectors, shards)
    if vectors.dim() == 2 or not shards:
        return [evaluate_model(model, client_rows(vectors, i), shard, batch=batch) for i, shard in enumerate(shards)]
    together = Shard(np.concatenate([s.x for s in shards]), np.concatenate([s.y for s in shards]))
    losses, right = example_outcomes(model, vectors, together, batch=batch)
    sizes = [len(shard) for shard in shards]
    parts = zip(torch.split(losses, sizes), torch.split(right, sizes), strict=True)
    return [summarise_outcomes(*part) for part in parts]


def evaluate_stacked(
    layers: tuple[DenseSlots, ...], model: FlatModel, vectors: Tensor, shards: Sequence[Shard]
) -> list[Evaluation]:
    """Every client's own fully connected network on its own shard, clients side by side."""
    clients = range(len(shards))
    widths = {client: 1 << max(0, len(shards[client]) - 1).bit_length() for client in clients}
    found: dict[int, Evaluation] = {}
    for group in group_clients(model, shards, clients, widths, [0] * len(shards), widths, lambda width: 1 << 20):
        weights = vectors[group]
        pile = ExamplePile([shards[client] for client in group])
        x, y = pile.take(whole_shards(pile, widths[group[0]])[0])
        logits = DenseStack(layers, weights, weights).logits(x)
        losses = functional.cross_entropy(logits.transpose(1, 2), y, reduction="none")
        right = (logits.argmax(2) == y).float()
        for member, client in enumerate(group):
            found[client] = summarise_outcomes(
                losses[member, : len(shards[client])], right[member, : len(shards[client])]
            )
    return [found[client] for client in range(len(shards))]


def example_outcomes(
    model: FlatModel, vector: Tensor, shard: Shard, *, batch: int, apart: bool = False
) -> tuple[Tensor, Tensor]:
    """Every example's cross entropy, and whether the largest logit is the label's."""
    model.check_vector(vector)
    if batch < 1:
        invalid("batch", batch, "is a whole number >= 1")
    worker = worker_for(model)
    worker.weights.copy_(vector)
    x, y = worker.inputs(shard.x), torch.from_numpy(shard.y)
    losses, right = torch.empty(len(shard)), torch.empty(len(shard))
    for some in equal_chunks(len(shard), batch):
        logits = worker.logits(x[some], apart=apart)
        losses[some] = functional.cross_entropy(logits, y[some], reduction="none")
        right[some] = (logits.argmax(1) == y[some]).float()
    return losses, right


def summarise_outcomes(losses: Tensor, right: Tensor) -> Evaluation:
    """The means of the outcomes, summed in float64."""
    examples = losses.numel()
    if not examples:
        return Evaluation(float("nan"), float("nan"), 0)
    return Evaluation(float(losses.double().mean()), float(right.double().mean()), examples)
