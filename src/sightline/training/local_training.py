"""Local SGD and DP-SGD of many clients: (start vectors, shards) -> end vectors, block by block."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.data.federation import Shard, Targets
from sightline.errors import invalid
from sightline.models.flat import FlatModel
from sightline.training.compiled.kernels import WalkKernel, train_compiled, train_walked, walk_kernel_for
from sightline.training.dispatch import dense_layers, stacking_for, worker_for
from sightline.training.dp_sgd_settings import DPSGDSettings, Views, check_clip_norm, clipped_sum_of_views
from sightline.training.fast.stacked import (
    Block,
    PlainRun,
    PrivateRun,
    train_stacked,
    train_stacked_privately,
    width_of,
)
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
    run = PlainRun(model, starts, shards, work, terms, rngs, steps)
    if work.compiled:
        return chain.from_iterable(train_compiled(run, block) for block in client_blocks(clients, model.parameters))
    if work.precision != FLOAT32:
        return train_in_turn(run, clients)
    if takes_compiled_walk(model, work):
        return chain.from_iterable(train_walked(run, block) for block in client_blocks(clients, model.parameters))
    stacking = stacking_for(model)
    if stacking is not None and stacking.floats and work.paths.plain == "loop":
        # The recorded paths ask for one client after the other.
        stacking = None
    # Each client is stacked or not by its own batch width. With one thread and MKL's reproducible mode its end has the
    # same bits in any company, so blocks, orders and worker processes cannot change a run.
    small = [] if stacking is None else [c for c in clients if stacking.takes(width_of(len(shards[c]), work))]
    together = set(small)
    alone = [client for client in clients if client not in together]
    stacked = iter(()) if stacking is None else train_stacked(run, small, stacking.build, stacking.most_clients)
    return chain(stacked, train_in_turn(run, alone))


def takes_compiled_walk(model: FlatModel, work: LocalWork) -> bool:
    """Return whether compiled code trains these clients: requested, plain SGD in float32, and there is a kernel."""
    asked = work.paths.plain == "compiled" and work.adam is None and work.precision == FLOAT32
    return asked and isinstance(walk_kernel_for(model), WalkKernel)


def train_in_turn(run: PlainRun, clients: Sequence[int]) -> Iterator[Block]:
    """Train one client after the other on one worker."""
    worker = worker_for(run.model, precision=run.work.precision)
    for block in client_blocks(clients, run.model.parameters):
        ends = torch.empty(len(block), run.model.parameters)
        train_each(run, worker, block.tolist(), ends)
        yield block, ends


def train_each(run: PlainRun, worker: GradientWorker, clients: Sequence[int], ends: Tensor) -> None:
    """Train one client after the other on the worker's weights and copy each end to its row."""
    for row, client in enumerate(clients):
        worker.weights.copy_(client_rows(run.starts, client))
        descent = Descent.begin(run.work, run.terms, worker.weights, client)
        with own_dropout(worker, run.rngs[client]):
            descend_client(worker, descent, run.shards[client], run.steps[client], run.rngs[client])
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
            reason = f"must have shape ({model.parameters},) or ({clients}, {model.parameters})"
            invalid(name, tuple(tensor.shape), reason)
    for name, values in sequences.items():
        if values is not None and len(values) != clients:  # type: ignore[arg-type]
            invalid(name, len(values), f"must have one entry for each of the {clients} clients")  # type: ignore[arg-type]


# -- private steps ---------------------------------------------------------------------------------------------------

# A function of the client's own size only, so that its bits do not depend on the other clients.
HEAVY = 1 << 22
"""Expected batch x parameters above which a client is not stacked, since it fills a core by itself."""


def dp_sgd(
    model: FlatModel,
    starts: Tensor,
    shards: Sequence[Shard],
    work: LocalWork,
    how: DPSGDSettings,
    *,
    terms: LocalTerms | None = None,
) -> Iterator[Block]:
    r"""Run DP-SGD on every client: g = (sum_j clip(g_j, C) + N(0, noise_std^2 I)) / divisor, then an SGD step with g.

    `work` gives learning rate, momentum and weight decay; `how.steps`, not `work`, gives the number of steps.
    `how.batches[i]` fixes the examples of each step of client i instead of drawing them (balanced sampling). With
    `how.views` the gradient of an example is the mean over its views (batch augmentation), drawn again at every step.

    Guarantees: one example changes the sum by at most C before the noise. Every example is drawn independently at every
    step. An empty batch is a step of pure noise. A non-finite example gradient contributes zero. Noise and sampling
    come from the client's own generators, with fresh noise on all d coordinates at every step. Rate 1 passes over the
    whole shard in bounded memory. Reference: Abadi et al. 2016, Algorithm 1.
    """
    terms = terms or LocalTerms()
    per_client = {name: value for name, value in vars(how).items() if name not in ("clip_norm", "views")}
    check_clients(model, starts, terms, len(shards), **per_client)
    if work.precision != FLOAT32:
        invalid("local.precision", work.precision, "examples are clipped in float32", 'use precision = "float32"')
    run = PrivateRun(model, starts, shards, work, terms, how)
    layers, clients = dense_layers(model), range(len(shards))
    if layers is None or how.views is not None:
        return train_privately_in_turn(run, clients)
    heavy = [c for c in clients if how.sample_rates[c] * len(shards[c]) * model.parameters > HEAVY]
    light = sorted(set(clients) - set(heavy))
    return chain(
        train_stacked_privately(run, light, layers),
        train_privately_in_turn(run, heavy),
    )


def train_privately_in_turn(run: PrivateRun, clients: Sequence[int]) -> Iterator[Block]:
    """Train one client after the other on one worker."""
    worker = worker_for(run.model, run.work.paths.record)
    for block in client_blocks(clients, run.model.parameters):
        ends = torch.empty(len(block), run.model.parameters)
        for row, client in enumerate(block.tolist()):
            worker.weights.copy_(client_rows(run.starts, client))
            descent = Descent.begin(run.work, run.terms, worker.weights, client)
            with own_dropout(worker, run.how.sampling_rngs[client]):
                descend_privately(worker, descent, run.shards[client], run.how, client)
            ends[row] = worker.hand_back(worker.weights)
        yield block, ends


def descend_privately(worker: GradientWorker, descent: Descent, shard: Shard, how: DPSGDSettings, client: int) -> None:
    """Take one client's private steps on the worker's weights."""
    x = worker.inputs(shard.x[:0] if how.views is not None else shard.x)
    y = worker.place_tensor(torch.from_numpy(shard.y))
    noises = how.noise_of(client, worker.gradient.numel(), descent.work.paths.noise)
    for batch, noise in zip(how.batches_of(client, len(shard)), noises, strict=False):
        how.write_sum(worker, shard, x, y, batch, client)
        # Order matters: the noise is added to the clipped sum before the division. The divisor is the expected batch
        # size: the drawn size is secret, and dividing by it would change the sensitivity.
        if noise is not None:
            worker.gradient.add_(worker.place_tensor(noise), alpha=how.noise_std[client])
        descent.step(worker.weights, worker.gradient.div_(how.divisors[client]))


def clipped_gradient_sum(
    model: FlatModel,
    vector: Tensor,
    shard_x: NDArray[np.float32] | NDArray[np.int64],
    shard_y: Targets,
    *,
    clip_norm: float,
    rng: np.random.Generator | None = None,
    views: tuple[Views, np.random.Generator] | None = None,
) -> Tensor:
    r"""Return sum_j g_j min(1, C / |g_j|), g_j being the gradient of the loss of example j at `vector`.

    Guarantees: the L2 sensitivity to adding or removing one example is at most C. A non-finite g_j contributes zero.
    With `rng` the module's dropout masks come from it. With `views` and their generator g_j is the mean over j's views.
    """
    model.check_vector(vector)
    check_clip_norm(clip_norm)
    worker = worker_for(model)
    worker.weights.copy_(vector)
    y = worker.place_tensor(torch.from_numpy(shard_y))
    with own_dropout(worker, rng) if rng is not None else nullcontext():
        if views is None:
            worker.clipped_sum(worker.inputs(shard_x), y, clip_norm)
        else:
            clipped_sum_of_views(worker, shard_x, y, clip_norm, *views)
    return worker.hand_back(worker.gradient.clone())
