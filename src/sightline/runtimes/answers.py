"""What an answer from elsewhere must look like to be used, and what is wrong with one that does not."""

import math
from dataclasses import dataclass

import torch

from sightline.engine.setting import Setting
from sightline.mechanisms import CentralMean, LocalMean, Mechanism
from sightline.mechanisms.clip import sensitivity
from sightline.runtimes.letter import Letter
from sightline.runtimes.packing import tensor
from sightline.topology import Channel

LARGEST_NORM = 1e6
"""A vector of a larger norm is no model update, whatever the mechanism."""
LONGEST_REASON = 300


@dataclass(frozen=True)
class Expected:
    """A vector of so many numbers, of at most this norm."""

    numbers: int
    largest: float = LARGEST_NORM

    def wrong_with(self, answer: Letter, *, simulated: bool) -> str:
        """Why an answer cannot be used; nothing when it can. Simulated clients are believed what they compute."""
        if "refused" in answer.words:
            return f"refused: {' '.join(str(answer.words['refused']).split())[:LONGEST_REASON]}"
        value = answer.arrays.get("value")
        if value is None or value.shape != (self.numbers,) or value.dtype.kind != "f":
            looks = "nothing" if value is None else f"{value.dtype} {value.shape}"
            return f"sent {looks} where ({self.numbers},) numbers were asked for"
        norm = torch.linalg.vector_norm(tensor(value), dtype=torch.float64).item()
        if simulated or norm <= self.largest:
            return ""
        if not math.isfinite(norm):
            return "sent numbers that are not finite"
        return f"sent a vector of norm {norm:.3g}, at most {self.largest:.3g} is possible"


def expected_of(setting: Setting, mechanism: Mechanism, channel: Channel) -> Expected:
    """What a member's part of the mechanism can be: the clip norm; with noise, but for odds of e^-40."""
    dimension = setting.model.parameters
    if not isinstance(mechanism, CentralMean | LocalMean):
        return Expected(dimension)
    splitter = setting.splitter
    clip_norm = mechanism.clip_norm * channel.clip_factor * (1.0 if splitter is None else splitter.widest)
    largest = clip_norm * (1 + 1e-5)
    if isinstance(mechanism, LocalMean):
        noise = mechanism.noise_multiplier * channel.noise_factor * sensitivity(clip_norm, setting.adjacency)
        largest += noise * (math.sqrt(dimension) + 9)
    return Expected(dimension, largest)
