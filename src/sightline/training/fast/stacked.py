"""Train many clients of a network stacked: grouping, padding, and plain and private steps."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.data.federation import Shard
from sightline.models.flat import FlatModel, flatten_module
from sightline.models.task import probe_targets
from sightline.training.clipping import LONGEST, Passes
from sightline.training.dp_sgd_settings import DPSGDSettings
from sightline.training.fast.stacks import DenseSlots, DenseStack
from sightline.training.gradients import TRIALS
from sightline.training.local_work import Descent, Index, LocalTerms, LocalWork, batch_table

Block = tuple[NDArray[np.intp], Tensor]


class Stack(Protocol):
    """Networks of n clients over (n, d) weights, with gradients written to (n, d)."""

    weights: Tensor
    gradient: Tensor

    def first(self, count: int) -> "Stack":
        """Return the stack of the first `count` clients, sharing memory with this one."""
        ...

    def mean_gradients(self, x: Tensor, target: Tensor, share: Tensor) -> None:
        """Write the gradients of sum_j share_j loss_j; `target` is as in `Batch`."""
        ...


Builder = Callable[[Tensor, Tensor], Stack]
"""(weights, gradient) -> stack."""


@dataclass(frozen=True, eq=False)
class LocalRun:
    """What plain and private training of several clients share: model, starts, data, steps and loss terms."""

    model: FlatModel
    starts: Tensor
    shards: Sequence[Shard]
    work: LocalWork
    terms: LocalTerms


@dataclass(frozen=True, eq=False)
class PlainRun(LocalRun):
    """Arguments of `train_local`, with each client's number of steps."""

    rngs: Sequence[np.random.Generator]
    steps: Sequence[int]


@dataclass(frozen=True, eq=False)
class PrivateRun(LocalRun):
    """Arguments of `dp_sgd`."""

    how: DPSGDSettings


STACK_BYTES = 1 << 27
"""Memory limit for the weights, gradients and inputs of stacked clients."""

GATHER_FLOATS = 1 << 19
"""Numbers gathered ahead for coming steps: few enough to stay in the cache."""


def width_of(examples: int, work: LocalWork) -> int:
    """Return the width of a client's batches, from its own size only."""
    # If the width depended on the other clients, a client's bits would too: kernels sum in an order given by shapes.
    whole = 1 << max(0, examples - 1).bit_length()
    return whole if work.batch_size is None else min(work.batch_size, whole)


def group_clients(
    model: FlatModel,
    shards: Sequence[Shard],
    clients: Sequence[int],
    widths: Mapping[int, int],
    steps: Sequence[int],
    tables: Mapping[int, int],
    most: Callable[[int], int],
) -> Iterator[list[int]]:
    """Yield groups of clients of equal width, most steps first, within STACK_BYTES and `most(width)` clients.

    `tables` gives the number of rows of each client's batches that are tabulated ahead.
    """
    features = int(np.prod(model.input_shape))
    group: list[int] = []
    taken = 0
    # Most steps first: clients that finish leave from the end, and the rest stays one contiguous stack.
    for client in sorted(clients, key=lambda client: (widths[client], -steps[client])):
        numbers = 4 * model.parameters + features * (2 * widths[client] + len(shards[client])) + 4 * tables[client]
        full = bool(group) and (len(group) >= most(widths[client]) or taken + 4 * numbers > STACK_BYTES)
        if full or (group and widths[client] != widths[group[0]]):
            yield group
            group, taken = [], 0
        group.append(client)
        taken += 4 * numbers
    if group:
        yield group


class ExamplePile:
    """The examples of a group in one array, with a last row of zeros for "no example"."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        sizes = [len(shard) for shard in shards]
        self.offsets = np.concatenate([[0], np.cumsum(sizes)])
        features = int(np.prod(shards[0].x.shape[1:]))
        x = np.empty((int(self.offsets[-1]) + 1, features), np.float32)
        like = shards[0].y
        y = np.zeros((int(self.offsets[-1]) + 1, *like.shape[1:]), like.dtype)
        for shard, start in zip(shards, self.offsets[:-1], strict=True):
            x[start : start + len(shard)] = shard.x.reshape(len(shard), features)
            y[start : start + len(shard)] = shard.y
        x[-1] = 0.0
        self.x, self.y, self.nothing = torch.from_numpy(x), torch.from_numpy(y), len(y) - 1

    def rows(self, member: int, batch: Index | None) -> Index:
        """Return the rows of a client's batch; None is its whole shard."""
        start, stop = self.offsets[member], self.offsets[member + 1]
        return np.arange(start, stop) if batch is None else batch + start

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the examples at (n, b) rows."""
        return self.x[index], self.y[index]


def train_stacked(run: PlainRun, clients: Sequence[int], build: Builder, most: Callable[[int], int]) -> Iterator[Block]:
    """Run local SGD of these clients, `most(width)` at a time; finished clients leave the end of the stack."""
    work, shards = run.work, run.shards
    widths = {client: width_of(len(shards[client]), work) for client in clients}
    tables = {client: widths[client] * (1 if work.batch_size is None else run.steps[client]) for client in clients}
    for group in group_clients(run.model, shards, clients, widths, run.steps, tables, most):
        weights = own_copy(run.starts, group)
        stack = build(weights, torch.empty_like(weights))
        descent = Descent.begin(work, run.terms, weights, group)
        pile, walks = ExamplePile([shards[client] for client in group]), [run.steps[client] for client in group]
        if work.batch_size is None:
            rows = whole_shards(pile, widths[group[0]])
        else:
            rows = tabulate_batches(pile, work, walks, [run.rngs[client] for client in group], widths[group[0]])
        for x, target, share in gather_batches(pile, rows, walks, run.model):
            if len(x) < len(stack.weights):
                stack, descent = stack.first(len(x)), descent.first(len(x))
            stack.mean_gradients(x, target, share)
            descent.step(stack.weights, stack.gradient)
        yield np.array(group), weights


def own_copy(starts: Tensor, group: list[int]) -> Tensor:
    """Return the group's starts as a new (n, d) tensor."""
    return starts.expand(len(group), -1).clone() if starts.dim() == 1 else starts[group].clone()


def tabulate_batches(
    pile: ExamplePile, work: LocalWork, walks: Sequence[int], rngs: Sequence[np.random.Generator], width: int
) -> Tensor:
    """Return (steps, n, b) rows of the pile, padded with the empty row; the same batches as `shuffled_batches`."""
    result = np.full((max(walks), len(walks), width), pile.nothing, np.int64)
    for member, (steps, rng) in enumerate(zip(walks, rngs, strict=True)):
        first, stop = pile.offsets[member], pile.offsets[member + 1]
        result[:steps, member] = batch_table(
            stop - first, work, steps, rng, width=width, first=first, nothing=pile.nothing
        )
    return torch.from_numpy(result)


def whole_shards(pile: ExamplePile, width: int) -> Tensor:
    """Return (1, n, b) rows: every client's whole shard in its own order, padded with the empty row."""
    table = np.full((1, len(pile.offsets) - 1, width), pile.nothing, np.int64)
    for member, (start, stop) in enumerate(pairwise(pile.offsets)):
        table[0, member, : stop - start] = np.arange(start, stop)
    return torch.from_numpy(table)


Batch = tuple[Tensor, Tensor, Tensor]
"""Inputs (n, b, features); -share onehot(y) (n, b, classes), or the targets of another task; each row's share of the
mean (n, b, 1), 0 for padding."""


def gather_batches(pile: ExamplePile, table: Tensor, walks: Sequence[int], model: FlatModel) -> Iterator[Batch]:
    """Yield the batches of every step for the clients still training, gathering several small steps at once.

    A table of one step serves all steps.
    """
    active = [sum(walk > step for walk in walks) for step in range(max(walks))]
    width = table.shape[1] * table.shape[2] * (pile.x.shape[1] + 2 * model.classes)
    window = max(1, GATHER_FLOATS // width)
    ahead: Batch | None = None
    for step, count in enumerate(active):
        at = step % window if len(table) > 1 else 0
        if ahead is None or (at == 0 and len(table) > 1):
            ahead = gather_rows(pile, table[step : step + window, :count], model)
        x, target, share = ahead
        yield x[at, :count], target[at, :count], share[at, :count]


def gather_rows(pile: ExamplePile, index: Tensor, model: FlatModel) -> Batch:
    """Return inputs, targets and shares of (steps, n, b) rows."""
    there = (index != pile.nothing).float()
    # Padding has share zero and so adds nothing to a mean gradient.
    share = (there / there.sum(2, keepdim=True).clamp_min(1.0)).unsqueeze(3)
    if not model.task.classic:
        return pile.x[index], pile.y[index], share
    target = torch.zeros(*index.shape, model.classes).scatter_(3, pile.y[index].unsqueeze(3), -share)
    return pile.x[index], target, share


class ScatteredExamples(ExamplePile):
    """The same rows, fetched from the shards on demand.

    For clients that use few of their examples: nothing unused is copied.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        self.offsets = np.concatenate([[0], np.cumsum([len(shard) for shard in shards])])
        self.shards, self.nothing = shards, int(self.offsets[-1])
        self.features = int(np.prod(shards[0].x.shape[1:]))

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the examples at (n, b) rows; row i belongs to client i."""
        indices = index.numpy()
        x = np.zeros((*indices.shape, self.features), np.float32)
        like = self.shards[0].y
        y = np.zeros((*indices.shape, *like.shape[1:]), like.dtype)
        for member, own in enumerate(indices):
            there = own != self.nothing
            rows, shard = own[there] - self.offsets[member], self.shards[member]
            x[member, there] = shard.x[rows].reshape(len(rows), self.features)
            y[member, there] = shard.y[rows]
        return torch.from_numpy(x), torch.from_numpy(y)


def pile_of(shards: Sequence[Shard], looked_at: float) -> ExamplePile:
    """Return one pile, or scattered examples if fewer than half of them will be used."""
    return ScatteredExamples(shards) if 2 * looked_at < sum(map(len, shards)) else ExamplePile(shards)


PIECE_FLOATS = 1 << 20
"""Input numbers of one client processed at once."""


def train_stacked_privately(run: PrivateRun, clients: Sequence[int], layers: tuple[DenseSlots, ...]) -> Iterator[Block]:
    """Take private steps of these clients, group by group; finished clients leave the end of the stack."""
    model, shards, work, how = run.model, run.shards, run.work, run.how
    passes = stack_passes(layers, model)
    # Private batches are padded to pieces from the client's expected batch, not from the drawn one or the other
    # clients'.
    widths = {
        client: passes.fit_size(piece_of(how.sample_rates[client] * len(shards[client]), model)) for client in clients
    }
    for group in group_clients(model, shards, clients, widths, how.steps, widths, lambda width: 1 << 20):
        weights = own_copy(run.starts, group)
        stack, descent = (
            DenseStack(layers, weights, torch.empty_like(weights), model.task),
            Descent.begin(work, run.terms, weights, group),
        )
        looked_at = sum(how.steps[client] * how.sample_rates[client] * len(shards[client]) for client in group)
        pile = pile_of([shards[client] for client in group], looked_at)
        plans = [how.batches_of(client, len(shards[client])) for client in group]
        noises = [how.noise_of(client, model.parameters, work.paths.noise) for client in group]
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
            # Per client: clip and sum, add its own noise, divide by its expected batch size, step. The order must not
            # change.
            add_noise(stack.gradient, noises, stds)
            descent.step(stack.weights, stack.gradient.div_(divisors[:active]))
        yield np.array(group), weights


def add_noise(gradient: Tensor, noises: Sequence[Iterator[Tensor | None]], stds: Sequence[float]) -> None:
    """Add the next step of each client's own noise to its sum."""
    for member, own in enumerate(gradient):
        noise = next(noises[member])
        if noise is not None:
            own.add_(noise, alpha=stds[member])


def piece_of(expected: float, model: FlatModel) -> int:
    """Return how many rows of a batch are processed at once, from the client's own expected batch and a memory bound.

    The piece is fixed and batches are padded to whole pieces, so no other client's batch can change a client's bits.
    """
    bound = max(16, PIECE_FLOATS // max(1, int(np.prod(model.input_shape))))
    return min(1 << int(expected).bit_length(), 1 << bound.bit_length())


PASSES: WeakKeyDictionary[FlatModel, Passes] = WeakKeyDictionary()
"""Model -> the pieces in which an example's numbers have the same bits at every position."""


def stack_passes(layers: tuple[DenseSlots, ...], model: FlatModel) -> Passes:
    """Return the pieces that private stacks of this model may have; see `clipping.Passes`."""
    if model not in PASSES:
        with torch.random.fork_rng(devices=[]):
            start = flatten_module(model.module())
        draw, task = torch.Generator().manual_seed(1), model.task
        weights = [start + 0.05 * torch.randn(start.shape, generator=draw) for _ in range(TRIALS)]
        rows = torch.randn(TRIALS, int(np.prod(model.input_shape)), generator=draw)
        target = probe_targets(task, model.classes, 1)

        def trial(size: int) -> Tensor:
            result = []
            for vector, x in zip(weights, rows, strict=True):
                for clients in (1, 3):
                    several = vector.expand(clients, -1).clone()
                    stack = DenseStack(layers, several, torch.empty_like(several), task)
                    y = target.expand(clients, size, *target.shape[1:]).contiguous()
                    result += [*stack.output_gradients(x.expand(clients, size, -1).contiguous(), y)[1]]
            return torch.stack(result)

        PASSES[model] = Passes(trial, LONGEST)
    return PASSES[model]


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
