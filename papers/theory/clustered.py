"""How noisy updates are and how far clusters overlap: Lemmas 4.1 and 4.2 of R-DPCFL, a calculator, no part of any run.

The lemmas describe the DP noise alone: they leave out the luck of the batches, which matters when b is not small
against p z^2, and the bending of later steps by earlier noise, which matters for large steps.
"""

import math
from dataclasses import dataclass

from sightline.algorithms.clustered.mixture import component_overlap_at
from sightline.errors import invalid


@dataclass(frozen=True)
class UpdateNoise:
    """The noise in one client's update after one round of DP-SGD."""

    steps: int
    variance: float
    """Summed over all parameters, given the start (Lemma 4.1)."""
    parameters: int

    @property
    def radius(self) -> float:
        """Standard deviation of one parameter: the radius of a cluster whose clients have equal data."""
        return math.sqrt(self.variance / self.parameters)


def update_noise(
    *,
    samples: int,
    batch_size: int,
    parameters: int,
    clip_norm: float,
    noise_multiplier: float,
    learning_rate: float,
    epochs: int = 1,
) -> UpdateNoise:
    r"""Lemma 4.1: K ceil(N/b) eta^2 p c^2 z^2 / b^2, which is K N eta^2 p c^2 z^2 / b^3 when b divides N.

    >>> how = dict(samples=8000, parameters=28938, clip_norm=1, noise_multiplier=1.9, learning_rate=0.005)
    >>> small, full = (update_noise(batch_size=b, **how) for b in (32, 8000))
    >>> round(small.radius / full.radius)
    3953
    """
    values = {"N": samples, "b": batch_size, "p": parameters, "K": epochs}
    for name, value in values.items():
        if value < 1:
            invalid(name, value, "is a whole number of at least one")
    for name, size in (("c", clip_norm), ("z", noise_multiplier), ("eta", learning_rate)):
        if not (math.isfinite(size) and size > 0):
            invalid(name, size, "is a positive number")
    if batch_size > samples:
        invalid("b", batch_size, f"a batch holds at most all N={samples} examples", f"b = {samples} is the full batch")
    steps = epochs * -(-samples // batch_size)
    per_step = parameters * (learning_rate * clip_norm * noise_multiplier / batch_size) ** 2
    return UpdateNoise(steps, steps * per_step, parameters)


def expected_separation(noise: UpdateNoise, distance: float) -> float:
    """Centres' distance in units of twice the radius: what `Mixture.mss` measures, were the components known."""
    if not (math.isfinite(distance) and distance >= 0):
        invalid("distance", distance, "centres lie a finite distance >= 0 apart")
    return distance / (2 * noise.radius)


def component_overlap(noise: UpdateNoise, distance: float) -> float:
    r"""Lemma 4.2: O = 2 Q(sqrt(p) Delta / (2 sigma)) for two clusters whose centres are `distance` apart.

    Half of it is the share of clients that the best rule puts into the wrong one of two equal clusters.
    """
    return component_overlap_at(expected_separation(noise, distance))


def overlap_of_larger_batch(noise: UpdateNoise, distance: float, *, factor: float, noise_ratio: float = 1.0) -> float:
    r"""Lemma 4.2, second part: at most 2 Q(sqrt(k p) Delta / (2 rho sigma)) with a first batch k times as large.

    `noise_ratio` rho bounds z(k b) / z(b). The paper's step from b to k b is approximate: centres are taken to come k
    times closer, because k times fewer steps are made.
    """
    if not (math.isfinite(factor) and factor >= 1):
        invalid("k", factor, "a larger batch is at least as large")
    if not (math.isfinite(noise_ratio) and noise_ratio >= 1):
        invalid("rho", noise_ratio, "a larger first batch needs at least as much noise", "rho = 1 when z is the same")
    return component_overlap_at(math.sqrt(factor) * expected_separation(noise, distance) / noise_ratio)
