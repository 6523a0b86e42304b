"""DP-SGD inside clients: per-example clipping, Poisson batches, noise from each client's own generator."""

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
from sightline.training.dispatch import dense_layers, worker_for
from sightline.training.dp_sgd_settings import DPSGDSettings, Views, check_clip_norm, clipped_sum_of_views
from sightline.training.fast.stacked import Block, private_stacked
from sightline.training.gradients import GradientWorker, own_dropout
from sightline.training.local_sgd import check_clients, client_blocks
from sightline.training.local_work import Descent, LocalTerms, LocalWork, client_rows
from sightline.training.machine import FLOAT32

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
    layers, clients = dense_layers(model), range(len(shards))
    if layers is None or how.views is not None:
        return private_loop(model, starts, shards, work, terms, how, clients)
    heavy = [c for c in clients if how.sample_rates[c] * len(shards[c]) * model.parameters > HEAVY]
    light = sorted(set(clients) - set(heavy))
    return chain(
        private_stacked(layers, model, starts, shards, work, terms, how, light),
        private_loop(model, starts, shards, work, terms, how, heavy),
    )


def private_loop(
    model: FlatModel,
    starts: Tensor,
    shards: Sequence[Shard],
    work: LocalWork,
    terms: LocalTerms,
    how: DPSGDSettings,
    clients: Sequence[int],
) -> Iterator[Block]:
    """Train one client after the other on one worker."""
    worker = worker_for(model, work.paths.record)
    for block in client_blocks(clients, model.parameters):
        ends = torch.empty(len(block), model.parameters)
        for row, client in enumerate(block.tolist()):
            worker.weights.copy_(client_rows(starts, client))
            descent = Descent.begin(work, terms, worker.weights, client)
            with own_dropout(worker, how.sampling_rngs[client]):
                descend_privately(worker, descent, shards[client], how, client)
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
