"""Local privacy of clients, and the median of what they send in place of the mean."""

from dataclasses import dataclass

import torch

from sightline.ledger import Release
from sightline.mechanisms import LocalMean, MechanismPlugin, ReleaseContext, ReleaseValues, Updates
from sightline.randomness import EVERYONE


@dataclass(frozen=True)
class LocalMedian(LocalMean):
    """Each member sends clip(update) + N(0, (z S)^2); the server publishes the median.

    Guarantees: those of `LocalMean`; the median is computed from what was sent and reveals nothing more.
    """

    def claim_mean(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """One release per member, to the server; the median is post-processing of them."""
        *sent, mean = super().claim_mean(updates, context)
        return *sent, context.published_mean(mean.inputs, "median of noisy updates")

    def mean(self, updates: Updates, context: ReleaseContext) -> ReleaseValues:
        """The median of the members' noisy updates; zero when nobody took part."""
        outcome = self.compute_each(updates, context)
        values = list(outcome.values.values())
        middle = torch.stack(values).median(0).values if values else torch.zeros(updates.worker.dimension)
        return ReleaseValues({EVERYONE: middle}, outcome.rejected)


MECHANISM = MechanismPlugin(
    lambda experiment, sizes, classes: LocalMedian(experiment.privacy.clip_norm, 1.0), where=("client",)
)
