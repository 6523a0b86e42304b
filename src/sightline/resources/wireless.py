"""Devices send over the air, edges over a wire (Lin and Brinton 2024, appendix D)."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sightline.errors import did_you_mean, invalid
from sightline.randomness import Purpose, Streams
from sightline.resources.cost import Cost, Floats, Sending
from sightline.resources.link import dbm_to_watt, path_gain, shannon_rate
from sightline.resources.read import read_boolean, read_number, read_positive, read_span

DEEPEST_FADE = 1e-9
"""A fade is at most that deep: a rate of zero would be an endless upload."""


@dataclass(frozen=True)
class WirelessSettings:
    """The numbers of the air and of the wire, as in the paper unless the experiment file says otherwise."""

    bandwidth_hertz: float = 1e6
    noise_dbm_per_hertz: float = -173.0
    power_dbm: float = 24.0
    distance_metre: tuple[float, float] = (10.0, 100.0)
    """Nearest and farthest; devices are spread evenly over that ring around their server."""
    gain_at_one_metre_db: float = -30.0
    path_loss_exponent: float = 3.75
    fading: bool = True
    """Rayleigh: every upload of every device is multiplied by its own |u|^2, u ~ CN(0, 1)."""
    bits_per_parameter: float = 32.0
    wired_power_dbm: float = 38.0
    wired_bits_per_second: float = 1e8

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> "WirelessSettings":
        """`[resources]` of an experiment file, every key checked."""
        known = [field.name for field in dataclasses.fields(cls)]
        found: dict[str, Any] = {}
        for key, value in given.items():
            if key not in known:
                law = "the wireless model has no such setting"
                invalid(f"resources.{key}", value, law, did_you_mean(key, [*known, "delays"]))
            found[key] = READERS.get(key, read_positive)(f"resources.{key}", value)
        return cls(**found)


READERS = {
    "noise_dbm_per_hertz": read_number,
    "power_dbm": read_number,
    "gain_at_one_metre_db": read_number,
    "wired_power_dbm": read_number,
    "distance_metre": read_span,
    "fading": read_boolean,
}


@dataclass(frozen=True, eq=False)
class Wireless:
    """Prices of one federation's uploads.

    Guarantees: distances and fading depend on the seed, the round and the number of the upload in it, and on nothing
    private: whoever took part, the air is the same.
    """

    settings: WirelessSettings
    clients: int
    parameters: int
    streams: Streams

    @property
    def bits(self) -> float:
        """Q M: the size of one upload."""
        return self.settings.bits_per_parameter * self.parameters

    @cached_property
    def distance_metre(self) -> Floats:
        """How far every device is from its server."""
        nearest, farthest = self.settings.distance_metre
        share = self.streams.rng(Purpose.RESOURCES).random(self.clients)
        return np.asarray(np.sqrt(nearest**2 + share * (farthest**2 - nearest**2)))

    def sending(self, *, round: int, use: int) -> Sending:
        """Every device's upload, with the fading of that moment."""
        if not self.settings.fading:
            return self.typical
        fade = self.streams.rng(Purpose.RESOURCES, round=round, use=use).exponential(size=self.clients)
        return self._price_uploads(np.maximum(fade, DEEPEST_FADE))

    @cached_property
    def typical(self) -> Sending:
        """Every device's upload at its mean gain: what can be known beforehand."""
        return self._price_uploads(np.ones(self.clients))

    def wired(self, node: str, *, round: int) -> Cost:
        """One edge's upload to the server above it."""
        seconds = self.bits / self.settings.wired_bits_per_second
        return Cost(dbm_to_watt(self.settings.wired_power_dbm) * seconds, seconds)

    def _price_uploads(self, fade: Floats) -> Sending:
        s = self.settings
        gain = path_gain(self.distance_metre, gain_db=s.gain_at_one_metre_db, exponent=s.path_loss_exponent)
        rate = shannon_rate(
            gain * fade,
            power_dbm=s.power_dbm,
            bandwidth_hertz=s.bandwidth_hertz,
            noise_dbm_per_hertz=s.noise_dbm_per_hertz,
        )
        seconds = self.bits / rate
        return Sending(dbm_to_watt(s.power_dbm) * seconds, seconds)
