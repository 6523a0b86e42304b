"""How far one example can move what a client sends: three honest bounds, and one that was published."""

import math
from dataclasses import dataclass
from enum import StrEnum

from sightline.errors import refuse
from sightline.events import Adjacency
from sightline.mechanisms.clip import sum_sensitivity

LIPSCHITZ = math.sqrt(2)
"""The norm of one example's softmax gradient (p - e_y) x~^T is at most sqrt 2 when |x~| <= 1."""


class Bound(StrEnum):
    """What the sensitivity of a client's model rests on."""

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
    """The numbers that the bounds are made of."""

    clip_norm: float
    adjacency: Adjacency
    learning_rate: float
    curvature: float
    gradient_tolerance: float


def output_sensitivity(bound: Bound, size: int, facts: Facts) -> float:
    r"""The Euclidean distance that one example of `size` can move the result.

    clipped_model (and, in truth, as_published): 2 C. strongly_convex: G / (n mu), twice that under replace-one, plus
    2 gamma / mu for a solver that stops at gradient norm gamma. per_sample_mean: eta C / n, twice that under replace.

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
    """What Theorem 6.2 of Yin et al. 2024 would claim, taking the sensitivity to be tau / |D|: no guarantee.

    >>> round(published_epsilon(rounds=80, clip_norm=1.0, noise_std=1.0, size=100, delta=1e-5), 4)
    0.4332
    """
    spent = rounds * (clip_norm / (noise_std * size)) ** 2 / 2
    return 2 * math.sqrt(spent * math.log(1 / delta)) + spent
