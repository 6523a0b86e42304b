"""No privacy: updates are averaged by data size and published as they are. The ledger says so."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from sightline.events import Clear
from sightline.ledger import Release
from sightline.mechanisms.clip_and_noise import FiniteOnly
from sightline.mechanisms.contract import (
    BaseMechanism,
    NoisedBy,
    NoisedValue,
    ReleaseContext,
    ReleaseValues,
    only_client,
)
from sightline.mechanisms.submodels import Splitter
from sightline.mechanisms.updates import Updates
from sightline.randomness import EVERYONE
from sightline.topology import client_name


def weighted_mean(values: Iterable[tuple[int, Tensor]], weights: Mapping[int, int], dimension: int) -> Tensor:
    """Mean of the clients' values by their weights; zero when there are none."""
    total = torch.zeros(dimension, dtype=torch.float64)
    mass = 0.0
    for client, value in values:
        total.add_(value, alpha=float(weights[client]))
        mass += weights[client]
    return (total / mass if mass else total).float()


@dataclass(frozen=True)
class NoPrivacy(BaseMechanism):
    """Ordinary federated averaging: every release is `Clear()`, so every epsilon is infinite."""

    noised_value = NoisedValue.NOTHING
    sends_parts = True

    def at(self, context: ReleaseContext) -> "NoPrivacy":
        """The same below every channel."""
        return self

    def noised_by(self, context: ReleaseContext) -> NoisedBy:
        """Nobody."""
        return NoisedBy.NOBODY

    def noise_multipliers(self, clients: Iterable[int]) -> dict[int, float]:
        """There is no noise."""
        return {}

    def in_parts(self, splitter: Splitter) -> "NoPrivacy":
        """The same."""
        return self

    def with_noise(self, multipliers: Mapping[int, float]) -> "NoPrivacy":
        """Nothing to set."""
        return self

    def claim_mean(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """One release without noise, of the members, to everyone."""
        members = frozenset(client_name(member) for member in updates.cohort.members)
        return (
            context.make_release(
                source=context.channel.name,
                event=Clear(),
                audience=context.channel.audience,
                what="mean of updates, in the clear",
                subjects=members,
                inputs=updates.sources,
            ),
        )

    def mean(self, updates: Updates, context: ReleaseContext) -> ReleaseValues:
        """The mean by data size of the finite updates."""
        finite = FiniteOnly()
        value = weighted_mean(finite(updates.train_members()), updates.sizes(), updates.worker.dimension)
        return ReleaseValues({EVERYONE: value}, finite.rejected)

    def claim_each(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """One release without noise per member."""
        return tuple(
            context.make_release(
                source=client_name(member),
                event=Clear(),
                audience=context.channel.audience,
                what="own update, in the clear",
                subjects=only_client(member),
                inputs=tuple(sorted(updates.starts[member].sources)),
            )
            for member in updates.cohort.members
        )

    def compute_each(self, updates: Updates, context: ReleaseContext) -> ReleaseValues:
        """Every member's update; one that is not finite counts as zero."""
        finite = FiniteOnly()
        values = dict(finite(updates.train_members()))
        return ReleaseValues(values, finite.rejected)
