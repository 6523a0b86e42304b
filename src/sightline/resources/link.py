"""One link: from powers, distances and bandwidths to bits per second, joule and seconds."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


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
