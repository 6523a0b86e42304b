"""Local SGD of many clients: (start vectors, shards) -> end vectors, block by block."""

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.data.federation import Shard
from sightline.errors import invalid
from sightline.models.flat import FlatModel
from sightline.training.compiled.kernels import WalkKernel, train_compiled, train_walked, walk_kernel_for
from sightline.training.dispatch import stacking_for, worker_for
from sightline.training.fast.stacked import Block, StackWalk, train_stacked, width_of
from sightline.training.gradients import GradientWorker, own_dropout
from sightline.training.local_work import Descent, LocalTerms, LocalWork, client_rows, shuffled_batches, steps_of
from sightline.training.machine import FLOAT32

BLOCK_BYTES = 1 << 27
"""Memory limit for the end vectors of one block."""


def train_local(
    model: FlatModel,
    starts: Tensor,
    shards: Sequence[Shard],
    work: LocalWork,
    *,
    rngs: Sequence[np.random.Generator],
    terms: LocalTerms | None = None,
    epochs_of: Sequence[float] | None = None,
) -> Iterator[Block]:
    """Train every client from its start on its shard; yield (client indices, end vectors) in blocks.

    `starts` is (d,) for all or (n, d). `rngs[i]` orders client i's batches, one permutation per epoch. `epochs_of[i]`
    overrides the number of epochs; a fraction is rounded to whole steps.

    Guarantees: a client's end depends on its own start, shard, generator and terms only, up to float32 rounding. A
    client without examples or steps ends where it started. Every client is in exactly one block.
    """
    terms = terms or LocalTerms()
    check_clients(model, starts, terms, len(shards), rngs=rngs, epochs_of=epochs_of)
    steps = [steps_of(len(shard), work, None if epochs_of is None else epochs_of[i]) for i, shard in enumerate(shards)]
    clients = range(len(shards))
    walk = StackWalk(model, starts, shards, work, rngs, terms, steps)
    if work.compiled:
        return chain.from_iterable(train_compiled(walk, block) for block in client_blocks(clients, model.parameters))
    if work.precision != FLOAT32:
        return train_in_turn(walk, clients)
    if takes_compiled_walk(model, work):
        return chain.from_iterable(train_walked(walk, block) for block in client_blocks(clients, model.parameters))
    stacking = stacking_for(model)
    if stacking is not None and stacking.floats and work.paths.plain == "loop":
        # The recorded paths ask for one client after the other.
        stacking = None
    # Each client is stacked or not by its own batch width. With one thread and MKL's reproducible mode its end has the
    # same bits in any company, so blocks, orders and worker processes cannot change a run.
    small = [] if stacking is None else [c for c in clients if stacking.takes(width_of(len(shards[c]), work))]
    together = set(small)
    alone = [client for client in clients if client not in together]
    stacked = iter(()) if stacking is None else train_stacked(walk, small, stacking.build, stacking.most_clients)
    return chain(stacked, train_in_turn(walk, alone))


def takes_compiled_walk(model: FlatModel, work: LocalWork) -> bool:
    """Return whether compiled code trains these clients: requested, plain SGD in float32, and there is a kernel."""
    asked = work.paths.plain == "compiled" and work.adam is None and work.precision == FLOAT32
    return asked and isinstance(walk_kernel_for(model), WalkKernel)


def train_in_turn(walk: StackWalk, clients: Sequence[int]) -> Iterator[Block]:
    """Train one client after the other on one worker."""
    worker = worker_for(walk.model, precision=walk.work.precision)
    for block in client_blocks(clients, walk.model.parameters):
        ends = torch.empty(len(block), walk.model.parameters)
        train_each(walk, worker, block.tolist(), ends)
        yield block, ends


def train_each(walk: StackWalk, worker: GradientWorker, clients: Sequence[int], ends: Tensor) -> None:
    """Train one client after the other on the worker's weights and copy each end to its row."""
    for row, client in enumerate(clients):
        worker.weights.copy_(client_rows(walk.starts, client))
        descent = Descent.begin(walk.work, walk.terms, worker.weights, client)
        with own_dropout(worker, walk.rngs[client]):
            descend_client(worker, descent, walk.shards[client], walk.steps[client], walk.rngs[client])
        ends[row] = worker.hand_back(worker.weights)


def descend_client(
    worker: GradientWorker, descent: Descent, shard: Shard, steps: int, rng: np.random.Generator
) -> None:
    """Take one client's steps on the worker's weights."""
    if not steps:
        return
    x, y = worker.inputs(shard.x), worker.place_tensor(torch.from_numpy(shard.y))
    for batch in shuffled_batches(len(shard), descent.work, steps, rng):
        index = None if batch is None else worker.place_tensor(torch.from_numpy(batch))
        worker.mean_gradient(*((x, y) if index is None else (x[index], y[index])))
        descent.step(worker.weights, worker.gradient)


def client_blocks(clients: Sequence[int], parameters: int) -> Iterator[NDArray[np.intp]]:
    """Yield the clients in order, in blocks whose vectors fit into BLOCK_BYTES."""
    size = max(1, BLOCK_BYTES // (4 * parameters))
    for first in range(0, len(clients), size):
        yield np.array(clients[first : first + size], np.intp)


def check_clients(model: FlatModel, starts: Tensor, terms: LocalTerms, clients: int, **sequences: object) -> None:
    """Raise unless every per-client argument has an entry for every client."""
    tensors = {"starts": starts, "anchor": terms.anchor, "linear": terms.linear, "mask": terms.mask}
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if tuple(tensor.shape) not in ((model.parameters,), (clients, model.parameters)):
            reason = f"has shape ({model.parameters},) or ({clients}, {model.parameters})"
            invalid(name, tuple(tensor.shape), reason)
    for name, values in sequences.items():
        if values is not None and len(values) != clients:  # type: ignore[arg-type]
            invalid(name, len(values), f"has one entry for each of the {clients} clients")  # type: ignore[arg-type]
