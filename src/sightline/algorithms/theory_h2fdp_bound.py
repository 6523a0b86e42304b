"""Theorem 4.3 term by term: as printed, and with the two slips of its last line put right."""

import math
from dataclasses import dataclass

from sightline.algorithms.theory_h2fdp import Hierarchy


@dataclass(frozen=True)
class Terms:
    """The mean squared gradient is at most a1 + a2 + b."""

    a1: float
    """What is left of the way from the start."""
    a2: float
    """Local steps, diversity and SGD noise."""
    b: float
    """Privacy noise: it does not shrink with the rounds."""

    @property
    def bound(self) -> float:
        """The sum."""
        return self.a1 + self.a2 + self.b


def published_terms(h: Hierarchy) -> Terms:
    """Equation (33) as printed."""
    root = math.sqrt(h.rounds + 1)
    return Terms(2 * h.step * h.gap / (h.tau * root), h.smoothness * h.step / root * _drift_term(h), privacy_noise(h))


def corrected_terms(h: Hierarchy) -> Terms:
    r"""What (56) gives: averaging 2 (F_k - F_k+1) / (eta_k tau) over eta_k = gamma / sqrt(k + 1) divides by gamma.

    By summation by parts it is at most 2 D / (gamma tau sqrt(K_g)), D the largest F(w_k) - F* of the run; and the mean
    of 1 / sqrt(k + 1) is at most 2 / sqrt(K_g).
    """
    root = math.sqrt(h.rounds)
    return Terms(
        2 * h.gap / (h.step * h.tau * root), 2 * h.smoothness * h.step / root * _drift_term(h), privacy_noise(h)
    )


def privacy_noise(h: Hierarchy) -> float:
    """Term (b): 4 tau (K_l^3 + 1) M q^2 G^2 log(1/delta) / (N^2 epsilon^2) sum_c (p c2^2 / s^2 + (1 - p) v2^2 / s)."""
    scale = h.parameters * (h.rate * h.clip_norm / (len(h.devices) * h.epsilon)) ** 2 * math.log(1 / h.delta)
    return 4 * h.tau * (h.local_aggregations**3 + 1) * scale * math.fsum(map(h.noise_of, h.devices))


def model_dispersion(h: Hierarchy) -> tuple[float, float]:
    """(B1^2, B2^2) of Proposition 4.2."""
    growth = 1 + (1 + 2 * h.step * h.smoothness) ** (h.tau - 1)
    b1 = ((2 * h.sgd_noise + h.within) * growth) ** 2
    rest = 2 * b1 + 2 * h.sgd_noise + h.between
    count = len(h.devices)
    scale = 2 * h.tau * h.clip_norm * h.rate / (h.epsilon * count)
    scale *= math.sqrt(h.parameters * h.local_aggregations * math.log(1 / h.delta))
    everywhere = math.sqrt(math.fsum(map(h.noise_of, h.devices)))
    phi = [(scale * (everywhere + count * math.sqrt(h.noise_of(size))) + rest) * growth + rest for size in h.devices]
    b2 = (1 + h.step * h.smoothness) ** (2 * (h.tau - 1)) * math.fsum(value**2 for value in phi) / count
    return b1, b2


def _drift_term(h: Hierarchy) -> float:
    """beta tau (B1^2 + B2^2) + G^2 + tau sigma^2."""
    return h.smoothness * h.tau * math.fsum(model_dispersion(h)) + h.clip_norm**2 + h.tau * h.sgd_noise**2
