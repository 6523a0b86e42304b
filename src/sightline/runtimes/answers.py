"""What an answer from elsewhere must look like to be used, and what is wrong with one that does not."""

import math
from dataclasses import dataclass

import numpy as np
import torch

from sightline.engine.setting import BuiltExperiment
from sightline.mechanisms import CentralMean, LocalMean, Mechanism
from sightline.mechanisms.clip import sum_sensitivity
from sightline.runtimes.letter import MARKS, WireMessage
from sightline.runtimes.packing import own_tensor
from sightline.topology import Channel

LARGEST_NORM = 1e6
"""A vector of a larger norm is no model update, whatever the mechanism."""
NUMBERS = (np.dtype(np.float32), np.dtype(np.float64))
"""How numbers may be written: as this machine writes them."""


@dataclass(frozen=True)
class ExpectedAnswer:
    """A vector of so many numbers, of at most this norm."""

    numbers: int
    largest: float = LARGEST_NORM

    def wrong_with(self, answer: WireMessage, *, simulated: bool) -> str:
        """Why an answer cannot be used; nothing when it can. Simulated clients are believed what they compute."""
        if "refused" in answer.words:
            return f"refused: {answer.words['refused']}"
        value = answer.arrays.get("value")
        if value is None or value.shape != (self.numbers,) or value.dtype not in NUMBERS:
            looks = "nothing" if value is None else f"{value.dtype} {value.shape}"
            return f"sent {looks} where ({self.numbers},) numbers were asked for"
        norm = torch.linalg.vector_norm(own_tensor(value), dtype=torch.float64).item()
        if simulated or norm <= self.largest:
            return ""
        if not math.isfinite(norm):
            return "sent numbers that are not finite"
        return f"sent a vector of norm {norm:.3g}, at most {self.largest:.3g} is possible"


def why_misdirected(answer: WireMessage, letter: WireMessage) -> str:
    """Why an answer does not belong to a question; nothing when it does, or when it is a refusal.

    The number of a question is known to nobody but who was asked: an answer to an earlier round, to somebody else, or
    made up by another does not have it.
    """
    given, asked = ({name: words.get(name) for name in MARKS} for words in (answer.words, letter.words))
    if given == asked or "refused" in answer.words:
        return ""
    if given["client"] != asked["client"]:
        return f"the answer is signed as client {given['client']}"
    if given["round"] != asked["round"]:
        return f"answers a question of round {given['round']}"
    return "answers another question than the one that was asked"


def expected_of(setting: BuiltExperiment, mechanism: Mechanism, channel: Channel) -> ExpectedAnswer:
    """What a member's part of the mechanism can be: the clip norm; with noise, but for odds of e^-40."""
    dimension = setting.model.parameters
    if not isinstance(mechanism, CentralMean | LocalMean):
        return ExpectedAnswer(dimension)
    splitter = setting.splitter
    clip_norm = mechanism.clip_norm * channel.clip_factor * (1.0 if splitter is None else splitter.widest)
    largest = clip_norm * (1 + 1e-5)
    if isinstance(mechanism, LocalMean):
        noise = mechanism.noise_multiplier * channel.noise_factor * sum_sensitivity(clip_norm, setting.adjacency)
        largest += noise * (math.sqrt(dimension) + 9)
    return ExpectedAnswer(dimension, largest)
