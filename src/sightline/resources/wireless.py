"""Wireless links: from powers, distances and bandwidths to bits per second, joule and seconds."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sightline.errors import did_you_mean, invalid
from sightline.randomness import Purpose, Streams
from sightline.resources.cost import Cost, Floats, Sending


def dbm_to_watt(power_dbm: float) -> float:
    """Decibels over one milliwatt in watt.

    >>> dbm_to_watt(30.0), round(dbm_to_watt(24.0), 4)
    (1.0, 0.2512)
    """
    return float(10 ** ((power_dbm - 30) / 10))


def path_gain(distance_metre: Floats, *, gain_db: float, exponent: float) -> Floats:
    """The mean power gain |h|^2 of a path: gain_db at one metre, falling by 10 exponent dB per decade of distance.

    >>> f"{path_gain(np.array([100.0]), gain_db=-30.0, exponent=3.75)[0]:.4g}"
    '3.162e-11'
    """
    return np.asarray(10 ** ((gain_db - 10 * exponent * np.log10(distance_metre)) / 10), dtype=np.float64)


def shannon_rate(
    gain: Floats, *, power_dbm: float, bandwidth_hertz: float, noise_dbm_per_hertz: float
) -> Floats:  # fmt: skip
    """R = W log2(1 + p |h|^2 / (N0 W)) in bits per second (appendix D, after Tse and Viswanath)."""
    noise_watt = dbm_to_watt(noise_dbm_per_hertz) * bandwidth_hertz
    return np.asarray(
        bandwidth_hertz * np.log1p(dbm_to_watt(power_dbm) * gain / noise_watt) / np.log(2), dtype=np.float64
    )


def read_number(name: str, value: Any) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        invalid(name, value, "is a finite number")
    return float(value)


def read_positive(name: str, value: Any) -> float:
    """A finite number above zero."""
    if read_number(name, value) <= 0:
        invalid(name, value, "is a positive number")
    return float(value)


def read_span(name: str, value: Any) -> tuple[float, float]:
    """One distance for everybody, or the nearest and the farthest."""
    if not isinstance(value, list | tuple):
        return read_positive(name, value), read_positive(name, value)
    if len(value) != 2 or read_positive(name, value[0]) > read_positive(name, value[1]):
        invalid(name, value, "is one distance, or [nearest, farthest]", "e.g. [10.0, 100.0]")
    return float(value[0]), float(value[1])


def read_boolean(name: str, value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        invalid(name, value, "is true or false")
    return value


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
