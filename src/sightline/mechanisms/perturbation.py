"""Output perturbation and objective perturbation of exactly solved local problems."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from sightline.errors import invalid, refuse
from sightline.events import Adjacency, Event, Gaussian, Pure
from sightline.ledger import Release
from sightline.mechanisms.clip_and_noise import Aggregate, clip_update, sum_sensitivity, with_gaussian_noise
from sightline.mechanisms.contract import MechanismFacts, NoisedByClients, NoisedValue, ReleaseContext
from sightline.mechanisms.convex_solver import from_unit
from sightline.mechanisms.updates import ClientOutput, Updates
from sightline.training.call import PrivateSteps

LIPSCHITZ = math.sqrt(2)
"""The norm of one example's softmax gradient (p - e_y) x~^T is at most sqrt 2 if |x~| <= 1."""

UNSOLVED = "A solver that does not converge stops the run, and that it did depends on the data."


class Bound(StrEnum):
    """The assumption behind the sensitivity of a client's model."""

    # There is no default: Theorem 6.2 of the paper takes the sensitivity of a clipped model to be tau / |D|, but one
    # example of a thousand can turn a clipped model around, a distance of 2 tau. The user has to name the assumption.
    CLIPPED_MODEL = "clipped_model"
    STRONGLY_CONVEX = "strongly_convex"
    PER_SAMPLE_MEAN = "per_sample_mean"


ASSUMPTIONS = {
    Bound.CLIPPED_MODEL: "the model is clipped to norm clip_norm, so any two differ by at most 2 clip_norm, "
    "however it was trained",
    Bound.STRONGLY_CONVEX: "the model is the minimiser, found up to gradient_tolerance, of a strongly convex objective "
    "whose examples have gradients of norm <= sqrt 2 (softmax regression, features of norm <= 1 with the bias)",
    Bound.PER_SAMPLE_MEAN: "the update is one mean of per-example gradients, each clipped to clip_norm; "
    "the number of examples is public",
}


@dataclass(frozen=True)
class BoundTerms:
    """The numbers in the sensitivity bounds."""

    clip_norm: float
    adjacency: Adjacency
    learning_rate: float
    curvature: float
    gradient_tolerance: float


def output_sensitivity(bound: Bound, size: int, terms: BoundTerms) -> float:
    """Return the Euclidean distance by which one of `size` examples can move the result.

    clipped_model: 2 C. strongly_convex: G / (n mu), twice that under replace-one, plus 2
    gamma / mu for a solver that stops at gradient norm gamma. per_sample_mean: eta C / n, twice that under replace.

    Reference: Chaudhuri et al. 2011, Corollary 8; zero-out adjacency: |grad h' (w*)| = |grad f_j (w*)| / n <= G / n,
    and h' is mu-strongly convex.
    """
    if bound is Bound.PER_SAMPLE_MEAN:
        return sum_sensitivity(terms.learning_rate * terms.clip_norm / size, terms.adjacency)
    if bound is Bound.STRONGLY_CONVEX:
        if not terms.curvature > 0:
            reason = "without a proximal or L2 term one example can move the minimiser without bound"
            refuse(
                "privacy.sensitivity", bound, reason, 'use algorithm "fedprox" with mu > 0, or local.weight_decay > 0'
            )
        moved = sum_sensitivity(LIPSCHITZ / (size * terms.curvature), terms.adjacency)
        return moved + 2 * terms.gradient_tolerance / terms.curvature
    return 2 * terms.clip_norm


@dataclass(frozen=True)
class Output(NoisedByClients):
    """Each member sends its model + N(0, noise_std^2); the server averages by data size.

    Guarantees: `Gaussian(noise_std / sensitivity)` for every example of a member, in every round in which it took part,
    against everyone; `sensitivity` is that of `bound`.
    """

    bound: Bound
    terms: BoundTerms
    weight_decay: float
    sizes: Mapping[int, int]
    classes: int
    noise_std: float | None = None
    multipliers: Mapping[int, float] | None = None

    mean_of = "noised models"

    @property
    def facts(self) -> MechanismFacts:
        """A trained model is noised; say what its sensitivity rests on."""
        return MechanismFacts(NoisedValue.MODEL, caveats=(UNSOLVED,), explain=self._explain)

    def noise_multipliers(self, clients: Iterable[int]) -> dict[int, float]:
        """Return each client's noise multiplier if set; empty if the noise is an absolute amount."""
        return {n: self.multipliers[n] for n in clients} if self.multipliers else {}

    def with_noise(self, multipliers: Mapping[int, float]) -> "Output":
        """Return the same mechanism with each client's own noise, in units of the sensitivity of its bound."""
        return replace(self, multipliers=dict(multipliers))

    def std(self, client: int, sensitivity: float) -> float:
        """Return the standard deviation of a client's noise."""
        if self.noise_std is not None:
            return self.noise_std
        return (self.multipliers or {}).get(client, 1.0) * sensitivity

    def event(self, client: int, updates: Updates) -> Event:
        """Return what one round reveals about any one example of the client."""
        true = self.sensitivity(client, updates)
        return Gaussian(self.std(client, true) / true)

    def sensitivity(self, client: int, updates: Updates) -> float:
        """Return how far one example can move what the client sends, given the terms of its objective."""
        if self.bound in (Bound.STRONGLY_CONVEX, Bound.PER_SAMPLE_MEAN):
            only_proximal(updates, self.bound)
        curvature = self.weight_decay + updates.task.proximal
        return output_sensitivity(self.bound, self.sizes[client], replace(self.terms, curvature=curvature))

    @override
    def client_outputs(self, updates: Updates, context: ReleaseContext) -> Iterator[ClientOutput]:
        for member, result, broken in self._local_results(updates):
            bound = self.sensitivity(member, updates)
            aggregate = Aggregate(result, bound)
            noisy = with_gaussian_noise(
                aggregate, noise_multiplier=self.std(member, bound) / bound, rng=context.noise(member)
            )
            # Noise is added in the space in which the bound holds; the change of space and the start are public.
            yield ClientOutput(member, self._as_update(noisy, updates.starts[member].value), broken)

    def _explain(self, curvature: float) -> list[str]:
        """Return the assumption behind epsilon."""
        return [f"Output perturbation, {self.bound}: {ASSUMPTIONS[self.bound]}."]

    def _local_results(self, updates: Updates) -> Iterator[tuple[int, Tensor, bool]]:
        """Yield (client, value to be noised, whether it was not finite) of every member, in the space of the bound."""
        if self.bound is Bound.STRONGLY_CONVEX:
            for member, end in updates.minimise_objectives(linear={}, gradient_tolerance=self.terms.gradient_tolerance):
                yield member, end, False
        elif self.bound is Bound.PER_SAMPLE_MEAN:
            plans = [PrivateSteps(self.terms.clip_norm, 1.0, 1.0, 1, 1.0) for _ in updates.cohort.members]
            for member, total in zip(updates.cohort.members, updates.gradient_sums(plans), strict=True):
                yield member, total * (-self.terms.learning_rate / self.sizes[member]), False
        else:
            for member, update in updates.train_members():
                bounded = clip_update(updates.starts[member].value + update, clip_norm=self.terms.clip_norm)
                yield member, bounded.value, bounded.rejected

    def _as_update(self, noisy: Tensor, start: Tensor) -> Tensor:
        if self.bound is Bound.PER_SAMPLE_MEAN:
            return noisy
        if self.bound is Bound.STRONGLY_CONVEX:
            return torch.from_numpy(from_unit(noisy.double().numpy(), self.classes)).float() - start
        return noisy - start

    def _claim_sent(self, updates: Updates, context: ReleaseContext, audience: frozenset[str]) -> tuple[Release, ...]:
        return tuple(
            context.sent_by(
                member, updates, event=self.event(member, updates), audience=audience, what="own noised model"
            )
            for member in updates.cohort.members
        )


def only_proximal(updates: Updates, mechanism: str) -> None:
    """Raise `Refused` if the local objective has terms from private state: the bounds cover the data's loss only."""
    if updates.recall is not None or set(updates.task.named_fields()) - {"proximal"}:
        reason = f"{mechanism} is proved only for the data's loss with public L2 or proximal terms"
        refuse("algorithm.name", "with client memory", reason, "use fedavg, fedavgm, fedyogi or fedprox")


def isotropic_noise(dimension: int, *, rate: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Draw a vector of density proportional to exp(-rate |n|): norm ~ Gamma(dimension, 1 / rate), direction uniform.

    Guarantees: moving its centre by s changes the log-density nowhere by more than rate x s, so that adding it to a
    value of sensitivity s is rate x s-DP.
    """
    if not (rate > 0 and math.isfinite(rate)):
        invalid("noise_rate", rate, "must be positive and finite")
    direction = rng.standard_normal(dimension)
    noise: NDArray[np.float64] = direction * (rng.gamma(dimension, 1 / rate) / np.linalg.norm(direction))
    return noise


REMAINDER = 0.01
"""The share of epsilon that covers the solver's remaining gradient (approximate minima perturbation)."""


@dataclass(frozen=True)
class Objective(NoisedByClients):
    """Member i sends argmin_v F_i(v) + mu / 2 |v - v_0|^2 + <n, v>, n of density ~ exp(-alpha |n|), and some noise.

    epsilon = alpha u / |D| + (1 - 1/K) / (|D| mu) + remainder, u = sqrt 2 (2 sqrt 2 under replace-one).

    The map n -> minimiser is a bijection; moving one example moves n by at most u / |D|, and the log-determinant of its
    Jacobian by at most tr(H_j) / (|D| mu) <= (1 - 1/K) / (|D| mu): remove one example's Hessian, the other only helps.
    The solver stops at gradient norm gamma, at most gamma / mu from the minimiser; noise for sensitivity 2 gamma / mu
    covers what that reveals.

    Guarantees: `Pure(epsilon)` for every example of a member, in every round in which it took part, against everyone.
    Reference: Chaudhuri et al. 2011, Theorem 9; Iyengar et al. 2019, Algorithm 1.
    """

    sizes: Mapping[int, int]
    classes: int
    adjacency: Adjacency
    weight_decay: float
    gradient_tolerance: float
    noise_rate: float | None = None
    multipliers: Mapping[int, float] | None = None

    mean_of = "privately minimised models"

    @property
    def facts(self) -> MechanismFacts:
        """A trained model is noised; say what its sensitivity rests on."""
        return MechanismFacts(NoisedValue.MODEL, caveats=(UNSOLVED,), explain=self._explain)

    def noise_multipliers(self, clients: Iterable[int]) -> dict[int, float]:
        """Return 1 / epsilon per round of each client if set; empty if the noise is an absolute amount."""
        return {n: self.multipliers[n] for n in clients} if self.multipliers else {}

    def with_noise(self, multipliers: Mapping[int, float]) -> "Objective":
        """Return the same mechanism; a client with multiplier z spends epsilon = 1 / z per round."""
        return replace(self, multipliers=dict(multipliers))

    def epsilon(self, client: int, curvature: float) -> float:
        """Return what one round costs any one example of the client."""
        if self.noise_rate is None:
            return 1 / (self.multipliers or {}).get(client, 1.0)
        gradient = self.noise_rate * self._gradient_shift(client)
        return (gradient + self._determinant_cost(client, curvature)) / (1 - REMAINDER)

    def rate(self, client: int, curvature: float) -> float:
        """Return alpha, the rate of the linear term's noise. Raise `Refused` if the curvature uses up epsilon."""
        if self.noise_rate is not None:
            return self.noise_rate
        left = self.epsilon(client, curvature) * (1 - REMAINDER) - self._determinant_cost(client, curvature)
        if not left > 0:
            reason = f"a client of {self.sizes[client]} examples spends more on the curvature of its loss alone"
            refuse("privacy.epsilon", f"{self.epsilon(client, curvature):.4g} a round", reason, "raise epsilon or mu")
        return left / self._gradient_shift(client)

    def client_outputs(self, updates: Updates, context: ReleaseContext) -> Iterator[ClientOutput]:
        """Draw each member's linear term, solve, and add noise that covers the solver's error."""
        curvature, dimension = self._curvature_of(updates), updates.worker.dimension
        # One generator per member: the linear term comes first, the error's noise continues the same stream.
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
        """Divide epsilon by the noise: this noise is not Gaussian."""
        return Pure(event.epsilon / noise) if isinstance(event, Pure) else event

    def _explain(self, curvature: float) -> list[str]:
        """Return the assumption behind epsilon."""
        return [
            "Objective perturbation: softmax regression with features of norm <= 1 (with the bias) and an L2 or "
            f"proximal term of {curvature:.4g}; every local problem is solved to a gradient norm of "
            f"{self.gradient_tolerance:g}, and {REMAINDER:.0%} of epsilon covers the rest.",
        ]

    def _gradient_shift(self, client: int) -> float:
        """Return how far one example moves the gradient of the mean loss."""
        return sum_sensitivity(LIPSCHITZ / self.sizes[client], self.adjacency)

    def _determinant_cost(self, client: int, curvature: float) -> float:
        """Return how much one example can add to the log-determinant of the Jacobian."""
        return (1 - 1 / self.classes) / (self.sizes[client] * curvature)

    def _cover_remainder(
        self, client: int, curvature: float, dimension: int, rng: np.random.Generator
    ) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        """Draw noise that hides where within gamma / mu of the minimiser the solver stopped."""
        # Each of two neighbouring solutions lies within gamma / mu of its own minimiser.
        distance = 2 * self.gradient_tolerance / curvature
        rate = REMAINDER * self.epsilon(client, curvature) / distance
        return isotropic_noise(dimension, rate=rate, rng=rng)

    def _curvature_of(self, updates: Updates) -> float:
        only_proximal(updates, "objective perturbation")
        curvature = self.weight_decay + updates.task.proximal
        if not (curvature > 0 and math.isfinite(curvature)):
            reason = "objective perturbation needs a strongly convex objective, but this one has no proximal or L2 term"
            refuse(
                "privacy.mechanism",
                "objective",
                reason,
                'use algorithm "fedprox" with mu > 0, or local.weight_decay > 0',
            )
        return curvature

    def _claim_sent(self, updates: Updates, context: ReleaseContext, audience: frozenset[str]) -> tuple[Release, ...]:
        curvature = self._curvature_of(updates)
        for member in updates.cohort.members if self.multipliers is not None else ():
            self.rate(member, curvature)  # refuses a budget that the curvature alone exceeds
        events = {member: Pure(self.epsilon(member, curvature)) for member in updates.cohort.members}
        return tuple(
            context.sent_by(member, updates, event=event, audience=audience, what="own privately minimised model")
            for member, event in events.items()
        )
