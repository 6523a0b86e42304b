"""Objective perturbation: random linear terms in exactly solved local problems, and the noise they are drawn from."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.errors import invalid, refuse
from sightline.events import Adjacency, Event, Pure
from sightline.ledger import Release
from sightline.mechanisms.clip_and_noise import sum_sensitivity
from sightline.mechanisms.contract import (
    BaseMechanism,
    NoisedBy,
    NoisedValue,
    ReleaseContext,
    ReleaseValues,
    only_client,
)
from sightline.mechanisms.convex_solver import from_unit
from sightline.mechanisms.no_privacy import weighted_mean
from sightline.mechanisms.output import LIPSCHITZ, UNSOLVED, only_proximal
from sightline.mechanisms.updates import ClientOutput, Updates
from sightline.randomness import EVERYONE
from sightline.topology import client_name


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


REMAINDER = 0.01
"""The share of epsilon that covers what the solver leaves of the gradient (approximate minima perturbation)."""


@dataclass(frozen=True)
class Objective(BaseMechanism):
    r"""Member i sends argmin_v F_i(v) + mu / 2 |v - v_0|^2 + <n, v>, n of density ~ exp(-alpha |n|), and some noise.

    epsilon = alpha u / |D| + (1 - 1/K) / (|D| mu) + remainder, u = sqrt 2 (2 sqrt 2 under replace-one).

    The map n -> minimiser is a bijection; moving one example moves n by at most u / |D|, and the log-determinant of its
    Jacobian by at most tr(H_j) / (|D| mu) <= (1 - 1/K) / (|D| mu): remove one example's Hessian, the other only helps.
    The solver stops at gradient norm gamma, at most gamma / mu from the minimiser; noise for sensitivity 2 gamma / mu
    covers what that reveals.

    Guarantees: `Pure(epsilon)` for every example of a member, in every round that it took part in, against everyone.
    Reference: Chaudhuri et al. 2011, Theorem 9; Iyengar et al. 2019, Algorithm 1.
    """

    sizes: Mapping[int, int]
    classes: int
    adjacency: Adjacency
    weight_decay: float
    gradient_tolerance: float
    noise_rate: float | None = None
    multipliers: Mapping[int, float] | None = None

    noised_value = NoisedValue.MODEL

    def at(self, context: ReleaseContext) -> "Objective":
        """The same below every channel."""
        return self

    def noised_by(self, context: ReleaseContext) -> NoisedBy:
        """Every member."""
        return NoisedBy.CLIENT

    def noise_multipliers(self, clients: Iterable[int]) -> dict[int, float]:
        """1 / epsilon of a round of each client, where they were given; else the noise is an absolute amount."""
        return {n: self.multipliers[n] for n in clients} if self.multipliers else {}

    def with_noise(self, multipliers: Mapping[int, float]) -> "Objective":
        """The same mechanism; a client with multiplier z spends epsilon = 1 / z a round."""
        return replace(self, multipliers=dict(multipliers))

    def epsilon(self, client: int, curvature: float) -> float:
        """What one round costs any one example of the client."""
        if self.noise_rate is None:
            return 1 / (self.multipliers or {}).get(client, 1.0)
        gradient = self.noise_rate * self._gradient_shift(client)
        return (gradient + self._determinant_cost(client, curvature)) / (1 - REMAINDER)

    def rate(self, client: int, curvature: float) -> float:
        """alpha: the rate of the linear term's noise."""
        if self.noise_rate is not None:
            return self.noise_rate
        left = self.epsilon(client, curvature) * (1 - REMAINDER) - self._determinant_cost(client, curvature)
        if not left > 0:
            law = f"a client of {self.sizes[client]} examples spends more on the curvature of its loss alone"
            refuse("privacy.epsilon", f"{self.epsilon(client, curvature):.4g} a round", law, "raise epsilon or mu")
        return left / self._gradient_shift(client)

    def claim_mean(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """One release per member, to the server; the mean is post-processing of them."""
        sent = self._claim_sent(updates, context, frozenset({context.channel.name}))
        inputs = tuple(range(context.next_id, context.next_id + len(sent))) + updates.sources
        return *sent, context.published_mean(inputs, "mean of privately minimised models")

    def mean(self, updates: Updates, context: ReleaseContext) -> ReleaseValues:
        """The members' models averaged by their data sizes."""
        each = self.compute_each(updates, context)
        return ReleaseValues({EVERYONE: weighted_mean(each.values.items(), updates.sizes(), updates.worker.dimension)})

    def claim_each(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """One release per member, to everyone."""
        return self._claim_sent(updates, context, context.channel.audience)

    def compute_each(self, updates: Updates, context: ReleaseContext) -> ReleaseValues:
        """Every member's perturbed minimiser, as an update of its start."""
        return ReleaseValues({member: value for member, value, _ in updates.collect_outputs(self, context)})

    def client_outputs(self, updates: Updates, context: ReleaseContext) -> Iterator[ClientOutput]:
        """Each member draws its linear term, solves and covers what the solver left."""
        curvature, dimension = self._curvature_of(updates), updates.worker.dimension
        rngs = {member: context.noise(member) for member in updates.cohort.members}
        linear = {
            member: isotropic_noise(dimension, rate=self.rate(member, curvature), rng=rng)
            for member, rng in rngs.items()
        }
        for member, end in updates.minimise_objectives(linear=linear, gradient_tolerance=self.gradient_tolerance):
            covered = end.numpy() + self._cover_remainder(member, curvature, dimension, rngs[member])
            model = torch.from_numpy(from_unit(covered, self.classes)).float()
            yield ClientOutput(member, model - updates.starts[member].value)

    def scaled(self, event: Event, noise: float) -> Event:
        """Epsilon divided: this noise is no Gaussian's."""
        return Pure(event.epsilon / noise) if isinstance(event, Pure) else event

    def list_caveats(self) -> list[str]:
        """What is told when the solver fails."""
        return [UNSOLVED]

    def explain_guarantee(self, *, rounds: int, delta: float, curvature: float) -> list[str]:
        """The assumption behind epsilon, and what the paper's own formula would have said."""
        claims = [
            rounds * (2 * self.rate(n, curvature) * LIPSCHITZ * curvature + 2.8 * 0.5) / (size * curvature)
            for n, size in self.sizes.items()
        ]
        return [
            "Objective perturbation: softmax regression with features of norm <= 1 (with the bias) and an L2 or "
            f"proximal term of {curvature:.4g}; every local problem is solved to a gradient norm of "
            f"{self.gradient_tolerance:g}, and {REMAINDER:.0%} of epsilon covers the rest.",
            f"Theorem 6.3 of the paper (a scalar model, u1 = sqrt 2, u2 = 1/2) would have said epsilon = "
            f"{sum(claims) / len(claims):.4g} in the mean of the clients and {max(claims):.4g} for the smallest.",
        ]

    def _gradient_shift(self, client: int) -> float:
        """How far one example moves the gradient of the mean loss."""
        return sum_sensitivity(LIPSCHITZ / self.sizes[client], self.adjacency)

    def _determinant_cost(self, client: int, curvature: float) -> float:
        """What one example can add to the log-determinant of the Jacobian."""
        return (1 - 1 / self.classes) / (self.sizes[client] * curvature)

    def _cover_remainder(
        self, client: int, curvature: float, dimension: int, rng: np.random.Generator
    ) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        """Noise that hides where within gamma / mu of the minimiser the solver stopped."""
        distance = 2 * self.gradient_tolerance / curvature
        rate = REMAINDER * self.epsilon(client, curvature) / distance
        return isotropic_noise(dimension, rate=rate, rng=rng)

    def _curvature_of(self, updates: Updates) -> float:
        only_proximal(updates, "objective perturbation")
        curvature = self.weight_decay + updates.task.proximal
        if not (curvature > 0 and math.isfinite(curvature)):
            law = "objective perturbation needs a strongly convex objective, and this one has no proximal or L2 term"
            refuse(
                "privacy.mechanism", "objective", law, 'use algorithm "fedprox" with mu > 0, or local.weight_decay > 0'
            )
        return curvature

    def _claim_sent(self, updates: Updates, context: ReleaseContext, audience: frozenset[str]) -> tuple[Release, ...]:
        curvature = self._curvature_of(updates)
        for member in updates.cohort.members if self.multipliers is not None else ():
            self.rate(member, curvature)  # refuses a budget that the curvature alone exceeds
        return tuple(
            context.make_release(
                source=client_name(member),
                event=Pure(self.epsilon(member, curvature)),
                audience=audience,
                what="own privately minimised model",
                subjects=only_client(member),
                inputs=tuple(sorted(updates.starts[member].sources)),
            )
            for member in updates.cohort.members
        )
