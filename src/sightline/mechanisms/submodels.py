"""Model splitting: every subject trains one hidden part of the model; the splitter draws parts and states the event."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from sightline.config import Experiment
from sightline.events import Adjacency, Event, Gaussian, Product
from sightline.events import Split as SplitEvent
from sightline.mechanisms.clip_and_noise import Bounded, NewSum, RunningSum, clip_update
from sightline.models import FlatModel, Splitting, split_model, unsplit_mask
from sightline.randomness import Purpose, Streams
from sightline.training.submodels import SubmodelClipping


@dataclass(frozen=True, eq=False)
class Splitter:
    """A splitting of the model, and its two balls: radius C, noise z C for parts; C0, z r C0 for unsplit tensors.

    Guarantees: with updates (or gradients) that are zero outside the subject's part and the unsplit tensors, both
    clipped separately, the noisy sum is `event(z)` against an observer that does not see the assignment: the unsplit
    tensors' `Gaussian(r z)` together with `Split(d, Gaussian(z))`. Sampling wraps both, once.
    """

    splitting: Splitting
    unsplit_clip: float = 1.0
    """C0 / C."""
    unsplit_noise: float = 1.0
    """r: the noise multiplier of the unsplit tensors over that of the parts."""

    @property
    def parts(self) -> int:
        """The number of parts, d."""
        return self.splitting.parts

    @property
    def widest(self) -> float:
        """Bound, in units of C, on the norm of a clipped update and on the noise of one coordinate over z."""
        return math.hypot(1.0, self.unsplit_clip) * max(1.0, self.unsplit_noise)

    @cached_property
    def unsplit(self) -> Tensor:
        """Mask of the unsplit parameters, shape (parameters,)."""
        return unsplit_mask(self.splitting.whole, self.splitting.unsplit)

    def event(self, noise_multiplier: float) -> Event:
        """Return the event of a release with noise multiplier z against an observer that does not know the parts.

        A model without unsplit tensors has only the split event, and one part hides nothing.
        """
        inside: Event = Gaussian(noise_multiplier)
        if self.parts > 1:
            inside = SplitEvent(self.parts, inside)
        if not self.splitting.unsplit:
            return inside
        # One product under one draw: two amplified costs added up would state less than the truth.
        return Product((Gaussian(noise_multiplier * self.unsplit_noise), inside))

    @property
    def facts(self) -> dict[str, float]:
        """Public facts for the report; the same for every draw."""
        return {
            "parts": self.parts,
            "trained share": round(self.splitting.share, 4),
            "unsplit parameters": int(self.unsplit.sum()),
            "unsplit clip norm / clip norm": self.unsplit_clip,
            "unsplit noise / noise": self.unsplit_noise,
        }

    def explain_guarantee(self, who: str) -> list[str]:
        """Return the guarantee in sentences."""
        even = self.splitting.even
        if self.parts == 1:
            return [] if even else ["A part is drawn with a probability above one half: splitting gains nothing."]
        chosen = (
            f"one of {self.parts} parts" if even else f"a part (as costly as one of {self.parts} equal ones, or less)"
        )
        return [
            f"Each {who} trains {chosen} of the model (on average {self.splitting.share:.0%} of the "
            "parameters), drawn in secret for every release.",
            "Which part it was is a secret like a cohort: an observer who knew it would see it without the gain "
            "of splitting. It is drawn where the data lie and written down nowhere.",
        ]

    def noise_scale(self, clip_norm: float) -> Tensor:
        """Return the (parameters,) standard deviation of the noise for z = 1: C, and r C0 in the unsplit tensors."""
        scale = torch.full((self.splitting.whole.parameters,), float(clip_norm), dtype=torch.float64)
        scale[self.unsplit] = clip_norm * self.unsplit_clip * self.unsplit_noise
        return scale

    def clip_radii(self, clip_norm: float) -> SubmodelClipping:
        """Return the two balls as local training takes them."""
        return SubmodelClipping(clip_norm, clip_norm * self.unsplit_clip, self.noise_scale(clip_norm).float())

    def clip(self, update: Tensor, *, clip_norm: float) -> Bounded:
        """Clip both pieces to their balls; an update with any non-finite value becomes zero."""
        out = torch.zeros_like(update)
        if not bool(torch.isfinite(update).all()):
            return Bounded(out, clip_norm, rejected=True)
        # Two balls, not one: a joint clip would let the part's size scale the unsplit gradient, and there is no product
        # law.
        radii = (clip_norm, clip_norm * self.unsplit_clip)
        for piece, radius in zip((~self.unsplit, self.unsplit), radii, strict=True):
            out[piece] = clip_update(update[piece], clip_norm=radius).value
        return Bounded(out, math.hypot(*radii))

    def new_sum(self, arithmetic: NewSum) -> NewSum:
        """Return sums of updates clipped in two balls, in the given arithmetic."""
        return lambda dimension: self._two_sums(arithmetic, dimension)

    def _two_sums(self, arithmetic: NewSum, dimension: int) -> "TwoSums":
        inside, outside = torch.nonzero(~self.unsplit).flatten(), torch.nonzero(self.unsplit).flatten()
        return TwoSums(
            dimension,
            (inside, outside),
            (arithmetic(len(inside)), arithmetic(len(outside))),
            (1.0, self.unsplit_clip),
            (1.0, self.unsplit_noise),
        )


@dataclass(frozen=True, eq=False)
class TwoSums:
    """Running sums of two sets of coordinates, each with its own radius and noise."""

    dimension: int
    positions: tuple[Tensor, Tensor]
    sums: tuple[RunningSum, RunningSum]
    clips: tuple[float, float]
    noises: tuple[float, float]

    def add(self, update: Tensor, *, clip_norm: float) -> bool:
        """Clip both pieces and add them; an update with any non-finite value counts as zero everywhere."""
        rejected = not bool(torch.isfinite(update).all())
        # Zero in both balls: a client whose update is broken somewhere must not pass with the other piece.
        whole = torch.zeros_like(update) if rejected else update
        for total, positions, radius in zip(self.sums, self.positions, self.clips, strict=True):
            total.add(whole[positions], clip_norm=clip_norm * radius)
        return rejected

    def noisy_sum(
        self, *, clip_norm: float, noise_multiplier: float, adjacency: Adjacency, rng: np.random.Generator
    ) -> Tensor:
        """Return both sums with their own noise, in one vector."""
        value = torch.zeros(self.dimension)
        for total, positions, radius, noise in zip(self.sums, self.positions, self.clips, self.noises, strict=True):
            value[positions] = total.noisy_sum(
                clip_norm=clip_norm * radius, noise_multiplier=noise_multiplier * noise, adjacency=adjacency, rng=rng
            )
        return value


def build_splitter(experiment: Experiment, model: FlatModel, streams: Streams) -> Splitter | None:
    """Build the splitter of an experiment file; the partitions of the model are public and come from the seed."""
    settings = experiment.algorithm.split
    if settings is None:
        return None
    splitting = split_model(model, settings, rng=streams.rng(Purpose.ASSIGNMENT))
    clip_norm = experiment.privacy.clip_norm
    unsplit_clip = (settings.unsplit_clip_norm or clip_norm) / clip_norm
    return Splitter(splitting, unsplit_clip, settings.unsplit_noise)
