"""DP-SGD of many clients of a fully connected network side by side, every client with its own sampling and noise."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from sightline.data.federation import Shard
from sightline.models.flat import FlatModel
from sightline.training.dp_sgd_settings import DPSGDSettings
from sightline.training.fast.dense_stack import DenseSlots, DenseStack
from sightline.training.fast.stacked import Block, ExamplePile, group_clients, own_copy, pile_of
from sightline.training.local_work import Descent, Index, LocalTerms, LocalWork

PIECE_FLOATS = 1 << 20
"""How many input numbers of one client are worked on at once."""


def private_stacked(
    layers: tuple[DenseSlots, ...],
    model: FlatModel,
    starts: Tensor,
    shards: Sequence[Shard],
    work: LocalWork,
    terms: LocalTerms,
    how: DPSGDSettings,
    clients: Sequence[int],
) -> Iterator[Block]:
    """Private steps of some clients, group by group; those that have finished fall off the end of the stack."""
    widths = {client: piece_of(how.sample_rates[client] * len(shards[client]), model) for client in clients}
    for group in group_clients(model, shards, clients, widths, how.steps, widths, lambda width: 1 << 20):
        weights = own_copy(starts, group)
        stack, descent = (
            DenseStack(layers, weights, torch.empty_like(weights)),
            Descent.begin(work, terms, weights, group),
        )
        looked_at = sum(how.steps[client] * how.sample_rates[client] * len(shards[client]) for client in group)
        pile = pile_of([shards[client] for client in group], looked_at)
        plans = [how.batches_of(client, len(shards[client])) for client in group]
        noises = [how.noise_of(client, model.parameters) for client in group]
        stds = [how.noise_std[client] for client in group]
        divisors = torch.tensor([how.divisors[client] for client in group]).unsqueeze(1)
        for step in range(max(how.steps[client] for client in group)):
            active = sum(how.steps[client] > step for client in group)
            stack, descent = stack.first(active), descent.first(active)
            add_up(
                stack,
                pile,
                [pile.rows(member, next(plans[member])) for member in range(active)],
                widths[group[0]],
                how.clip_norm,
            )
            add_noise(stack.gradient, noises, stds)
            descent.step(stack.weights, stack.gradient.div_(divisors[:active]))
        yield np.array(group), weights


def add_noise(gradient: Tensor, noises: Sequence[Iterator[Tensor | None]], stds: Sequence[float]) -> None:
    """Add to every client's sum the next step of its own noise."""
    for member, own in enumerate(gradient):
        noise = next(noises[member])
        if noise is not None:
            own.add_(noise, alpha=stds[member])


def piece_of(expected: float, model: FlatModel) -> int:
    """How many rows of a batch are worked on at once: from the client's own expected batch, bounded in memory.

    The piece is fixed, and batches are padded to whole pieces, so that nobody else's batch can change a client's bits.
    """
    bound = max(16, PIECE_FLOATS // max(1, int(np.prod(model.input_shape))))
    return min(1 << int(expected).bit_length(), 1 << bound.bit_length())


def add_up(stack: DenseStack, pile: ExamplePile, rows: list[Index], piece: int, clip_norm: float) -> None:
    """Write each client's clipped sum over its rows, piece by piece."""
    pieces = -(-max(len(own) for own in rows) // piece)
    table = np.full((len(rows), pieces * piece), pile.nothing, np.int64)
    for member, own in enumerate(rows):
        table[member, : len(own)] = own
    total = torch.zeros_like(stack.gradient) if pieces != 1 else stack.gradient
    for index in torch.split(torch.from_numpy(table), piece, 1) if pieces else ():
        x, y = pile.take(index)
        stack.clipped_sums(x, y, (index != pile.nothing).float(), clip_norm)
        if pieces != 1:
            total += stack.gradient
    if pieces != 1:
        stack.gradient.copy_(total)
