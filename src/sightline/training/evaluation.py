"""Loss and metrics of models on shards."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sightline.data.federation import Shard
from sightline.errors import invalid
from sightline.models.flat import FlatModel
from sightline.models.task import Task
from sightline.training.dispatch import dense_layers, worker_for
from sightline.training.fast.stacked import ExamplePile, group_clients, whole_shards
from sightline.training.fast.stacks import DenseSlots, DenseStack
from sightline.training.gradients import equal_chunks
from sightline.training.local_work import client_rows

BATCH = 512
"""Examples in one forward pass of an evaluation."""
OUTPUT_FLOATS = 1 << 25
"""Most numbers that one pass may output: a language model has one logit per word at every position."""


@dataclass(frozen=True)
class Evaluation:
    """Mean loss and accuracy over `examples` examples, both NaN for an empty shard.

    `sums` are sums of the task's scores: `task.rate_sums(sums, examples)` turns them into metrics, and sums of several
    shards may be added. Accuracy is NaN for a task without right answers.
    """

    loss: float
    accuracy: float
    examples: int
    sums: tuple[float, ...] = ()


def evaluate_model(
    model: FlatModel, vector: Tensor, shard: Shard, *, batch: int = BATCH, apart: bool = False
) -> Evaluation:
    """Return loss and scores of one model on one shard; with `apart`, no example influences another's result."""
    losses, scores = example_outcomes(model, vector, shard, batch=batch, apart=apart)
    return summarise_outcomes(model.task, losses, scores)


def evaluate_many(
    model: FlatModel, vectors: Tensor, shards: Sequence[Shard], *, batch: int = BATCH
) -> list[Evaluation]:
    """Return one evaluation per shard. `vectors` is (d,) for one shared model, or (n, d) for one model per shard.

    Guarantees: entry i equals `evaluate_model(model, vectors[i], shards[i])` up to float32 rounding.
    """
    if tuple(vectors.shape) not in ((model.parameters,), (len(shards), model.parameters)):
        reason = f"must have shape ({model.parameters},) or ({len(shards)}, {model.parameters})"
        invalid("vectors", tuple(vectors.shape), reason)
    layers = dense_layers(model) if vectors.dim() == 2 else None
    if layers is not None:
        return evaluate_stacked(layers, model, vectors, shards)
    if vectors.dim() == 2 or not shards:
        return [evaluate_model(model, client_rows(vectors, i), shard, batch=batch) for i, shard in enumerate(shards)]
    together = Shard(np.concatenate([s.x for s in shards]), np.concatenate([s.y for s in shards]))
    losses, scores = example_outcomes(model, vectors, together, batch=batch)
    sizes = [len(shard) for shard in shards]
    parts = zip(torch.split(losses, sizes), torch.split(scores, sizes), strict=True)
    return [summarise_outcomes(model.task, *part) for part in parts]


def evaluate_stacked(
    layers: tuple[DenseSlots, ...], model: FlatModel, vectors: Tensor, shards: Sequence[Shard]
) -> list[Evaluation]:
    """Evaluate every client's own fully connected network on its own shard, with clients stacked."""
    clients = range(len(shards))
    # Widths are rounded up to powers of two, so that shards of similar size share one stack.
    widths = {client: 1 << max(0, len(shards[client]) - 1).bit_length() for client in clients}
    result: dict[int, Evaluation] = {}
    for group in group_clients(model, shards, clients, widths, [0] * len(shards), widths, lambda width: 1 << 20):
        weights = vectors[group]
        pile = ExamplePile([shards[client] for client in group])
        x, y = pile.take(whole_shards(pile, widths[group[0]])[0])
        outputs = DenseStack(layers, weights, weights, model.task).logits(x)
        losses, scores = _stacked_outcomes(model.task, outputs, y)
        for member, client in enumerate(group):
            own = slice(0, len(shards[client]))
            result[client] = summarise_outcomes(model.task, losses[member, own], scores[member, own])
    return [result[client] for client in range(len(shards))]


def _stacked_outcomes(task: Task, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return (n, b) losses and (n, b, k) scores of (n, b, ...) outputs."""
    if task.classic:
        losses = functional.cross_entropy(outputs.transpose(1, 2), y, reduction="none")
        return losses, (outputs.argmax(2) == y).double().unsqueeze(2)
    every, targets = outputs.flatten(0, 1), y.flatten(0, 1)
    losses, scores = task.losses(every, targets), task.kind.scores(every, targets)
    return losses.view(y.shape[:2]), scores.view(*y.shape[:2], -1)


def example_outcomes(
    model: FlatModel, vector: Tensor, shard: Shard, *, batch: int, apart: bool = False
) -> tuple[Tensor, Tensor]:
    """Return every example's loss, and its scores by the model's task."""
    losses, scores = torch.empty(len(shard)), []
    for chunk, outputs, y in _outputs_of(model, vector, shard, batch=batch, apart=apart):
        with torch.no_grad():
            losses[chunk] = model.task.losses(outputs, y)
            scores.append(model.task.kind.scores(outputs, y))
    return losses, torch.cat(scores) if scores else torch.empty(0, 0, dtype=torch.float64)


def predict_examples(
    model: FlatModel, vector: Tensor, shard: Shard, *, batch: int = BATCH, probabilities: bool = False
) -> Tensor:
    """Return what one model predicts for every example of a shard, by its task."""
    rows = [
        model.task.predictions(outputs.detach(), probabilities=probabilities)
        for _, outputs, _ in _outputs_of(model, vector, shard, batch=batch)
    ]
    return torch.cat(rows) if rows else torch.empty(0)


def _outputs_of(
    model: FlatModel, vector: Tensor, shard: Shard, *, batch: int, apart: bool = False
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield the examples of each pass, the model's outputs for them, and their targets."""
    model.check_vector(vector)
    if batch < 1:
        invalid("batch", batch, "must be a whole number >= 1")
    worker = worker_for(model)
    worker.weights.copy_(vector)
    x, y = worker.inputs(shard.x), torch.from_numpy(shard.y)
    # Language models output a vocabulary at every position: smaller passes keep the logits within memory.
    positions = max(1, int(np.prod(model.task.target_shape))) if model.task.name == "language" else 1
    fewer = min(batch, max(1, OUTPUT_FLOATS // (positions * model.classes)))
    for chunk in equal_chunks(len(shard), fewer):
        # Private choices rest on counts of right answers. With `apart` a user's own module cannot let one example
        # change the answers for others.
        yield chunk, worker.logits(x[chunk], apart=apart), y[chunk]


def summarise_outcomes(task: Task, losses: Tensor, scores: Tensor) -> Evaluation:
    """Return the means of the outcomes, summed in float64."""
    examples = losses.numel()
    if not examples:
        return Evaluation(float("nan"), float("nan"), 0)
    sums = tuple(scores.sum(0).tolist())
    right = task.rate_sums(sums, examples).get("accuracy", float("nan"))
    return Evaluation(float(losses.double().mean()), right, examples, sums)
