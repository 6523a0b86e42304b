"""Gaussian releases alone: the exact trade-off, in closed form (Balle and Wang 2018, Theorem 8)."""

import math

from scipy.special import erfcx, ndtr


def gaussian_delta(strength: float, epsilon: float) -> float:
    """delta at epsilon of Gaussian noise with strength mu = sensitivity / noise_std.

    Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu), written without cancellation.
    """
    near, far = epsilon / strength - strength / 2, epsilon / strength + strength / 2
    if near < -5:
        return float(ndtr(-near)) - math.exp(-near * near / 2) * float(erfcx(far / math.sqrt(2))) / 2
    scale = math.exp(-near * near / 2) / 2
    return scale * float(erfcx(near / math.sqrt(2)) - erfcx(far / math.sqrt(2)))


def gaussian_epsilon(strength: float, delta: float) -> float:
    """The least epsilon at delta, rounded up.

    >>> round(gaussian_epsilon(1.0, 1e-5), 4)
    4.3772
    """
    if strength == 0 or gaussian_delta(strength, 0.0) <= delta:
        return 0.0
    low, high = 0.0, strength * strength / 2 + strength * math.sqrt(2 * math.log(1 / delta))
    while gaussian_delta(strength, high) > delta:
        low, high = high, 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        if not low < middle < high or high - low < 1e-14 * high:
            break
        low, high = (middle, high) if gaussian_delta(strength, middle) > delta else (low, middle)
    return high * (1 + 1e-10)
