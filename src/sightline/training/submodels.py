"""Train submodels: clients, or single examples, that each run only the part they were assigned to.

A submodel is a smaller, complete model, so all workers and stacks can train it. Nothing outside a part is computed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.data.federation import Shard, Targets
from sightline.errors import invalid
from sightline.events import Event
from sightline.models.submodel import Splitting, Submodel
from sightline.training.clipping import Balls, Clip
from sightline.training.dispatch import worker_for
from sightline.training.dp_sgd_settings import DPSGDSettings
from sightline.training.fast.stacked import Block
from sightline.training.gradients import own_dropout
from sightline.training.local_training import check_clients, client_blocks, train_local
from sightline.training.local_work import Descent, LocalTerms, LocalWork, client_rows
from sightline.training.machine import FLOAT32


def train_parts(
    splitting: Splitting,
    starts: Tensor,
    shards: Sequence[Shard],
    work: LocalWork,
    *,
    assigned: Sequence[Any],
    rngs: Sequence[np.random.Generator],
    terms: LocalTerms | None = None,
    epochs_of: Sequence[float] | None = None,
) -> Iterator[Block]:
    """Train as `train_local` does, every client on the part that `assigned` names, held through all its steps.

    Guarantees: end - start is exactly zero outside the client's part and the unsplit tensors, regardless of momentum,
    weight decay and loss terms.
    """
    terms = terms or LocalTerms()
    check_clients(splitting.whole, starts, terms, len(shards), rngs=rngs, epochs_of=epochs_of, assigned=assigned)
    sent = [splitting.part_of_one(part, shard.x) for part, shard in zip(assigned, shards, strict=True)]
    for sub, clients in group_by_submodel([sub for sub, _ in sent]):
        own = [Shard(sent[client][1], shards[client].y) for client in clients]
        own_rngs = [rngs[client] for client in clients]
        epochs = None if epochs_of is None else [epochs_of[client] for client in clients]
        inside = terms_inside(terms, sub, clients)
        small = client_rows(starts, clients)[..., sub.positions]
        for result, ends in train_local(sub.model, small, own, work, rngs=own_rngs, terms=inside, epochs_of=epochs):
            numbers = np.array(clients)[result]
            # Coordinates outside the part are copied from the start, never computed. The guarantee rests on them being
            # exactly unchanged: no optimiser term can reach them.
            whole = client_rows(starts, numbers.tolist()).expand(len(numbers), -1).clone()
            whole[:, sub.trained] = ends if sub.moves is None else ends[:, sub.moves > 0]
            yield numbers, whole


def group_by_submodel(submodels: Sequence[Submodel]) -> Iterator[tuple[Submodel, list[int]]]:
    """Yield each submodel with its clients; a client with its own parameter mask stays alone."""
    groups: dict[int, list[int]] = {}
    for client, sub in enumerate(submodels):
        groups.setdefault(id(sub), []).append(client)
    for clients in groups.values():
        yield submodels[clients[0]], clients


def terms_inside(terms: LocalTerms, sub: Submodel, clients: list[int]) -> LocalTerms:
    """Return the clients' loss terms, cut to the submodel."""

    def cut(value: Tensor | None) -> Tensor | None:
        return None if value is None else client_rows(value, clients)[..., sub.positions]

    mask = cut(terms.mask)
    if sub.moves is not None:
        mask = sub.moves if mask is None else mask * sub.moves
    return replace(terms, anchor=cut(terms.anchor), linear=cut(terms.linear), mask=mask)


@dataclass(frozen=True, eq=False)
class SubmodelClipping:
    """Clip norms and noise of the split and the unsplit tensors."""

    clip_norm: float
    unsplit_clip_norm: float
    noise_scale: Tensor
    """(d,) standard deviation of each coordinate's noise at noise multiplier 1."""


class ModelParts(Protocol):
    """A split model, its clip norms and its event, as the mechanism of a run states them."""

    @property
    def splitting(self) -> Splitting:
        """The parts of the model, and how they are drawn."""

    def event(self, noise_multiplier: float) -> Event:
        """Return the event of a release against an observer that does not know the drawn parts."""

    def noise_scale(self, clip_norm: float) -> Tensor:
        """Return the (d,) standard deviation of the noise at noise multiplier 1."""

    def clip_radii(self, clip_norm: float) -> SubmodelClipping:
        """Return the clip norms and noise of local training."""


def balls_of(splitting: Splitting, sub: Submodel, apart: SubmodelClipping) -> Clip:
    """Return how a submodel's per-example gradients are clipped: unsplit tensors separately from the part."""
    if not splitting.unsplit and sub.moves is None:
        return apart.clip_norm
    # One joint clip would let the part's size scale the unsplit gradient, and the product of the two mechanisms would
    # not apply. Tensors outside the part are in a ball of radius zero: they neither move nor count in another norm.
    ball_of = {slot.name: int(slot.name in splitting.unsplit) for slot in sub.model.layout}
    if sub.moves is None:
        return Balls((apart.clip_norm, apart.unsplit_clip_norm), ball_of)
    held = {slot.name: 2 for slot in sub.model.layout if not bool(sub.moves[slot.start : slot.stop].any())}
    return Balls((apart.clip_norm, apart.unsplit_clip_norm, 0.0), ball_of | held)


def parted_gradient_sum(
    splitting: Splitting, weights: Tensor, x: NDArray[Any], y: Targets, apart: SubmodelClipping, *,
    rng: np.random.Generator,
) -> Tensor:  # fmt: skip
    r"""Return the sum of clipped per-example gradients, each of the submodel that `rng` assigns to the example.

    Guarantees: one example moves the sum by at most `clip_norm` inside one part, by at most `unsplit_clip_norm` in the
    unsplit tensors, and not at all elsewhere. A non-finite gradient contributes zero. Reference: the partitioning
    paper, Algorithm 1.
    """
    total = torch.zeros(splitting.whole.parameters)
    # One assignment per example and release, drawn from a secret stream: amplification by splitting rests on it.
    assigned = splitting.draw(len(y), rng=rng)
    for sub, indices, inputs in splitting.batches(assigned, x):
        worker = worker_for(sub.model)
        worker.weights.copy_(weights[sub.positions])
        with own_dropout(worker, rng):
            labels = worker.place_tensor(torch.from_numpy(y[indices]))
            worker.clipped_sum(worker.inputs(inputs), labels, balls_of(splitting, sub, apart))
        total[sub.positions] += worker.hand_back(worker.gradient)
    return total


def dp_sgd_parts(
    splitting: Splitting,
    starts: Tensor,
    shards: Sequence[Shard],
    work: LocalWork,
    how: DPSGDSettings,
    *,
    apart: SubmodelClipping,
    assign_rngs: Sequence[np.random.Generator],
    terms: LocalTerms | None = None,
) -> Iterator[Block]:
    """Run `dp_sgd` with every example assigned to its own part in every step, and noise on all coordinates.

    The clip norms are those of `apart`; `how.noise_std` is in units of `apart.noise_scale`.
    """
    terms = terms or LocalTerms()
    if work.precision != FLOAT32:
        invalid("precision", work.precision, "examples are clipped in float32", 'use precision = "float32"')
    check_clients(splitting.whole, starts, terms, len(shards), assign_rngs=assign_rngs, steps=how.steps)
    for block in client_blocks(range(len(shards)), splitting.whole.parameters):
        ends = torch.stack([client_rows(starts, int(client)) for client in block]).clone()
        for weights, client in zip(ends, block.tolist(), strict=True):
            descent = Descent.begin(work, terms, weights, client)
            descend_in_parts(splitting, weights, descent, shards[client], how, apart, client, assign_rngs[client])
        yield block, ends


def descend_in_parts(
    splitting: Splitting, weights: Tensor, descent: Descent, shard: Shard, how: DPSGDSettings,
    apart: SubmodelClipping, client: int, assign_rng: np.random.Generator,
) -> None:  # fmt: skip
    """Take one client's private steps on `weights`."""
    noises = how.noise_of(client, len(weights), descent.work.paths.noise)
    for batch, noise in zip(how.batches_of(client, len(shard)), noises, strict=False):
        x, y = (shard.x, shard.y) if batch is None else (shard.x[batch], shard.y[batch])
        gradient = parted_gradient_sum(splitting, weights, x, y, apart, rng=assign_rng)
        # Noise goes on all d coordinates, assigned or not: which coordinates an example touched is secret.
        if noise is not None:
            gradient.addcmul_(noise, apart.noise_scale, value=how.noise_std[client])
        descent.step(weights, gradient.div_(how.divisors[client]))
