"""Exact minimiser of softmax regression with an L2 or proximal term, in double precision.

All computation is in the unit space: examples x~ = (x, 1 / sqrt 2) with |x| <= 1 / sqrt 2, so that |x~| <= 1 including
the bias, and parameters v = (W, sqrt 2 b), which give the same logits W x + b.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sightline.data import Client, Federation, Kind, Shard
from sightline.errors import SightlineError, refuse

Vector = NDArray[np.float64]
HALF = math.sqrt(0.5)
"""The largest norm of the features, and the constant feature of the bias: together they have norm 1."""
ROUNDING = 1e-5
"""Relative excess over `HALF` that float32 rounding may cause; such a feature vector is scaled back."""
MOST_STEPS = 1000
ROUGH = 1e-6
"""Gradient norm at which L-BFGS hands over to Newton: below it, differences of h are lost in rounding."""


class NotSolved(SightlineError):
    """Raised if the local minimiser was not found; nothing of the round may be published."""


@dataclass(frozen=True, eq=False)
class Regression:
    """The objective h(v) of one client.

    h(v) = 1/n sum_j CE(softmax(V x~_j), y_j) + weight_decay / 2 |v|^2 + proximal / 2 |v - anchor|^2 + <linear, v>.

    Guarantees: h is (weight_decay + proximal)-strongly convex; one example's gradient has norm <= sqrt 2, one example's
    Hessian has trace <= 1 - 1 / classes.
    """

    features: Vector
    labels: NDArray[np.int64]
    classes: int
    anchor: Vector
    proximal: float
    weight_decay: float = 0.0
    linear: Vector | None = None

    @property
    def curvature(self) -> float:
        """The strong convexity of h, for any data."""
        return self.proximal + self.weight_decay

    def probabilities(self, v: Vector) -> Vector:
        """Return softmax(V x~_j), one row per example."""
        scores = self.features @ v.reshape(self.classes, -1).T
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares: Vector = scores / scores.sum(axis=1, keepdims=True)
        return shares

    def value_and_gradient(self, v: Vector) -> tuple[float, Vector]:
        """Return h(v) and its gradient."""
        p = self.probabilities(v)
        rows = np.arange(len(self.labels))
        value = -np.log(np.maximum(p[rows, self.labels], 1e-300)).mean()
        p[rows, self.labels] -= 1
        gradient = (p.T @ self.features / len(rows)).ravel()
        away = v - self.anchor
        value += self.weight_decay / 2 * (v @ v) + self.proximal / 2 * (away @ away)
        gradient = gradient + self.weight_decay * v + self.proximal * away
        if self.linear is not None:
            value, gradient = value + self.linear @ v, gradient + self.linear
        return float(value), gradient

    def hessian(self, v: Vector) -> Vector:
        """Return 1/n sum_j (diag p_j - p_j p_j^T) (x) x~_j x~_j^T + curvature I."""
        p, x = self.probabilities(v), self.features
        width = x.shape[1]
        spread = (p[:, :, None] * x[:, None, :]).reshape(len(x), -1)
        whole: Vector = spread.T @ spread / -len(x) + self.curvature * np.eye(len(v))
        for k in range(self.classes):
            block = slice(k * width, (k + 1) * width)
            whole[block, block] += (x * p[:, k : k + 1]).T @ x / len(x)
        return whole


def minimise_regression(problem: Regression, *, gradient_tolerance: float) -> Vector:
    """Return the minimiser of h up to |grad h| <= tolerance: L-BFGS, then damped Newton, else Nesterov's method.

    Guarantees: the returned v is within tolerance / curvature of the exact minimiser. Raise `NotSolved` otherwise,
    which only rounding can cause.
    """
    from scipy.optimize import minimize

    # The sensitivity bounds divide by the curvature: without it no finite noise is enough.
    if not problem.curvature > 0:
        reason = "without a proximal or L2 term the minimiser moves without bound when one example changes"
        refuse(
            "algorithm.mu", problem.proximal, reason, 'use algorithm = "fedprox" with mu > 0, or local.weight_decay > 0'
        )
    options = {"gtol": max(gradient_tolerance, ROUGH) / len(problem.anchor) ** 0.5, "ftol": 0.0, "maxiter": MOST_STEPS}
    result = minimize(problem.value_and_gradient, problem.anchor, jac=True, method="L-BFGS-B", options=options)
    v = np.asarray(result.x)
    for _ in range(MOST_STEPS):
        value, gradient = problem.value_and_gradient(v)
        if np.linalg.norm(gradient) <= gradient_tolerance:
            return v
        v = newton_step(problem, v, value, gradient)
    # An approximate result is never returned: the privacy bounds hold for points within the tolerance only.
    return descend_accelerated(problem, gradient_tolerance=gradient_tolerance)


SMOOTHNESS = 0.5
"""The largest eigenvalue of one example's softmax Hessian if |x~| <= 1."""
FARTHEST_GRADIENT = 1e8
"""Largest gradient norm at the start that the iteration bound allows for; real problems are far below it."""


def most_iterations(curvature: float, *, gradient_tolerance: float, gradient: float = FARTHEST_GRADIENT) -> int:
    """Return how many accelerated steps bring |grad h| from `gradient` below the tolerance, for any data.

    With L = 1/2 + mu and kappa = L / mu: h(v_k) - h* <= (1 - kappa^-1/2)^k |g_0|^2 / mu, and |g|^2 <= 2 L (h - h*).
    Reference: Nesterov 2004, Theorem 2.2.3.

    >>> most_iterations(0.1, gradient_tolerance=1e-9)
    199
    """
    condition = (SMOOTHNESS + curvature) / curvature
    shrunk = math.log(2 * condition) + 2 * math.log(gradient / gradient_tolerance)
    return math.ceil(math.sqrt(condition) * max(shrunk, 0.0)) + 1


def descend_accelerated(problem: Regression, *, gradient_tolerance: float) -> Vector:
    """Return the same minimiser by Nesterov's method, with a number of steps known in advance."""
    smooth = SMOOTHNESS + problem.curvature
    root = math.sqrt(problem.curvature / smooth)
    v = ahead = problem.anchor
    first = float(np.linalg.norm(problem.value_and_gradient(v)[1]))
    for _ in range(most_iterations(problem.curvature, gradient_tolerance=gradient_tolerance / 2, gradient=first)):
        _, gradient = problem.value_and_gradient(ahead)
        moved = ahead - gradient / smooth
        v, ahead = moved, moved + (1 - root) / (1 + root) * (moved - v)
    if np.linalg.norm(problem.value_and_gradient(v)[1]) <= gradient_tolerance:
        return v
    raise NotSolved(
        f"gradient_tolerance={gradient_tolerance}: not reached in double precision; nothing is sent; use a larger one"
    )


def newton_step(problem: Regression, v: Vector, value: float, gradient: Vector) -> Vector:
    """Take one Newton step, halved until h (or, at the limit of double precision, its gradient) decreases."""
    direction = np.linalg.solve(problem.hessian(v), -gradient)
    length = 1.0
    while length > 1e-10:
        moved = v + length * direction
        there, slope = problem.value_and_gradient(moved)
        # Near the minimum h no longer changes in double precision while its gradient still does: hence the second test.
        if there <= value + 1e-4 * length * (gradient @ direction) or slope @ slope < 0.81 * (gradient @ gradient):
            return moved
        length /= 2
    return v + direction


def unit_examples(x: NDArray[np.float32]) -> Vector:
    """Return examples with the bias's constant feature. Raise `Refused` if they are not normalised."""
    flat = x.reshape(len(x), -1).astype(np.float64)
    norms = np.linalg.norm(flat, axis=1, keepdims=True)
    if norms.max(initial=0.0) > HALF * (1 + ROUNDING):
        refuse("features", f"norm {norms.max():.4g}", f"norms must be at most {HALF:.4g}", "normalise them first")
    flat = flat * np.minimum(1.0, HALF / np.maximum(norms, 1e-300))
    return np.concatenate([flat, np.full((len(flat), 1), HALF)], axis=1)


def to_unit(vector: Vector, classes: int) -> Vector:
    """Return a model's flat vector (W, b) in the unit space: rows (W_k, sqrt 2 b_k)."""
    weight, bias = vector[:-classes].reshape(classes, -1), vector[-classes:, None]
    return np.concatenate([weight, bias / HALF], axis=1).ravel()


def from_unit(v: Vector, classes: int) -> Vector:
    """Return the inverse of `to_unit`."""
    rows = v.reshape(classes, -1)
    return np.concatenate([rows[:, :-1].ravel(), rows[:, -1] * HALF])


NOTE = "features: every example is scaled to norm <= 1 / sqrt 2, so that with the bias's constant feature it is <= 1"
WHOLE_NOTE = "features: every example is scaled to norm <= 1; with the bias's constant feature, 1, it is <= sqrt 2"


def unit_features(federation: Federation, norm: float = HALF) -> Federation:
    """Return the federation with every longer example scaled down to the norm, 1 / sqrt 2 or 1.

    Guarantees: the scaling of an example depends on that example only, so it is not a release.
    """
    if federation.kind is Kind.TEXT:
        refuse("data.source", federation.source, "text has no feature vectors of bounded norm", "use vectors or images")
    clients = tuple(
        Client(unit_shard(client.train, norm), unit_shard(client.test, norm), client.cluster)
        for client in federation.clients
    )
    notes = (*federation.notes, NOTE if norm < 1 else WHOLE_NOTE)
    return replace(federation, clients=clients, test=unit_shard(federation.test, norm), notes=notes)


def unit_shard(shard: Shard, norm: float = HALF) -> Shard:
    """Return the shard with every example's norm at most `norm`."""
    flat = shard.x.reshape(len(shard), math.prod(shard.x.shape[1:])).astype(np.float64)
    norms = np.linalg.norm(flat, axis=1, keepdims=True)
    scaled: NDArray[np.float32] = (flat * np.minimum(1.0, norm / np.maximum(norms, 1e-300))).astype(np.float32)
    return Shard(scaled.reshape(shard.x.shape), shard.y)
