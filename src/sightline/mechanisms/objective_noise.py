"""Noise whose density falls off with the Euclidean norm: the vector cousin of Laplace noise."""

import math

import numpy as np
from numpy.typing import NDArray

from sightline.errors import invalid


def isotropic_noise(dimension: int, *, rate: float, rng: np.random.Generator) -> NDArray[np.float64]:
    r"""A vector of density proportional to exp(-rate |n|): norm ~ Gamma(dimension, 1 / rate), direction uniform.

    Guarantees: moving its centre by s changes the log-density nowhere by more than rate x s, so that adding it to a
    value of sensitivity s is rate x s-DP.
    """
    if not (rate > 0 and math.isfinite(rate)):
        invalid("noise_rate", rate, "is positive and finite")
    direction = rng.standard_normal(dimension)
    noise: NDArray[np.float64] = direction * (rng.gamma(dimension, 1 / rate) / np.linalg.norm(direction))
    return noise
