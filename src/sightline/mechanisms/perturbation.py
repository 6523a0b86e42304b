"""Output perturbation and objective perturbation of exactly solved local problems."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.errors import invalid, refuse
from sightline.events import Adjacency, Event, Gaussian, Pure
from sightline.ledger import Release
from sightline.mechanisms.clip_and_noise import Aggregate, FiniteOnly, clip_update, sum_sensitivity, with_gaussian_noise
from sightline.mechanisms.contract import (
    BaseMechanism,
    NoisedBy,
    NoisedValue,
    ReleaseContext,
    ReleaseValues,
    only_client,
    weighted_mean,
)
from sightline.mechanisms.convex_solver import from_unit
from sightline.mechanisms.updates import ClientOutput, PrivateSteps, Updates
from sightline.randomness import EVERYONE
from sightline.topology import client_name

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
    AS_PUBLISHED = "as_published"


ASSUMPTIONS = {
    Bound.CLIPPED_MODEL: "the model is clipped to norm clip_norm, so any two differ by at most 2 clip_norm, "
    "however it was trained",
    Bound.STRONGLY_CONVEX: "the model is the minimiser, found up to gradient_tolerance, of a strongly convex objective "
    "whose examples have gradients of norm <= sqrt 2 (softmax regression, features of norm <= 1 with the bias)",
    Bound.PER_SAMPLE_MEAN: "the update is one mean of per-example gradients, each clipped to clip_norm; "
    "the number of examples is public",
    Bound.AS_PUBLISHED: "the noise was chosen for the sensitivity clip_norm / |D|, which clipping a model does not "
    "give; epsilon is computed for the true one, 2 clip_norm",
}


@dataclass(frozen=True)
class Facts:
    """The numbers in the sensitivity bounds."""

    clip_norm: float
    adjacency: Adjacency
    learning_rate: float
    curvature: float
    gradient_tolerance: float


def output_sensitivity(bound: Bound, size: int, facts: Facts) -> float:
    """Return the Euclidean distance by which one of `size` examples can move the result.

    clipped_model (and, in truth, as_published): 2 C. strongly_convex: G / (n mu), twice that under replace-one, plus 2
    gamma / mu for a solver that stops at gradient norm gamma. per_sample_mean: eta C / n, twice that under replace.

    Reference: Chaudhuri et al. 2011, Corollary 8; zero-out adjacency: |grad h' (w*)| = |grad f_j (w*)| / n <= G / n,
    and h' is mu-strongly convex.
    """
    if bound is Bound.PER_SAMPLE_MEAN:
        return sum_sensitivity(facts.learning_rate * facts.clip_norm / size, facts.adjacency)
    if bound is Bound.STRONGLY_CONVEX:
        if not facts.curvature > 0:
            law = "without a proximal or L2 term one example can move the minimiser without bound"
            refuse("privacy.sensitivity", bound, law, 'use algorithm "fedprox" with mu > 0, or local.weight_decay > 0')
        moved = sum_sensitivity(LIPSCHITZ / (size * facts.curvature), facts.adjacency)
        return moved + 2 * facts.gradient_tolerance / facts.curvature
    return 2 * facts.clip_norm


def published_epsilon(*, rounds: int, clip_norm: float, noise_std: float, size: int, delta: float) -> float:
    """Return what Theorem 6.2 of Yin et al. 2024 would claim with sensitivity tau / |D|. It is not a guarantee.

    >>> round(published_epsilon(rounds=80, clip_norm=1.0, noise_std=1.0, size=100, delta=1e-5), 4)
    0.4332
    """
    spent = rounds * (clip_norm / (noise_std * size)) ** 2 / 2
    return 2 * math.sqrt(spent * math.log(1 / delta)) + spent


@dataclass(frozen=True)
class Output(BaseMechanism):
    """Each member sends its model + N(0, noise_std^2); the server averages by data size.

    Guarantees: `Gaussian(noise_std / sensitivity)` for every example of a member, in every round in which it took part,
    against everyone; `sensitivity` is that of `bound`. With `as_published` the event carries the true sensitivity too.
    """

    bound: Bound
    facts: Facts
    weight_decay: float
    sizes: Mapping[int, int]
    classes: int
    noise_std: float | None = None
    multipliers: Mapping[int, float] | None = None

    noised_value = NoisedValue.MODEL

    def at(self, context: ReleaseContext) -> "Output":
        """Return itself for every channel."""
        return self

    def noised_by(self, context: ReleaseContext) -> NoisedBy:
        """Return `CLIENT`: every member adds noise."""
        return NoisedBy.CLIENT

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
        # `as_published` adds the paper's noise; `event` still states the true sensitivity, so that epsilon is honest
        # and large.
        claimed = self.facts.clip_norm / self.sizes[client] if self.bound is Bound.AS_PUBLISHED else sensitivity
        return (self.multipliers or {}).get(client, 1.0) * claimed

    def event(self, client: int, updates: Updates) -> Event:
        """Return what one round reveals about any one example of the client."""
        true = self.sensitivity(client, updates)
        return Gaussian(self.std(client, true) / true)

    def sensitivity(self, client: int, updates: Updates) -> float:
        """Return how far one example can move what the client sends, given the terms of its objective."""
        if self.bound in (Bound.STRONGLY_CONVEX, Bound.PER_SAMPLE_MEAN):
            only_proximal(updates, self.bound)
        curvature = self.weight_decay + updates.task.proximal
        return output_sensitivity(self.bound, self.sizes[client], replace(self.facts, curvature=curvature))

    def claim_mean(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """Claim one release per member to the server; the mean is post-processing of them."""
        sent = self._claim_sent(updates, context, frozenset({context.channel.name}))
        inputs = tuple(range(context.next_id, context.next_id + len(sent))) + updates.sources
        return *sent, context.published_mean(inputs, "mean of noised models")

    def mean(self, updates: Updates, context: ReleaseContext) -> ReleaseValues:
        """Average the members' noised models by their data sizes."""
        each = self.compute_each(updates, context)
        value = weighted_mean(each.values.items(), updates.sizes(), updates.worker.dimension)
        return ReleaseValues({EVERYONE: value}, each.rejected)

    def claim_each(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """Claim one release per member, to the channel's audience."""
        return self._claim_sent(updates, context, context.channel.audience)

    def compute_each(self, updates: Updates, context: ReleaseContext) -> ReleaseValues:
        """Return every member's noised model, as an update of its start."""
        finite = FiniteOnly()
        left = list(updates.collect_outputs(self, context))
        values = dict(finite((member, value) for member, value, _ in left))
        return ReleaseValues(values, sum(rejected for *_, rejected in left) + finite.rejected)

    def client_outputs(self, updates: Updates, context: ReleaseContext) -> Iterator[ClientOutput]:
        """Yield each member's noised model, as an update of its start."""
        for member, result, broken in self._local_results(updates):
            bound = self.sensitivity(member, updates)
            aggregate = Aggregate(result, bound)
            noisy = with_gaussian_noise(
                aggregate, noise_multiplier=self.std(member, bound) / bound, rng=context.noise(member)
            )
            # Noise is added in the space in which the bound holds; the change of space and the start are public.
            yield ClientOutput(member, self._as_update(noisy, updates.starts[member].value), broken)

    def list_caveats(self) -> list[str]:
        """Return the caveat on a solver that does not converge."""
        return [UNSOLVED]

    def explain_guarantee(self, *, rounds: int, delta: float, curvature: float) -> list[str]:
        """Return the assumption behind epsilon, and what the paper's own formula would have said."""
        facts = replace(self.facts, curvature=curvature)
        claims = [
            published_epsilon(
                rounds=rounds, clip_norm=facts.clip_norm, size=size, delta=delta,
                noise_std=self.std(client, output_sensitivity(self.bound, size, facts)),
            )
            for client, size in self.sizes.items()
        ]  # fmt: skip
        mean, worst = sum(claims) / len(claims), max(claims)
        return [
            f"Output perturbation, {self.bound}: {ASSUMPTIONS[self.bound]}.",
            "Theorem 6.2 of the paper, with its sensitivity clip_norm / |D|, would have said epsilon = "
            f"{mean:.4g} in the mean of the clients and {worst:.4g} for the smallest: that is no guarantee.",
        ]

    def _local_results(self, updates: Updates) -> Iterator[tuple[int, Tensor, bool]]:
        """Yield (client, value to be noised, whether it was not finite) of every member, in the space of the bound."""
        if self.bound is Bound.STRONGLY_CONVEX:
            for member, end in updates.minimise_objectives(linear={}, gradient_tolerance=self.facts.gradient_tolerance):
                yield member, end, False
        elif self.bound is Bound.PER_SAMPLE_MEAN:
            plans = [PrivateSteps(self.facts.clip_norm, 1.0, 1.0, 1, 1.0) for _ in updates.cohort.members]
            for member, total in zip(updates.cohort.members, updates.gradient_sums(plans), strict=True):
                yield member, total * (-self.facts.learning_rate / self.sizes[member]), False
        else:
            for member, update in updates.train_members():
                bounded = clip_update(updates.starts[member].value + update, clip_norm=self.facts.clip_norm)
                yield member, bounded.value, bounded.rejected

    def _as_update(self, noisy: Tensor, start: Tensor) -> Tensor:
        if self.bound is Bound.PER_SAMPLE_MEAN:
            return noisy
        if self.bound is Bound.STRONGLY_CONVEX:
            return torch.from_numpy(from_unit(noisy.double().numpy(), self.classes)).float() - start
        return noisy - start

    def _claim_sent(self, updates: Updates, context: ReleaseContext, audience: frozenset[str]) -> tuple[Release, ...]:
        return tuple(
            context.make_release(
                source=client_name(member),
                event=self.event(member, updates),
                audience=audience,
                what="own noised model",
                subjects=only_client(member),
                inputs=tuple(sorted(updates.starts[member].sources)),
            )
            for member in updates.cohort.members
        )


def only_proximal(updates: Updates, mechanism: str) -> None:
    """Raise `Refused` if the local objective has terms from private state: the bounds cover the data's loss only."""
    if updates.recall is not None or set(updates.task.named_fields()) - {"proximal"}:
        law = f"{mechanism} is proved for the data's loss and public L2 or proximal terms only"
        refuse("algorithm.name", "with client memory", law, "use fedavg, fedavgm, fedyogi or fedprox")


def isotropic_noise(dimension: int, *, rate: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Draw a vector of density proportional to exp(-rate |n|): norm ~ Gamma(dimension, 1 / rate), direction uniform.

    Guarantees: moving its centre by s changes the log-density nowhere by more than rate x s, so that adding it to a
    value of sensitivity s is rate x s-DP.
    """
    if not (rate > 0 and math.isfinite(rate)):
        invalid("noise_rate", rate, "is positive and finite")
    direction = rng.standard_normal(dimension)
    noise: NDArray[np.float64] = direction * (rng.gamma(dimension, 1 / rate) / np.linalg.norm(direction))
    return noise


REMAINDER = 0.01
"""The share of epsilon that covers the solver's remaining gradient (approximate minima perturbation)."""


@dataclass(frozen=True)
class Objective(BaseMechanism):
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

    noised_value = NoisedValue.MODEL

    def at(self, context: ReleaseContext) -> "Objective":
        """Return itself for every channel."""
        return self

    def noised_by(self, context: ReleaseContext) -> NoisedBy:
        """Return `CLIENT`: every member adds noise."""
        return NoisedBy.CLIENT

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
            law = f"a client of {self.sizes[client]} examples spends more on the curvature of its loss alone"
            refuse("privacy.epsilon", f"{self.epsilon(client, curvature):.4g} a round", law, "raise epsilon or mu")
        return left / self._gradient_shift(client)

    def claim_mean(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """Claim one release per member to the server; the mean is post-processing of them."""
        sent = self._claim_sent(updates, context, frozenset({context.channel.name}))
        inputs = tuple(range(context.next_id, context.next_id + len(sent))) + updates.sources
        return *sent, context.published_mean(inputs, "mean of privately minimised models")

    def mean(self, updates: Updates, context: ReleaseContext) -> ReleaseValues:
        """Average the members' models by their data sizes."""
        each = self.compute_each(updates, context)
        return ReleaseValues({EVERYONE: weighted_mean(each.values.items(), updates.sizes(), updates.worker.dimension)})

    def claim_each(self, updates: Updates, context: ReleaseContext) -> tuple[Release, ...]:
        """Claim one release per member, to the channel's audience."""
        return self._claim_sent(updates, context, context.channel.audience)

    def compute_each(self, updates: Updates, context: ReleaseContext) -> ReleaseValues:
        """Return every member's perturbed minimiser, as an update of its start."""
        return ReleaseValues({member: value for member, value, _ in updates.collect_outputs(self, context)})

    def client_outputs(self, updates: Updates, context: ReleaseContext) -> Iterator[ClientOutput]:
        """Draw each member's linear term, solve, and cover the solver's remainder with noise."""
        curvature, dimension = self._curvature_of(updates), updates.worker.dimension
        # One generator per member: the linear term comes first, the remainder's noise continues the same stream.
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

    def list_caveats(self) -> list[str]:
        """Return the caveat on a solver that does not converge."""
        return [UNSOLVED]

    def explain_guarantee(self, *, rounds: int, delta: float, curvature: float) -> list[str]:
        """Return the assumption behind epsilon, and what the paper's own formula would have said."""
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
